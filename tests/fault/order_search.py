"""Whether what threads saw of one value can be put in an order that agrees with the clock."""

from __future__ import annotations

from typing import NamedTuple

NEVER = float("inf")


class Event(NamedTuple):
    """An operation from `began` to `ended`, `NEVER` if its outcome is unknown: it may take place later, or not at all.

    `kind` is `read` (of `old`), `write` (of `new`), `swap` (of `old` for `new`), or `refused` (a swap that was not made).
    None is no value.
    """

    began: float
    ended: float
    kind: str
    old: bytes | None
    new: bytes | None


def has_order(events: list[Event]) -> bool:
    """Return whether there is one; all possible orders are tried, states that were met before are not tried again."""
    events = sorted(events)
    certain = {number for number, event in enumerate(events) if event.ended != NEVER}
    met: set[tuple[frozenset[int], bytes | None]] = set()
    pending: list[tuple[frozenset[int], bytes | None]] = [(frozenset(), None)]
    while pending:
        done, value = state = pending.pop()
        if certain <= done:
            return True
        if state in met:
            continue
        met.add(state)
        left = [(number, event) for number, event in enumerate(events) if number not in done]
        horizon = min(event.ended for _, event in left)
        for number, event in left:
            fits = (event.old == value) == (event.kind != "refused") or event.kind == "write"
            if event.began <= horizon and fits:
                after = event.new if event.kind in ("write", "swap") else value
                pending.append((done | {number}, after))
    return False
