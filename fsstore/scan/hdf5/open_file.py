"""An HDF5 file over cached blocks, parsed here, and opened by h5py where it has to be: a miss is an exception.

HDF5 asks for a few hundred bytes at a time, one request after the other.  Far away that is a round trip each, under a
lock of the whole process.  So the file object given to it never waits: a read of what is not cached raises, the HDF5
call fails cleanly, what it wanted is noted, and the work goes on with something else.  All that was noted is fetched
together, and what failed is tried again.  Our own parser reads in the same way.

Whether a call failed for want of a block is told by the note, never by the type of the error: HDF5 turns it into any.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, TypeVar

from fsstore.errors import DataLossError, StoreError, UnimplementedError
from fsstore.runtime import fork
from fsstore.scan.hdf5.format.global_heap import COLLECTION, ends
from fsstore.scan.hdf5.format.reader import Reader, UnknownError
from fsstore.scan.hdf5.format.superblock import begin
from fsstore.scan.source import Blocks, MissError, ScanSource
from fsstore.scan.tuning import OBJECT_AHEAD_BYTES

__all__ = ["OpenHdf5", "load_h5py", "refused"]

T = TypeVar("T")


def load_h5py() -> Any:
    """Return h5py, or raise the error that says how to install it."""
    try:
        import h5py
    except ImportError:
        raise UnimplementedError(
            "Reading this needs h5py, which is not installed: pip install 'fsstore[hdf5]'"
        ) from None
    return h5py


class _BlockFile:
    """The file object that HDF5 reads from.  `failure` is an error of the store, which must not be lost on the way."""

    def __init__(self) -> None:
        self.blocks: Blocks | None = None
        self.missed = False
        self.failure: StoreError | None = None
        self.width = 8  # of lengths in the file
        self._at = 0

    @property
    def size(self) -> int:
        """The size of the file."""
        return 0 if self.blocks is None else self.blocks.size

    @property
    def waits(self) -> bool:
        """Whether the file is far away."""
        return self.blocks is not None and self.blocks.source.waits

    def octets(self, start: int, stop: int) -> bytes:
        """Return the bytes `[start, stop)`; the end of the file ends them."""
        if self.blocks is None:
            raise OSError("the file is closed")
        try:
            return self.blocks.read(start, stop)
        except MissError:
            self.missed = True
            raise
        except StoreError as error:
            self.failure = error
            raise

    def ahead(self, start: int, stop: int) -> None:
        """Say that bytes will be read: of a file that is far away."""
        if self.blocks is not None and self.waits:
            self.blocks.want(start, stop)

    def describe(self, offset: int) -> str:
        """Return how messages call a place in the file."""
        return "it" if self.blocks is None else self.blocks.source.describe(offset)

    def seek(self, offset: int, whence: int = 0) -> int:
        """Go to a place; the end is that of the file."""
        self._at = offset + (self._at if whence == 1 else self.size if whence == 2 else 0)
        return self._at

    def tell(self) -> int:
        """Return the place."""
        return self._at

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer; behind the end of the file are zeros."""
        view = memoryview(buffer).cast("B")
        data = self.octets(self._at, self._at + len(view))
        if data.startswith(COLLECTION) and not ends(data, self.width):
            self.failure = DataLossError(
                f"the global heap at offset {self._at} is damaged: a size leads nowhere"
            )
            raise self.failure
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

    `base` is how many bytes of the user stand before it, `sizes` how many bytes addresses and lengths have, `root` is
    the address of the root group.  `url` is what chunk tables call it: empty for the scanned file, as other files are
    called that it refers to.  `reader` reads its structures, and is None if only HDF5 can.
    """

    def __init__(self, source: ScanSource, url: str = "") -> None:
        self.source, self.url = source, url
        self.base = self.root = 0
        self.sizes: tuple[int, int] = (8, 8)
        self.reader: Reader | None = None
        self._begun = False
        self._file = _BlockFile()
        self._id: Any = None
        self._lock = fork.lock()

    async def run(self, job: Callable[[], T]) -> T:
        """Return what `job` returns, once nothing it reads is missing."""

        def work(blocks: Blocks) -> T:
            with self._lock:
                self._file.blocks = blocks
                try:
                    self._begin()
                    return job()
                except Exception:
                    if self._file.failure is not None:
                        failure, self._file.failure = self._file.failure, None
                        raise failure from None
                    raise

        return await self.source.settle(work)

    def _begin(self) -> None:
        if self._begun:
            return
        try:
            self.reader, self.root = begin(self._file)
        except UnknownError:
            self.library()
        else:
            self.base, self.sizes = self.reader.base, (self.reader.width, self.reader.lengths)
        self._begun = True

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
        start = self.base + address
        if 0 <= start < self._file.size:
            self._file.ahead(start, min(start + OBJECT_AHEAD_BYTES, self._file.size))

    def library(self) -> Any:
        """Return the file's identifier of h5py, in a job that runs."""
        if self._id is None:
            load_h5py()
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
