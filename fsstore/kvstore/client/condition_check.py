"""Conditions on a server that speaks the protocol of S3: whether the server or this process judges them.

A condition is a header of the request, and a server that does not know the header writes all the same, without a word:
two writers would lose each other's updates.  Amazon's own servers are known to heed it.  The user may say so of others
(`use_conditional_write`, true or false); otherwise the server is asked once, before the first write under a
condition: to overwrite an object that does not exist, provided that it is an older version of it.  A server that can
be trusted refuses and nothing has changed.  One that writes is not sent conditions; the object is removed again.

The answer holds for all stores of that server and bucket in this process.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar
from urllib.parse import urlsplit

from fsstore.errors import UnimplementedError
from fsstore.kvstore.contract.ability import AnswersSoon, PassesOn, TakesValues, TellsModified
from fsstore.kvstore.contract.driver import UNKNOWN, Entry, Features, Read, ReadResult, Stamp, Write
from fsstore.kvstore.engine.contract import Engine
from fsstore.kvstore.engine.secret import reveal
from fsstore.runtime.state import OfProcess
from fsstore.values.json_value import Json, quote

__all__ = [
    "EngineWrapper",
    "QuestionedEngine",
    "ReadOnlyEngine",
    "UnconditionalEngine",
    "endpoint_of",
    "questioned",
    "with_checked_conditions",
]

_AMAZON = (".amazonaws.com", ".amazonaws.com.cn")
_ENVIRONMENT = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
_NEVER = b"\0an older version"  # a generation that no object of the server has
_trusted: OfProcess[set[tuple[str, str]]] = OfProcess(set)


def endpoint_of(members: Mapping[str, Any], options: Mapping[str, Any]) -> str:
    """Return the address of the server that members and options of the filesystem name; empty for Amazon's."""
    client = options.get("client_kwargs") or {}
    given = options.get("endpoint_url") or client.get("endpoint_url") or reveal(members.get("endpoint"))
    return str(given or next(filter(None, map(os.environ.get, _ENVIRONMENT)), ""))


def questioned(engine: Engine, endpoint: str) -> Engine:
    """Return the engine, with a question before its first condition unless the server is Amazon's."""
    host = urlsplit(endpoint).hostname or ""
    return engine if not endpoint or host.endswith(_AMAZON) else QuestionedEngine(engine, endpoint)


def with_checked_conditions(engine: Engine, endpoint: str, wish: Json) -> Engine:
    """Return the engine as `use_conditional_write` wants it: true, false, or left out."""
    plain = engine.inner if isinstance(engine, QuestionedEngine) else engine
    if wish is None:
        return questioned(plain, endpoint)
    return plain if wish else UnconditionalEngine(plain)


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
    """A storage of which its owner says that it is for reading."""

    @property
    def features(self) -> Features:
        """The abilities without writing."""
        return replace(self.inner.features, writable=False)


class UnconditionalEngine(EngineWrapper):
    """A server of which the user says that it does not check conditions: they are refused."""

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


class QuestionedEngine(EngineWrapper):
    """A server that is asked whether it checks conditions before the first is sent."""

    def __init__(self, inner: Engine, endpoint: str) -> None:
        super().__init__(inner)
        self.endpoint = endpoint

    async def write_many(self, writes: Sequence[Write]) -> list[Stamp]:
        """Apply the writes, after the question if there are conditions among them."""
        for write in writes:
            if write.if_equal != UNKNOWN and write.value is not None:
                await self._ask(write.key)
                break
        return await self.inner.write_many(writes)

    async def _ask(self, path: str) -> None:
        """Raise unless the server refuses to overwrite an object beside `path` that does not exist."""
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
