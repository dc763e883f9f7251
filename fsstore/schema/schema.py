"""`Schema`: the wished properties of an array, whatever driver stores it; and `OpenMode`: how that array is opened.

The public object around `SchemaValue`: constraints by name, properties, indexing.  It changes only by `update`, which
changes all or nothing.  Keyword arguments as zarr-python and NumPy have them are translated into those of specs.

An `OpenMode` says whether the array is made, opened or replaced, and how stale its metadata and data may be.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from operator import index
from typing import Any, Final, Literal, Self, TypeAlias, TypedDict, Unpack, overload

import numpy as np

from fsstore.errors import JsonError, StoreError
from fsstore.index.indexing import Indexable
from fsstore.index.transform import IndexDomain, IndexTransform
from fsstore.schema.chunk_layout import ChunkLayout
from fsstore.schema.constraint import ConstraintFace, fill_of
from fsstore.schema.layout_value import integers
from fsstore.schema.value import CodecSpec, SchemaValue, beneath, schema_from_json
from fsstore.values import dtypes
from fsstore.values.dtypes import DTypeLike, any_dtype, dtype_of
from fsstore.values.json_value import Fields, Json, as_flag, boolean, expected, json_like, meant, number, pretty, show
from fsstore.values.units import Unit, Units, units_of

# When cached data are asked for again: the recheck options.

RecheckCacheOption: TypeAlias = bool | Literal["open"] | float
"""When cached data are asked for again: always, never, once an opening, or what is older than a time."""
RECHECK = ("recheck_cached_metadata", "recheck_cached_data")
FILLS = "fill_missing_data_reads"
"""Whether a chunk that is missing reads as fill values."""
"""The members of specs that say it."""

_END = 2.0**63  # seconds on either side of 1970, beyond which every time is past or to come


def recheck(value: Any) -> Any:
    """Parse a recheck option: true, false, "open", or seconds since the epoch."""
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value == "open":
        return "open"
    try:
        return _time(number(value))
    except JsonError:
        raise expected('boolean, number, or "open"', value) from None


def recheck_argument(name: str, value: Any) -> Any:
    """Return the recheck option that an argument called `name` means: numbers of any kind, infinite ones too.

    Raises `TypeError` for anything else.
    """
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value == "open":
        return "open"
    if isinstance(value, str | bytes) or not (hasattr(value, "__float__") or hasattr(value, "__index__")):
        raise TypeError(f"Invalid {name}")
    try:
        return _time(float(value))
    except (TypeError, ValueError, OverflowError):
        raise TypeError(f"Invalid {name}") from None


def _time(seconds: float) -> bool | float:
    """Return a time; true for one that is always to come, false for one that is always past, or none at all."""
    if -_END < seconds < _END:
        return seconds
    return seconds > 0


def differs(value: Any, usual: Any) -> bool:
    """Return whether a member says something else than its default: the time 1.0 is not true."""
    return (type(value), value) != (type(usual), usual)


def fresh_after(recheck: bool | str | float, opened: float) -> float:
    """Return from which time on cached data need no recheck.

    True rechecks always, False never, "open" what is older than the opening, a number what is older than that time.
    """
    if isinstance(recheck, bool):
        return math.inf if recheck else -math.inf
    return opened if isinstance(recheck, str) else recheck


class ModeOptions(TypedDict, total=False):
    """Whether opening may create or delete, and how long what it has read is good; None is not given."""

    open_mode: OpenMode | None
    open: bool | None
    create: bool | None
    delete_existing: bool | None
    assume_metadata: bool | None
    assume_cached_metadata: bool | None
    recheck_cached: RecheckCacheOption | None
    recheck_cached_metadata: RecheckCacheOption | None
    recheck_cached_data: RecheckCacheOption | None
    fill_missing_data_reads: bool | None


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class OpenMode:
    """The permissions of `open`.  Without any flag it opens what exists.

    >>> OpenMode(create=True, open=True)
    OpenMode(open=True, create=True)
    """

    __module__ = "fsstore"

    open: bool = False
    create: bool = False
    delete_existing: bool = False
    assume_metadata: bool = False
    assume_cached_metadata: bool = False

    def __post_init__(self) -> None:
        """Raise `TypeError` for flags that are none."""
        for name in _NAMES:
            flag = getattr(self, name)
            if flag is not True and flag is not False:
                as_flag(name, flag)

    def __repr__(self) -> str:
        """Return the flags that are set."""
        return f"OpenMode({', '.join(f'{name}=True' for name in self.flags())})"

    @classmethod
    def none(cls) -> OpenMode:
        """Return the mode without any flag."""
        return _NONE

    def flags(self) -> Iterator[str]:
        """Yield the names of the flags that are set."""
        return (name for name in _NAMES if getattr(self, name))

    def __or__(self, other: OpenMode) -> OpenMode:
        """Return the flags of both."""
        return OpenMode(**{name: getattr(self, name) or getattr(other, name) for name in _NAMES})

    def __bool__(self) -> bool:
        """Return whether any flag is set."""
        return any(self.flags())

    @classmethod
    def take(cls, members: Fields) -> OpenMode:
        """Take the members of a spec.  `open` is the default unless `create` is given."""
        taken = {name: members.take(name, boolean) for name in _NAMES if name in members}
        if not taken:
            return _OPENS
        if taken.get("open") is None:
            taken["open"] = not taken.get("create")
        mode = cls(**{name: bool(value) for name, value in taken.items()})
        return mode if mode.open or mode.create else replace(mode, open=True)

    def over(self, earlier: OpenMode) -> OpenMode:
        """Return what arguments make of the mode of a spec: they replace it if they open or create, else add to it."""
        return self if self.open or self.create else self | earlier

    def to_json(self) -> dict[str, Any]:
        """Return the members that differ from the default."""
        out: dict[str, Any] = {name: True for name in self.flags() if name != "open"}
        if self.open and self.create:
            out["open"] = True
        return out

    @staticmethod
    def defaults() -> dict[str, Any]:
        """Return the members that `to_json(include_defaults=True)` prints; how `open` is meant is said elsewhere."""
        return dict.fromkeys(("delete_existing", "assume_metadata", "assume_cached_metadata"), False)

    def effective(self) -> OpenMode:
        """Return the mode with `open` set where neither `open` nor `create` is."""
        if self.open or self.create:
            return self
        return _OPENS if self is _NONE else replace(self, open=True)

    def check(self, *, writable: bool) -> None:
        """Raise `StoreError` for flags that contradict each other."""
        mode = self.effective()
        wrong = [
            (mode.delete_existing and not mode.create, "`delete_existing` without `create`"),
            (mode.delete_existing and mode.open, "`delete_existing` with `open`"),
            (mode.delete_existing and mode.assume_metadata, "`delete_existing` with `assume_metadata`"),
            (mode.delete_existing and mode.assume_cached_metadata, "`delete_existing` with `assume_cached_metadata`"),
            (mode.assume_metadata and not mode.open, "`assume_metadata` without `open`"),
            (mode.assume_cached_metadata and not mode.open, "`assume_cached_metadata` without `open`"),
            (mode.create and not writable, "`create` without `write`"),
        ]
        for is_wrong, what in wrong:
            if is_wrong:
                raise StoreError(f"Cannot specify an open mode of {what}")


_NAMES = tuple(field.name for field in fields(OpenMode))
_NONE, _OPENS = OpenMode(), OpenMode(open=True)


def mode_from_options(options: Mapping[str, Any]) -> OpenMode:
    """Return the mode of keyword arguments: `open_mode` and the single flags together."""
    given = options.get("open_mode")
    if given is not None and not isinstance(given, OpenMode):
        raise TypeError(f"open_mode must be an OpenMode, not {type(given).__name__}")
    flags = {name: as_flag(name, options[name]) for name in _NAMES if name in options}
    return (given or _NONE) | OpenMode(**flags) if flags else given or _NONE


# Keyword arguments in the words of zarr-python and numpy, put in those of specs: modes, chunks, codecs,
# types.

LEVELS = {"zstd": 3, "gzip": 6, "blosc": 5}
"""The codecs that have a short name, and how hard they try."""

_MODES: Mapping[str, Mapping[str, bool]] = {
    "r": {"open": True},
    "r+": {"open": True},
    "a": {"open": True, "create": True},
    "w": {"create": True, "delete_existing": True},
    "w-": {"create": True},
}


def in_our_words(given: Mapping[str, Any], driver: str) -> dict[str, Any]:
    """Return keyword arguments without words of other libraries; `driver` is whose codecs are meant."""
    out = dict(given)
    mode = out.pop("mode", None)
    if mode is not None:
        if mode not in _MODES:
            raise ValueError(f"mode is one of {', '.join(_MODES)}, not {mode!r}")
        out = {**_MODES[mode], **out}
    if "chunks" in out or "shards" in out:
        if "chunk_layout" in out:
            raise StoreError("chunks and chunk_layout say the same twice; give one of them")
        out["chunk_layout"] = _layout_of_chunks(out.pop("chunks", None), out.pop("shards", None))
    if isinstance(out.get("codec"), str | Mapping | list):
        out["codec"] = CodecSpec(codec_of(out["codec"], driver))
    return out


def _layout_of_chunks(chunks: Any, shards: Any) -> ChunkLayout:
    if shards is None:
        return ChunkLayout(chunk_shape=_sides("chunks", chunks))
    if chunks is None:
        return ChunkLayout(write_chunk_shape=_sides("shards", shards))
    return ChunkLayout(read_chunk_shape=_sides("chunks", chunks), write_chunk_shape=_sides("shards", shards))


def _sides(name: str, sizes: Any) -> list[int]:
    try:
        return [index(size) for size in sizes]
    except TypeError:
        raise TypeError(f"{name} is a size for each dimension, such as [100, 100], not {sizes!r}") from None


_CODECS_IN = {3: ("zarr3", "codecs", "name"), 2: ("zarr", "compressor", "id"), 0: ("n5", "compression", "type")}
"""By version of zarr, 0 for N5: the driver, the member of codec specs, and the word for the name of a codec."""


def codec_json(codec: Any, zarr_format: int) -> Any:
    """Return a codec as metadata of a format have it, a list in zarr version 3.

    Given is JSON of the format, a codec spec, a short name, or that with parameters: `{"name": "zstd", "level": 9}`.
    """
    _, member, word = _CODECS_IN[zarr_format]
    if isinstance(codec, CodecSpec):
        codec = codec.to_json()
    if isinstance(codec, str):
        if codec not in LEVELS:
            raise ValueError(f"{show(codec)} is no codec that has a short name; use {', '.join(LEVELS)}, or its JSON")
        codec = {"name": codec} if codec == "blosc" else {"name": codec, "level": LEVELS[codec]}
    elif isinstance(codec, Mapping) and "driver" in codec:
        return codec.get(member)
    if not isinstance(codec, Mapping):
        return codec
    if word in codec and (zarr_format != 3 or codec.keys() <= {"name", "configuration", "must_understand"}):
        return [codec] if zarr_format == 3 else codec
    rest = dict(codec)
    name = next((rest.pop(each) for each in ("name", "id", "type") if each in codec), None)
    rest = {**rest.pop("configuration", {}), **rest}
    if name == "blosc":
        usual = {} if zarr_format else {"cname": "lz4", "clevel": LEVELS[name], "shuffle": 1}
        rest = {**usual, **{"clevel" if key == "level" else key: value for key, value in rest.items()}}
    return [{word: name, **({"configuration": rest} if rest else {})}] if zarr_format == 3 else {word: name, **rest}


def codec_of(codec: Any, driver: str) -> dict[str, Any]:
    """Return the codec spec for arrays of a driver that a short name means, or what else `codec_json` takes."""
    if isinstance(codec, Mapping) and "driver" in codec:
        return dict(codec)
    for version, (name, member, _) in _CODECS_IN.items():
        if driver == name or (driver, version) == ("auto", 3):
            return {"driver": name, member: codec_json(codec, version)}
    raise StoreError(f"The driver {show(driver)} has no codecs with short names; give the JSON of one")


def known_instead(word: str, known: Iterable[str]) -> str:
    """Return what is meant by an option that is none, as `; did you mean ...`; nothing if nothing is close."""
    if word in ("level", "compressor", "compressors", "compression"):
        return '; a codec has its level: codec={"name": "zstd", "level": 9}'
    return meant(word, known)


class CompositeOptions(TypedDict, total=False):
    """The options of an array whose chunks and elements are those of other arrays; None is not given."""

    rank: int | None
    dtype: DTypeLike | None
    domain: IndexDomain | None
    shape: Sequence[int] | None
    dimension_units: Sequence[Unit | str | float | tuple[float, str] | None] | None
    schema: Schema | None


class SchemaOptions(CompositeOptions, total=False):
    """The constraints of a schema by name; None is not given."""

    chunk_layout: ChunkLayout | None
    codec: CodecSpec | None
    fill_value: Any


def _rank(value: SchemaValue, given: Any) -> SchemaValue:
    try:
        rank = operator.index(given)
    except TypeError:
        raise TypeError("Invalid rank") from None
    return value if rank == -1 else value.with_rank(rank)


def _with_dtype(value: SchemaValue, given: Any) -> SchemaValue:
    try:
        return value.with_dtype(any_dtype(given))
    except TypeError:
        raise TypeError("Invalid dtype") from None


def _domain(value: SchemaValue, given: Any) -> SchemaValue:
    if not isinstance(given, IndexDomain):
        raise TypeError("Invalid domain")
    return value.with_domain(given)


def _shape(value: SchemaValue, given: Any) -> SchemaValue:
    shape = integers(given, "shape")
    if any(size is None for size in shape):
        raise TypeError("Invalid shape")
    if len(shape) > 32:
        raise StoreError(f"Rank {len(shape)} is outside valid range [0, 32]")
    for size in shape:
        if size is not None and not 0 <= size < 2**62:
            raise StoreError(f"(0, {size}) do not specify a valid sized index interval")
    return value.with_domain(IndexDomain(shape=shape), "shape")


def _with_layout(value: SchemaValue, given: Any) -> SchemaValue:
    if not isinstance(given, ChunkLayout):
        raise TypeError("Invalid chunk_layout")
    return value.with_layout(given._value)


def _codec(value: SchemaValue, given: Any) -> SchemaValue:
    if not isinstance(given, CodecSpec):
        raise TypeError("Invalid codec")
    return value.with_codec(given)


def _fill(value: SchemaValue, given: Any) -> SchemaValue:
    return value.with_fill(fill_of(given, value.dtype))


def _schema(value: SchemaValue, given: Any) -> SchemaValue:
    if not isinstance(given, Schema):
        raise TypeError("Invalid schema")
    return value.merged(given._value)


CONSTRAINTS: Final[dict[str, Callable[[SchemaValue, Any], SchemaValue]]] = {
    "rank": _rank,
    "dtype": _with_dtype,
    "domain": _domain,
    "shape": _shape,
    "chunk_layout": _with_layout,
    "codec": _codec,
    "fill_value": _fill,
    "dimension_units": lambda value, given: value.with_units(units_of(given)),
    "schema": _schema,
}
"""The names `Schema(...)`, `update(...)` and `open(...)` take, in the order they are applied."""
_NOTHING: Final = SchemaValue()
_PLAIN_MESSAGES: Final = ("No TensorStore data type", "Invalid dimension_units")


def with_constraints(value: SchemaValue, constraints: Mapping[str, Any]) -> SchemaValue:
    """Return `value` with constraints by name merged in; None says nothing.

    Raises `TypeError` for unknown names and bad types, `StoreError` for conflicts; both name the constraint.
    """
    if not constraints:
        return value
    unknown = sorted(set(constraints) - set(CONSTRAINTS))
    if unknown:
        raise TypeError(f"Schema has no constraint called {', '.join(unknown)}")
    for name, add in CONSTRAINTS.items():
        given = constraints.get(name)
        if given is None:
            continue
        try:
            value = add(value, given)
        except StoreError as error:
            if error.message.startswith(_PLAIN_MESSAGES):
                raise
            raise error.within(f"Invalid {name}") from None
    return value


class Schema(ConstraintFace, Indexable):
    """Constraints on an array, from JSON or by name.

    Names: `rank`, `dtype`, `domain`, `shape`, `chunk_layout`, `codec`, `fill_value`, `dimension_units`, `schema`.
    Indexing gives the constraints on a view.

    >>> Schema(rank=5, dtype="uint8")
    Schema({'dtype': 'uint8', 'rank': 5})
    """

    __module__ = "fsstore"
    __slots__ = ("__weakref__",)
    _value: SchemaValue

    @overload
    def __init__(self, json: Mapping[str, Any] | Schema) -> None: ...
    @overload
    def __init__(self, **constraints: Unpack[SchemaOptions]) -> None: ...
    def __init__(self, *args: Any, **constraints: Any) -> None:
        """Take JSON (or another schema), or constraints by name."""
        if "json" in constraints and not args:
            args = (constraints.pop("json"),)
        if len(args) > 1 or (args and constraints):
            raise TypeError("Schema takes json or constraints by name, not both")
        if args:
            given = args[0]
            self._value = given._value if isinstance(given, Schema) else schema_from_json(json_like(given))
        else:
            self._value = with_constraints(_NOTHING, constraints)

    def update(self, **constraints: Unpack[SchemaOptions]) -> None:
        """Add constraints, named as in the constructor.  Raises and changes nothing where they conflict."""
        self._value = with_constraints(self._value, constraints)

    def copy(self) -> Self:
        """Return a copy that changes by itself."""
        return self._of(self._value)

    def _apply(self, change: Callable[..., IndexTransform], *arguments: Any) -> Self:
        return self._of(self._value.viewed(lambda transform: change(transform, *arguments)))

    def through(self, transform: IndexTransform) -> Self:
        """Return what the constraints on an array say of a view of it."""
        known = self.copy()
        known.update(rank=transform.output_rank)
        return self._of(known._value.viewed(lambda _: transform)).over(transform.domain)

    def merged(self, other: Schema) -> Self:
        """Return both constraints as one.  Raises `StoreError` where they conflict."""
        return self._of(self._value.merged(other._value))

    def retyped(self, dtype: Any) -> Self:
        """Return the schema of the same array with its elements converted to another type."""
        kind = None if dtype is None else dtype_of(dtype)
        fill = self._value.fill and self._value.fill.converted(kind)
        return self._of(replace(self._value, dtype=kind, fill=fill))

    def over(self, domain: IndexDomain | None) -> Self:
        """Return the schema with another domain in place of its own, of the same rank, or with none."""
        return self._of(replace(self._value, domain=domain))

    def beneath(self, transform: IndexTransform) -> Self:
        """Return what constraints on a view say of the array below it.

        Raises `StoreError` where something required has no place there.
        """
        return self._of(beneath(self._value, transform))

    @property
    def rank(self) -> int | None:
        """Number of dimensions, or None."""
        return None if self._value.rank < 0 else self._value.rank

    ndim = rank

    @property
    def dtype(self) -> dtypes.dtype | None:
        """Data type, or None."""
        return self._value.dtype

    @property
    def domain(self) -> IndexDomain | None:
        """Domain, or None."""
        return self._value.domain

    def _known_domain(self) -> IndexDomain:
        if self._value.domain is not None:
            return self._value.domain
        if self._value.rank < 0:
            raise StoreError("Cannot perform indexing operations on schema with unspecified rank")
        return IndexDomain(rank=self._value.rank)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the domain."""
        return self._known_domain().shape

    @property
    def origin(self) -> tuple[int, ...]:
        """Inclusive lower bounds of the domain."""
        return self._known_domain().origin

    @property
    def size(self) -> int:
        """Number of elements of the domain."""
        return self._known_domain().size

    @property
    def chunk_layout(self) -> ChunkLayout:
        """Constraints on the chunk layout, as a copy."""
        return ChunkLayout._of(self._value.layout)

    @property
    def codec(self) -> CodecSpec | None:
        """Constraints on encoding, or None."""
        return self._value.codec

    @property
    def fill_value(self) -> np.ndarray[Any, Any] | None:
        """Fill value as an array that broadcasts to the domain, as a copy, or None."""
        fill = self._value.fill
        return None if fill is None else fill.array.copy()

    @property
    def dimension_units(self) -> Units | None:
        """A unit or None per dimension, or None without a rank."""
        if self._value.units is None:
            return None if self._value.rank < 0 else (None,) * self._value.rank
        return self._value.units

    def to_json(self, include_defaults: bool = False) -> dict[str, Json]:
        """Return the JSON form; nothing has defaults."""
        as_flag("include_defaults", include_defaults)
        return self._value.to_json()

    def __repr__(self) -> str:
        """Return `Schema({...})`; `Schema(...)` where JSON cannot say the fill value."""
        try:
            return pretty("Schema", self.to_json())
        except StoreError:
            return "Schema(...)"


def says_nothing(schema: Schema) -> bool:
    """Return whether nothing was ever constrained; False where that would have to be found out."""
    return schema._value is _NOTHING
