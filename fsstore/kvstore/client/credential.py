"""Credentials that a program gives by a function: asked before they expire, and again when a server refuses them.

A source is named by text, `package.module:function`, so that specs and pickles can hold it.  The function takes nothing
and returns a mapping in the words of any of the usual libraries: `access_key_id`, `secret_access_key`, `token` and
`expires_at` (obstore's), `AccessKeyId`, … `Expiration` (Amazon's), or `key`, `secret`, `token` (s3fs's).

`RenewedEngine` is the engine that keeps them fresh: before each batch it asks for new ones that are due, on a worker
thread, and after a refusal it asks once more and repeats what was refused.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from importlib import import_module
from typing import Any, Protocol, TypeVar

from fsstore.errors import PermissionDeniedError, StoreError
from fsstore.kvstore.client.check import EngineWrapper
from fsstore.kvstore.contract.ability import AnswersSoon
from fsstore.kvstore.contract.driver import Entry, Read, ReadResult, Stamp, Write
from fsstore.kvstore.contract.request import key_bytes
from fsstore.kvstore.engine.contract import Engine
from fsstore.kvstore.tuning import (
    CREDENTIAL_EARLY_S,
    CREDENTIAL_KEPT_S,
    CREDENTIAL_PULSE_S,
    CREDENTIAL_REPEATS,
)
from fsstore.runtime import execution, fork
from fsstore.values.json_value import quote

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
        """Return the class: none of this is shown."""
        return "Credentials(...)"


class CredentialSource(Protocol):
    """Where credentials come from.  Calls may wait, and come from any thread."""

    def fresh(self) -> Credentials:
        """Return credentials that have not expired, or raise an error that says what is missing."""
        ...

    @property
    def due(self) -> bool:
        """Whether `fresh` would have to ask."""
        ...

    def refused(self, used: Credentials) -> None:
        """Forget credentials that a server has refused, unless there are others by now."""
        ...


def function_name(given: Any) -> str:
    """Return the name by which a function can be imported anywhere, or raise an error that says why it cannot."""
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
    """Credentials from a function with a name; asked again a minute before they expire."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._lock = fork.lock()
        self._known: Credentials | None = None

    def __eq__(self, other: object) -> bool:
        """Return whether the other asks the same function."""
        return isinstance(other, NamedSource) and self.name == other.name

    def __hash__(self) -> int:
        """Return a hash of its name."""
        return hash(self.name)

    @property
    def due(self) -> bool:
        """Whether there are none, or they are about to expire."""
        known = self._known
        return known is None or (
            known.expires_s is not None and known.expires_s - time.time() < CREDENTIAL_EARLY_S
        )

    def fresh(self) -> Credentials:
        """Return credentials, asked for if they are due; callers on several threads ask once."""
        with self._lock:
            if self.due or self._known is None:
                self._known = self._asked()
            return self._known

    def refused(self, used: Credentials) -> None:
        """Forget what is known, if that was refused."""
        with self._lock:
            if self._known == used:
                self._known = None

    def _asked(self) -> Credentials:
        function = _imported(self.name)
        try:
            found = function()
        except StoreError:
            raise
        except Exception as error:  # noqa: BLE001  # whatever a user's function raises; its text may hold secrets
            raised = type(error).__name__
        else:
            return _credentials(self.name, found)
        raise PermissionDeniedError(
            f"The function {quote(self.name)} gives no credentials: it raised {raised}"
        )


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
    """Return credentials as obstore asks for them."""

    def provide() -> dict[str, Any]:
        known = source.fresh()
        return {
            "access_key_id": known.key,
            "secret_access_key": known.secret,
            "token": known.token,
            "expires_at": datetime.now(UTC) + timedelta(seconds=CREDENTIAL_PULSE_S),
        }

    return provide


class RenewedEngine(EngineWrapper):
    """An engine whose credentials come from a source, which may take long: no caller waits for it by itself."""

    passes_on = EngineWrapper.passes_on - {AnswersSoon}

    def __init__(self, inner: Engine, source: CredentialSource) -> None:
        super().__init__(inner)
        self.source = source

    async def read_many(self, reads: list[Read]) -> list[ReadResult]:
        """Return one exact answer a read; those refused are read again with new credentials."""
        return await self._renewed(lambda: self.inner.read_many(reads))

    async def write_many(self, writes: Sequence[Write]) -> list[Stamp]:
        """Apply the writes, each by itself: one that is refused must not be repeated with others that were not."""
        if len(writes) == 1 or all(write.value is None for write in writes):
            return await self._renewed(lambda: self.inner.write_many(writes))
        stamps = await execution.gather([self._write(write) for write in writes])
        return [stamp for each in stamps for stamp in each]

    async def _write(self, write: Write) -> list[Stamp]:
        return await self._renewed(lambda: self.inner.write_many([write]))

    async def pages(self, prefix: str) -> AsyncIterator[Sequence[Entry]]:
        """Yield the entries of all paths that start with `prefix`; a listing that is refused goes on where it was."""
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
        """Yield the entries of a listing whose keys come after one."""
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
                if repeats == CREDENTIAL_REPEATS or not _is_refusal(error):
                    raise
                if repeats and isinstance(error, PermissionDeniedError):
                    raise  # the new ones are good, and may not do this
            repeats += 1
            await self._other_than(used)

    async def _other_than(self, used: Credentials) -> None:
        """See that the next request is signed with other credentials than those that were refused."""
        self.source.refused(used)
        await self._ready()
        await asyncio.sleep(CREDENTIAL_KEPT_S)

    async def _ready(self) -> Credentials:
        """Return the credentials that the next request is signed with."""
        return await execution.offload(self.source.fresh) if self.source.due else self.source.fresh()


def _is_refusal(error: StoreError) -> bool:
    """Return whether a server refused credentials; S3 answers 400 where a token has expired."""
    return isinstance(error, PermissionDeniedError) or _EXPIRED.search(error.message) is not None
