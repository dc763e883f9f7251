"""An HDF5 file opened by h5py over cached blocks: a miss is an exception.

HDF5 asks for a few hundred bytes at a time, one request after the other.  Far away that is a round trip each, under a
lock of the whole process.  So the file object given to it never waits: a read of what is not cached raises, the HDF5
call fails cleanly, what it wanted is noted, and the work goes on with something else.  All that was noted is fetched
together, and what failed is tried again.

Whether a call failed for want of a block is told by the note, never by the type of the error: HDF5 turns it into any.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, TypeVar

from fsstore.errors import DataLossError, StoreError, UnimplementedError
from fsstore.kvstore.scan.source import Blocks, MissError, ScanSource
from fsstore.runtime import fork

__all__ = ["OpenHdf5", "load_h5py", "refused"]

T = TypeVar("T")
_HEAP = b"GCOL\1"
_AHEAD = 2048  # bytes of an object header that are fetched with the links to it


def _ends(heap: bytes, width: int) -> bool:
    """Return whether a walk through the objects of a global heap comes to an end; HDF5 does not see to that.

    An object of number 0 is what is left, and its size counts its header too.
    """
    head, at = 8 + width, 8 + width
    end = int.from_bytes(heap[8:at], "little")
    while at + head <= min(end, len(heap)):
        size = int.from_bytes(heap[at + 8 : at + head], "little")
        step = head + -(-size // 8) * 8 if heap[at] or heap[at + 1] else size
        if not 0 < step <= end - at:
            return False
        at += step
    return True


def load_h5py() -> Any:
    """Return h5py, or raise the error that says how to install it."""
    try:
        import h5py
    except ImportError:
        raise UnimplementedError("HDF5 files need h5py: pip install 'fsstore[hdf5]'") from None
    return h5py


class _BlockFile:
    """The file object that HDF5 reads from.  `failure` is an error of the store, which must not be lost on the way."""

    def __init__(self) -> None:
        self.blocks: Blocks | None = None
        self.missed = False
        self.failure: StoreError | None = None
        self.width = 8  # of lengths in the file
        self._at = 0

    def seek(self, offset: int, whence: int = 0) -> int:
        """Go to a place; the end is that of the file."""
        size = 0 if self.blocks is None else self.blocks.size
        self._at = offset + (self._at if whence == 1 else size if whence == 2 else 0)
        return self._at

    def tell(self) -> int:
        """Return the place."""
        return self._at

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer; behind the end of the file are zeros."""
        view = memoryview(buffer).cast("B")
        if self.blocks is None:
            raise OSError("the file is closed")
        try:
            data = self.blocks.read(self._at, self._at + len(view))
            if data.startswith(_HEAP) and not _ends(data, self.width):
                raise DataLossError(f"the global heap at offset {self._at} is damaged: a size leads nowhere")
        except MissError:
            self.missed = True
            raise
        except StoreError as error:
            self.failure = error
            raise
        view[: len(data)] = data
        if len(data) < len(view):
            view[len(data) :] = bytes(len(view) - len(data))
        self._at += len(view)
        return len(view)

    def write(self, data: Any) -> int:
        """Refuse."""
        raise OSError("the file is read-only")

    def truncate(self, size: int | None = None) -> int:
        """Refuse."""
        raise OSError("the file is read-only")

    def flush(self) -> None:
        """Do nothing."""


class OpenHdf5:
    """One generation of an HDF5 file.

    `base` is how many bytes of the user stand before it, `sizes` how many bytes addresses and lengths have.  `url` is
    what chunk tables call it: empty for the scanned file, as other files are called that it refers to.
    """

    def __init__(self, source: ScanSource, url: str = "") -> None:
        self.source, self.url = source, url
        self.h5py = load_h5py()
        self.base = 0
        self.sizes: tuple[int, int] = (8, 8)
        self._file = _BlockFile()
        self._id: Any = None
        self._lock = fork.lock()

    async def run(self, job: Callable[[Any], T]) -> T:
        """Return what `job` returns, given the file's identifier, once nothing it reads is missing."""

        def work(blocks: Blocks) -> T:
            with self._lock:
                self._file.blocks = blocks
                try:
                    return job(self._opened())
                except Exception:
                    if self._file.failure is not None:
                        failure, self._file.failure = self._file.failure, None
                        raise failure from None
                    raise

        return await self.source.settle(work)

    def attempt(self, job: Callable[[], T]) -> tuple[bool, T | Exception]:
        """Return whether nothing that `job` needs was missing, and what came of it: a value or its error."""
        self._file.missed = False
        try:
            found: T | Exception = job()
        except Exception as error:  # HDF5 raises any; the caller notes it by object
            if self._file.failure is not None:
                raise
            found = error
        return not self._file.missed, found

    def expect(self, address: int) -> None:
        """Say that an object header at an address will be read."""
        blocks, start = self._file.blocks, self.base + address
        if blocks is not None and 0 <= start < blocks.size:
            blocks.want(start, min(start + _AHEAD, blocks.size))

    def _opened(self) -> Any:
        if self._id is None:
            from h5py import h5f, h5fd, h5p

            access = h5p.create(h5p.FILE_ACCESS)
            access.set_fileobj_driver(h5fd.fileobj_driver, self._file)
            access.set_fclose_degree(h5f.CLOSE_STRONG)
            try:
                self._id = h5f.open(b"fsstore", h5f.ACC_RDONLY, access)
            except OSError as error:
                if self._file.missed or self._file.failure is not None:
                    raise
                raise DataLossError(f"HDF5 cannot open it: {_first_line(error)}") from None
            # HDF5 must have closed the file before the interpreter is gone, for it calls the file object to do so
            weakref.finalize(self, _close, self._id)
            plist = self._id.get_create_plist()
            self.base, self.sizes = plist.get_userblock(), tuple(plist.get_sizes())
            self._file.width = self.sizes[1]
        return self._id


def refused(error: Exception) -> StoreError:
    """Return the error to raise for one of HDF5."""
    if isinstance(error, StoreError):
        return error
    return DataLossError(f"HDF5 cannot read it: {' '.join(str(error).split())}")


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _close(identifier: Any) -> None:
    if identifier.valid:
        identifier.close()
