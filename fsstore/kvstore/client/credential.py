"""Trust between client and server: answers that fit the request, conditions that are honoured, fresh credentials.

A store may answer a range request with the range, with a shorter one at the end of the value, with another range, or
with the whole value.  `fit` cuts out exactly the requested bytes, or raises: a range outside the value is
`OutOfRangeError`, an answer that should have been longer is `UnavailableError` and worth another try.

On servers with the protocol of S3, a condition is a header, and a server that does not know it writes all the same: two
writers would lose each other's updates.  Amazon's servers are known to honour it.  For others, the user may say so
(`use_conditional_write`); otherwise the server is probed once per bucket and process, before the first conditional
write: it is asked to overwrite a missing object on condition of a generation that does not exist.  A trustworthy server
refuses.  If it writes, no conditions are sent to it, and the object is removed again.

A program gives credentials by a function named by text, `package.module:function`, so that specs and pickles can hold
it.  The function takes no arguments and returns a mapping in the terms of any of the usual libraries: `access_key_id`,
`secret_access_key`, `token` and `expires_at` (obstore's), `AccessKeyId`, … `Expiration` (Amazon's), or `key`, `secret`,
`token` (s3fs's).  Before each batch `RenewedEngine` calls it on a worker thread if new credentials are due; after a
refusal it calls it once more and repeats the refused requests.
"""

from __future__ import annotations

import asyncio
import os
import re
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from importlib import import_module
from typing import Any, ClassVar, NamedTuple, Protocol, TypeAlias, TypeVar
from urllib.parse import urlsplit

from fsstore.errors import OutOfRangeError, PermissionDeniedError, StoreError, UnavailableError, UnimplementedError
from fsstore.kvstore.contract.ability import AnswersSoon, PassesOn, TakesValues, TellsModified
from fsstore.kvstore.contract.driver import (
    UNKNOWN,
    Buffer,
    Entry,
    Features,
    Read,
    ReadResult,
    ReadUpTo,
    Stamp,
    Write,
    now,
)
from fsstore.kvstore.contract.request import clipped_range, key_bytes, resolve_range
from fsstore.kvstore.engine.contract import Engine
from fsstore.kvstore.engine.secret import reveal
from fsstore.runtime import execution, fork
from fsstore.runtime.fork import OfProcess
from fsstore.runtime.tuning import CREDENTIAL_EARLY_S, CREDENTIAL_KEPT_S, PIECE_BYTES, SLOWEST_ANSWER, TRIES, TRUSTED_S
from fsstore.values.json_value import Json, quote

# Byte ranges: the request, and whether the answer fits.  An empty range is requested as the first byte: it must still
# tell a missing key from an existing one, and HTTP has no empty ranges.

NO_TAG = '"-"'
"""A tag that no object has: for generations from other stores."""
_CONTENT_RANGE = re.compile(r"bytes (?:(\d+)-(\d+)|\*)/(\d+|\*)")

Place: TypeAlias = tuple[int, int, int | None]
"""The position of bytes: the first, the one behind the last, and the size of the value if it is known."""


class RangeAnswer(NamedTuple):
    """Bytes of a value from `start` on; `total` is the size of the value, if known."""

    body: Buffer
    start: int = 0
    total: int | None = None
    generation: bytes = b""


def entity_tag(generation: bytes) -> str | None:
    """Return the entity tag that a generation was made from, or None.

    >>> entity_tag(b'"abc"'), entity_tag(b"")
    ('"abc"', None)
    """
    text = generation.decode("latin-1")
    return text if text.isprintable() and text else None


def range_header(read: Read) -> str | None:
    """Return the value of the `Range` header, or None for the whole value.

    >>> range_header(Read("k", 5, 7)), range_header(Read("k", -3)), range_header(Read("k", 5, 5))
    ('bytes=5-6', 'bytes=-3', 'bytes=0-0')
    """
    if read.start < 0:
        return f"bytes={read.start}"
    if read.stop is None:
        return f"bytes={read.start}-" if read.start else None
    if read.stop <= read.start:
        return "bytes=0-0"
    return f"bytes={read.start}-{read.stop - 1}"


def is_empty(read: Read) -> bool:
    """Return whether a read asks for no bytes, only for the existence, size and generation of the value."""
    return read.start == read.stop


def range_of_header(value: str | None) -> Place | None:
    """Return `(start, stop, total)` of a `Content-Range` header; `(0, 0, total)` for an unsatisfiable range.

    >>> range_of_header("bytes 5-6/10"), range_of_header("bytes */10"), range_of_header("rows 1-2/3")
    ((5, 7, 10), (0, 0, 10), None)
    """
    found = _CONTENT_RANGE.fullmatch(value.strip()) if value else None
    if found is None:
        return None
    total = None if found[3] == "*" else int(found[3])
    return (int(found[1]), int(found[2]) + 1, total) if found[1] else (0, 0, total)


def received(
    status: int, body: Buffer, *, size: int | None, place: Place | None = None, generation: bytes = b""
) -> RangeAnswer:
    """Return the content of a `GET` answer: the single place that judges statuses, lengths and `Content-Range`.

    `size` is the `Content-Length`, if it counts the bytes as they are; `place` is the `Content-Range`.  An answer that
    is neither a value nor a part of one, or whose lengths disagree, is worth another try: `UnavailableError`.
    """
    if size is not None and size != len(body):
        raise UnavailableError(f"the server announced {size} bytes and sent {len(body)}")
    if status == 200:
        return RangeAnswer(body, 0, len(body), generation)
    if status != 206 or place is None or place[1] - place[0] != len(body):
        raise UnavailableError(f"the server sent {len(body)} bytes with status {status} as {_shown(place)}")
    if place[2] is not None and place[1] > place[2]:
        raise UnavailableError(f"the server sent {_shown(place)}, which lie outside the value")
    return RangeAnswer(body, place[0], place[2], generation)


def _shown(place: Place | None) -> str:
    if place is None:
        return "bytes of no range"
    return f"bytes [{place[0]}, {place[1]}) of {'?' if place[2] is None else place[2]}"


async def collect(read: Callable[[int], Awaitable[bytes]], idle_s: float, enough: int | None = None) -> bytes:
    """Return all that `read(most)` returns until it returns nothing or `enough` bytes have come; raise if that is too
    slow.

    Clients give up on a silent server, but none gives up on a byte a second, which is no better.
    """
    begun, parts, size = time.monotonic(), [], 0
    while part := await read(PIECE_BYTES):
        parts.append(part)
        size += len(part)
        if is_slow(time.monotonic() - begun, size, idle_s):
            raise UnavailableError(f"the server sent only {size} bytes in {idle_s:g} s and more")
        if enough is not None and size >= enough:
            break
    return parts[0] if len(parts) == 1 else b"".join(parts)


def is_slow(elapsed_s: float, size: int, idle_s: float) -> bool:
    """Return whether so few bytes have come that the server counts as dead."""
    return elapsed_s > idle_s + size / SLOWEST_ANSWER


def _is_elsewhere(piece: RangeAnswer, read: Read, end: int) -> bool:
    """Return whether a store sent a part of a value that does not begin at the requested byte.

    A store that cannot send the requested range sends nothing or the whole value.
    """
    if is_empty(read) or not piece.body or (piece.start == 0 and piece.total in (None, end)):
        return False
    if read.start < 0:
        return piece.total not in (None, end)
    return not piece.start <= read.start < end


def fit(piece: RangeAnswer, read: Read) -> ReadResult:
    """Return the answer to `read` cut from the bytes that a store sent."""
    end = piece.start + len(piece.body)
    if _is_elsewhere(piece, read, end):  # its size is trusted no more than the rest
        raise UnavailableError(f"the store sent bytes [{piece.start}, {end}) for those from {read.start} on")
    if piece.total is not None:
        resolve = clipped_range if isinstance(read, ReadUpTo) else resolve_range
        start, stop = resolve(read.start, read.stop, piece.total)
    elif read.start < 0:
        start, stop = end + read.start, end
    else:
        start, stop = read.start, end if read.stop is None else read.stop
    if start < stop and not piece.start <= start <= stop <= end:
        raise UnavailableError(f"the store sent bytes [{piece.start}, {end}) for bytes [{start}, {stop})")
    if start > stop:
        raise OutOfRangeError(f"Requested byte range [{read.start}, ...) is not valid for value of size {end}")
    body = piece.body
    if stop - start != len(body):
        body = memoryview(body)[start - piece.start : stop - piece.start] if start < stop else b""
    return ReadResult("value", body, piece.generation, now(), piece.total)


_AMAZON = (".amazonaws.com", ".amazonaws.com.cn")
_ENVIRONMENT = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
_NEVER = b"\0an older version"  # a generation that no object has
_trusted: OfProcess[set[tuple[str, str]]] = OfProcess(set)


def endpoint_of(members: Mapping[str, Any], options: Mapping[str, Any]) -> str:
    """Return the server address in the members and options of a filesystem; empty for Amazon's."""
    client = options.get("client_kwargs") or {}
    given = options.get("endpoint_url") or client.get("endpoint_url") or reveal(members.get("endpoint"))
    return str(given or next(filter(None, map(os.environ.get, _ENVIRONMENT)), ""))


def probed(engine: Engine, endpoint: str) -> Engine:
    """Return the engine, with a probe before its first condition unless the server is Amazon's."""
    host = urlsplit(endpoint).hostname or ""
    return engine if not endpoint or host.endswith(_AMAZON) else ProbedEngine(engine, endpoint)


def with_checked_conditions(engine: Engine, endpoint: str, conditional: Json) -> Engine:
    """Return the engine for a value of `use_conditional_write`: true, false, or None."""
    plain = engine.inner if isinstance(engine, ProbedEngine) else engine
    if conditional is None:
        return probed(plain, endpoint)
    return plain if conditional else UnconditionalEngine(plain)


class EngineWrapper(PassesOn):
    """An engine over another."""

    inner: Engine
    passes_on: ClassVar[frozenset[type]] = frozenset({AnswersSoon, TakesValues, TellsModified})

    def __init__(self, inner: Engine) -> None:
        self.inner = inner

    @property
    def features(self) -> Features:
        """The abilities of the storage."""
        return self.inner.features

    @property
    def shown(self) -> str:
        """The text before paths in messages."""
        return self.inner.shown

    async def read_many(self, reads: list[Read]) -> list[ReadResult]:
        """Return one exact answer a read."""
        return await self.inner.read_many(reads)

    async def write_many(self, writes: Sequence[Write]) -> list[Stamp]:
        """Apply the writes."""
        return await self.inner.write_many(writes)

    def pages(self, prefix: str) -> AsyncIterator[Sequence[Entry]]:
        """Yield the entries of all paths that start with `prefix`."""
        return self.inner.pages(prefix)


class ReadOnlyEngine(EngineWrapper):
    """A storage that its owner marks as read-only."""

    @property
    def features(self) -> Features:
        """The abilities without writing."""
        return replace(self.inner.features, writable=False)


class UnconditionalEngine(EngineWrapper):
    """A server that, according to the user, does not check conditions: they are refused."""

    @property
    def features(self) -> Features:
        """The abilities without conditions."""
        return replace(self.inner.features, create_only=False, conditional_write=False)

    async def write_many(self, writes: Sequence[Write]) -> list[Stamp]:
        """Apply writes without conditions."""
        if any(write.if_equal != UNKNOWN for write in writes):
            raise UnimplementedError(
                "conditional write is not supported by this storage (use_conditional_write is false)"
            )
        return await self.inner.write_many(writes)


class ProbedEngine(EngineWrapper):
    """A server that is probed before the first condition is sent."""

    def __init__(self, inner: Engine, endpoint: str) -> None:
        super().__init__(inner)
        self.endpoint = endpoint

    async def write_many(self, writes: Sequence[Write]) -> list[Stamp]:
        """Apply the writes, after a probe if there are conditions among them."""
        for write in writes:
            if write.if_equal != UNKNOWN and write.value is not None:
                await self._probe(write.key)
                break
        return await self.inner.write_many(writes)

    async def _probe(self, path: str) -> None:
        """Raise unless the server refuses a conditional overwrite of a missing object beside `path`."""
        place = self.endpoint, (self.shown + path).split("/")[2]  # s3://bucket/key
        if place in _trusted.now:
            return
        folder, slash, _ = path.rpartition("/")
        probe = f"{folder}{slash}fsstore-probe-{uuid.uuid4().hex}"
        [stamp] = await self.inner.write_many([Write(probe, b"", _NEVER)])
        if stamp.generation != UNKNOWN:
            await self.inner.write_many([Write(probe, None)])
            raise UnimplementedError(
                f"conditional write is not supported by the server {quote(self.endpoint)}, which ignores conditions;"
                ' with "single_writer": true they can be checked here if nobody else writes'
            )
        _trusted.now.add(place)


T = TypeVar("T")
_WORDS = {
    "key": ("access_key_id", "AccessKeyId", "key"),
    "secret": ("secret_access_key", "SecretAccessKey", "secret"),
    "token": ("token", "session_token", "SessionToken", "Token"),
    "expires": ("expires_at", "expiration", "Expiration", "expires"),
}
_EXPIRED = re.compile(r"Expired|InvalidToken|InvalidAccessKeyId|TokenRefreshRequired")


@dataclass(frozen=True, slots=True)
class Credentials:
    """A key, its secret and a token, and when they expire, in seconds since 1970."""

    key: str
    secret: str
    token: str | None = None
    expires_s: float | None = None

    def __repr__(self) -> str:
        """Return only the class, to show no secrets."""
        return "Credentials(...)"


class CredentialSource(Protocol):
    """A source of credentials.  Calls may wait, and come from any thread."""

    def fresh(self) -> Credentials:
        """Return credentials that have not expired, or raise an error that names the missing part."""
        ...

    @property
    def due(self) -> bool:
        """Whether `fresh` would have to ask."""
        ...

    def refused(self, used: Credentials) -> None:
        """Forget credentials that a server has refused, unless newer ones are known."""
        ...


def function_name(given: Any) -> str:
    """Return the name under which a function can be imported anywhere, or raise an error that tells why it has none."""
    if isinstance(given, str):
        module, colon, path = given.partition(":")
        if not (module and colon and path):
            raise StoreError(
                f"{quote(given)} names no function: credentials come from one named as package.module:function"
            )
        return given
    module, path = str(getattr(given, "__module__", "")), str(getattr(given, "__qualname__", ""))
    name = f"{module}:{path}"
    if module in ("", "None", "__main__") or not path or "<" in path:
        raise StoreError(
            f"Credentials come from a function that other processes can import, and {path or type(given).__name__} is"
            " none; put it into a module and give it, or its name as package.module:function"
        )
    if _imported(name) is not given:
        raise StoreError(f"{quote(name)} is another object than the function given for credentials")
    return name


def _imported(name: str) -> Any:
    module, _, path = name.partition(":")
    try:
        found: Any = import_module(module)
        for part in path.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise StoreError(f"The function for credentials cannot be imported: {error}") from None
    return found


class NamedSource:
    """Credentials from a named function, which is called again a minute before they expire."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._lock = fork.lock()
        self._known: Credentials | None = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NamedSource) and self.name == other.name

    def __hash__(self) -> int:
        return hash(self.name)

    @property
    def due(self) -> bool:
        """Whether there are none, or they are about to expire."""
        known = self._known
        return known is None or (known.expires_s is not None and known.expires_s - time.time() < CREDENTIAL_EARLY_S)

    def fresh(self) -> Credentials:
        """Return credentials, new ones if they are due; concurrent callers share one call."""
        with self._lock:
            if self.due or self._known is None:
                self._known = self._asked()
            return self._known

    def refused(self, used: Credentials) -> None:
        """Forget the known credentials if they are those that were refused."""
        with self._lock:
            if self._known == used:
                self._known = None

    def _asked(self) -> Credentials:
        function = _imported(self.name)
        try:
            found = function()
        except StoreError:
            raise
        except Exception as error:  # noqa: BLE001  # a user's function may raise anything, with secrets in the text
            raised = type(error).__name__
        else:
            return _credentials(self.name, found)
        raise PermissionDeniedError(f"The function {quote(self.name)} gives no credentials: it raised {raised}")


def _credentials(name: str, found: Any) -> Credentials:
    def word(kind: str) -> Any:
        return next((found[each] for each in _WORDS[kind] if found.get(each) is not None), None)

    if not isinstance(found, Mapping) or not (word("key") and word("secret")):
        raise PermissionDeniedError(
            f"The function {quote(name)} gives no credentials: it has to return a mapping with access_key_id,"
            " secret_access_key and, if they expire, token and expires_at"
        )
    return Credentials(str(word("key")), str(word("secret")), word("token"), _seconds(name, word("expires")))


def _seconds(name: str, when: Any) -> float | None:
    if isinstance(when, str):
        try:
            when = datetime.fromisoformat(when)
        except ValueError:
            raise PermissionDeniedError(f"The function {quote(name)} gives no time as expires_at") from None
    if isinstance(when, datetime):
        return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()
    return None if when is None else float(when)


def obstore_provider(source: CredentialSource) -> Callable[[], dict[str, Any]]:
    """Return a source in the form that obstore calls."""

    def provide() -> dict[str, Any]:
        known = source.fresh()
        return {
            "access_key_id": known.key,
            "secret_access_key": known.secret,
            "token": known.token,
            "expires_at": datetime.now(UTC) + timedelta(seconds=TRUSTED_S),
        }

    return provide


class RenewedEngine(EngineWrapper):
    """An engine with credentials from a source, which may take long: no caller runs its reads in its own thread."""

    passes_on = EngineWrapper.passes_on - {AnswersSoon}

    def __init__(self, inner: Engine, source: CredentialSource) -> None:
        super().__init__(inner)
        self.source = source

    async def read_many(self, reads: list[Read]) -> list[ReadResult]:
        """Return one exact answer for each read; refused reads are repeated with new credentials."""
        return await self._renewed(lambda: self.inner.read_many(reads))

    async def write_many(self, writes: Sequence[Write]) -> list[Stamp]:
        """Apply the writes one by one: a refused one must not be repeated together with others that were applied."""
        if len(writes) == 1 or all(write.value is None for write in writes):
            return await self._renewed(lambda: self.inner.write_many(writes))
        stamps = await execution.gather([self._write(write) for write in writes])
        return [stamp for each in stamps for stamp in each]

    async def _write(self, write: Write) -> list[Stamp]:
        return await self._renewed(lambda: self.inner.write_many([write]))

    async def pages(self, prefix: str) -> AsyncIterator[Sequence[Entry]]:
        """Yield the entries of all paths that start with `prefix`; a refused listing continues where it stopped."""
        seen, refused = b"", False
        while True:
            used = await self._ready()
            try:
                async for page in self._after(seen, prefix):
                    yield page
                    seen, refused = max(key_bytes(entry.key) for entry in page), False
            except StoreError as error:
                if refused or not _is_refusal(error):
                    raise
                refused = True
            else:
                return
            await self._other_than(used)

    async def _after(self, seen: bytes, prefix: str) -> AsyncIterator[Sequence[Entry]]:
        """Yield the entries of a listing behind the key `seen`."""
        async for page in self.inner.pages(prefix):
            entries = [entry for entry in page if key_bytes(entry.key) > seen]
            if entries:
                yield entries

    async def _renewed(self, call: Callable[[], Awaitable[T]]) -> T:
        used, repeats = await self._ready(), 0
        while True:
            try:
                return await call()
            except StoreError as error:
                if repeats == TRIES or not _is_refusal(error):
                    raise
                if repeats and isinstance(error, PermissionDeniedError):
                    raise  # the new credentials are valid, but lack the permission
            repeats += 1
            await self._other_than(used)

    async def _other_than(self, used: Credentials) -> None:
        """Ensure that the next request is signed with other credentials than the refused ones."""
        self.source.refused(used)
        await self._ready()
        await asyncio.sleep(CREDENTIAL_KEPT_S)

    async def _ready(self) -> Credentials:
        """Return the credentials for the next request."""
        return await execution.offload(self.source.fresh) if self.source.due else self.source.fresh()


def _is_refusal(error: StoreError) -> bool:
    """Return whether a server refused credentials; S3 answers 400 for an expired token."""
    return isinstance(error, PermissionDeniedError) or _EXPIRED.search(error.message) is not None
