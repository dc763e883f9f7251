"""S3, GCS, Azure and HTTP through `obstore`, the Rust object-store client: a tenth of the client work of s3fs.

obstore's blocking calls release the interpreter lock, so a batch is spread over pool threads.  obstore checks
`Content-Range` itself; a range cut off at the end of the value, which it accepts, is caught here.  Retries are ours:
obstore's would be silent, would wait a minute for a refused connection, and would repeat a write whose answer was lost
(see `write_surely`).

Generations hold the entity tag and, if the storage has one, the version.
"""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import timedelta
from typing import Any

from fsstore.errors import UnavailableError, UrlError
from fsstore.kvstore.client.credential import NO_TAG, RangeAnswer, entity_tag, fit, received
from fsstore.kvstore.contract.ability import AnswersSoon, TakesValues, TellsModified
from fsstore.kvstore.contract.driver import (
    NO_VALUE,
    UNKNOWN,
    Entry,
    Features,
    Read,
    ReadResult,
    ReadUpTo,
    Stamp,
    Write,
    check_announced,
    limit_of,
    now,
)
from fsstore.kvstore.engine.contract import (
    MARK,
    Attempts,
    ConflictError,
    Retry,
    Standing,
    check_condition,
    is_missing,
    located,
    offload_whole,
    persist_blocking,
    status_of,
    translate,
    write_surely,
)
from fsstore.kvstore.engine.turns import SoonReads, Turns, each_by_threads, read_bytes
from fsstore.redaction import redact, without_user
from fsstore.runtime import execution
from fsstore.runtime.tuning import MOMENT_S, PAGE, SLOWEST_LINE
from fsstore.values.json_value import quote

# Writes through obstore: objects with marks, conditional writes, deletions and copies.

_NO_VERSION = "1"  # a version that no object has, like `NO_TAG`; only Google's cloud compares versions


class WritesObjects(TakesValues):
    """The writing part of an engine over obstore: writes, deletions, and copies inside one bucket."""

    __slots__ = ()
    retry: Retry
    shown: str
    features: Features
    turns: Turns
    _writer: Any
    _head: Any

    async def write_many(self, writes: Sequence[Write]) -> list[Stamp]:
        """Apply the writes; plain deletions go a thousand a request if the storage can."""
        for write in writes:
            check_condition(write, self.features)
        gone = [write.key for write in writes if write.value is None]
        if 1 < len(gone) == len(writes) and await offload_whole(self._delete_all, gone):
            return [Stamp(NO_VALUE, now())] * len(writes)
        return await each_by_threads(self._write, writes, self.turns, offload=offload_whole)

    def _delete_all(self, paths: list[str]) -> bool:
        return all(self._delete(paths[start : start + PAGE]) for start in range(0, len(paths), PAGE))

    def _delete(self, paths: list[str]) -> bool:
        """Delete objects; return False if one is missing, after which Google's cloud and Azure skip the rest."""
        import obstore

        def delete() -> bool:
            try:
                obstore.delete(self._writer(0), paths)
            except Exception as error:  # noqa: BLE001  # the boundary: every foreign error is translated here
                if is_missing(error):
                    return False
                failure = located(error, "deleting", self.shown + paths[0])
            else:
                return True
            raise failure

        return persist_blocking(self.retry, delete)

    def _write(self, write: Write) -> Stamp:
        verb = "deleting" if write.value is None else "writing"

        async def send(mark: str) -> Stamp:
            try:
                return self._put(write, mark)
            except Exception as error:  # noqa: BLE001  # the boundary: every foreign error is translated here
                if write.if_equal != UNKNOWN and _is_conflict(error):
                    raise ConflictError from None
                failure = located(error, verb, self.shown + write.key)
            raise failure

        async def look() -> Standing | None:
            try:
                return self._found(write.key)
            except Exception as error:  # noqa: BLE001  # the boundary: every foreign error is translated here
                failure = located(error, "reading", self.shown + write.key)
            raise failure

        place, attempts = quote(without_user(self.shown + write.key)), Attempts(self.retry, self.turns.failed)
        return execution.drive(write_surely(write, place, attempts, send, look))

    def _put(self, write: Write, mark: str) -> Stamp:
        import obstore

        if write.value is None:
            try:
                obstore.delete(self._writer(0), [write.key])
            except Exception as error:  # judged here, or raised again
                if not is_missing(error):
                    raise
            return Stamp(NO_VALUE, now())
        value = write.value if isinstance(write.value, bytes) else bytes(write.value)
        mode: Any = "overwrite"
        if write.if_equal != UNKNOWN:
            mode = "create" if write.if_equal == NO_VALUE else _version(write.if_equal)
        result = obstore.put(
            self._writer(len(value)), write.key, value, use_multipart=False, mode=mode, attributes={MARK: mark}
        )
        # after a condition that held, an unknown generation would look like a failed condition
        unknown = UNKNOWN if write.if_equal == UNKNOWN else b"\1" + os.urandom(8)
        return Stamp(generation_of(result) or unknown, now())

    def _found(self, path: str) -> Standing | None:
        head = self._head(path)
        if head is None:
            return None
        return Standing(generation_of(head.meta), head.attributes.get(MARK), head.meta["last_modified"].timestamp())

    def takes_from(self, other: object) -> bool:
        """Return whether `other` is this bucket, with the same credentials."""
        return self is other and self.features.writable

    async def take_values(
        self, other: object, pairs: Sequence[tuple[str, str]], *, unseen: bool = False
    ) -> list[ReadResult]:
        """Let the storage copy objects, with one request each."""
        return await each_by_threads(self._take, pairs, self.turns, offload=offload_whole)

    def _take(self, pair: tuple[str, str]) -> ReadResult:
        import obstore

        def copy() -> ReadResult:
            try:
                obstore.copy(self._writer(0), pair[0], pair[1])
            except Exception as error:  # noqa: BLE001  # the boundary: every foreign error is translated here
                if is_missing(error):
                    return ReadResult("missing", b"", NO_VALUE, now())
                failure = located(error, "copying", self.shown + pair[0])
            else:
                return ReadResult("value", b"", UNKNOWN, now())
            raise failure

        return persist_blocking(self.retry, copy)


def generation_of(meta: Any) -> bytes:
    """Return the generation of an object: its entity tag and version."""
    tag, version = meta.get("e_tag") or "", meta.get("version") or ""
    return f"{tag}\n{version}".encode() if version else tag.encode()


def _version(generation: bytes) -> dict[str, str]:
    tag, _, version = generation.partition(b"\n")
    return {"e_tag": entity_tag(tag) or NO_TAG, "version": entity_tag(version) or _NO_VERSION}


def _is_conflict(error: BaseException) -> bool:
    return type(error).__name__ in {"AlreadyExistsError", "PreconditionError"} or status_of(error) == 412


# Reads and retry policies in the terms of obstore, which tries each request once.


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

    Its time limit is for a whole request.  After the limit, obstore continues a download, but an upload is lost: see
    `ObstoreEngine`.
    """
    options: dict[str, Any] = {
        "allow_http": allow_http,
        "timeout": timedelta(seconds=timeout_s),
        "connect_timeout": timedelta(seconds=min(policy.idle_s, 30.0)),
    }
    return {**options, "default_headers": headers} if headers else options


def get_options(read: Read) -> dict[str, Any]:
    """Return the range and the condition of a read."""
    options: dict[str, Any] = {}
    if read.start < 0:
        options["range"] = {"suffix": -read.start}
    elif read.stop is not None:
        options["range"] = (read.start, read.stop) if read.stop > read.start else (0, 1)
    elif read.start:
        options["range"] = {"offset": read.start}
    tag = entity_tag(read.if_not_equal.partition(b"\n")[0])
    return {**options, "if_none_match": tag} if tag is not None else options


_BEYOND = ("Wanted range starting at", "bytes 0--1/0")
_LIST_PAGE = 1000  # S3's page


class ObstoreEngine(WritesObjects, AnswersSoon, TellsModified):
    """Strict verbs over an obstore store, built by `make(retry_config, timeout_s)`; `shown` precedes paths in messages.

    Large values are written through separate stores, whose requests may take as long as a slow line needs.
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
        self._patience = 0  # of readers: how often the time limit was doubled because a value came too slowly
        self._soon = SoonReads(self.retry, self.turns)
        failure = None
        try:
            self._stores(0)
        except ValueError as error:  # an invalid host or port
            failure = UrlError(f"Cannot open {quote(shown)}: {redact(str(error))}", shown)
        if failure is not None:
            raise failure

    def _stores(self, patience: int | None) -> Any:
        """Return the store with a time limit doubled `patience` times; None means a moment."""
        found = self._patient.get(patience)
        if found is None:
            once = {**retry_config(self.retry), "max_retries": 0}
            limit_s = MOMENT_S if patience is None else self._idle_s * 2**patience
            found = self._patient[patience] = self._make(once, limit_s)
        return found

    def _writer(self, size: int) -> Any:
        return self._stores(_patience(size, self._idle_s))

    async def read_many(self, reads: list[Read]) -> list[ReadResult]:
        """Return one exact answer for each read."""
        if execution.must_not_wait():
            return self._soon.drive(reads, lambda read: self._request(read, limit_of(read), None))
        asked = [(read, limit_of(read)) for read in reads]
        return await each_by_threads(self._read, asked, self.turns, weigh=read_bytes)

    @property
    def answers_soon(self) -> bool:
        """Whether the last answer came so soon that the next is expected within a moment."""
        return self._soon.expected

    def _read(self, asked: tuple[Read, int | None]) -> ReadResult:
        attempts = Attempts(self.retry, self.turns.failed)
        while True:
            patience = self._patience
            try:
                return self._request(*asked, patience)
            except UnavailableError as error:
                known = error
            if self._patience == patience:  # otherwise it came too slowly, and now gets the time it needs
                time.sleep(attempts.pause_after(known))

    def _request(self, read: Read, limit: int | None, patience: int | None) -> ReadResult:
        """Return the answer to one request, or raise an error that names the read."""
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
        except Exception as error:  # judged here, or raised again
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
            # the last is azurite's answer to an empty range
            if status_of(error) == 416 or any(text in str(error) for text in _BEYOND):
                return self._beyond(read, patience)
            raise

    def _answer(self, read: Read, options: dict[str, Any], limit: int | None, patience: int | None) -> ReadResult:
        import obstore

        store = self._stores(patience)
        result = obstore.get(store, read.key, options=options) if options else obstore.get(store, read.key)
        meta, start = result.meta, result.range[0]
        check_announced(meta["size"], limit)
        # a server without ranges would send everything, of which nothing is wanted
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
        """Return the bytes of an answer; after a timeout on a slow line, requests may take longer."""
        began = time.monotonic()
        try:
            return memoryview(result.bytes())
        except Exception:
            if time.monotonic() - began > self._idle_s / 2:
                self._patience = max(self._patience, _patience(size, self._idle_s))
            raise

    def _end(self, read: Read, limit: int | None, patience: int | None) -> ReadResult:
        """Return the last bytes of an object from a server that needs to know where they begin (Azure's)."""
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
        """Return the metadata of an object, or None if it is missing."""
        return self._head_within(path, self._patience)

    def _head_within(self, path: str, patience: int | None) -> Any:
        """Like `_head`, within a time limit."""
        import obstore

        try:
            return obstore.get(self._stores(patience), path, options={"head": True})
        except Exception as error:  # judged here, or raised again
            if is_missing(error):
                return None
            raise

    async def pages(self, prefix: str) -> AsyncIterator[Sequence[Entry]]:
        """Yield the keys below the directory of `prefix`, in pages of a thousand."""
        import obstore

        directory = prefix.rpartition("/")[0]
        stream: Any = None
        last: str | None = None  # the last path listed; an interrupted listing continues behind it

        def page() -> list[Entry]:
            nonlocal stream, last
            try:
                if stream is None:
                    more = {"offset": last} if last is not None else {}
                    stream = iter(
                        obstore.list(self._stores(self._patience), directory or None, chunk_size=_LIST_PAGE, **more)
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
            if len(entries) < _LIST_PAGE:  # obstore fills all pages but the last
                return


def _patience(size: int, idle_s: float) -> int:
    """Return how often the time limit is doubled for a value of this size."""
    return int(size / (idle_s * SLOWEST_LINE)).bit_length()


# Opening the engine of a bucket.


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
            concurrency=concurrency,
        )
    except Exception as error:  # noqa: BLE001  # the boundary: every foreign error is translated here
        failure = translate(error).within(f"Cannot open {quote(shown)}")
    raise failure
