"""Windows in flight: as many at once as their costs allow."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

__all__ = ["flow"]

S = TypeVar("S")


async def flow(
    function: Callable[[S], Awaitable[None]], items: Iterable[S], *, cost: Callable[[S], int], budget: int
) -> None:
    """Await `function` of each item: as many together as their costs fit into the budget, and one in any case.

    Items are drawn when there is room for them.  The first error cancels the others.
    """
    under_way: dict[asyncio.Future[None], int] = {}

    async def settle() -> None:
        done, _ = await asyncio.wait(under_way, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            del under_way[task]
            task.result()

    try:
        for item in items:
            price = cost(item)
            while under_way and sum(under_way.values()) + price > budget:
                await settle()
            under_way[asyncio.ensure_future(function(item))] = price
        while under_way:
            await settle()
    except BaseException:
        for task in under_way:
            task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)
        raise
