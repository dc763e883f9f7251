"""Reads that a program begins in one turn of its event loop, asked of the store as one batch.

zarr-python reads chunk by chunk, several at a time.  Where chunks are parts of one file (a reference set, an archive, a
database), a batch of them is one request or a few: ten chunks that lie side by side are one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeAlias

__all__ = ["ReadBatcher"]

Ask: TypeAlias = Callable[
    [list[str], list[int | None], list[int | None]], Awaitable["list[bytes | Exception]"]
]
_Waiting: TypeAlias = "list[tuple[str, int | None, int | None, asyncio.Future[bytes]]]"


class ReadBatcher:
    """The reads of a filesystem that are not asked yet, by event loop.  `ask` gives values or errors, one a read."""

    __slots__ = ("_ask", "_asking", "_waiting")

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._waiting: dict[asyncio.AbstractEventLoop, _Waiting] = {}
        self._asking: set[asyncio.Future[None]] = set()

    def ask(self, path: str, start: int | None, end: int | None) -> asyncio.Future[bytes]:
        """Return the value to come of a path, or of a part of it."""
        loop = asyncio.get_running_loop()
        waiting = self._waiting.get(loop)
        if waiting is None:
            waiting = self._waiting[loop] = []
            loop.call_soon(self._begin, loop)
        answer = loop.create_future()
        waiting.append((path, start, end, answer))
        return answer

    def _begin(self, loop: asyncio.AbstractEventLoop) -> None:
        task = asyncio.ensure_future(self._answer(self._waiting.pop(loop)))
        self._asking.add(task)
        task.add_done_callback(self._asking.discard)

    async def _answer(self, waiting: _Waiting) -> None:
        paths, starts, ends, answers = (list(column) for column in zip(*waiting, strict=True))
        try:
            outcomes = await self._ask(paths, starts, ends)
        except BaseException:
            for answer in answers:
                answer.cancel()
            raise
        for answer, outcome in zip(answers, outcomes, strict=True):
            if answer.done():  # the caller went away
                continue
            if isinstance(outcome, Exception):
                answer.set_exception(outcome)
            else:
                answer.set_result(outcome)
