"""A bucket of moto on the loopback address, with the files of a folder in it.

moto answers a request in milliseconds, all of them on one interpreter; so cells on it tell how many requests a library
makes, and not how quick it is.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

__all__ = ["Bucket", "bucket"]

_NAME, _REGION = "space", "us-east-1"


class Bucket:
    """The process that keeps the bucket; it ends with its owner."""

    def __init__(self) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.endpoint = f"http://127.0.0.1:{port}"
        command = [sys.executable, "tests/servers/atomic_moto.py", str(port)]
        quiet = subprocess.DEVNULL
        self._process = subprocess.Popen(command, stdout=quiet, stderr=quiet)
        for _ in range(300):
            with suppress(OSError):
                self._put("", b"")
                break
            time.sleep(0.1)
        else:
            raise RuntimeError("moto does not answer")

    def _put(self, path: str, data: bytes) -> None:
        request = urllib.request.Request(
            f"{self.endpoint}/{_NAME}{path}",
            data=data,
            method="PUT",
            headers={"Content-Type": "application/octet-stream"},
        )
        urllib.request.urlopen(request, timeout=10).close()

    def fill(self, folder: Path, prefix: str) -> None:
        """Put the files of a folder below a prefix."""
        for path in folder.rglob("*"):
            if path.is_file():
                self._put(f"/{prefix}/{path.relative_to(folder)}", path.read_bytes())

    def spec(self, prefix: str) -> dict[str, Any]:
        """Return the store below a prefix as TensorStore and fsstore take it."""
        return {
            "driver": "s3",
            "bucket": _NAME,
            "path": f"{prefix}/",
            "endpoint": self.endpoint,
            "aws_region": _REGION,
            "aws_credentials": {"type": "environment"},
        }

    def obstore(self, prefix: str) -> Any:
        """Return the store below a prefix as zarr-python takes it."""
        import zarr
        from obstore.store import S3Store

        place = S3Store(
            _NAME, prefix=prefix, endpoint=self.endpoint, region=_REGION, client_options={"allow_http": True}
        )
        return zarr.storage.ObjectStore(place)

    def __del__(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()


@lru_cache(maxsize=1)
def bucket() -> Bucket:
    """Return the bucket of this process: moto takes seconds to start, and takes any key."""
    os.environ |= {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
    return Bucket()
