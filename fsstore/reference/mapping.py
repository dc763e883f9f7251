"""`References`: an opened reference set as a mapping, and what can be made of it.

The set is read lazily where its form allows it.  Operations that change it (`merge`, `rename`, `rewrite`) return a new
set over a new table and leave the old one as it was; nothing is written until `save`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import reduce
from typing import Any, Literal, get_args

import numpy as np

from fsstore.errors import StoreError
from fsstore.kvstore.contract.driver import NO_VALUE, UNKNOWN, KvPrefix
from fsstore.kvstore.contract.request import KeyRange
from fsstore.reference.json_document import encode, write_document
from fsstore.reference.kind import PARQUET_NAMES
from fsstore.reference.parquet_set import save_parquet
from fsstore.reference.policy import already_there, beside, directory, name_of, replaced
from fsstore.reference.report import Grids, Report, grids_of, inspect_state
from fsstore.reference.rewrite import moved, moving, slabs_of
from fsstore.reference.table.keys import Grid, check_key
from fsstore.reference.table.refset import Origins, Resolved, TableBuilder, TableSet, common_origins
from fsstore.reference.table.set_state import State, add_page
from fsstore.reference.table.table import Located, is_url
from fsstore.reference.targets import origins_of
from fsstore.runtime import execution
from fsstore.values.detection import Method, method_named
from fsstore.values.json_value import quote

Saving = Literal["json", "json.zst", "json.gz", "json.bz2", "json.xz", "parquet"]
_NAMES: Mapping[Method, Saving] = {"zstd": "json.zst", "gzip": "json.gz", "bz2": "json.bz2", "xz": "json.xz"}
_UNWRITTEN = (".lzma", ".lz4", ".br", ".zip", ".Z", ".7z")


class References(Mapping[str, bytes | Located]):
    """A reference set: a read-only mapping of keys to inline bytes or `Located(url, offset, length)`.

    `length` is -1 for a reference to all of a target.  Iteration is in the order of the stored form: metadata first,
    then array by array.  `place` is the directory that relative URLs start from, None for a set made in memory.
    """

    def __init__(self, state: State, described: str = "reference set", *, place: KvPrefix | None = None) -> None:
        self.state = state
        self._described = described
        self.place = place

    def __getitem__(self, key: str) -> bytes | Located:
        """Return the reference of a key."""
        value = self.get_many([key])[0]
        if value is None:
            raise KeyError(key)
        return value

    def get_many(self, keys: Iterable[str]) -> list[bytes | Located | None]:
        """Return the references of `keys`, in order, None where there is none."""
        names = list(keys)
        found = self._run(self.state.resolve(names))
        return [found.value(position) for position in range(len(names))]

    def __iter__(self) -> Iterator[str]:
        """Yield every key."""
        for names, _ in self.batches():
            yield from names

    def __len__(self) -> int:
        """Return the number of keys; a lazily read set is listed for it."""
        return sum(len(names) for names, _ in self.batches())

    def items_of(self, array: str) -> Iterator[tuple[str, bytes | Located]]:
        """Yield keys and references below the path of an array or group."""
        for names, found in self.batches(f"{array}/" if array else ""):
            for position, name in enumerate(names):
                value = found.value(position)
                if value is not None:
                    yield name, value

    def batches(self, prefix: str = "") -> Iterator[tuple[list[str], Resolved]]:
        """Yield the keys that start with `prefix`, and their references as columns, in batches."""
        pages = self.state.scan(KeyRange.prefix(prefix))

        async def following() -> tuple[list[str], Resolved] | None:
            return await anext(pages, None)

        while (page := self._run(following())) is not None:
            yield page

    def _run(self, coroutine: Any) -> Any:
        return execution.call(coroutine, waits=self.state.base.waits)

    @property
    def arrays(self) -> dict[str, Grid]:
        """The chunk grids of the arrays, by path."""
        grids: Grids = self._run(grids_of(self.state))
        return grids.arrays

    @property
    def urls(self) -> list[str]:
        """The URLs that references name, in order of appearance; a lazily read set is listed for it."""
        seen: dict[str, None] = {}
        for _, found in self.batches():
            used = np.unique(found.rows.url[found.rows.url >= 0])
            seen.update(dict.fromkeys(found.urls[number] for number in used.tolist()))
        return list(seen)

    @property
    def origins(self) -> Origins:
        """The hosts of the remote places that the set came from, wherever it lies; None for one of this machine."""
        return common_origins(origins_of(self.place), self.state.base.origins)

    def inspect(self) -> Report:
        """Return what reading the set would touch; nothing is fetched."""
        report: Report = self._run(inspect_state(self.state))
        return report

    def merge(self, *others: References) -> References:
        """Return the set of all keys; of equal keys the last set's wins.

        Relative URLs of the others are made relative to where the first set lies.  The whole may read what each of the
        sets may: where one is of a remote place, nothing of this machine.
        """
        builder = TableBuilder()
        places = [one.place for one in (self, *others) if one.place is not None]
        place = places[0] if places else None
        for one in (self, *others):
            state = moved(one.state, moving(one.place, place))
            _copy(References(state), builder)
        return _made(builder, place, reduce(common_origins, [one.origins for one in (self, *others)]))

    def rename(self, old: str, new: str) -> References:
        """Return the set with the prefix `new` in place of `old`."""

        def renamed(name: str) -> str:
            if not name.startswith(old):
                return name
            made = new + name[len(old) :]
            why = check_key(made)
            if why is not None:
                raise StoreError(f"Cannot rename {quote(name)} to {quote(made)}: {why}")
            return made

        if not any(name.startswith(old) for names, _ in self.batches(old) for name in names):
            raise StoreError(f"Nothing to rename in {self._described}: no key begins with {quote(old)}")
        builder = TableBuilder()
        _copy(self, builder, key=renamed)
        return _made(builder, self.place, self.origins)

    def without(self, *paths: str) -> References:
        """Return the set without the arrays and groups at `paths`; raises `StoreError` if one of them is not there."""
        heads = tuple(f"{path.strip('/')}/" for path in paths)
        for head in heads:
            if next(iter(self.batches(head)), None) is None:
                raise StoreError(f"There is nothing at {quote(head)} in {self._described}")
        builder = TableBuilder()
        _copy(self, builder, keep=lambda name: not name.startswith(heads))
        return _made(builder, self.place, self.origins)

    def rechunk(self, path: str, chunks: Sequence[int]) -> References:
        """Return the set in which an array that is not compressed has smaller chunks: ranges of those it has.

        `chunks` are parts of equal size: `[1, 20, 30]` of `[10, 20, 30]`.  Raises `StoreError` for chunks that are
        encoded, and for parts that are no ranges.
        """
        head = f"{path}/" if path else ""
        name = next((name for name in (".zarray", "zarr.json") if head + name in self), None)
        document = None if name is None else self[head + name]
        if not isinstance(document, bytes):
            raise StoreError(f"There is no array {quote(path)} in {self._described}")
        slabs, grid = slabs_of(path, document, [int(step) for step in chunks]), self.arrays[path]
        builder = TableBuilder()

        def is_chunk(key: str) -> bool:
            return key.startswith(head) and grid.number(key.removeprefix(head)) is not None

        _copy(self, builder, keep=lambda key: not is_chunk(key))
        builder.add_inline(f"{head}{name}".encode(), json.dumps(slabs.document).encode())
        for names, found in self.batches(head):
            at = np.array([at for at, each in enumerate(names) if is_chunk(each)], np.int64)
            some = Resolved(found.rows.take(at), found.urls, found.inline)
            values: list[bytes] = []
            keys, rows = slabs.cut([names[each] for each in at.tolist()], some, values)
            add_page(builder, keys, Resolved(rows, found.urls, values))
        return _made(builder, self.place, self.origins)

    def rewrite(self, changes: Mapping[str, str]) -> References:
        """Return the set with the longest prefix of each URL that `changes` names replaced.

        Raises `StoreError` if no URL begins with any of them: the set that was meant to be moved would still name the
        old place.  URLs that it leaves as they are, are right, as long as there are others.
        """
        seen: list[str] = []
        matched: list[str] = []

        def changed(url: str) -> str:
            made = replaced(url, changes)
            if not made or not is_url(made):
                raise StoreError(f"Cannot rewrite {quote(url)} to {quote(made)}: that is no URL")
            (matched if url.startswith(tuple(changes)) else seen).append(url)
            return made

        builder = TableBuilder()
        _copy(self, builder, url=changed)
        if seen and not matched:
            wanted = ", ".join(map(quote, changes)) or "no prefix"
            raise StoreError(
                f"Nothing to rewrite in {self._described}: no URL begins with {wanted}; the first is {quote(seen[0])}"
            )
        return _made(builder, self.place, self.origins)

    def expand(self) -> References:
        """Return the set with every generated reference written out."""
        builder = TableBuilder()
        _copy(self, builder)
        return _made(builder, self.place, self.origins)

    def save(
        self,
        url: Any,
        format: Saving | None = None,  # noqa: A002  # the word users know
        *,
        version: Literal[0, 1] = 1,
        record_size: int = 100_000,
        overwrite: bool = False,
        relative: str | None = None,
        trusted: bool = False,
    ) -> None:
        """Write the set to a URL or kvstore spec, byte-exact; a JSON document atomically.

        Without `format` the name decides: `.zst`, `.zstd`, `.gz`, `.bz2` and `.xz` compress JSON, `.parq`, `.parquet`
        and a slash at the end mean parquet.  An existing set is replaced only with `overwrite`.

        Relative URLs are written so that they name from the new place what they named from the old one.  `relative` is
        put before them instead: the empty text keeps them, for a set whose targets move with it.  A set made in memory
        keeps them as well.

        A set from a remote place says so where it is saved, and reads no more than it could there: nothing of this
        machine.  `trusted` lifts that; a document of version 0 has no place for it.
        """
        from fsstore.context.context import Context
        from fsstore.kvstore.spec_parse import open_kv, place_spec

        spec = place_spec(url)
        if version not in (0, 1):
            raise StoreError(f"A set is written in version 0 or 1, not {version!r}")
        origins = None if trusted else self.origins
        if origins is not None and version == 0:
            raise StoreError(
                "Version 0 cannot say that a set is from a remote place: save version 1, or `trusted=True`"
            )

        async def run() -> None:
            base = (await open_kv(spec, Context())).prefix
            how = _format_of(name_of(base)) if format is None else _checked(format)
            home = References(moved(self.state, moving(self.place, await beside(base), relative)))
            await home._save(base, how, version, (record_size, overwrite, origins))

        execution.call(run())

    async def _save(
        self, base: KvPrefix, how: Saving, version: Literal[0, 1], options: tuple[int, bool, Origins]
    ) -> None:
        record_size, overwrite, origins = options
        scanned = None if self.state.changes else self.state.base.scanned
        if how == "parquet":
            base = await directory(base)
            if not overwrite and (await base.read(".zmetadata")).state == "value":
                raise already_there(base)
            await save_parquet(self.state, base, record_size=record_size, scanned=scanned, origins=origins)
            return
        pieces = encode(self.state, version=version, compression=method_named(how), scanned=scanned, origins=origins)
        if_equal = UNKNOWN
        if not overwrite and base.driver.features.create_only:
            if_equal = NO_VALUE
        elif not overwrite and (await base.read()).state == "value":
            raise already_there(base)
        stamp = await write_document(base, pieces, self.state, if_equal=if_equal)
        if stamp.generation == UNKNOWN and if_equal == NO_VALUE:
            raise already_there(base)

    def __repr__(self) -> str:
        """Return what the set is."""
        return f"<References: {self._described}>"


def _copy(
    refs: References,
    builder: TableBuilder,
    *,
    key: Callable[[str], str] | None = None,
    url: Callable[[str], str] | None = None,
    keep: Callable[[str], bool] | None = None,
) -> None:
    """Put references into a builder: those that are kept, by other keys, with other URLs."""
    for page, resolved in refs.batches():
        names, found = page, resolved
        if keep is not None:
            at = np.array([keep(name) for name in names], np.bool_)
            names = [name for name, kept in zip(names, at.tolist(), strict=True) if kept]
            found = Resolved(found.rows.take(at), found.urls, found.inline)
        add_page(builder, names if key is None else [key(name) for name in names], found, url)


def _made(builder: TableBuilder, place: KvPrefix | None, origins: Origins) -> References:
    made = TableSet(builder.finish())
    made.origins = origins
    return References(State(made), place=place)


def _checked(form: str) -> Saving:
    for known in get_args(Saving):
        if form == known:
            return known  # type: ignore[no-any-return]  # one of the literals
    raise StoreError(f"Sets are saved as {', '.join(get_args(Saving))}, not {quote(str(form))}")


def _format_of(path: str) -> Saving:
    if path.endswith(PARQUET_NAMES):
        return "parquet"
    if path.endswith(_UNWRITTEN):
        raise StoreError(f"{quote(path)} names a compression that sets are not saved in; say `format` to save it so")
    method = method_named(path)
    return "json" if method is None else _NAMES[method]
