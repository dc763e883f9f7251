"""Checking sets and datasets against their files: are these there, long enough, unchanged, and can they be decoded?"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from fsstore.combine.tuning import CHECKED_AT_ONCE
from fsstore.errors import StoreError
from fsstore.kvstore.engine.secret import reveal
from fsstore.kvstore.store.kv_store import KvStore
from fsstore.mosaic.driver import MosaicDriver, changed
from fsstore.mosaic.value import HIDDEN, FileFact
from fsstore.reference.collection.references import References
from fsstore.reference.table.grid import Grid
from fsstore.reference.table.value import Located
from fsstore.reference.target.grant import policy_of
from fsstore.reference.target.targets import Targets, check_prefixes, open_with_spec
from fsstore.reference.tools.verify import Problem, SetVerification, verify_state
from fsstore.runtime import execution

__all__ = ["changes", "undecodable", "undecodable_pieces", "verify_targets"]


async def verify_targets(refs: References, members: Mapping[str, Any]) -> SetVerification:
    """Return what is wrong between references and their targets."""
    prefixes = check_prefixes(members.get("targets") or {})
    rewrite = reveal(members.get("rewrite")) or {}
    targets = Targets(open_with_spec, policy_of(refs.place, members), refs.place, prefixes, rewrite)
    return await verify_state(refs.state, targets)


async def changes(driver: MosaicDriver) -> dict[str, str]:
    """Return how files differ from what they were when they were scanned, of those that do."""
    out: dict[str, str] = {}
    files = driver.mosaic.files

    async def one(fact: FileFact) -> None:
        try:
            why = await changed(driver.references, fact)
        except StoreError as error:
            why = f"cannot be reached: {error.message}"
        if why:
            out[fact.url] = why

    for start in range(0, len(files), CHECKED_AT_ONCE):
        await execution.gather(one(fact) for fact in files[start : start + CHECKED_AT_ONCE])
    return {fact.url: out[fact.url] for fact in files if fact.url in out}


def undecodable(refs: References, store: KvStore) -> Iterator[Problem]:
    """Yield the arrays that cannot be opened through a store of a set, and the chunks that cannot be decoded."""
    grids = refs.arrays
    for path, options in _array_options(refs):
        if not path.startswith(HIDDEN):
            head = f"{path}/" if path else ""
            keys = (key.removeprefix(head) for names, _ in refs.batches(head) for key in names)
            yield from _of_array(store, path, options, (grids.get(path), keys))


def undecodable_pieces(driver: MosaicDriver, store: KvStore) -> Iterator[Problem]:
    """Yield the layered arrays of a dataset that cannot be opened, and the chunks that cannot be made."""
    for path, array in driver.mosaic.layered.items():
        grid = array.grid
        keys = (grid.keys(np.array([number]))[0].removeprefix(f"{path}/") for number in range(grid.count))
        yield from _of_array(store, path, {"driver": "zarr"}, (grid, keys))


def _of_array(
    store: KvStore, path: str, options: Mapping[str, Any], chunks: tuple[Grid | None, Iterator[str]]
) -> Iterator[Problem]:
    from fsstore.arrays.opening import open as open_array

    try:
        array = open_array({**options, "kvstore": store.spec() / (f"{path}/" if path else "")}).result()
    except StoreError as error:
        yield Problem(path, f"the array cannot be opened: {error}")
        return
    for key, region in _regions(path, chunks, array.shape):
        try:
            array[region].read().result()
        except StoreError as error:
            yield Problem(path, str(error), (key,), 1)


def _regions(
    path: str, chunks: tuple[Grid | None, Iterator[str]], shape: Sequence[int]
) -> Iterator[tuple[str, tuple[slice, ...]]]:
    """Yield the chunks that are there, with what they hold of the array; all of it, where that is not known."""
    grid, names = chunks
    head = f"{path}/" if path else ""
    if grid is None or grid.count == 1:  # some writers use keys of their own for a single chunk
        yield path if grid is None else grid.key((0,) * len(grid.shape)), (slice(None),) * len(shape)
        return
    for name in names:
        number = grid.number(name)
        if number is not None:
            index = map(int, np.unravel_index(number, grid.shape))
            corners = zip(index, grid.chunk, shape, strict=False)  # a field may have dimensions of its own
            yield (
                head + name,
                tuple(slice(at * step, min((at + 1) * step, size)) for at, step, size in corners),
            )


def _array_options(refs: References) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the path of each array, with how to open it."""
    for names, found in refs.batches():
        for position, key in enumerate(names):
            path, _, name = key.rpartition("/")
            is_metadata = name in (".zarray", "zarr.json")
            options = _options_of(name, found.value(position)) if is_metadata else {}
            if options:
                yield path, options


def _options_of(name: str, value: bytes | Located | None) -> dict[str, Any]:
    """Return how to open the array that a document describes, nothing for a group.

    If fields differ, the first is named: whole chunks are decoded for it.
    """
    try:
        document = json.loads(value) if isinstance(value, bytes) else None
    except ValueError:
        document = None  # opening says what is wrong
    match document:
        case {"node_type": "group"}:
            return {}
        case {"dtype": [[field, *_], *_]}:
            return {"driver": "zarr", "field": field}
        case _:
            return {"driver": "zarr" if name == ".zarray" else "zarr3"}
