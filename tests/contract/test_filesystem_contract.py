"""fsspec's own battery for filesystems, over a key-value store in the place of a directory."""

from __future__ import annotations

import pytest
from fsspec.implementations.local import LocalFileSystem
from fsspec.tests import abstract

import fsstore as ts
from fsstore.filesystem.kv import KvFileSystem


class Fixtures(abstract.AbstractFixtures):
    """The fixtures of the battery."""

    @pytest.fixture(params=["memory", "file", "ocdbt"])
    def fs(self, request, tmp_path):
        """Give the filesystem: over memory, local files, and a database."""
        url = {
            "memory": "memory://",
            "file": f"file://{tmp_path}/s/",
            "ocdbt": f"file://{tmp_path}/s/|ocdbt:",
        }
        store = ts.KvStore.open(url[request.param]).result()
        return KvFileSystem.of(store)

    @pytest.fixture
    def fs_path(self):
        """Give a directory of the filesystem."""
        return "dir"

    @pytest.fixture
    def local_fs(self):
        """Give the local filesystem."""
        return LocalFileSystem(auto_mkdir=True)

    @pytest.fixture
    def local_path(self, tmp_path):
        """Give a local directory."""
        (tmp_path / "local").mkdir()
        return str(tmp_path / "local")

    @pytest.fixture
    def supports_empty_directories(self):
        """Say that directories are there when keys are."""
        return False


class TestGet(abstract.AbstractGetTests, Fixtures):
    """Downloads."""


class TestPut(abstract.AbstractPutTests, Fixtures):
    """Uploads."""


class TestCopy(abstract.AbstractCopyTests, Fixtures):
    """Copies."""


class TestPipe(abstract.AbstractPipeTests, Fixtures):
    """Values written at once."""


class TestOpen(abstract.AbstractOpenTests, Fixtures):
    """Open files."""
