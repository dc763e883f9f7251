"""S3, GCS, Azure and HTTP through `obstore`, the Rust object-store client: a tenth of the client work of s3fs.

obstore's blocking calls release the interpreter lock, so a batch is spread over pool threads.  obstore checks
`Content-Range` itself; what it lets through (a range cut at the end of the value) is caught here.  Retries are ours:
obstore's would be silent, would wait a minute for a connection that is refused, and would send a write again whose
answer was lost (see `lost_answer`).

Generations hold the entity tag and, where the storage has one, the version.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from fsstore.errors import UnavailableError, UrlError
from fsstore.kvstore.client.object_copy import CopiesObjects
from fsstore.kvstore.client.object_option import get_options, retry_config
from fsstore.kvstore.client.object_write import WritesObjects, generation_of
from fsstore.kvstore.client.range_answer import RangeAnswer, fit, received
from fsstore.kvstore.contract.ability import AnswersSoon, TellsModified
from fsstore.kvstore.contract.driver import (
    NO_VALUE,
    Entry,
    Features,
    Read,
    ReadResult,
    ReadUpTo,
    check_announced,
    limit_of,
    now,
)
from fsstore.kvstore.engine.contract import located
from fsstore.kvstore.engine.fault import is_missing, status_of
from fsstore.kvstore.engine.retry import Attempts, Retry, persist_blocking
from fsstore.kvstore.engine.soon import SoonReads
from fsstore.kvstore.engine.turns import Turns, each_by_threads, read_bytes
from fsstore.kvstore.tuning import MOMENT_S, SLOWEST_LINE
from fsstore.redaction import redact
from fsstore.runtime import execution
from fsstore.values.json_value import quote

__all__ = ["ObstoreEngine"]

_BEYOND = ("Wanted range starting at", "bytes 0--1/0")
_LIST_PAGE = 1000  # S3's page


class ObstoreEngine(WritesObjects, CopiesObjects, AnswersSoon, TellsModified):
    """Strict verbs over an obstore store.  `make(retry_config, timeout_s)` builds it; `shown` stands before paths.

    Large values are written through stores of their own, whose requests may take as long as a slow line needs.
    """

    def __init__(
        self,
        make: Callable[[dict[str, Any], float], Any],
        *,
        shown: str,
        features: Features,
        retry: Retry | None = None,
        concurrency: int | None = None,
    ) -> None:
        self.retry, self.shown, self.turns = retry or Retry(), shown, Turns(concurrency)
        self.features = features
        self._idle_s = max(self.retry.idle_s, 1.0)
        self._make, self._patient = make, dict[int | None, Any]()
        self._patience = (
            0  # of readers: how often the time limit was doubled, because a value came too slowly
        )
        self._soon = SoonReads(self.retry, self.turns)
        failure = None
        try:
            self._stores(0)
        except ValueError as error:  # a host or port that is none
            failure = UrlError(f"Cannot open {quote(shown)}: {redact(str(error))}", shown)
        if failure is not None:
            raise failure

    def _stores(self, patience: int | None) -> Any:
        """Return the store whose requests may take twice as long, so many times; for None a moment."""
        found = self._patient.get(patience)
        if found is None:
            once = {**retry_config(self.retry), "max_retries": 0}
            limit_s = MOMENT_S if patience is None else self._idle_s * 2**patience
            found = self._patient[patience] = self._make(once, limit_s)
        return found

    def _writer(self, size: int) -> Any:
        """Return the store for values of a size."""
        return self._stores(_patience(size, self._idle_s))

    async def read_many(self, reads: list[Read]) -> list[ReadResult]:
        """Return one exact answer a read."""
        if execution.must_not_wait():
            return self._soon.drive(reads, lambda read: self._told(read, limit_of(read), None))
        asked = [(read, limit_of(read)) for read in reads]
        return await each_by_threads(self._read, asked, self.turns, weigh=read_bytes)

    @property
    def answers_soon(self) -> bool:
        """Whether the last answer came so soon that a moment is enough for the next."""
        return self._soon.expected

    def _read(self, asked: tuple[Read, int | None]) -> ReadResult:
        attempts = Attempts(self.retry, self.turns.failed)
        while True:
            patience = self._patience
            try:
                return self._told(*asked, patience)
            except UnavailableError as error:
                known = error
            if self._patience == patience:  # else it came too slowly, and gets the time that it needs
                time.sleep(attempts.pause_after(known))

    def _told(self, read: Read, limit: int | None, patience: int | None) -> ReadResult:
        """Return the answer to one request, or raise an error that says what was read."""
        began = time.monotonic()
        try:
            found = self._read_once(read, limit, patience)
        except Exception as error:  # noqa: BLE001  # the boundary: every foreign error is translated here
            known = located(error, "reading", self.shown + read.key)
        else:
            self._soon.answered(began)
            return found
        raise known

    def _read_once(self, read: Read, limit: int | None, patience: int | None) -> ReadResult:
        options = get_options(read)
        try:
            return self._answer(read, options, limit, patience)
        except Exception as error:  # judged here, or passed on
            name = type(error).__name__
            if name == "NotModifiedError" and "if_none_match" in options:
                return ReadResult("unspecified", b"", read.if_not_equal, now())
            if is_missing(error):
                return ReadResult("missing", b"", NO_VALUE, now())
            if name == "NotSupportedError" and read.start < 0:
                return self._end(read, limit, patience)
            if name == "NotSupportedError" or "non-partial response" in str(error):
                options.pop("range", None)
                return self._answer(read, options, limit, patience)
            # the last is what azurite answers for a range of nothing
            if status_of(error) == 416 or any(text in str(error) for text in _BEYOND):
                return self._beyond(read, patience)
            raise

    def _answer(
        self, read: Read, options: dict[str, Any], limit: int | None, patience: int | None
    ) -> ReadResult:
        import obstore

        store = self._stores(patience)
        result = obstore.get(store, read.key, options=options) if options else obstore.get(store, read.key)
        meta, start = result.meta, result.range[0]
        check_announced(meta["size"], limit)
        # a server that knows no ranges would send everything to somebody who wants nothing of it
        if read.start == read.stop and "range" not in options:
            return fit(RangeAnswer(b"", start, meta["size"], generation_of(meta)), read)
        body = self._body(result, result.range[1] - start)
        piece = received(
            206 if body else 200,
            body,
            size=result.range[1] - start,
            place=(start, start + len(body), meta["size"]),
            generation=generation_of(meta),
        )
        return fit(piece, read)

    def _body(self, result: Any, size: int) -> memoryview:
        """Return the bytes of an answer; after one that a slow line brings too late, requests may take longer."""
        began = time.monotonic()
        try:
            return memoryview(result.bytes())
        except Exception:
            if time.monotonic() - began > self._idle_s / 2:
                self._patience = max(self._patience, _patience(size, self._idle_s))
            raise

    def _end(self, read: Read, limit: int | None, patience: int | None) -> ReadResult:
        """Return the last bytes of an object from a server that must be told where they begin (Azure's)."""
        head = self._head_within(read.key, patience)
        if head is None:
            return ReadResult("missing", b"", NO_VALUE, now())
        size, generation = head.meta["size"], generation_of(head.meta)
        start = max(size + read.start, 0) if isinstance(read, ReadUpTo) else size + read.start
        if not 0 <= start < size:
            return fit(RangeAnswer(b"", 0, size, generation), read)
        found = self._read_once(read._replace(start=start, stop=size), limit, patience)
        if found.state == "value" and found.generation != generation:
            raise UnavailableError("the object changed while its end was being read")
        return found

    def _beyond(self, read: Read, patience: int | None) -> ReadResult:
        """Return the answer to a range at or behind the end, which the server refused."""
        head = self._head_within(read.key, patience)
        if head is None:
            return ReadResult("missing", b"", NO_VALUE, now())
        return fit(RangeAnswer(b"", 0, head.meta["size"], generation_of(head.meta)), read)

    async def modified(self, key: str) -> float | None:
        """Return when an object was modified."""

        def ask() -> Any:
            try:
                return self._head(key)
            except Exception as error:  # noqa: BLE001  # the boundary: every foreign error is translated here
                failure = located(error, "reading", self.shown + key)
            raise failure

        found = await execution.offload(lambda: persist_blocking(self.retry, ask))
        return None if found is None else float(found.meta["last_modified"].timestamp())

    def _head(self, path: str) -> Any:
        """Return what is known of an object without its value, or None if it is missing."""
        return self._head_within(path, self._patience)

    def _head_within(self, path: str, patience: int | None) -> Any:
        """Do what `_head` does in the time that there is."""
        import obstore

        try:
            return obstore.get(self._stores(patience), path, options={"head": True})
        except Exception as error:  # judged here, or passed on
            if is_missing(error):
                return None
            raise

    async def pages(self, prefix: str) -> AsyncIterator[Sequence[Entry]]:
        """Yield the keys below the directory of `prefix`, a page of a thousand at a time."""
        import obstore

        directory = prefix.rpartition("/")[0]
        stream: Any = None
        last: str | None = None  # path listed; a listing that broke off goes on behind it

        def page() -> list[Entry]:
            nonlocal stream, last
            try:
                if stream is None:
                    more = {"offset": last} if last is not None else {}
                    stream = iter(
                        obstore.list(
                            self._stores(self._patience), directory or None, chunk_size=_LIST_PAGE, **more
                        )
                    )
                found = next(stream, ())
            except Exception as error:  # noqa: BLE001  # the boundary: every foreign error is translated here
                stream = None
                failure = located(error, "listing", self.shown + directory)
            else:
                entries = [Entry(meta["path"], meta["size"]) for meta in found]
                last = entries[-1].key if entries else last
                return entries
            raise failure

        while entries := await execution.offload(persist_blocking, self.retry, page):
            yield entries
            if len(entries) < _LIST_PAGE:  # obstore fills all but the last
                return


def _patience(size: int, idle_s: float) -> int:
    """Return how often a time limit is doubled for a value of some size."""
    return int(size / (idle_s * SLOWEST_LINE)).bit_length()
