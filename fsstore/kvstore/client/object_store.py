"""S3, GCS, Azure and HTTP through `obstore`, the Rust object-store client: a tenth of the client work of s3fs.

obstore's blocking calls release the interpreter lock, so a batch is spread over pool threads.  obstore checks
`Content-Range` itself; what it lets through (a range cut at the end of the value) is caught here.  Reads are retried by
obstore; writes are not, because it cannot tell a lost reply from a conflict: see `retry.Attempts`.

Generations hold the entity tag and, where the storage has one, the version.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any, TypeVar

from fsstore.errors import StoreError, UnavailableError, UrlError
from fsstore.kvstore.client.range_answer import NO_TAG, RangeAnswer, entity_tag, fit
from fsstore.kvstore.contract.driver import (
    NO_VALUE,
    UNKNOWN,
    Entry,
    Features,
    Read,
    ReadResult,
    Stamp,
    Write,
    now,
)
from fsstore.kvstore.contract.value_limit import check_announced, limit_of
from fsstore.kvstore.engine.contract import check_condition, located, offload_whole, stoppable
from fsstore.kvstore.engine.fault import is_missing, status_of, translate
from fsstore.kvstore.engine.retry import MARK, Attempts, Retry, new_mark, persist_blocking
from fsstore.runtime import execution
from fsstore.values.json_value import quote

__all__ = ["ObstoreEngine", "bucket_engine", "client_options", "retry_config"]

S = TypeVar("S")
T = TypeVar("T")

_FEW = 4  # threads that begin a batch; more come where a server is not so near that few are enough
_NEAR_S = 0.002  # that a near server takes for a few answers
_SLOWEST = 32 * 1024  # bytes a second of one of several requests, below which a line is taken for dead
_DELETE_BATCH = 1000  # keys of a request: S3's limit
_LIST_PAGE = 1000  # S3's page
_NO_VERSION = "1"  # of no object, as `NO_TAG`; Google's cloud compares versions, the others ignore them


def retry_config(policy: Retry) -> dict[str, Any]:
    """Return a policy in obstore's terms."""
    return {
        "max_retries": policy.max_retries,
        "retry_timeout": timedelta(seconds=policy.deadline_s),
        "backoff": {
            "init_backoff": timedelta(seconds=policy.initial_delay_s),
            "max_backoff": timedelta(seconds=policy.max_delay_s),
            "base": 2,
        },
    }


def client_options(
    policy: Retry, timeout_s: float, *, allow_http: bool, headers: dict[str, str] | None = None
) -> dict[str, Any]:
    """Return options of obstore's HTTP client.

    Its time limit is for a whole request.  A value that is not received by then is asked for from there on, but one
    that is not sent is lost: see `ObstoreEngine`.
    """
    options: dict[str, Any] = {
        "allow_http": allow_http,
        "timeout": timedelta(seconds=timeout_s),
        "connect_timeout": timedelta(seconds=min(policy.idle_s, 30.0)),
    }
    return {**options, "default_headers": headers} if headers else options


def bucket_engine(
    make: Callable[[dict[str, Any]], Any], shown: str, *, retry: Retry, concurrency: int | None, plain: bool
) -> ObstoreEngine:
    """Return the engine of a bucket.  `make` builds the store from client and retry options; `plain` allows HTTP."""

    def store(config: dict[str, Any], timeout_s: float) -> Any:
        client = client_options(retry, timeout_s, allow_http=plain)
        return make({"client_options": client, "retry_config": config})

    try:
        return ObstoreEngine(
            store,
            shown=shown,
            features=Features(waits=True, create_only=True, conditional_write=True, conditional_delete=False),
            retry=retry,
            concurrency=concurrency or 32,
        )
    except Exception as error:
        raise translate(error).within(f"Cannot open {quote(shown)}") from error


class ObstoreEngine:
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
        concurrency: int = 32,
    ) -> None:
        self.retry, self.shown, self.concurrency = retry or Retry(), shown, concurrency
        self.features = features
        self._idle_s = max(self.retry.idle_s, 1.0)
        self._make, self._writers = make, dict[int, Any]()
        try:
            self._reader = make(retry_config(self.retry), self._idle_s)
        except ValueError as error:  # a host or port that is none
            raise UrlError(f"Cannot open {quote(shown)}: {error}", shown) from error

    def _writer(self, size: int) -> Any:
        """Return the store for values of a size."""
        patience = int(size / (self._idle_s * _SLOWEST)).bit_length()
        found = self._writers.get(patience)
        if found is None:
            once = {**retry_config(self.retry), "max_retries": 0}
            found = self._writers[patience] = self._make(once, self._idle_s * 2**patience)
        return found

    async def _spread(
        self,
        function: Callable[[S], T],
        items: Sequence[S],
        *,
        stopped: threading.Event,
        offload: Any = execution.offload,
    ) -> list[T]:
        """Return `[function(item) for item in items]`, computed by pool threads that draw items until there are none.

        A near server keeps a few threads busy, and more of them would only pass the interpreter lock around.  Where
        the few have not answered an item each within a short time, all requests that may be are put under way.
        """
        results: list[Any] = [None] * len(items)
        numbers = iter(range(len(items)))
        answered: list[int] = []
        over = asyncio.Event()

        def work() -> None:
            for number in numbers:
                if stopped.is_set():
                    return
                try:
                    results[number] = function(items[number])
                except BaseException:
                    stopped.set()
                    raise
                answered.append(number)

        most = min(self.concurrency, len(items))
        few = min(most, _FEW)

        async def begin(threads: int) -> None:
            await execution.gather([offload(work, limit=self.concurrency) for _ in range(threads)])
            over.set()

        async def add() -> None:
            with suppress(TimeoutError):
                await asyncio.wait_for(over.wait(), _NEAR_S)
            if not over.is_set() and len(answered) < few:
                await begin(most - few)

        await execution.gather([begin(few), *([add()] if few < most else [])])
        return results

    async def read_many(self, reads: list[Read]) -> list[ReadResult]:
        """Return one exact answer a read."""
        asked = [(read, limit_of(read)) for read in reads]
        return await stoppable(lambda stopped: self._spread(self._read, asked, stopped=stopped))

    def _read(self, asked: tuple[Read, int | None]) -> ReadResult:
        read, limit = asked
        attempts = Attempts(self.retry)
        while True:
            try:
                return self._read_once(read, limit)
            except Exception as error:  # noqa: BLE001  # the boundary: every foreign error is translated here
                known = located(error, "reading", self.shown + read.key)
                foreign = not isinstance(error, StoreError)
            # what obstore gave up on has been retried; a body cut off or a range that does not fit has not
            if not isinstance(known, UnavailableError) or (foreign and status_of(known.__cause__ or known)):
                raise known
            time.sleep(attempts.pause_after(known))

    def _read_once(self, read: Read, limit: int | None) -> ReadResult:
        options = _options(read)
        try:
            return self._answer(read, options, limit)
        except Exception as error:  # judged here, or passed on
            name = type(error).__name__
            if name == "NotModifiedError" and "if_none_match" in options:
                return ReadResult("unspecified", b"", read.if_not_equal, now())
            if is_missing(error):
                return ReadResult("missing", b"", NO_VALUE, now())
            if name == "NotSupportedError" and read.start < 0:
                return self._end(read, limit)
            if name == "NotSupportedError" or "non-partial response" in str(error):
                options.pop("range", None)
                return self._answer(read, options, limit)
            if status_of(error) == 416 or "Wanted range starting at" in str(error):
                return self._beyond(read)
            raise

    def _answer(self, read: Read, options: dict[str, Any], limit: int | None) -> ReadResult:
        import obstore

        result = (
            obstore.get(self._reader, read.key, options=options)
            if options
            else obstore.get(self._reader, read.key)
        )
        meta, start = result.meta, result.range[0]
        check_announced(meta["size"], limit)
        # a server that knows no ranges would send everything to somebody who wants nothing of it
        unwanted = read.start == read.stop and "range" not in options
        body = b"" if unwanted else memoryview(result.bytes())
        return fit(RangeAnswer(body, start, meta["size"], _generation(meta)), read)

    def _end(self, read: Read, limit: int | None) -> ReadResult:
        """Return the last bytes of an object from a server that must be told where they begin (Azure's)."""
        head = self._head(read.key)
        if head is None:
            return ReadResult("missing", b"", NO_VALUE, now())
        size, generation = head.meta["size"], _generation(head.meta)
        if not 0 < -read.start <= size:
            return fit(RangeAnswer(b"", 0, size, generation), read)
        found = self._read_once(read._replace(start=size + read.start, stop=size), limit)
        if found.state == "value" and found.generation != generation:
            raise UnavailableError("the object changed while its end was being read")
        return found

    def _beyond(self, read: Read) -> ReadResult:
        """Return the answer to a range at or behind the end, which the server refused."""
        head = self._head(read.key)
        if head is None:
            return ReadResult("missing", b"", NO_VALUE, now())
        return fit(RangeAnswer(b"", 0, head.meta["size"], _generation(head.meta)), read)

    def _head(self, path: str) -> Any:
        """Return what is known of an object without its value, or None if it is missing."""
        import obstore

        try:
            return obstore.get(self._reader, path, options={"head": True})
        except Exception as error:  # judged here, or passed on
            if is_missing(error):
                return None
            raise

    async def write_many(self, writes: Sequence[Write]) -> list[Stamp]:
        """Apply the writes; plain deletions go a thousand a request where the storage can."""
        for write in writes:
            check_condition(write, self.features)
        gone = [write.key for write in writes if write.value is None]
        if 1 < len(gone) == len(writes) and await offload_whole(self._delete_all, gone):
            return [Stamp(NO_VALUE, now())] * len(writes)
        return await stoppable(
            lambda stopped: self._spread(self._write, writes, stopped=stopped, offload=offload_whole)
        )

    def _delete_all(self, paths: list[str]) -> bool:
        return all(
            self._delete(paths[start : start + _DELETE_BATCH])
            for start in range(0, len(paths), _DELETE_BATCH)
        )

    def _delete(self, paths: list[str]) -> bool:
        """Delete objects; return False if one is missing, where Google's cloud and Azure leave those that follow."""
        import obstore

        def delete() -> bool:
            try:
                obstore.delete(self._writer(0), paths)
            except Exception as error:  # the boundary: every foreign error is translated here
                if is_missing(error):
                    return False
                raise located(error, "deleting", self.shown + paths[0]) from error
            return True

        return persist_blocking(self.retry, delete)

    def _write(self, write: Write) -> Stamp:
        if write.value is None:
            self._delete([write.key])
            return Stamp(NO_VALUE, now())
        attempts, mark = Attempts(self.retry), new_mark()
        while True:
            try:
                return self._put(write, mark)
            except Exception as error:  # noqa: BLE001  # the boundary: every foreign error is translated here
                if write.if_equal != UNKNOWN and _is_conflict(error):
                    return self._settle(write, mark) if attempts.ambiguous else Stamp(UNKNOWN, now())
                known = located(error, "writing", self.shown + write.key)
            if not isinstance(known, UnavailableError):
                raise known
            time.sleep(attempts.pause_after(known))

    def _put(self, write: Write, mark: str) -> Stamp:
        import obstore

        value = write.value if isinstance(write.value, bytes) else bytes(write.value or b"")
        given: dict[str, Any] = {"mode": "overwrite"}
        if write.if_equal != UNKNOWN:
            mode = "create" if write.if_equal == NO_VALUE else _version(write.if_equal)
            given = {"mode": mode, "attributes": {MARK: mark}}
        result = obstore.put(self._writer(len(value)), write.key, value, use_multipart=False, **given)
        # after a condition that held, an unknown generation would read as one that did not
        unknown = UNKNOWN if write.if_equal == UNKNOWN else b"\1" + os.urandom(8)
        return Stamp(_generation(result) or unknown, now())

    def _settle(self, write: Write, mark: str) -> Stamp:
        """Return the stamp of a write that found its condition broken, maybe by its own lost first try."""

        def settle() -> Stamp:
            try:
                head = self._head(write.key)
            except Exception as error:  # the boundary: every foreign error is translated here
                raise located(error, "reading", self.shown + write.key) from error
            ours = head is not None and head.attributes.get(MARK) == mark
            return Stamp(_generation(head.meta) if ours else UNKNOWN, now())

        return persist_blocking(self.retry, settle)

    async def pages(self, prefix: str) -> AsyncIterator[list[Entry]]:
        """Yield the keys below the directory of `prefix`, a page of a thousand at a time."""
        import obstore

        directory = prefix.rpartition("/")[0]
        stream = iter(obstore.list(self._reader, directory or None, chunk_size=_LIST_PAGE))

        def page() -> list[Entry] | None:
            try:
                found = next(stream, None)
            except Exception as error:
                raise located(error, "listing", self.shown + directory) from error
            return None if found is None else [Entry(meta["path"], meta["size"]) for meta in found]

        while (entries := await execution.offload(page)) is not None:
            yield entries


def _options(read: Read) -> dict[str, Any]:
    options: dict[str, Any] = {}
    if read.start < 0:
        options["range"] = {"suffix": -read.start}
    elif read.stop is not None:
        options["range"] = (read.start, read.stop) if read.stop > read.start else (0, 1)
    elif read.start:
        options["range"] = {"offset": read.start}
    tag = entity_tag(read.if_not_equal.partition(b"\n")[0])
    return {**options, "if_none_match": tag} if tag is not None else options


def _generation(meta: Any) -> bytes:
    tag, version = meta.get("e_tag") or "", meta.get("version") or ""
    return f"{tag}\n{version}".encode() if version else tag.encode()


def _version(generation: bytes) -> dict[str, str]:
    tag, _, version = generation.partition(b"\n")
    return {"e_tag": entity_tag(tag) or NO_TAG, "version": entity_tag(version) or _NO_VERSION}


def _is_conflict(error: BaseException) -> bool:
    return type(error).__name__ in {"AlreadyExistsError", "PreconditionError"} or status_of(error) == 412
