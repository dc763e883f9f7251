"""A file as fsstore shows it, held against what its own reader finds in it."""

from __future__ import annotations

import ast
import dataclasses
import json
import logging
import re
import resource
import time
import warnings
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import fsstore as ts
from fsstore.errors import StoreError
from tests.strangers.peers import MOST_BYTES, Expected, expected_of

# What is said of a file:
#
# equal       everything that its reader finds has the same values, shapes and names of dimensions
# named       what is shown is equal, and all else is named as left out with its reason
# partly      something is missing that nobody names
# refused     it does not open, or something that is listed cannot be read, with an error that says why
# different   a value, a shape or the name of a dimension is another one
# ugly        an error that is none of fsstore's, no end, no memory, or a crash
# unreadable  its own reader refuses it, and fsstore does
# beyond      its own reader refuses it, and fsstore reads it


@dataclass
class Verdict:
    """What was found of one file: a word, the reasons, and how long both took."""

    path: str
    kind: str
    word: str = "ugly"
    arrays: int = 0
    reasons: list[str] = field(default_factory=list)
    seconds: float = 0.0
    peer_seconds: float = 0.0


@dataclass
class Shown:
    """What fsstore shows of a file."""

    group: Any
    kind: str
    entries: dict[str, Any]
    left_out: dict[str, str]

    @classmethod
    def of(cls, path: Path, kind: str) -> Shown:
        """Return it as users get it: the format is recognised, not given."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            entries = ts.list_arrays(f"file://{path}")
        said = (str(each.message).partition(" is left out: ") for each in caught)
        left_out = {ast.literal_eval(name) if name[:1] == '"' else name: why for name, _, why in said if why}
        return cls(ts.open_group(f"file://{path}").result(), kind, {each.path: each for each in entries}, left_out)

    def read(self, name: str) -> Any:
        """Return the values of an array."""
        entry = self.entries[name]
        if int(np.prod(entry.shape, dtype=object)) > MOST_BYTES:
            raise MemoryError
        return self.group[name].read().result()

    def dims(self, name: str) -> tuple[str, ...] | None:
        """Return the names of an array's dimensions."""
        found = self.entries[name].attributes.get("_ARRAY_DIMENSIONS")
        return None if found is None else tuple(found)


def judge(path: Path, kind: str) -> Verdict:
    """Return what is to be said of a file."""
    warnings.simplefilter("ignore")
    verdict = Verdict(str(path), kind)
    began = time.perf_counter()
    try:
        expected: list[Expected] | None = expected_of(kind, path)
        peers = [_attempt(each) for each in expected or ()]
        if peers and all(isinstance(each, Exception) for each in peers):
            verdict.reasons, expected = [f"its reader: {peers[0]!r}"[:300]], None
    except Exception as error:
        verdict.reasons, expected = [f"its reader: {error!r}"[:300]], None
    verdict.peer_seconds = time.perf_counter() - began
    began = time.perf_counter()
    try:
        shown = Shown.of(path, kind)
        values = {name: _read(shown, name) for name in shown.entries}
    except StoreError as error:
        verdict.word = "refused" if expected else "unreadable"
        verdict.reasons.append(str(error))
        return verdict
    except Exception as error:
        verdict.reasons.append(f"{type(error).__name__}: {error}")
        return verdict
    finally:
        verdict.seconds = time.perf_counter() - began
    ugly = [
        f"{name}: {type(each).__name__}: {each}"
        for name, each in values.items()
        if isinstance(each, Exception) and not isinstance(each, StoreError | MemoryError)
    ]
    if ugly:
        verdict.reasons = ugly
        return verdict
    verdict.arrays = len(values)
    if expected is None:
        good = any(not isinstance(each, Exception) for each in values.values())
        verdict.word = "beyond" if good else "unreadable"
        return verdict
    _Comparison(verdict, shown, values).run(expected, peers)
    return verdict


def answer(pipe: Any, most_bytes: int) -> None:
    """Judge the files whose paths and formats come through a pipe: what a process does."""
    logging.disable()
    resource.setrlimit(resource.RLIMIT_AS, (most_bytes, most_bytes))
    while (asked := pipe.recv()) is not None:
        path, kind = asked
        pipe.send(dataclasses.asdict(judge(Path(path), kind)))


def _read(shown: Shown, name: str) -> Any:
    try:
        return shown.read(name)
    except Exception as error:
        return error


def _attempt(expected: Expected) -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return expected.read()
    except Exception as error:
        return error


class _Comparison:
    """The comparison of one file: what is missing, what cannot be read, and what is different."""

    def __init__(self, verdict: Verdict, shown: Shown, values: dict[str, Any]) -> None:
        self.verdict, self.shown, self.values = verdict, shown, values
        self.missing: list[str] = []
        self.different: list[str] = []
        self.used: set[str] = set()
        self.failed_with_peer: set[str] = set()

    def run(self, expected: list[Expected], peers: list[Any]) -> None:
        """Compare, and put the verdict."""
        match self.shown.kind:
            case "grib":
                self._fields(expected, peers)
            case "tiff":
                self._pictures(expected, peers)
            case "fits":
                self._units(expected, peers)
            case _:
                self._named(expected, peers)
        broken = [
            f"{name}: {each}"
            for name, each in self.values.items()
            if isinstance(each, StoreError) and name not in self.failed_with_peer
        ]
        silent = [name for name in self.missing if not self._is_named(name)]
        why = [f"left out {name}: {reason}" for name, reason in self.shown.left_out.items()]
        if self.different:
            self.verdict.word, self.verdict.reasons = "different", self.different
        elif silent:
            self.verdict.word = "partly"
            self.verdict.reasons = [*(f"missing without a word: {name}" for name in silent), *broken, *why]
        elif broken:
            self.verdict.word, self.verdict.reasons = "refused", [*broken, *why]
        elif self.missing:
            self.verdict.word, self.verdict.reasons = "named", why
        else:
            self.verdict.word = "equal"

    def _is_named(self, name: str) -> bool:
        """Return whether something is named as left out, it or what it lies in."""
        if self.shown.kind in ("tiff", "grib"):
            return bool(self.shown.left_out)
        at = (name, name.replace("/", "_"))  # a column of lists is an array beside its table
        return any(f"{n}/".startswith(f"{each}/") or not each for each in self.shown.left_out for n in at)

    def _one(self, expected: Expected, want: Any, name: str, got: Any) -> None:
        """Compare an array with the one of ours that is called so."""
        self.used.add(name)
        if isinstance(want, Exception):
            self.failed_with_peer.add(name)
            return
        if isinstance(got, Exception):
            return
        dims = self.shown.dims(name)
        if expected.dims is not None and dims is not None and dims[: len(expected.dims)] != expected.dims:
            self.different.append(f"{name}: dimensions {dims}, not {expected.dims}")
        if self.shown.entries[name].attributes.get("_elements") == "JSON":
            why = _document_difference(want, got)
        else:
            why = difference(want, got, within=expected.within)
        if why:
            self.different.append(f"{name}{f' {expected.field}' if expected.field else ''}: {why}")

    def _named(self, expected: list[Expected], peers: list[Any]) -> None:
        for each, want in zip(expected, peers, strict=True):
            head, _, last = each.name.rpartition("/")
            meant = f"{head}/{last}".lstrip("/").replace("_nc4_non_coord_", "")
            name = next((n for n in (each.name, meant, self._elsewhere(each.name)) if n in self.values), meant)
            if name not in self.values and type(want).__name__ == "Empty" and self._is_named(each.name):
                continue  # it has no values, and is named as such
            if name not in self.values:
                self.missing.append(each.name)
            else:
                self._one(each, want, name, self.values[name])

    def _elsewhere(self, name: str) -> str:
        """Return where an array is shown whose name leads through a second link to a group, which says it."""
        for at, why in self.shown.left_out.items():
            group = re.search(r"the group '(.*)', which is shown there", why)
            if group is not None and name.startswith(f"{at}/"):
                return self._elsewhere(group[1] + name.removeprefix(at))
        return name

    def _units(self, expected: list[Expected], peers: list[Any]) -> None:
        """Compare units of FITS: ours are called by their extension, its version, or their number."""
        from astropy.io import fits

        path, called = self.verdict.path, dict[str, str]()
        with fits.open(path, memmap=False) as file, fits.open(path, disable_image_compression=True) as plain:
            for number, (unit, stored) in enumerate(zip(file, plain, strict=True)):
                known = {*self.values, *self.shown.left_out}
                said = [card.value.upper() for card in stored.header.cards if card.keyword == "EXTNAME"]  # or two
                names = [unit.name.upper(), f"{unit.name.upper()}_{unit.ver}", str(number), *said]
                name = next((n for n in names if n in known and n not in called.values()), names[0])
                called[str(number)] = name
        for each, want in zip(expected, peers, strict=True):
            name = called[each.name]
            got = self.values.get(name)
            if got is not None and each.field is not None and not isinstance(got, Exception):
                fields = {n.casefold(): n for n in got.dtype.names or ()}
                column, padded = f"{name}/{each.field}", f"{name}_{each.field}"
                if padded in self.values:
                    self._one(each, want, padded, self.values[padded])
                    continue
                if not fields and column not in self.shown.left_out:
                    fields, got = {each.field.casefold(): each.field}, {each.field: got}
                if each.field.casefold() in fields:
                    got = got[fields[each.field.casefold()]]
                elif column in self.values:
                    self.used.add(column)
                    got = self.values[column]
                elif np.size(want) or column not in self.shown.left_out:  # one without cells is named as such
                    self.missing.append(column)
                    continue
                else:
                    continue
            if got is None:
                self.missing.append(name)
            else:
                self._one(each, want, name, got)

    def _pictures(self, expected: list[Expected], peers: list[Any]) -> None:
        """Compare pictures: those with the same lengths, whatever they are called."""
        for each, want in zip(expected, peers, strict=True):
            if isinstance(want, Exception):
                self.failed_with_peer.update(name for name, got in self.values.items() if isinstance(got, Exception))
                continue
            reasons = {}
            for name, got in self.values.items():
                if isinstance(got, Exception) or got.size != want.size:
                    continue
                reasons[name] = _picture_difference(want, got)
                if not reasons[name]:
                    break
            if any(not why for why in reasons.values()):
                self.used.update(name for name, why in reasons.items() if not why)
            elif reasons:
                self.different += [f"{each.name} as {name}: {why}" for name, why in reasons.items()]
            elif self._in_parts(want):
                continue
            elif any(
                isinstance(got, StoreError) and np.prod(self.shown.entries[name].shape) == want.size
                for name, got in self.values.items()
            ):
                continue  # it is listed, and reading it says why not
            else:
                self.missing.append(f"{each.name} {want.dtype}{want.shape}")

    def _in_parts(self, want: Any) -> bool:
        """Return whether each plane of what the reader puts together is one of ours, which are other stacks."""
        if want.ndim < 3 or not want.size:
            return False
        held, size = set[bytes](), want[0].size
        for got in self.values.values():
            if not isinstance(got, Exception) and got.size % size == 0 and got.dtype == want.dtype:
                held.update(row.tobytes() for row in got.reshape(-1, size))
        return all(plane.tobytes() in held for plane in want)

    def _fields(self, expected: list[Expected], peers: list[Any]) -> None:
        """Compare fields of GRIB: each must stand somewhere among ours."""
        held: Counter[bytes] = Counter()
        sizes = {want.size for want in peers if not isinstance(want, Exception)}
        for name, got in self.values.items():
            if isinstance(got, Exception) or name.rpartition("/")[2] in ("latitude", "longitude"):
                continue
            for size in sizes:
                if size and got.size % size == 0:
                    held.update(map(_print, np.asarray(got, "f4").reshape(-1, size)))
        for each, want in zip(expected, peers, strict=True):
            if not isinstance(want, Exception) and _print(want) not in held:
                self.missing.append(f"message {each.name} of {want.size} values")


def _print(values: Any) -> bytes:
    values = np.array(values, "f4")
    values[np.isnan(values)] = np.nan
    return (values + np.float32(0)).tobytes()


def _picture_difference(want: Any, got: Any) -> str:
    want = np.squeeze(want)
    got = np.squeeze(got)
    if want.shape != got.shape and want.ndim == got.ndim == 3:
        moved = np.moveaxis(got, -1, 0)
        got = moved if moved.shape == want.shape else np.moveaxis(got, 0, -1)
    return difference(want, got)


def difference(want: Any, got: Any, *, within: bool = False) -> str:
    """Return how two arrays differ, or an empty string; `got` may be longer `within` NetCDF."""
    want, got = np.asanyarray(want), np.asarray(got)
    if want.dtype.kind == "c" and got.dtype.names == ("real", "imag"):  # complex integers
        got = got["real"] + 1j * got["imag"]
    if want.dtype.names is not None and len(want.dtype.names) == 1 and got.dtype.names != want.dtype.names:
        want = want[want.dtype.names[0]]
    if want.dtype == object and got.ndim == want.ndim + 1 and got.dtype != object:  # lists, here padded
        parts = [difference(each, got[row, : len(each)]) for row, each in enumerate(want)]
        return next(filter(None, parts), "")
    if want.shape != got.shape:
        if got.ndim == want.ndim and within and all(a <= b for a, b in zip(want.shape, got.shape, strict=True)):
            got = got[tuple(map(slice, want.shape))]
        elif got.size != want.size or got.dtype.kind not in "SUOV":
            return f"shape {got.shape}, not {want.shape}"
    if want.dtype.names is not None:
        return _record_difference(want, got)
    if want.dtype.kind in "SUO" or got.dtype.kind in "SUO":
        same = _texts(want) == _texts(got)
        return "" if same else f"texts {_texts(got)[:3]}, not {_texts(want)[:3]}"
    if want.dtype.kind == "V":
        return "" if want.tobytes() == got.tobytes() else "other bytes"
    return _number_difference(want, got)


def _document_difference(want: Any, got: Any) -> str:
    """Return how elements that are JSON differ from what they stand for."""
    want = np.asarray(want)
    if want.shape != got.shape[: want.ndim]:
        return f"shape {got.shape}, not {want.shape}"
    for at in np.ndindex(want.shape):
        held = got[at]  # of lists in an array of fixed lengths there are several
        found = json.loads(held) if isinstance(held, str) else [json.loads(each) for each in held.ravel()]
        if json.dumps(found) != json.dumps(_as_json(want[at])):
            return f"at {at} {found!r}, not {want[at]!r}"
    return ""


def _as_json(value: Any) -> Any:
    if isinstance(value, np.void) and value.dtype.names is not None:
        return {name: _as_json(value[name]) for name in value.dtype.names}
    if isinstance(value, np.ndarray | list | tuple):
        return [_as_json(each) for each in value]
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return value.item() if isinstance(value, np.generic) else value


def _number_difference(want: Any, got: Any) -> str:
    unknown, want = np.ma.getmaskarray(want), np.ma.getdata(want)
    if got.dtype.kind == "V":
        return f"type {got.dtype}, not {want.dtype}"
    got = got.reshape(want.shape)
    if want.dtype.kind == "b" or got.dtype.kind == "b":
        want, got = want.astype(bool), got.astype(bool)
    same = (want == got) | ((want != want) & (got != got)) | unknown
    if np.all(same):
        return ""
    at = tuple(int(each[0]) for each in np.nonzero(~same)) if want.ndim else ()
    return f"{int(np.sum(~same))} of {want.size} values, at {at} {got[at]!r}, not {want[at]!r}"


def _record_difference(want: Any, got: Any) -> str:
    if got.dtype.names is None:
        return f"type {got.dtype}, not {want.dtype}"
    lacking = [name for name in want.dtype.names if name not in got.dtype.names]
    if lacking:
        return f"without the fields {lacking}"
    found = ((name, difference(want[name], got[name])) for name in want.dtype.names)
    return "; ".join(f"field {name}: {why}" for name, why in found if why)


def _texts(values: Any) -> list[str]:
    out = []
    for each in np.asarray(values).reshape(-1).tolist():
        if isinstance(each, np.ndarray) and each.dtype.kind == "U":  # letters, one by one
            each = "".join(each.tolist())
        text = each.decode("utf-8", "replace") if isinstance(each, bytes) else str(each)
        out.append(text.rstrip("\0 "))
    return out
