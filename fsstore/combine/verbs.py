"""The verbs for many files: combine, append, replace, drop, and ask which files changed.

Before files are combined, variables are renamed or left out, and coordinates in no variable are given or derived."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import asdict, dataclass, field
from dataclasses import replace as replaced
from fnmatch import fnmatchcase
from functools import partial
from os import PathLike, fspath
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from fsstore.combine.assembly import OnDifference, Wishes, assemble
from fsstore.combine.combined import Combined, changes, document_bytes, moved_batch
from fsstore.combine.facts import NONE, CombineError, CombineReport, FileBatch, Form, Ints, batch_of, joined, value_key
from fsstore.combine.many import ScanMeans, scan_many, written_out
from fsstore.combine.mosaic_document import load_mosaic, with_copied
from fsstore.combine.mosaic_driver import mosaic_driver
from fsstore.combine.order import OnOverlap
from fsstore.combine.scanning import Wanted, place_of
from fsstore.errors import NotFoundError, StoreError, UnimplementedError
from fsstore.kvstore.contract.driver import UNKNOWN, KvPrefix
from fsstore.reference.mapping import moving
from fsstore.reference.policy import beside
from fsstore.reference.table.keys import check_key
from fsstore.runtime import execution
from fsstore.runtime.future import Future
from fsstore.runtime.together import ChangedError, until_unchanged
from fsstore.values.json_value import quote

# Variables under other names, left out, or made coordinates.

_NAMING = ("coordinates", "bounds", "climatology", "ancillary_variables", "grid_mapping")
_LABELS = "_ARRAY_DIMENSIONS"


@dataclass(frozen=True, slots=True)
class Naming:
    """The names of variables in the whole; `coordinates` are those that readers are told to be coordinates."""

    names: Mapping[str, str | None] = field(default_factory=dict)
    coordinates: Sequence[str] = ()

    @classmethod
    def of_json(cls, names: Any, coordinates: Any) -> Naming:
        """Return what is kept with a dataset; raises `StoreError` for what cannot be."""
        names, coordinates = names or {}, coordinates or []
        if not isinstance(names, dict) or not isinstance(coordinates, list):
            raise StoreError("The dataset does not say what its variables are called in files")
        texts = [*names, *coordinates, *(new for new in names.values() if new is not None)]
        if not all(isinstance(each, str) for each in texts):
            raise StoreError("The dataset does not say what its variables are called in files")
        return cls(names, coordinates)

    def in_files(self, dims: Sequence[str]) -> tuple[str, ...]:
        """Return what dimensions of the whole are called in files."""
        old = {_last(new): _last(path) for path, new in self.names.items() if new is not None}
        return tuple(old.get(dim, dim) for dim in dims)

    def apply(self, batch: FileBatch, *, are_all: bool = True) -> FileBatch:
        """Return the batch with variables under their names; all that are named must be there if files `are_all`."""
        missing = [name for name in self.names if name not in batch.variables]
        if are_all and missing:
            raise NotFoundError(
                f"There is no variable {quote(missing[0])}; there are {', '.join(map(quote, batch.variables))}"
            )
        out: dict[str, Any] = {}
        for path, columns in batch.variables.items():
            new = self.names.get(path, path)
            if new is None:
                continue
            if new in out or check_key(f"{new}/.zarray") is not None:
                raise StoreError(f"{quote(path)} cannot be called {quote(new)}")
            out[new] = columns
        words = self._words(batch)
        forms = [_renamed(form, words) for form in batch.forms] if words else batch.forms
        groups = self._groups(replaced(batch, variables=out), words, are_all=are_all)
        return replaced(batch, variables=out, forms=forms, groups=groups)

    def _words(self, batch: FileBatch) -> dict[str, str]:
        """Return the other names of variables, if they are no paths, and of dimensions that are called like them."""
        renamed = {_last(path): _last(new) for path, new in self.names.items() if new is not None}
        words = {old: new for old, new in renamed.items() if old != new}
        dims = {dim for form in batch.forms for dim in form.dims}
        for old, new in words.items():
            if new in dims and old in dims:
                raise StoreError(f"The dimension {quote(old)} cannot be called {quote(new)}, as another is")
        return words

    def _groups(self, batch: FileBatch, words: Mapping[str, str], *, are_all: bool) -> dict[str, Mapping[str, Any]]:
        groups: dict[str, Mapping[str, Any]] = {
            path: _in_texts(dict(said), words) for path, said in batch.groups.items()
        }
        for path in self.coordinates:
            if are_all and path not in batch.variables:
                raise NotFoundError(
                    f"There is no variable {quote(path)}; there are {', '.join(map(quote, batch.variables))}"
                )
            group, _, name = path.rpartition("/")
            said = groups.setdefault(group, {})
            listed = str(said.get("coordinates", "")).split()
            groups[group] = {**said, "coordinates": " ".join(dict.fromkeys([*listed, name]))}
        return groups


def _last(path: str) -> str:
    return path.rpartition("/")[2]


def _renamed(form: Form, words: Mapping[str, str]) -> Form:
    """Return a form whose dimensions, and whose attributes that name variables, have the other names."""
    parsed, attributes = json.loads(form.document), json.loads(form.attributes)
    if isinstance(parsed.get("dimension_names"), list):
        parsed["dimension_names"] = [words.get(dim, dim) for dim in parsed["dimension_names"]]
    if isinstance(attributes.get(_LABELS), list):
        attributes[_LABELS] = [words.get(dim, dim) for dim in attributes[_LABELS]]
    text = json.dumps(parsed, sort_keys=True, separators=(",", ":"))
    said = json.dumps(_in_texts(attributes, words), separators=(",", ":"))
    return Form(form.version, text, form.shape, tuple(words.get(dim, dim) for dim in form.dims), said)


def _in_texts(attributes: dict[str, Any], words: Mapping[str, str]) -> dict[str, Any]:
    for name in _NAMING:
        text = attributes.get(name)
        if isinstance(text, str):
            attributes[name] = " ".join(words.get(word, word) for word in text.split())
    return attributes


# Coordinates of files that are not in a variable of theirs: given one by one, told by their names or an
# attribute.

CoordinatesOf: TypeAlias = Sequence[Any] | re.Pattern[str] | str | Callable[[str], Any]
"""How files tell their coordinate: a value each, a pattern of their URLs, `attr:name`, or a function of the URL."""

_ATTRIBUTE = "attr:"
_DATE = ("year", "month", "day", "hour", "minute", "second")
_GIVEN = "given"


@dataclass(frozen=True, slots=True)
class Coordinates:
    """Where files lie along dimensions, by rules or by values."""

    rules: Mapping[str, CoordinatesOf]

    @classmethod
    def of(cls, coords: Mapping[str, CoordinatesOf] | None, dims: Sequence[str]) -> Coordinates:
        """Return what a caller asks for; raises `CombineError` for what cannot be."""
        for dim, rule in (coords or {}).items():
            if dim not in dims:
                raise CombineError(f"Coordinates are given for {quote(dim)}, along which files are not combined")
            if isinstance(rule, str) and not rule.startswith(_ATTRIBUTE):
                raise CombineError(
                    f"Coordinates of {quote(dim)} are values, a compiled pattern, a function or "
                    f'"attr:name", not {rule!r}'
                )
        return cls(dict(coords or {}))

    @property
    def attributes(self) -> list[str]:
        """The attributes of files that are needed."""
        found = [rule for rule in self.rules.values() if isinstance(rule, str)]
        return [rule.removeprefix(_ATTRIBUTE) for rule in found]

    def to_json(self) -> dict[str, Any]:
        """Return what is kept with a dataset: rules that can be written down."""
        return {dim: _rule_to_json(rule) for dim, rule in self.rules.items()}

    def for_more(self, kept: Any, dims: Sequence[str], *, keeps: bool) -> Coordinates:
        """Return the rules for files that are added: those that are kept with a dataset, and what is given now.

        Raises `CombineError` if the others were given by value, and those of the new files are not; files that are
        scanned again keep theirs (`keeps`).
        """
        rules = dict(self.rules)
        for dim, rule in (kept if isinstance(kept, Mapping) else {}).items():
            if dim in rules or (keeps and rule == _GIVEN):
                continue
            if rule == _GIVEN:
                raise CombineError(f"Coordinates of {quote(dim)} were given; give those of the new files as `coords`")
            rules[dim] = _rule_of_json(rule)
        for dim in rules:
            if not isinstance(kept, Mapping) or dim not in kept:
                raise CombineError(f"The files of the dataset have coordinates of {quote(dim)} of their own")
        return Coordinates.of(rules, dims)

    def put(self, batch: FileBatch, urls: Sequence[str]) -> FileBatch:
        """Return the batch with the coordinates of its files; `urls` are all that were to be scanned, in order."""
        values = list(batch.values)
        known: dict[Any, int] = {}
        given: dict[str, Ints] = {
            name: column for name, column in batch.given.items() if not name.startswith(_ATTRIBUTE)
        }
        for dim, rule in self.rules.items():
            column = []
            for value in self._values(dim, rule, batch, urls):
                key = value_key(value)
                if key not in known:
                    known[key] = len(values)
                    values.append(value)
                column.append(known[key])
            given[dim] = np.array(column, np.int64)
        return replaced(batch, values=values, given=given)

    def _values(self, dim: str, rule: CoordinatesOf, batch: FileBatch, urls: Sequence[str]) -> list[Any]:
        files = [fact.url for fact in batch.files]
        if isinstance(rule, str):
            said = [_said(batch, rule, at) for at in range(len(files))]
            return _plain(dim, said, files)
        if isinstance(rule, re.Pattern):
            return _plain(dim, [_matched(dim, rule, url) for url in files], files)
        if callable(rule):
            return [_array(dim, rule(url), url) for url in files]
        if len(rule) != len(urls):
            raise CombineError(f"There are {len(rule)} coordinates of {quote(dim)} for {len(urls)} files")
        of = {url.rpartition("|")[0]: value for url, value in zip(urls, rule, strict=True)}  # of scanned files
        of.update(zip(urls, rule, strict=True))
        return [_array(dim, of[url], url) for url in files]


def with_given_of(batch: FileBatch, before: FileBatch) -> FileBatch:
    """Return the batch of files that were scanned again, with the coordinates that were given for them before."""
    at = {fact.url: number for number, fact in enumerate(before.files)}
    values, given = list(batch.values), dict(batch.given)
    for dim, column in before.given.items():
        if dim not in given:
            old = [int(column[at[fact.url]]) for fact in batch.files]
            given[dim] = np.arange(len(old)) + len(values)
            values += [before.values[value] for value in old]
    return replaced(batch, values=values, given=given)


def _said(batch: FileBatch, rule: str, at: int) -> Any:
    number = int(batch.given[rule][at])
    if number == NONE:
        name = rule.removeprefix(_ATTRIBUTE)
        raise CombineError(f"{batch.files[at].url} has no attribute {quote(name)}")
    return batch.values[number].item()


def _matched(dim: str, rule: re.Pattern[str], url: str) -> Any:
    found = rule.search(url)
    if found is None or not found.groups():
        why = "has no group" if found else "does not fit"
        raise CombineError(f"The pattern {rule.pattern!r} of {quote(dim)} {why} {url}")
    named = found.groupdict()
    if "year" not in named:
        return found.group(1)
    part = {name: int(named.get(name) or (1 if name in _DATE[:3] else 0)) for name in _DATE}
    date = f"{part['year']:04d}-{part['month']:02d}-{part['day']:02d}"
    text = f"{date}T{part['hour']:02d}:{part['minute']:02d}:{part['second']:02d}"
    return _array(dim, np.datetime64(text, "s") if _is_time(text) else None, url)


def _is_time(text: str) -> bool:
    try:
        return not np.isnat(np.datetime64(text, "s"))
    except ValueError:
        return False


def _plain(dim: str, values: Sequence[Any], urls: Sequence[str]) -> list[Any]:
    """Return coordinates that were told as texts: as numbers or times, if all of them are."""
    if not all(isinstance(value, str) for value in values):
        return [_array(dim, value, url) for value, url in zip(values, urls, strict=True)]
    found: Sequence[Any] = values
    for read in (int, float, _time):
        try:
            found = [read(value) for value in values]
            break
        except ValueError:
            continue
    return [_array(dim, value, url) for value, url in zip(found, urls, strict=True)]


def _time(text: str) -> Any:
    plain = text.strip().removesuffix("Z")
    if not re.match(r"\d{4}-\d\d", plain):
        raise ValueError(text)
    return np.datetime64(plain, "s")


def _array(dim: str, value: Any, url: str) -> Any:
    found = np.atleast_1d(np.asarray(value))
    if found.dtype.kind not in "biufMSU" or found.ndim != 1:
        raise CombineError(f"The coordinate of {quote(dim)} of {url} is no number, time or text: {value!r}")
    return found


def _rule_to_json(rule: CoordinatesOf) -> Any:
    if isinstance(rule, str):
        return rule
    if isinstance(rule, re.Pattern) and isinstance(rule.pattern, str):
        return {"pattern": rule.pattern, "flags": rule.flags & re.IGNORECASE.value}
    return _GIVEN


def _rule_of_json(value: Any) -> CoordinatesOf:
    match value:
        case str():
            return value
        case {"pattern": str(pattern), "flags": int(flags)}:
            try:
                return re.compile(pattern, flags & re.IGNORECASE.value)
            except re.error as error:
                raise StoreError(f"The pattern that is kept for coordinates is none: {error}") from error
        case _:
            raise StoreError("The dataset does not say where its coordinates come from")


async def _here() -> KvPrefix:
    return await place_of(f"{Path.cwd()}/")


def combine(
    places: Any,
    dim: str | Sequence[str] = (),
    *,
    dry_run: bool = False,
    on_difference: OnDifference = "layer",
    on_overlap: OnOverlap = "raise",
    coords: Mapping[str, CoordinatesOf] | None = None,
    variables: Mapping[str, str | None] | None = None,
    as_coordinates: Sequence[str] = (),
    along: Mapping[str, str] | None = None,
    executor: Executor | None = None,
    batch: int | None = None,
    progress: Any = None,
    journal: Any = None,
) -> Future[Any]:
    """Begin to combine files along one dimension or several; the result is a `Combined`, to be read or saved.

    `places` are paths, URLs, patterns with wildcards, or an iterable of these: files of scanned formats, zarr
    hierarchies, reference sets.  Each is scanned once; coordinates put them in order.  A dimension that no file has is
    made, one step a file, from scalar coordinates of its name or from `coords`: for a dimension a value for each file,
    a compiled pattern of their URLs (the first group, or groups called year, month, day, hour, minute, second),
    `attr:name` for an attribute of each file, or a function of the URL.

    Where files differ in how a variable is stored or packed, it becomes a stack of pieces (`layer`), an error
    (`raise`), or most files win (`skip`).  Anything that would give wrong numbers is an error; so are other values of
    a variable that does not grow, which are compared in all files.  Files with equal or overlapping coordinates are
    an error too, unless the `first` or the `last` wins.  With `dry_run` the result is the report alone.

    `variables` renames variables, with their dimensions, or drops those that are None; `as_coordinates` tells readers
    which are coordinates.  `along`, such as `{"orbit": "time"}`, gives variables that do not grow a dimension: the
    value of each file is repeated for its steps.  An `executor` is given batches of files that take some seconds, or of
    `batch` files; a file that fails is left out and named in the report.  With `journal`, a directory, a run that was
    killed goes on where it was.
    """
    dims = (dim,) if isinstance(dim, str) else tuple(dim)
    wishes = _checked(Wishes(dims, on_difference, on_overlap, dict(along or {})))
    given, naming = Coordinates.of(coords, dims), Naming(variables or {}, as_coordinates)
    means = ScanMeans(executor, batch, progress, journal)
    options = {**asdict(wishes), "variables": dict(naming.names), "as_coordinates": list(naming.coordinates)}
    options.update(dims=list(dims), coords=given.to_json())

    async def run() -> Combined | CombineReport:
        urls = await written_out(places)
        found = naming.apply(await _scanned(urls, naming.in_files(dims), given, means, warns=not dry_run))
        mosaic, report = await execution.offload(assemble, found, wishes, kind="compute")
        return report if dry_run else Combined(mosaic, report, found, await _here(), options)

    return execution.start(run())


async def _scanned(
    urls: Sequence[str], dims: Sequence[str], given: Coordinates, means: ScanMeans, *, warns: bool = True
) -> FileBatch:
    found = await scan_many(urls, Wanted(tuple(dims), tuple(given.attributes)), means)
    if warns and found.failed and found.files:
        count = f"{len(found.failed)} of {len(urls)} files cannot be scanned and are left out"
        warnings.warn(f"{count}, as the report says: {found.failures}", stacklevel=2)
    return given.put(found, urls)


def _checked(wishes: Wishes) -> Wishes:
    if wishes.on_difference not in ("layer", "raise", "skip"):
        raise ValueError(f'on_difference is "layer", "raise" or "skip", not {wishes.on_difference!r}')
    if wishes.on_overlap not in ("raise", "first", "last"):
        raise ValueError(f'on_overlap is "raise", "first" or "last", not {wishes.on_overlap!r}')
    for path, dim in wishes.along.items():
        if dim not in wishes.dims:
            raise CombineError(f"{quote(path)} cannot be repeated: files are not combined along {quote(dim)}")
    return wishes


def append(
    dataset: Any,
    places: Any,
    *,
    executor: Executor | None = None,
    progress: Any = None,
    journal: Any = None,
    coords: Mapping[str, CoordinatesOf] | None = None,
) -> Future[CombineReport]:
    """Begin to add files to a saved virtual dataset; only these are scanned.  The result is the report of the whole.

    Files that the dataset has already are an error: `replace` scans them again.  Where coordinates of the others were
    given by value, those of the new files are `coords`; patterns and attributes are known.
    """

    def change(before: FileBatch, new: FileBatch) -> FileBatch:
        known = {fact.url for fact in before.files}
        doubled = [fact.url for fact in new.files if fact.url in known]
        if doubled:
            raise CombineError(f"The dataset has {quote(doubled[0])} already; `replace` scans it again")
        return joined([before, new])

    means = ScanMeans(executor, None, progress, journal)
    return execution.start(_change(dataset, places, means, change, coords=coords))


def replace(
    dataset: Any, places: Any, *, executor: Executor | None = None, progress: Any = None
) -> Future[CombineReport]:
    """Begin to scan files of a saved dataset again, which have changed; the others stay as they are."""

    def change(before: FileBatch, new: FileBatch) -> FileBatch:
        known = {fact.url: at for at, fact in enumerate(before.files)}
        unknown = [fact.url for fact in new.files if fact.url not in known]
        if unknown:
            raise CombineError(f"The dataset has no file {quote(unknown[0])}; `append` adds it")
        if new.failed:
            url, why = next(iter(new.failed.items()))
            raise CombineError(f"{quote(url)} cannot be scanned: {why}")
        mine = {fact.url for fact in new.files}
        kept = np.array([at for at, fact in enumerate(before.files) if fact.url not in mine], np.int64)
        both = joined([before.only(kept), with_given_of(new, before)])
        rank = [known[fact.url] for fact in both.files]
        return both.only(np.argsort(np.array(rank, np.int64), kind="stable"))

    means = ScanMeans(executor, None, progress)
    return execution.start(_change(dataset, places, means, change, keeps=True))


def drop(dataset: Any, places: Any) -> Future[CombineReport]:
    """Begin to take files out of a saved dataset: by their URLs as the dataset has them, or patterns of these."""
    wanted = [fspath(each) for each in ([places] if isinstance(places, str | PathLike) else places)]

    def change(before: FileBatch, new: FileBatch) -> FileBatch:
        del new
        gone = {fact.url for fact in before.files if any(_fits(fact.url, each) for each in wanted)}
        for each in wanted:
            if not any(_fits(url, each) for url in gone):
                raise NotFoundError(f"The dataset has no file {quote(each)}")
        kept = np.array([at for at, fact in enumerate(before.files) if fact.url not in gone], np.int64)
        return before.only(kept)

    return execution.start(_change(dataset, [], ScanMeans(), change))


def _fits(url: str, wanted: str) -> bool:
    return url == wanted or fnmatchcase(url, wanted) or url.endswith("/" + wanted)


async def _change(
    dataset: Any,
    places: Any,
    means: ScanMeans,
    change: Callable[[FileBatch, FileBatch], FileBatch],
    *,
    coords: Mapping[str, CoordinatesOf] | None = None,
    keeps: bool = False,
) -> CombineReport:
    base = await place_of(dataset)
    if not base.driver.features.conditional_write:
        raise UnimplementedError(f"{base.describe()} lies where two writers could undo each other's changes")
    given = [places] if isinstance(places, str | PathLike) else list(places)
    urls = await written_out(given) if given else []
    new: FileBatch | None = None

    async def attempt() -> CombineReport:
        nonlocal new
        mosaic, answer = await load_mosaic(base, with_scan=True)
        before = batch_of(mosaic.facts.get("scan") or {}, mosaic.scan)
        options = dict(mosaic.facts.get("options") or {})
        wishes = _wishes(options)
        if new is None:
            known = options.get("coords") if urls else {}
            rules = Coordinates(coords or {}).for_more(known, wishes.dims, keeps=keeps)
            names = Naming.of_json(options.get("variables"), options.get("as_coordinates"))
            dims = names.in_files(wishes.dims)
            found = await _scanned(urls, dims, rules, means) if urls else FileBatch()
            found = names.apply(found, are_all=False)
            new = moved_batch(found, moving(await _here(), await beside(base)))
        after = change(before, new)
        whole, report = await execution.offload(assemble, after, wishes, kind="compute")
        whole = await execution.offload(with_copied, whole, mosaic)
        as_json = bytes(answer.value[:4]) != b"PAR1"
        data = await execution.offload(partial(document_bytes, whole, after, options, as_json=as_json, place=base))
        stamp = await base.write("", data, answer.generation)
        if stamp.generation == UNKNOWN:
            raise ChangedError
        return report

    return await until_unchanged(attempt, base.describe)


def _wishes(options: Mapping[str, Any]) -> Wishes:
    dims, difference, overlap = options.get("dims"), options.get("on_difference"), options.get("on_overlap")
    if not isinstance(dims, list) or not isinstance(difference, str) or not isinstance(overlap, str):
        raise StoreError("The dataset does not record how it was combined, so no files can be added")
    along = options.get("along")
    along = {str(path): str(dim) for path, dim in along.items()} if isinstance(along, Mapping) else {}
    return _checked(Wishes(tuple(map(str, dims)), difference, overlap, along))  # type: ignore[arg-type]  # checked


def changed_files(dataset: Any, **members: Any) -> Future[dict[str, str]]:
    """Begin to compare files with what they were when they were scanned; the result says how those differ that do.

    `members` are those of the `mosaic` kvstore: `targets`, `rewrite`, `allow`.
    """

    async def run() -> dict[str, str]:
        base = await place_of(dataset)
        mosaic, _ = await load_mosaic(base)
        driver = mosaic_driver(mosaic, members, base=await beside(base), described=f"virtual dataset {base.describe()}")
        return await changes(driver)

    return execution.start(run())
