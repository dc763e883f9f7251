"""`verify`: whether arrays can be read as they are, and whether a copy holds what its source does.

An array is read box by box; a box that cannot be read is read chunk by chunk, so that the report names the chunks.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from html import escape
from itertools import islice
from typing import Any, Literal

import numpy as np

from fsstore.arrays.store import TensorStore
from fsstore.chunk.plan.regions import Region, Regions, cut
from fsstore.context.context import Context, context_of
from fsstore.dataset.group import Group
from fsstore.errors import StoreError
from fsstore.job.copy import opened_source
from fsstore.job.plan import parse_bytes
from fsstore.runtime import execution
from fsstore.runtime.future import Future
from fsstore.task.progress import bytes_text, reporter_of

__all__ = ["Finding", "Verdict", "verify"]

Level = Literal["keys", "decode", "values"]

_MOST_FINDINGS = 1000  # more of them say nothing new
_COPIES = 3  # of a box that are in memory


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is wrong: in which array, where, and what."""

    array: str
    start: tuple[int, ...]
    stop: tuple[int, ...]
    what: str

    def __str__(self) -> str:
        """Return one line of text."""
        sides = ", ".join(f"{low}:{high}" for low, high in zip(self.start, self.stop, strict=True))
        return f"{self.array or '/'}[{sides}]: {self.what}"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What `verify` found.  True if nothing is wrong."""

    level: str
    arrays: int
    nbytes: int
    findings: tuple[Finding, ...] = ()
    missing: tuple[str, ...] = ()
    """Arrays that `against` has and the place has not."""
    extra: tuple[str, ...] = field(default=())
    """Arrays that the place has and `against` has not."""

    def __bool__(self) -> bool:
        """Whether nothing is wrong."""
        return not (self.findings or self.missing or self.extra)

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON."""
        findings = [
            {"array": each.array, "start": list(each.start), "stop": list(each.stop), "what": each.what}
            for each in self.findings
        ]
        return {
            "good": bool(self), "level": self.level, "arrays": self.arrays, "bytes": self.nbytes,
            "findings": findings, "missing": list(self.missing), "extra": list(self.extra),
        }  # fmt: skip

    def __str__(self) -> str:
        """Return the report as text: one line, and one for each finding."""
        verdict = "nothing is wrong" if self else f"{len(self.findings)} findings"
        lines = [f"{self.arrays} arrays, {bytes_text(self.nbytes)} read: {verdict}"]
        lines += [f"missing: {path}" for path in self.missing] + [f"extra: {path}" for path in self.extra]
        return "\n".join([*lines, *map(str, self.findings)])

    def _repr_html_(self) -> str:
        """Return the text for notebooks."""
        return f"<pre>{escape(str(self))}</pre>"


def verify(
    place: Any,
    against: Any = None,
    *,
    level: Level = "values",
    max_memory: int | str = "256MB",
    progress: Any = None,
    context: Context | None = None,
) -> Future[Verdict]:
    """Begin to check an array, or all arrays below a group; the result is true if nothing is wrong.

    `decode` reads everything; `values` also compares with `against`, element by element, where not-a-number equals
    itself; `keys` compares shapes, types and names only.  Without `against`, `values` is `decode`.

    >>> import fsstore as ts
    >>> store = ts.open("memory://a/|zarr3:", create=True, dtype="int16", shape=[4]).result()
    >>> bool(verify(store).result())
    True
    """
    if level not in ("keys", "decode", "values"):
        raise ValueError(f'level is "keys", "decode" or "values", not {level!r}')
    memory, chosen = parse_bytes(max_memory), context_of(context)

    async def run() -> Verdict:
        ours = await _arrays(await opened_source(place, chosen))
        theirs = {} if against is None else await _arrays(await opened_source(against, chosen))
        missing = tuple(sorted(set(theirs) - set(ours)))
        extra = tuple(sorted(set(ours) - set(theirs))) if against is not None else ()
        total = sum(_nbytes(store) for store in ours.values()) if level != "keys" else 0
        reporter = reporter_of(progress, "verify", len(ours), total)
        findings: list[Finding] = []
        for path, store in ours.items():
            other = theirs.get(path)
            checks = await execution.offload(_checked, path, store, other, level, memory)
            findings += checks[: _MOST_FINDINGS - len(findings)]
            reporter.done(_nbytes(store) if level != "keys" else 0)
        return Verdict(level, len(ours), total, tuple(findings), missing, extra)

    return execution.start(run())


async def _arrays(opened: TensorStore | Group) -> dict[str, TensorStore]:
    if isinstance(opened, TensorStore):
        return {"": opened}
    listed = await opened._place.listed(opened.path)
    for error in listed.damaged.values():
        raise error
    return {path: await opened.open(path) for path, node in listed.nodes.items() if node.kind == "array"}


def _nbytes(store: TensorStore) -> int:
    return int(store.size * max(1, store.dtype.numpy_dtype.itemsize))


def _checked(
    path: str, store: TensorStore, other: TensorStore | None, level: Level, memory: int
) -> list[Finding]:
    whole = Region(store.domain.inclusive_min, store.domain.exclusive_max)
    if other is not None:
        if (store.shape, store.domain.origin) != (other.shape, other.domain.origin):
            what = f"its shape is {store.shape} and that of the other {other.shape}"
            return [Finding(path, whole.start, whole.stop, what)]
        if level != "keys" and store.dtype != other.dtype:
            other = other.astype(store.dtype)
    if level == "keys":
        return []
    chunk = [side or 1 for side in store.chunk_layout.read_chunk.shape or (None,) * store.rank]
    itemsize = max(1, store.dtype.numpy_dtype.itemsize)
    regions = cut(whole, chunk, chunk, (0,) * store.rank, max(1, memory // (_COPIES * itemsize)))
    compared = other if level == "values" else None
    return list(islice(_findings(path, store, compared, regions, chunk), _MOST_FINDINGS))


def _findings(
    path: str, store: TensorStore, other: TensorStore | None, regions: Regions, chunk: list[int]
) -> Iterator[Finding]:
    for number in range(len(regions)):
        box = regions[number]
        what = _wrong(store, other, box)
        if not what:
            continue
        small = Regions(box.start, box.stop, tuple(chunk), (0,) * len(chunk))
        if len(small) <= 1:
            yield Finding(path, box.start, box.stop, what)
            continue
        for each in (small[at] for at in range(len(small))):
            what = _wrong(store, other, each)
            if what:
                yield Finding(path, each.start, each.stop, what)


def _wrong(store: TensorStore, other: TensorStore | None, box: Region) -> str:
    """Return what is wrong with a box, or nothing."""
    begun = store[box.slices].read()
    expected = None if other is None else other[box.slices].read()
    try:
        values = begun.result()
    except StoreError as error:
        return str(error)
    if expected is None:
        return ""
    wanted = expected.result()
    differing = _differ(values, wanted)
    count = int(np.count_nonzero(differing))
    if not count:
        return ""
    first = np.unravel_index(int(np.argmax(differing)), differing.shape)
    where = tuple(int(at) + low for at, low in zip(first, box.start, strict=True))
    both = f"{_shown(values[first])}, not {_shown(wanted[first])}"
    return f"{count} of {values.size} elements differ, first at {where}: {both}"


def _differ(values: Any, wanted: Any) -> Any:
    different = np.asarray(values != wanted)
    if values.dtype.kind in "fc":
        different &= ~(np.isnan(values) & np.isnan(wanted))
    return different


def _shown(value: Any) -> str:
    return json.dumps(value.item() if hasattr(value, "item") else value, default=str)
