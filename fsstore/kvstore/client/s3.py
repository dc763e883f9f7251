"""S3 through the client of an s3fs filesystem, request by request.

s3fs's own verbs ask for the size before a whole read, treat an empty range as the whole object, cannot read under a
condition, and repeat failed writes although perhaps only the answer was lost.  So the client is called directly: one
GET for each read, `If-None-Match` and `If-Match` on reads and writes, and after a lost answer a check of the object's
mark (see `write_surely`).

Conditional deletes are refused: S3 has no such request that every server honours.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Sequence
from typing import Any

from fsstore.errors import FailedPreconditionError, PermissionDeniedError, StoreError, UnavailableError
from fsstore.kvstore.client.credential import (
    NO_TAG,
    RangeAnswer,
    collect,
    entity_tag,
    fit,
    range_header,
    range_of_header,
    received,
)
from fsstore.kvstore.contract.ability import TakesValues, TellsModified
from fsstore.kvstore.contract.driver import (
    NO_VALUE,
    UNKNOWN,
    Entry,
    Features,
    Read,
    ReadResult,
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
    persist,
    status_of,
    write_surely,
)
from fsstore.kvstore.engine.driver import Home
from fsstore.kvstore.engine.turns import Turns, each, read_bytes
from fsstore.redaction import without_user
from fsstore.runtime.tuning import PAGE
from fsstore.values.json_value import quote

_DELETE_ERRORS: dict[str, type[StoreError]] = {
    "AccessDenied": PermissionDeniedError,
    "InternalError": UnavailableError,
    "ServiceUnavailable": UnavailableError,
    "SlowDown": UnavailableError,
}


class S3Engine(TakesValues, TellsModified):
    """Strict verbs over an `S3FileSystem`.  Paths are `bucket/key`."""

    features = Features(waits=True, create_only=True, conditional_write=True, conditional_delete=False)
    shown = "s3://"

    def __init__(self, home: Home, *, retry: Retry | None = None, concurrency: int | None = None) -> None:
        self.home, self.retry, self.turns = home, retry or Retry(), Turns(concurrency)

    async def read_many(self, reads: list[Read]) -> list[ReadResult]:
        """Return one exact answer for each read, from one request each."""

        async def read_all(filesystem: Any) -> list[ReadResult]:
            def ask(read: Read) -> Awaitable[ReadResult]:
                return persist(self.retry, lambda: _read(filesystem, read, self.retry), self.turns.failed)

            return await each(ask, reads, self.turns, weigh=read_bytes)

        return await self.home.visit(read_all)

    async def modified(self, key: str) -> float | None:
        """Return when an object was modified."""

        async def ask(filesystem: Any) -> Any:
            return await persist(self.retry, lambda: _head(filesystem, key))

        try:
            found = await self.home.visit(ask)
        except Exception as error:  # noqa: BLE001  # the boundary: every foreign error is translated here
            failure = located(error, "reading", f"s3://{key}")
        else:
            return None if found is None else float(found["LastModified"].timestamp())
        raise failure

    async def write_many(self, writes: Sequence[Write]) -> list[Stamp]:
        """Apply the writes; plain deletions go a thousand a request."""
        for write in writes:
            check_condition(write, self.features)
        if len(writes) > 1 and all(write.value is None for write in writes):
            return await self._delete_many([write.key for write in writes])

        async def write_all(filesystem: Any) -> list[Stamp]:
            return await each(lambda write: self._write(filesystem, write), writes, self.turns)

        return await self.home.visit(write_all)

    async def _write(self, filesystem: Any, write: Write) -> Stamp:
        attempts = Attempts(self.retry, self.turns.failed)
        return await write_surely(
            write,
            quote(without_user(f"s3://{write.key}")),
            attempts,
            lambda mark: _put(filesystem, write, attempts=attempts, mark=mark),
            lambda: _found(filesystem, write.key),
        )

    def takes_from(self, other: object) -> bool:
        """Return whether `other` uses the same server with the same credentials."""
        return isinstance(other, S3Engine) and self.home.is_like(other.home)

    async def take_values(
        self, other: object, pairs: Sequence[tuple[str, str]], *, unseen: bool = False
    ) -> list[ReadResult]:
        """Let the storage copy objects, with one request each."""

        async def take_all(filesystem: Any) -> list[ReadResult]:
            return await each(lambda pair: persist(self.retry, lambda: _take(filesystem, pair)), pairs, self.turns)

        return await self.home.visit(take_all)

    async def _delete_many(self, paths: list[str]) -> list[Stamp]:
        groups: dict[str, list[str]] = {}
        for path in paths:
            bucket, _, key = path.partition("/")
            groups.setdefault(bucket, []).append(key)
        batches = [
            (bucket, keys[start : start + PAGE])
            for bucket, keys in groups.items()
            for start in range(0, len(keys), PAGE)
        ]

        async def delete(batch: tuple[str, list[str]]) -> None:
            await self.home.visit(lambda filesystem: persist(self.retry, lambda: _delete(filesystem, *batch)))

        await each(delete, batches, self.turns)
        return [Stamp(NO_VALUE, now())] * len(paths)

    async def pages(self, prefix: str) -> AsyncIterator[Sequence[Entry]]:
        """Yield the keys below a prefix in S3's order, one page for each response."""
        bucket, _, start = prefix.partition("/")
        more: dict[str, str] = {}
        while True:
            asked = {"Bucket": bucket, "Prefix": start, **more}

            async def page(filesystem: Any, asked: dict[str, str] = asked) -> Any:
                return await persist(self.retry, lambda: _page(filesystem, prefix, asked))

            answer = await self.home.visit(page)
            contents = answer.get("Contents", [])
            yield [Entry(f"{bucket}/{item['Key']}", int(item["Size"])) for item in contents]
            token = answer.get("NextContinuationToken")
            if not answer["IsTruncated"]:
                return
            more = {"ContinuationToken": token}


async def _tries_once(filesystem: Any) -> bool:
    """Make the HTTP sessions of the client send each request once, and return whether that is certain.

    aiohttp repeats a PUT after a broken connection, on the grounds that PUT is idempotent; a conditional one is not.
    No public interface reaches the sessions, which the first request creates.
    """
    client = await filesystem.set_session()
    http_session = getattr(getattr(client, "_endpoint", None), "http_session", None)
    sessions = list((getattr(http_session, "_sessions", None) or {}).values())
    known = [session for session in sessions if hasattr(session, "_retry_connection")]
    for session in known:
        session._retry_connection = False  # see above
    return bool(known) and len(known) == len(sessions)


async def _client_call(filesystem: Any, method: str, arguments: dict[str, Any]) -> Any:
    await filesystem.set_session()
    client = await filesystem.get_s3(arguments.get("Bucket"))
    verb = getattr(client, method)
    # requester-pays and encryption options of the filesystem apply to our requests, too
    return await verb(**filesystem._get_s3_method_kwargs(verb, **arguments))  # it has no public form


async def _call(filesystem: Any, method: str, path: str, arguments: dict[str, Any]) -> Any:
    try:
        return await _client_call(filesystem, method, arguments)
    except Exception as error:  # noqa: BLE001  # the boundary: every foreign error is translated here
        failure = located(error, "accessing", f"s3://{path}")
    raise failure


async def _page(filesystem: Any, prefix: str, asked: dict[str, str]) -> Any:
    """Return a page of a listing; an answer that is not clearly a whole page would miss keys."""
    answer = await _call(filesystem, "list_objects_v2", prefix, asked)
    told = answer.get("KeyCount", len(answer.get("Contents", [])))
    more = answer.get("IsTruncated")
    if more is None or told != len(answer.get("Contents", [])) or (more and not answer.get("NextContinuationToken")):
        raise UnavailableError(
            f"Error listing s3://{prefix}: the server sent status {_status(answer)} and no whole page of keys"
        )
    return answer


def _arguments(path: str) -> dict[str, Any]:
    bucket, _, key = path.partition("/")
    return {"Bucket": bucket, "Key": key}


async def _read(filesystem: Any, read: Read, retry: Retry) -> ReadResult:
    arguments = _arguments(read.key)
    span = range_header(read)
    if span is not None:
        arguments["Range"] = span
    tag = entity_tag(read.if_not_equal)
    if tag is not None:
        arguments["IfNoneMatch"] = tag
    try:
        return fit(await _get(filesystem, arguments, limit_of(read), retry), read)
    except Exception as error:  # noqa: BLE001  # the boundary: every foreign error is translated here
        status = status_of(error)
        if status == 304 and tag is not None:
            return ReadResult("unspecified", b"", read.if_not_equal, now())
        if status == 404 and is_missing(error):
            return ReadResult("missing", b"", NO_VALUE, now())
        if status == 416 and not isinstance(error, StoreError):
            return await _beyond(filesystem, read)
        failure = located(error, "reading", f"s3://{read.key}")
    raise failure


async def _get(filesystem: Any, arguments: dict[str, Any], limit: int | None, retry: Retry) -> RangeAnswer:
    answer = await _client_call(filesystem, "get_object", arguments)
    size = answer.get("ContentLength")
    async with answer["Body"] as stream:
        check_announced(size, limit)
        if size is None:
            raise UnavailableError("the server did not say how long the value is")
        body = await collect(stream.read, retry.idle_s) if size else b""
    generation = answer.get("ETag", "").encode("latin-1")
    place = range_of_header(answer.get("ContentRange"))
    return received(_status(answer), body, size=size, place=place, generation=generation)


async def _beyond(filesystem: Any, read: Read) -> ReadResult:
    """Return the answer to a range that starts at or behind the end, which S3 refuses without telling the size."""
    try:
        head = await _head(filesystem, read.key)
        if head is None:
            return ReadResult("missing", b"", NO_VALUE, now())
        return fit(RangeAnswer(b"", 0, int(head["ContentLength"]), head.get("ETag", "").encode("latin-1")), read)
    except Exception as error:  # noqa: BLE001  # the boundary: every foreign error is translated here
        failure = located(error, "reading", f"s3://{read.key}")
    raise failure


async def _take(filesystem: Any, pair: tuple[str, str]) -> ReadResult:
    """Copy an object; some servers report a failure in an answer that begins as a success."""
    source, target = (_arguments(path) for path in pair)
    try:
        answer = await _client_call(filesystem, "copy_object", {**target, "CopySource": source})
        if "CopyObjectResult" not in answer:
            raise UnavailableError("the server did not say that the object was copied")
    except Exception as error:  # noqa: BLE001  # the boundary: every foreign error is translated here
        if is_missing(error):
            return ReadResult("missing", b"", NO_VALUE, now())
        failure = located(error, "copying", f"s3://{pair[0]}")
    else:
        return ReadResult("value", b"", UNKNOWN, now())
    raise failure


async def _found(filesystem: Any, path: str) -> Standing | None:
    """Return the present state of the object at a path, or raise a translated error."""
    try:
        head = await _head(filesystem, path)
    except Exception as error:  # noqa: BLE001  # the boundary: every foreign error is translated here
        failure = located(error, "reading", f"s3://{path}")
    else:
        if head is None:
            return None
        mark = head.get("Metadata", {}).get(MARK)
        return Standing(head["ETag"].encode("latin-1"), mark, head["LastModified"].timestamp())
    raise failure


async def _head(filesystem: Any, path: str) -> Any:
    """Return the metadata of an object, or None if it is missing."""
    try:
        head = await _client_call(filesystem, "head_object", _arguments(path))
    except Exception as error:  # judged here, or raised again
        if is_missing(error):
            return None
        raise
    if not {"ETag", "ContentLength", "LastModified"} <= head.keys():
        raise UnavailableError(f"the server sent status {_status(head)} without the tag, size and time of the object")
    return head


def _status(answer: Any) -> int:
    status: int = answer["ResponseMetadata"]["HTTPStatusCode"]
    return status


def _retried(error: BaseException) -> bool:
    response = getattr(error, "response", None)
    return isinstance(response, dict) and bool(response.get("ResponseMetadata", {}).get("RetryAttempts"))


async def _put(filesystem: Any, write: Write, *, attempts: Attempts, mark: str) -> Stamp:
    arguments = _arguments(write.key)
    try:
        if not await _tries_once(filesystem) and write.if_equal != UNKNOWN:
            await _head(filesystem, write.key)  # the first request creates the sessions
            attempts.ambiguous |= not await _tries_once(filesystem)
        if write.value is None:
            await _client_call(filesystem, "delete_object", arguments)
            return Stamp(NO_VALUE, now())
        if write.if_equal == NO_VALUE:
            arguments["IfNoneMatch"] = "*"
        elif write.if_equal != UNKNOWN:
            arguments["IfMatch"] = entity_tag(write.if_equal) or NO_TAG
        arguments |= {"Metadata": {MARK: mark}, "Body": bytes(write.value)}
        answer = await _client_call(filesystem, "put_object", arguments)
        if _status(answer) != 200 or not answer.get("ETag"):
            raise UnavailableError(f"the server sent status {_status(answer)} without the tag of the object")
        return Stamp(answer["ETag"].encode("latin-1"), now())
    except Exception as error:  # noqa: BLE001  # the boundary: every foreign error is translated here
        conditional = write.if_equal != UNKNOWN
        if conditional and (status_of(error) == 412 or (status_of(error) == 404 and is_missing(error))):
            # live filesystems have the retries of botocore
            attempts.ambiguous |= _retried(error)
            raise ConflictError from None
        failure = located(error, "writing", f"s3://{write.key}")
    raise failure


async def _delete(filesystem: Any, bucket: str, keys: list[str]) -> None:
    doomed = {"Objects": [{"Key": key} for key in keys], "Quiet": True}
    answer = await _call(filesystem, "delete_objects", bucket, {"Bucket": bucket, "Delete": doomed})
    for failed in answer.get("Errors", []):
        kind = _DELETE_ERRORS.get(failed.get("Code"), FailedPreconditionError)
        raise kind(f"Error deleting s3://{bucket}/{failed.get('Key')}: {failed.get('Code')}")
