"""An open file of a `KvFileSystem`: reads are range requests behind fsspec's cache, a write is stored when closed."""

from __future__ import annotations

from fsspec.spec import AbstractBufferedFile

__all__ = ["KvFile"]


class KvFile(AbstractBufferedFile):  # type: ignore[misc]  # fsspec is untyped
    """A file.  Written bytes become visible as a whole, when the file is closed."""

    def _fetch_range(self, start: int, end: int) -> bytes:
        value: bytes = self.fs.cat_file(self.path, start=start, end=end)
        return value

    def _initiate_upload(self) -> None:
        self._parts: list[bytes] = []
        if "a" in self.mode and self.fs.exists(self.path):
            self._parts.append(self.fs.cat_file(self.path))

    def _upload_chunk(self, final: bool = False) -> bool:
        self._parts.append(self.buffer.getvalue())
        if final and self.autocommit:
            self.commit()
        return True

    def commit(self) -> None:
        """Store what was written."""
        mode = "create" if "x" in self.mode else "overwrite"
        self.fs.pipe_file(self.path, b"".join(self._parts), mode=mode)

    def discard(self) -> None:
        """Forget what was written."""
        self._parts = []
