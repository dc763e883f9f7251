"""JSON pointers: finding and replacing a part of a JSON value (RFC 6901)."""

from __future__ import annotations

import copy
import re
from typing import Any

from fsstore.errors import FailedPreconditionError, NotFoundError, OutOfRangeError, StoreError
from fsstore.values.json_value import quote, show

__all__ = ["check_pointer", "find", "replace"]

_BAD_TILDE = re.compile(r"~(?![01])")
_INDEX = re.compile(r"0|[1-9][0-9]{0,17}")


def check_pointer(pointer: str) -> str:
    """Return a well-formed pointer, or raise."""
    if pointer and not pointer.startswith("/"):
        raise StoreError(f"JSON Pointer does not start with '/': {quote(pointer)}")
    if _BAD_TILDE.search(pointer):
        raise StoreError(f"JSON Pointer requires '~' to be followed by '0' or '1': {quote(pointer)}")
    return pointer


def _steps(pointer: str) -> list[tuple[str, str]]:
    """Return each reference token, decoded, with the pointer up to and including it."""
    steps, upto = [], ""
    for token in pointer.split("/")[1:]:
        upto += "/" + token
        steps.append((token.replace("~1", "/").replace("~0", "~"), upto))
    return steps


def _index(token: str, array: list[Any], upto: str, outside: type[StoreError]) -> int:
    if not _INDEX.fullmatch(token):
        raise FailedPreconditionError(f"JSON Pointer {quote(upto)} is invalid for array value")
    index = int(token)
    if index >= len(array):
        raise outside(f"JSON Pointer {quote(upto)} is out-of-range for array of size {len(array)}")
    return index


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    return {str: "string", type(None): "null"}.get(type(value), "number")


def find(value: Any, pointer: str) -> Any:
    """Return the part of `value` that a pointer names, or raise what is missing."""
    for token, upto in _steps(pointer):
        if isinstance(value, dict):
            if token not in value:
                raise NotFoundError(f"JSON Pointer {quote(upto)} refers to non-existent object member")
            value = value[token]
        elif isinstance(value, list):
            if token == "-":
                raise FailedPreconditionError(
                    f"JSON Pointer {quote(upto)} refers to non-existent array element"
                )
            value = value[_index(token, value, upto, OutOfRangeError)]
        else:
            raise _through_scalar(upto, value)
    return value


def _through_scalar(upto: str, value: Any) -> FailedPreconditionError:
    return FailedPreconditionError(
        f"JSON Pointer reference {quote(upto)} cannot be applied to {_kind(value)} value: {show(value)}"
    )


def replace(document: Any, pointer: str, part: Any) -> Any:
    """Return the document with the part a pointer names replaced; missing objects are made."""
    steps = _steps(pointer)
    if not steps:
        return part
    root = value = copy.deepcopy(document)
    for (token, upto), following in zip(steps, [*steps[1:], None], strict=True):
        last = following is None
        if isinstance(value, dict):
            if last:
                value[token] = part
            else:
                value = value.setdefault(token, {})
        elif isinstance(value, list):
            if token == "-":
                value.append(part if last else {})
                value = value[-1]
                continue
            index = _index(token, value, upto, FailedPreconditionError)
            if last:
                value[index] = part
            else:
                value = value[index]
        else:
            raise _through_scalar(upto, value)
    return root
