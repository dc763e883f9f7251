"""A set with many changes at once: what it keeps, and references and values that are new."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from fsstore.kvstore.contract.request import KeyRange
from fsstore.reference.state.refset import Resolved, TableSet
from fsstore.reference.state.set_state import State, Taking
from fsstore.reference.table.builder import TableBuilder
from fsstore.reference.table.table import INLINE, Rows

__all__ = ["add_page", "with_references"]


async def with_references(state: State, taking: Taking) -> State:
    """Return a set with what it takes."""
    builder = TableBuilder()
    async for names, found in state.scan(KeyRange()):
        kept = [at for at, name in enumerate(names) if not taking.deletes(name)]
        add_page(
            builder,
            [names[at] for at in kept],
            found._replace(rows=found.rows.take(np.array(kept, np.int64))),
        )
    rows = Rows.of(list(taking.references.values()))
    add_page(builder, list(taking.references), Resolved(rows, taking.urls, ()))
    for key, value in taking.writes.items():
        builder.add_inline(key.encode(), value)
    return State(TableSet(builder.finish()), {}, state.generation)


def add_page(
    builder: TableBuilder, names: Sequence[str], found: Resolved, url: Callable[[str], str] | None = None
) -> None:
    """Add keys and their references to a table that is being made, with other URLs if `url` makes these."""
    rows = found.rows
    numbers, offset = rows.url.copy(), rows.offset.copy()
    used = np.unique(numbers[numbers >= 0])
    texts = [found.urls[number] for number in used.tolist()]
    ids = builder.url_ids([(text if url is None else url(text)).encode() for text in texts])
    numbers[numbers >= 0] = ids[np.searchsorted(used, numbers[numbers >= 0])]
    for position in np.flatnonzero(rows.url == INLINE).tolist():
        builder.inline.append(found.inline[int(rows.offset[position])])
        offset[position] = len(builder.inline) - 1
    builder.add_rows([name.encode() for name in names], Rows(numbers, offset, rows.length))
