"""A bucket whose requests are befallen by faults, by their number: errors, lost answers, an outage, kills of the client."""

from __future__ import annotations

import io
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from job_faults import Fault

sys.path.insert(0, str(Path(__file__).parents[2]))

import fsstore as ts
from tests.conftest import ObjectServer
from tests.fault.test_http_faults import reset

BUCKET_FAULTS = ("error", "lost", "dropped", "outage", "forbidden", "interrupt", "kill", "kill after")
FAST = ts.Context(
    {"s3_request_retries": {"max_retries": 3, "initial_delay": "1ms", "max_delay": "2ms"}, "file_io_sync": False}
)


class FaultyBucket(ObjectServer):
    """An object server with one fault, which befalls the client whose number is told after it has been started."""

    def __init__(self) -> None:
        super().__init__()
        os.environ |= {
            "AWS_ACCESS_KEY_ID": "id",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_EC2_METADATA_DISABLED": "true",
        }
        self.fault = Fault("none", 0)
        self.hit = False
        self._seen = 0
        self._client = 0
        self._begun = threading.Event()

    def aim(self, fault: Fault | None) -> None:
        """Set the fault of the next client."""
        self.fault, self.hit, self._seen = fault or Fault("none", 0), False, 0
        self._begun.clear()

    def befall(self, client: int) -> None:
        """Say which process the client is."""
        self._client = client
        self._begun.set()

    def put_folder(self, folder: Path, prefix: str) -> None:
        """Store the files of a folder."""
        for path in folder.rglob("*"):
            if path.is_file():
                self.put(f"{prefix}{path.relative_to(folder)}", path.read_bytes())

    def files(self, prefix: str) -> dict[str, bytes]:
        """Return the objects below a prefix by the rest of their keys."""
        with self.lock:
            return {key.removeprefix(prefix): data for key, data in self.objects.items() if key.startswith(prefix)}

    def keep_only(self, objects: dict[str, bytes]) -> None:
        """Let the bucket be as it was."""
        with self.lock:
            self.objects.clear()
            self.objects.update(objects)

    def take_fault(self, method: str, path: str) -> Callable[..., None] | None:
        """Return the fault if this is its request."""
        self._seen += 1
        kind, due, past = self.fault.kind, self._seen == self.fault.number, self._seen >= self.fault.number
        changes = method in ("PUT", "DELETE", "POST")
        lasting = {"outage": past, "forbidden": past and changes}
        if kind not in BUCKET_FAULTS or not lasting.get(kind, due):
            return None
        self.hit = True
        return getattr(self, f"_{kind.replace(' ', '_')}")

    def _error(self, handler: Any, path: str, body: bytes) -> None:
        handler.reply(500)

    def _forbidden(self, handler: Any, path: str, body: bytes) -> None:
        handler.reply(403, b"<Error><Code>AccessDenied</Code></Error>")

    def _dropped(self, handler: Any, path: str, body: bytes) -> None:
        reset(handler, path, body)

    _outage = _dropped

    def _lost(self, handler: Any, path: str, body: bytes) -> None:
        _silently(handler, body)
        reset(handler, path, body)

    def _interrupt(self, handler: Any, path: str, body: bytes) -> None:
        self._signal(signal.SIGINT)
        _properly(handler, body)

    def _kill(self, handler: Any, path: str, body: bytes) -> None:
        self._signal(signal.SIGKILL)
        reset(handler, path, body)

    def _kill_after(self, handler: Any, path: str, body: bytes) -> None:
        _silently(handler, body)
        self._kill(handler, path, body)

    def _signal(self, number: int) -> None:
        self._begun.wait()
        os.kill(self._client, number)


def _properly(handler: Any, body: bytes) -> None:
    split = urlsplit(handler.path)
    handler.serve(unquote(split.path), parse_qs(split.query, keep_blank_values=True), body)


def _silently(handler: Any, body: bytes) -> None:
    """Do what is asked, and say nothing."""
    heard, handler.wfile = handler.wfile, io.BytesIO()
    _properly(handler, body)
    handler.wfile = heard
