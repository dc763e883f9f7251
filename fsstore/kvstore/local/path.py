"""Keys as paths of local files: which are allowed, and how failures on them are reported.

A key is the path.  Components that would leave the tree, that a filesystem would fold together, or that are names
of lock files are refused; they could not be told apart from other keys.  Nothing here opens a path.
"""

# ruff: noqa: PTH120  # paths are bytes here, which pathlib does not know, and a Path costs as much as the call

from __future__ import annotations

import errno
import os
import posixpath
import re
from collections.abc import Mapping

from fsstore.errors import (
    AlreadyExistsError,
    DeadlineExceededError,
    FailedPreconditionError,
    NotFoundError,
    PermissionDeniedError,
    ResourceExhaustedError,
    StoreError,
    UnavailableError,
)
from fsstore.values.json_value import quote

__all__ = [
    "LOCK_SUFFIX",
    "absolute",
    "check_prefix",
    "file_path",
    "normalize",
    "os_failure",
    "parent",
    "text",
]

LOCK_SUFFIX = ".__lock"
"""Ends the names of lock and temporary files, which are never keys."""

_COMPONENT = r"(?!\.{1,2}(?:/|$))(?:(?!\.__lock(?:/|$))[^/\0])+"
_KEY = re.compile(rf"/?{_COMPONENT}(?:/{_COMPONENT})*")
_PREFIX = re.compile(rf"/?(?:{_COMPONENT}(?:/{_COMPONENT})*/?)?")

_CLASSES: Mapping[int, type[StoreError]] = {
    errno.EACCES: PermissionDeniedError,
    errno.EPERM: PermissionDeniedError,
    errno.EROFS: PermissionDeniedError,
    errno.ENOENT: NotFoundError,
    errno.EEXIST: AlreadyExistsError,
    errno.EISDIR: FailedPreconditionError,
    errno.ENOTDIR: FailedPreconditionError,
    errno.ENOTEMPTY: FailedPreconditionError,
    errno.ELOOP: FailedPreconditionError,
    errno.EXDEV: FailedPreconditionError,
    errno.ENOSPC: ResourceExhaustedError,
    errno.EDQUOT: ResourceExhaustedError,
    errno.EFBIG: ResourceExhaustedError,
    errno.EMFILE: ResourceExhaustedError,
    errno.ENFILE: ResourceExhaustedError,
    errno.ENOMEM: ResourceExhaustedError,
    errno.ETIMEDOUT: DeadlineExceededError,
    errno.EAGAIN: UnavailableError,
    errno.EBUSY: UnavailableError,
    errno.EIO: UnavailableError,
    errno.ESTALE: UnavailableError,
    errno.ENOLCK: UnavailableError,
}


def file_path(key: str) -> bytes:
    """Return the path of the file that holds `key`, or raise `StoreError`.

    The quick test lets through what is plainly fine; it runs once a chunk.
    """
    try:
        path = key.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise StoreError(f"Invalid key: {quote(key.encode('utf-8', 'surrogatepass'))}") from None
    if (
        not path
        or b"/." in path
        or b"//" in path
        or path[:1] == b"."
        or path[-1:] == b"/"
        or b"\0" in path
        or b".__lock" in path
    ) and not _KEY.fullmatch(key):
        raise StoreError(f"Invalid key: {quote(key)}")
    return path


def check_prefix(path: str) -> str:
    """Return the path of a spec unchanged, or raise `StoreError` when no key can begin with it.

    On Windows backslashes are slashes, and the slash before a drive letter goes.
    """
    if os.name == "nt":
        path = path.replace("\\", "/")
        path = path[1:] if re.match(r"/[A-Za-z]:", path) else path
    dotted = "/." in path or path[:1] == "." or ".__lock" in path
    if (dotted or "//" in path or "\0" in path) and not _PREFIX.fullmatch(path):
        raise StoreError(f"Invalid file path: {quote(path)}")
    return path


def normalize(path: str) -> str:
    """Return the path with `.`, `..` and doubled slashes resolved as text; a final slash stays.

    >>> normalize("//a/../b/./c/")
    '/b/c/'
    """
    if not path:
        return path
    plain = posixpath.normpath(path)
    plain = "/" + plain.lstrip("/") if plain.startswith("/") else plain
    if plain == ".":
        return ""
    is_directory = path.endswith(("/", "/.", "/..")) and plain != "/"
    return plain + "/" if is_directory else plain


def absolute(path: str) -> str:
    """Return a path from the root on; a final slash stays, and no path at all is the current directory.

    >>> absolute("/a/b/")
    '/a/b/'
    """
    if os.path.isabs(path):  # noqa: PTH117  # text, which may be no path of this system
        return path
    here = os.getcwd().rstrip("/")  # noqa: PTH109  # links stay, as they do in paths
    return normalize(f"{here}/{path}")


def parent(path: bytes) -> bytes:
    """Return the path of the directory that holds `path`."""
    return os.path.dirname(path) or b"."


def text(path: bytes) -> str:
    """Return a path as key; the inverse of `file_path`."""
    return path.decode("utf-8", "surrogateescape")


def os_failure(action: str, path: bytes, error: OSError, detail: str = "") -> StoreError:
    """Return the error for a failed system call: `Failed to open: "/a": Permission denied`.

    `detail` follows the path.  The class says what kind of failure it is.
    """
    kind = _CLASSES.get(error.errno or 0, StoreError)
    reason = os.strerror(error.errno) if error.errno else str(error)
    failure = kind(
        f"Failed to {action}: {quote(path)}{detail}: {reason} [os_error_code='{error.errno}']",
    )
    failure.__cause__ = error
    return failure
