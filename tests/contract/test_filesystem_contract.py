"""fsspec's own battery for filesystems, over key-value stores in the place of a directory.

Three stores are fsstore's own; the others are filesystems of fsspec, over files, memory and servers on this machine, which
so pass it by way of a store.
"""

from __future__ import annotations

import pytest
from fsspec.implementations.local import LocalFileSystem
from fsspec.tests import abstract

import fsstore as ts
from fsstore.filesystem.kv import KvFileSystem
from fsstore.filesystem.place import live_kv
from tests.contract import test_filesystem_matrix as matrix

URLS = {"memory": "memory://", "file": "file://{}/s/", "ocdbt": "file://{}/s/|ocdbt:"}
PLAIN = (matrix.file, matrix.memory, matrix.s3, matrix.gcs, matrix.abfs)

pytestmark = pytest.mark.usefixtures("s3_credentials")


class Fixtures(abstract.AbstractFixtures):
    """The fixtures of the battery."""

    @pytest.fixture(
        params=[*URLS, *(pytest.param(each, marks=pytest.mark.long, id=f"fsspec-{each.__name__}") for each in PLAIN)]
    )
    def fs(self, request, tmp_path):
        """Give the filesystem."""
        if request.param in URLS:
            return KvFileSystem.of(ts.KvStore.open(URLS[request.param].format(tmp_path)).result())
        return KvFileSystem.of(ts.KvStore.of(live_kv(request.param(tmp_path / "s", request))))

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
