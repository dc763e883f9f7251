"""The subject of a page: the arrays below a place, opened once each, with their coordinates and pictures.

A subject is an open array or an open group.  The members of a group are listed once; an array is opened on request,
with its coordinates and its coarser resolutions.  Values become numbers that a page can draw, and text.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import numpy as np

from fsstore.arrays.store import TensorStore
from fsstore.arrays.store import open as open_array
from fsstore.context.context import Context
from fsstore.dataset.georeference import Line, as_seen, lines_of, of_member
from fsstore.dataset.group import Group
from fsstore.dataset.image import Description
from fsstore.dataset.image import described as described_levels
from fsstore.dataset.listing import ArrayEntry, described, paths_of
from fsstore.errors import NotFoundError, ResourceExhaustedError, StoreError
from fsstore.index import d
from fsstore.runtime import fork
from fsstore.runtime.tuning import KEPT

# values sent of a series or a coordinate, and twice the side of a picture in pixels: more than a screen shows
POINTS = 4096
MAPPED_CHUNKS = 1024  # chunks of one map; each may cost a request
READS_AT_ONCE = 4  # requests that read at once; the others wait, so that memory stays bounded


# Values of an array as numbers that a page can draw: types that JavaScript has, missing values as NaN.  The CF
# attributes `scale_factor`, `add_offset`, `_FillValue` and `missing_value` are applied.

_PLAIN = frozenset(("u1", "i1", "u2", "i2", "u4", "i4", "f4", "f8"))
_MOST_TEXT = 200


def is_number(dtype: Any) -> bool:
    """Return whether values of a NumPy type can be drawn: numbers, times, and the small types of machine learning."""
    if dtype.kind == "V":
        return dtype.names is None and np.can_cast(dtype, "f8", casting="unsafe") and dtype.type is not np.void
    return dtype.kind in "biufcmM"


def numbers(values: Any, attributes: Mapping[str, Any]) -> Any:
    """Return values in a type that JavaScript has: small integers and floats; complex numbers become magnitudes."""
    array = np.asarray(values)
    kind = array.dtype.kind
    if kind in "mM":
        missing = np.isnat(array)
        array = np.where(missing, np.nan, array.astype("M8[ms]" if kind == "M" else "m8[ms]").astype("i8").astype("f8"))
    elif kind == "c":
        array = np.abs(array)
    elif kind == "b":
        array = array.astype("u1")
    array = decoded(array, attributes)
    code = f"{array.dtype.kind}{array.dtype.itemsize}"
    if code not in _PLAIN:
        array = array.astype("f8" if array.dtype.itemsize > 4 else "f4")
    return np.ascontiguousarray(array.astype(array.dtype.newbyteorder("<"), copy=False))


def decoded(array: Any, attributes: Mapping[str, Any]) -> Any:
    """Return values after scaling, offset and masking by their CF attributes."""
    marks = [mark for name in ("_FillValue", "missing_value") for mark in _listed(attributes.get(name))]
    scale, offset = _number(attributes.get("scale_factor")), _number(attributes.get("add_offset"))
    if not marks and scale is None and offset is None:
        return array
    missing = np.isin(array, np.asarray(marks, "f8").astype(array.dtype)) if marks else None
    if missing is not None and not missing.any():
        missing = None
    if missing is None and scale is None and offset is None:
        return array
    real = array.astype("f4" if array.dtype.itemsize <= 2 or array.dtype == np.float32 else "f8")
    if scale is not None:
        real *= scale
    if offset is not None:
        real += offset
    return real if missing is None else np.where(missing, np.nan, real)


def _listed(value: Any) -> list[float]:
    values = value if isinstance(value, list) else [value]
    return [number for number in map(_number, values) if number is not None and np.isfinite(number)]


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def text_of(value: Any) -> str:
    """Return one value as text."""
    one = value[()] if isinstance(value, np.ndarray) and value.ndim == 0 else value
    text = repr(one) if isinstance(one, bytes) else str(one)
    return text if len(text) <= _MOST_TEXT else text[:_MOST_TEXT] + "\u2026"


@dataclass(frozen=True, slots=True)
class PictureLimits:
    """Limits of one picture or series."""

    chunks: int = 256
    nbytes: int = 64 << 20
    """Bytes of the chunks decoded for it."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """The samples along one dimension: `count` elements, `step` apart, each standing for the step around it."""

    start: int
    step: int
    count: int
    size: int

    @property
    def first(self) -> int:
        """The first element read."""
        return min(self.start + self.step // 2, self.size - 1)

    @property
    def stop(self) -> int:
        """The element behind the last one read."""
        return min(self.size, self.first + (self.count - 1) * self.step + 1)

    @property
    def selection(self) -> slice:
        """The elements read: the middle of each step, clipped to the dimension."""
        return slice(self.first, self.stop, self.step)


@dataclass(frozen=True, slots=True)
class _Side:
    """One dimension of a window: the elements from `low` to `high`, in chunks of `chunk`."""

    low: int
    high: int
    size: int
    chunk: int

    def touched(self, step: int) -> int:
        """Return how many chunks hold samples that are `step` apart."""
        taken = self.sampling(step)
        if step >= self.chunk:
            return taken.count
        return (taken.stop - 1) // self.chunk - taken.first // self.chunk + 1

    def coarser(self, step: int) -> int:
        """Return a step that touches about half as many chunks."""
        return max(2 * step, 2 * self.chunk)

    def sampling(self, step: int) -> Sampling:
        """Return the samples, on multiples of the step so that neighbouring windows share them."""
        start = self.low // step * step
        count = -(-(self.high - start) // step)
        first = min(start + step // 2, self.size - 1)
        return Sampling(start, step, min(count, 1 + (self.size - 1 - first) // step), self.size)


def sampled(
    window: Sequence[tuple[int, int]],
    pixels: Sequence[int],
    *,
    shape: Sequence[int],
    chunks: Sequence[int],
    chunk_bytes: int,
    limits: PictureLimits = PictureLimits(),  # a frozen value
) -> list[Sampling]:
    """Return the samples of a window, one entry a dimension.

    `shape` and `chunks` belong to the dimensions of the window; `chunk_bytes` is the memory that one chunk takes.
    Raises `ResourceExhaustedError` if one chunk alone exceeds the limit.
    """
    if chunk_bytes > limits.nbytes:
        raise ResourceExhaustedError(
            f"One chunk of this array takes {chunk_bytes / 2**20:,.0f} MB in memory, and a picture may take"
            f" {limits.nbytes / 2**20:,.0f} MB; copy the array in smaller chunks to look at it"
        )
    sides = [
        _Side(max(0, min(low, size - 1)), max(1, min(high, size)), size, min(max(1, chunk), size))
        for (low, high), size, chunk in zip(window, shape, chunks, strict=True)
    ]
    sides = [side if side.low < side.high else _Side(side.high - 1, side.high, side.size, side.chunk) for side in sides]
    steps = [max(1, round((side.high - side.low) / max(1, pixel))) for side, pixel in zip(sides, pixels, strict=True)]
    most = max(1, min(limits.chunks, limits.nbytes // max(1, chunk_bytes)))
    while True:
        touched = [side.touched(step) for side, step in zip(sides, steps, strict=True)]
        if math.prod(touched) <= most:
            return [side.sampling(step) for side, step in zip(sides, steps, strict=True)]
        widest = max(range(len(sides)), key=touched.__getitem__)
        steps[widest] = sides[widest].coarser(steps[widest])


def sample(store: Any, at: Sequence[int], along: Sequence[int], samplings: Sequence[Sampling]) -> Any:
    """Return samples along the dimensions `along`, in that order, at the indices `at` of all others."""
    key: list[Any] = list(at)
    for dimension, sampling in zip(along, samplings, strict=True):
        key[dimension] = sampling.selection
    values = store[tuple(key)].read().result()
    order = sorted(along)
    return values.transpose([order.index(dimension) for dimension in along])


# The axes of an array: one-dimensional arrays of the same name, in its group or above, as in CF and xarray.

_MOST_LEVELS = 32  # of an image; most have about ten
_SINCE = re.compile(r"\s*(\w+)\s+since\s+(\d{1,4})-(\d{1,2})-(\d{1,2})(?:[T ]+(\d{1,2}):(\d{1,2})(?::([\d.]+))?)?(.*)")
_ZONE = re.compile(r"\s*(?:Z|UTC|GMT|([+-])(\d{1,2}):?(\d{2})?)?\s*\Z")
_MILLISECONDS = {
    **dict.fromkeys(("milli", "ms", "msec"), 1), **dict.fromkeys(("s", "sec", "second"), 1e3),
    **dict.fromkeys(("min", "minute"), 6e4), **dict.fromkeys(("h", "hr", "hour"), 36e5),
    **dict.fromkeys(("d", "day"), 864e5), "week": 6048e5,
}  # fmt: skip
_GREGORIAN = ("standard", "gregorian", "proleptic_gregorian", "")
_LENGTHS = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_LEAP = (31, 29, *_LENGTHS[2:])
_MONTHS = {
    "noleap": _LENGTHS, "365_day": _LENGTHS, "all_leap": _LEAP, "366_day": _LEAP, "360_day": (30,) * 12,
}  # fmt: skip
"""Month lengths of calendars whose years are all alike."""
_UP = ("latitude", "projection_y_coordinate", "altitude", "height", "grid_latitude")


def axis(store: Any, attributes: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the values of a coordinate as JSON, or None if they are neither numbers, times nor text."""
    dtype = store.dtype.numpy_dtype
    (size,) = store.shape
    if not size:
        return None
    try:
        values, step, first = _values(store, size)
    except StoreError:  # an unreadable axis must not prevent the picture
        return None
    found: dict[str, Any] = {
        "units": _text(attributes.get("units")), "step": step, "first": first, "up": _goes_up(attributes),
    }  # fmt: skip
    if dtype.kind == "M" or (is_number(dtype) and _SINCE.match(found["units"])):
        return found | _times(values, attributes, found["units"], is_absolute=dtype.kind == "M")
    if is_number(dtype):
        plain = numbers(values, attributes).astype("f8")
        return found | {
            "kind": "number",
            "values": [None if not np.isfinite(each) else each for each in plain.tolist()],
        }
    if step == 1 and dtype.kind in "OSUT":
        return found | {"kind": "text", "values": [text_of(each) for each in values]}
    return None


def straight(line: Line, size: int) -> dict[str, Any]:
    """Return the values of a dimension with evenly spaced elements, in the form of `axis`."""
    step = max(1, -(-size // POINTS))
    values = [line.start + line.step * number for number in range(step // 2, size, step)]
    return {
        "kind": "number", "values": values, "units": line.unit, "step": step, "first": step // 2, "up": line.is_north,
    }  # fmt: skip


def _values(store: Any, size: int) -> tuple[Any, int, int]:
    chunk = (store.chunk_layout.read_chunk.shape or (None,))[0] or size
    each = store.dtype.numpy_dtype.itemsize
    (along,) = sampled(
        [(0, size)], [POINTS], shape=[size], chunks=[chunk], chunk_bytes=chunk * each, limits=PictureLimits(64)
    )
    return sample(store, [0], [0], [along]), along.step, along.selection.start


def _text(value: Any) -> str:
    return value[:200] if isinstance(value, str) else ""


def _goes_up(attributes: Mapping[str, Any]) -> bool:
    """Return whether larger values belong further up on a map."""
    units, name = _text(attributes.get("units")).lower(), _text(attributes.get("standard_name")).lower()
    return (
        units in ("degrees_north", "degree_north", "degrees_n", "degreesn")
        or name in _UP
        or attributes.get("axis") == "Y"
    )


def _times(values: Any, attributes: Mapping[str, Any], units: str, *, is_absolute: bool) -> dict[str, Any]:
    if is_absolute:
        return {"kind": "time", "units": "", "values": _plain(numbers(values, {}))}
    found = _SINCE.match(units)
    calendar = _text(attributes.get("calendar")).lower()
    one = _MILLISECONDS.get(found[1].lower().removesuffix("s") or "s") if found else None
    zone = _ZONE.match(found[8]) if found else None
    plain = numbers(values, attributes).astype("f8")
    if found is not None and one is not None and calendar in _MONTHS:
        days = _days_before(int(found[2]), int(found[3]), int(found[4]), _MONTHS[calendar]) + plain * one / 864e5
        return {"kind": "text", "values": [_date(each, _MONTHS[calendar]) for each in days.tolist()]}
    if found is None or one is None or zone is None or calendar not in _GREGORIAN:
        return {"kind": "number", "values": _plain(plain)}
    try:
        start = datetime(
            int(found[2]), int(found[3]), int(found[4]), int(found[5] or 0), int(found[6] or 0), tzinfo=UTC
        )
    except ValueError:
        return {"kind": "number", "values": _plain(plain)}
    shift = 0.0
    if zone[1]:
        shift = (1 if zone[1] == "+" else -1) * (int(zone[2]) * 60 + int(zone[3] or 0)) * 6e4
    origin = (start - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds() * 1e3 + float(found[7] or 0) * 1e3 - shift
    return {"kind": "time", "units": "", "values": _plain(origin + plain * one)}


def _plain(values: Any) -> list[float | None]:
    return [float(each) if np.isfinite(each) else None for each in values]


def _days_before(year: int, month: int, day: int, lengths: tuple[int, ...]) -> int:
    """Return how many days of a calendar precede a date."""
    return year * sum(lengths) + sum(lengths[: month - 1]) + day - 1


def _date(days: float, lengths: tuple[int, ...]) -> str:
    if not np.isfinite(days):
        return ""
    year, day = divmod(int(days), sum(lengths))
    month = 0
    while day >= lengths[month]:
        day -= lengths[month]
        month += 1
    return f"{year:04}-{month + 1:02}-{day + 1:02}"


# The same data in several resolutions: `multiscales` of OME-Zarr, and the scales of precomputed volumes.


@dataclass(frozen=True, slots=True)
class Level:
    """One resolution: its array, and how many of the finest elements one element covers along each dimension."""

    store: Any
    factors: tuple[float, ...]


def _image(attributes: Mapping[str, Any]) -> Description | None:
    """Return the multiscale description in attributes, or None if it is absent or malformed."""
    try:
        return described_levels(attributes)
    except StoreError:  # the arrays are shown all the same
        return None


def axes_of(attributes: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of the dimensions of an image in several resolutions."""
    image = _image(attributes)
    return tuple(axis.name for axis in image.axes) if image is not None else ()


def datasets_of(attributes: Mapping[str, Any]) -> list[str]:
    """Return the paths of the resolutions that the attributes of a group list, the finest first."""
    image = _image(attributes)
    return [level.path for level in image.levels[:_MOST_LEVELS]] if image is not None else []


def levels_of(stores: Sequence[Any]) -> list[Level]:
    """Return arrays as resolutions of the first; arrays of another rank, or not smaller, are left out."""
    base = stores[0]
    found = [Level(base, (1.0,) * base.rank)]
    for store in stores[1:]:
        if store.rank != base.rank or 0 in store.shape:
            continue
        factors = tuple(_ratio(large, small) for large, small in zip(base.shape, store.shape, strict=True))
        if min(factors) >= 1 and sum(factors) > sum(found[-1].factors):
            found.append(Level(store, factors))
    return found


def _ratio(large: int, small: int) -> float:
    """Return the ratio of two sizes: a whole number if only rounding differs from it."""
    whole = round(large / small)
    return float(whole) if whole and small in (large // whole, -(-large // whole)) else large / small


def scales_of(store: Any, opened: Callable[[Any], Any]) -> list[Any]:
    """Return the array, followed by the coarser scales if it is a scale of a precomputed volume."""
    spec = store.spec().to_json()
    if spec.get("driver") != "neuroglancer_precomputed" or ("transform" in spec and store.rank != 4):
        return [store]
    stores, first = [store], spec.get("scale_index", 0)
    for number in range(first + 1, first + _MOST_LEVELS):
        try:
            stores.append(opened({"driver": spec["driver"], "kvstore": spec["kvstore"], "scale_index": number}))
        except StoreError:  # the last scale
            break
    return stores


@dataclass(frozen=True, slots=True)
class Shown:
    """An array for display, with indices from zero, and its metadata."""

    path: str
    store: TensorStore
    """The array with its own indices."""
    levels: tuple[Level, ...]
    names: tuple[str, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    axes: tuple[dict[str, Any] | None, ...] = ()

    @property
    def zeroed(self) -> TensorStore:
        """The array in its finest resolution, with indices from zero."""
        finest: TensorStore = self.levels[0].store
        return finest


class Subject:
    """The arrays of a place."""

    def __init__(self, opened: TensorStore | Group, context: Context | None = None) -> None:
        self.opened, self._context = opened, context
        self._shown: dict[str, Shown] = {}
        self._lock = fork.lock()
        self._listed: tuple[dict[str, ArrayEntry | None], dict[str, str]] | None = None
        self._images: set[str] = set()

    @property
    def is_group(self) -> bool:
        """Whether the page shows a tree."""
        return isinstance(self.opened, Group)

    def members(self) -> tuple[dict[str, ArrayEntry | None], dict[str, str]]:
        """Return arrays (with their entries) and groups (with None) by path, and the errors of damaged members."""
        group = self.opened
        if not isinstance(group, Group):
            return {}, {}
        with self._lock:
            if self._listed is None:
                listed = group._listed()
                damaged = {path: str(error) for path, error in listed.damaged.items()} | dict(listed.left_out)
                groups, entries, _ = described(listed._replace(damaged={}))
                self._images = {path for path, node in listed.nodes.items() if datasets_of(node.attributes)}
                self._listed = {path: entries.get(path) for path in paths_of(groups, entries)}, damaged
        return self._listed

    def images(self) -> set[str]:
        """Return the paths of groups that hold one image in several resolutions."""
        self.members()
        return self._images

    def attributes(self, path: str) -> Mapping[str, Any]:
        """Return the attributes of a group."""
        group = self.opened
        if not isinstance(group, Group):
            return {}
        found = group.open(path).result() if path else group
        return dict(found.attrs)

    def array(self, path: str) -> Shown:
        """Return the array at a path, opened once; a group of resolutions counts as one array."""
        with self._lock:
            found = self._shown.get(path)
        if found is None:
            found = self._open(path)
            with self._lock:
                while len(self._shown) >= KEPT:
                    self._shown.pop(next(iter(self._shown)))
                self._shown[path] = found
        return found

    def _open(self, path: str) -> Shown:
        group = self.opened
        if isinstance(group, TensorStore):
            if path:
                raise NotFoundError(f"There is no array at {path!r} here")
            return self._made("", scales_of(group, self._opened_scale))
        opened = group.open(path).result() if path else group
        if isinstance(opened, Group):
            finer = [f"{path}/{each}".lstrip("/") for each in datasets_of(opened.attrs)]
            if not finer:
                raise NotFoundError(f"{path or '/'!r} is a group; its arrays have pictures")
            stores = [group.open(each).result() for each in finer]
            return self._made(path, stores, axes_of(opened.attrs), finest=finer[0])
        coarser, axes = self._coarser(group, path)
        return self._made(path, [opened, *coarser], axes)

    def _opened_scale(self, spec: Any) -> TensorStore:
        return open_array(spec, read=True, context=self._context).result()

    def _coarser(self, group: Group, path: str) -> tuple[list[TensorStore], tuple[str, ...]]:
        """Return the coarser resolutions of an array that its group lists, and the names of its dimensions."""
        above, _, name = path.rpartition("/")
        try:
            attributes = self.attributes(above)
            listed = datasets_of(attributes)
            if name not in listed:
                return [], ()
            behind = [f"{above}/{each}".lstrip("/") for each in listed[listed.index(name) + 1 :]]
            return [group.open(each).result() for each in behind], axes_of(attributes)
        except StoreError:  # the array is shown without them
            return [], ()

    def _made(self, path: str, stores: list[Any], axes: tuple[str, ...] = (), finest: str = "") -> Shown:
        store = stores[0]
        try:
            attributes = store.attrs.asdict()
        except StoreError:  # arrays without attributes
            attributes = {}
        zeroed = [each[d[:].translate_to[0]] if each.rank else each for each in stores]
        names = store.domain.labels
        if not any(names) and len(axes) == len(names):
            names = axes
        coordinates = [
            self._axis(path, name, size) if name else None for name, size in zip(names, store.shape, strict=True)
        ]
        if None in coordinates:
            above, _, member = (finest or path).rpartition("/")
            said = as_seen(of_member(self.attributes(above), member, attributes), store)
            for name, line in lines_of(said, names, store.shape).items():
                number = names.index(name)
                coordinates[number] = coordinates[number] or straight(line, store.shape[number])
        return Shown(path, store, tuple(levels_of(zeroed)), names, attributes, tuple(coordinates))

    def _axis(self, path: str, name: str, size: int) -> dict[str, Any] | None:
        found = self._coordinate(path, name)
        if found is None or found.shape != (size,):
            return None
        try:
            attributes = found.attrs.asdict()
        except StoreError:
            attributes = {}
        return axis(found[d[:].translate_to[0]], attributes)

    def _coordinate(self, path: str, name: str) -> TensorStore | None:
        """Return the nearest array named after a dimension: in the group of the array, or in a group above."""
        group = self.opened
        if not isinstance(group, Group):
            return self._beside(name)
        above, members = path, self.members()[0]
        while above:
            above = above.rpartition("/")[0]
            at = f"{above}/{name}".lstrip("/")
            if members.get(at) is not None:
                try:
                    found: TensorStore = group.open(at).result()
                except StoreError:  # the picture is shown without this axis
                    return None
                return found
        return None

    def _beside(self, name: str) -> TensorStore | None:
        """Return the array of this name in the directory of the opened array."""
        try:
            below = self.opened.kvstore
            if below is None:
                return None
            spec = below.spec().to_json()
            above, slash, own = spec.get("path", "").rstrip("/").rpartition("/")
            if not own or own == name or "/" in name:
                return None
            beside = {"driver": "auto", "kvstore": {**spec, "path": f"{above}{slash}{name}/"}}
            return open_array(beside, read=True, context=self._context).result()
        except (StoreError, AttributeError):  # no key-value store, or no such array
            return None
