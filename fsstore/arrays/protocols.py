"""Arrays under the protocols of Python, NumPy, zarr-python and notebooks, and the values that may be written.

Values are arrays that cast safely, and Python values that convert.  Elements that are Python objects are checked one by
one before anything is written, so that a value of a wrong type changes nothing: text is `str`, octets are `bytes`, and
JSON is what `json` makes of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from html import escape
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, TypeVar

import numpy as np

from fsstore.driver.contract import OpenArray
from fsstore.errors import StoreError, UnimplementedError
from fsstore.format.attributes import is_document
from fsstore.index import Indexable
from fsstore.kvstore.contract.driver import KvPrefix, Read
from fsstore.runtime import execution
from fsstore.runtime import future as futures
from fsstore.runtime.future import Future
from fsstore.values.dtypes import dtype, dtype_of
from fsstore.values.json_value import meant

F = TypeVar("F", bound=Callable[..., Any])


class Stored:
    """How much of a store is stored; None where it was not asked."""

    __module__ = "fsstore"
    __qualname__ = "TensorStore.StorageStatistics"
    __slots__ = ("fully_stored", "not_stored")

    def __init__(self, *, not_stored: bool | None = None, fully_stored: bool | None = None) -> None:
        self.not_stored, self.fully_stored = not_stored, fully_stored

    def __eq__(self, other: object) -> bool:
        """Return whether both say the same."""
        return isinstance(other, Stored) and repr(self) == repr(other)

    def __hash__(self) -> int:
        """Return a hash that agrees with equality."""
        return hash(repr(self))

    def __repr__(self) -> str:
        """Return the form TensorStore prints."""
        return f"TensorStore.StorageStatistics(not_stored={self.not_stored}, fully_stored={self.fully_stored})"


@dataclass(frozen=True, slots=True)
class ArrayInfo:
    """The facts of an array; the last two are known to `info_complete` only."""

    shape: tuple[int, ...]
    dtype: str
    chunks: tuple[int, ...] | None
    shards: tuple[int, ...] | None
    nbytes: int
    nchunks: int | None
    stored_bytes: int | None = None
    stored_chunks: int | None = None
    """How many of the chunks, or of the shards where there are some, are stored."""

    @property
    def ratio(self) -> float | None:
        """How many bytes of elements one stored byte stands for."""
        return self.nbytes / self.stored_bytes if self.stored_bytes else None

    def __call__(self) -> ArrayInfo:
        """Return the facts themselves: `store.info()` is `store.info`."""
        return self

    def __str__(self) -> str:
        """Return the facts, one a line."""
        facts = {
            "Shape": self.shape, "Data type": self.dtype, "Chunks": self.chunks, "Shards": self.shards,
            "Bytes": self.nbytes, "Number of chunks": self.nchunks, "Stored bytes": self.stored_bytes,
            "Stored chunks": self.stored_chunks, "Ratio": None if self.ratio is None else round(self.ratio, 2),
        }  # fmt: skip
        return "\n".join(f"{name:<18}{value}" for name, value in facts.items() if value is not None)


class Unread:
    """A stored array that refuses what would need all of its values, in words that say how they are read first."""

    __slots__ = ()
    _READING: ClassVar[str] = "store.read().result()"

    def _calculate(self, other: object = None) -> Any:
        """Refuse numbers; arrays of NumPy and other libraries know how to read what they calculate with."""
        if not isinstance(other, int | float | complex | Unread):
            return NotImplemented
        raise TypeError(
            f"Operators would need all values of a stored array; read what you need first: {self._READING} + 1"
        )

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _calculate
    __floordiv__ = __mod__ = __pow__ = __lt__ = __le__ = __gt__ = __ge__ = _calculate

    def __float__(self) -> NoReturn:
        """Refuse: the value is to be read first."""
        raise TypeError(f"A number is read from a stored array first: float({self._READING})")

    __int__ = __float__

    if not TYPE_CHECKING:  # type checkers tell by themselves which names there are not

        def __getattr__(self, name: str) -> NoReturn:
            """Refuse a name that is none, and say which there is."""
            hint = ""
            if name in _OF_VALUES:
                hint = f"; read first: {self._READING}.{name}()"
            elif not name.startswith("_"):
                known = [each for each in dir(type(self)) if each[0] != "_"]
                hint = _ELSEWHERE.get(name) or meant(name, known)
            what = f"{type(self).__name__!r} object has no attribute {name!r}{hint}"
            raise AttributeError(what, name=name, obj=self)


class ArrayProtocols(Unread, Indexable):
    """Members of `TensorStore` beyond those of the C++ library: protocols of Python, NumPy and zarr-python."""

    __slots__ = ()

    @property
    def chunks(self) -> tuple[int, ...] | None:
        """The shape of the smallest parts that are read by themselves, or None: chunks, or sub-chunks of shards."""
        return _chunks(self)

    @property
    def shards(self) -> tuple[int, ...] | None:
        """The shape of the shards, or None where there are none."""
        return _shards(self)

    @property
    def nbytes(self) -> int:
        """How many bytes the elements take in memory."""
        return _bytes(self)

    @property
    def nchunks(self) -> int | None:
        """How many chunks the domain touches, stored or not."""
        return count_parts(self, _chunks(self))

    @property
    def info(self) -> ArrayInfo:
        """The facts of the array; nothing is asked of the storage."""
        return _info(self)

    def info_complete(self) -> ArrayInfo:
        """Return the facts with what is stored of the whole array: bytes and chunks, which a listing tells."""
        return _info(self, complete=True)

    def _print_facts(self, printer: Any, _cycle: bool) -> None:
        """Show the place and the facts at the prompt of IPython; `repr` is TensorStore's, and has all of the spec."""
        printer.text(f"TensorStore {_place(self)}\n{self.info}")

    def __len__(self) -> int:
        """Return the size of the first dimension."""
        shape = _shape(self)
        if not shape:
            raise TypeError("len() of an array without dimensions")
        return shape[0]

    def __bool__(self) -> bool:
        """Return True: it is an open array, whatever its size."""
        return True

    def __iter__(self) -> NoReturn:
        """Refuse: each row would be a request of its own."""
        raise TypeError(
            "A stored array is not iterated, which would read row by row; read what you need at once: for row in"
            " store[:100].read().result()"
        )

    def __dlpack__(self, **options: Any) -> Any:
        """Read the whole domain: `torch.from_dlpack(store)`."""
        return np.asarray(self).__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        """Return the device: the memory of the processor."""
        return (1, 0)

    @staticmethod
    def _refuse_comparison(other: object) -> None:
        if isinstance(other, np.ndarray | np.generic | int | float | complex):
            raise TypeError(
                "A stored array is not compared with values, which would need all of it; read it first:"
                " store.read().result() == value"
            )


_OF_VALUES = ("mean", "sum", "min", "max", "std", "flatten", "ravel", "reshape", "tolist", "any", "all")
_ELSEWHERE = {"append": "; fsstore.append(store, values) makes it longer"}


def by_shape(resize: F) -> F:
    """Return `resize` that takes a shape alone, too: `store.resize([8, 10])`, which TensorStore refuses.

    There a single list of numbers would say lower bounds, which are fixed wherever they are explicit.
    """

    @wraps(resize)
    def call(store: Any, *bounds: Any, **options: Any) -> Any:
        is_shape = len(bounds) == 1 and isinstance(bounds[0], list | tuple) and "exclusive_max" not in options
        if is_shape and None not in bounds[0] and True not in store.domain.implicit_lower_bounds:
            return resize(store, exclusive_max=bounds[0], **options)
        return resize(store, *bounds, **options)

    return call  # type: ignore[return-value]  # it takes what `resize` takes


def _place(store: Any) -> str:
    try:
        return str(store.url)
    except UnimplementedError:
        return "without a URL"


def _sizes(shape: Any) -> tuple[int, ...] | None:
    return tuple(shape) if shape is not None and all(shape) else None


def _chunks(store: Any) -> tuple[int, ...] | None:
    return _sizes(store.chunk_layout.read_chunk.shape)


def _shards(store: Any) -> tuple[int, ...] | None:
    written = _sizes(store.chunk_layout.write_chunk.shape)
    return None if written == _chunks(store) else written


def _bytes(store: Any) -> int:
    return int(store.size * store.dtype.numpy_dtype.itemsize)


def _shape(store: Any) -> tuple[int, ...]:
    shape: tuple[int, ...] = store.shape
    return shape


def count_parts(store: Any, sizes: tuple[int, ...] | None) -> int | None:
    """Return how many parts of a size the domain of a store touches: chunks, or shards."""
    if sizes is None or 0 in store.shape:
        return None if sizes is None else 0
    grid = store.chunk_layout.grid_origin or (0,) * store.rank
    count = 1
    for low, length, size, start in zip(store.origin, store.shape, sizes, grid, strict=True):
        first = low - (start or 0)
        count *= (first + length - 1) // size - first // size + 1
    return count


def _info(store: Any, *, complete: bool = False) -> ArrayInfo:
    chunks = _chunks(store)
    nchunks = count_parts(store, chunks)
    known = ArrayInfo(store.shape, store.dtype.name, chunks, _shards(store), _bytes(store), nchunks)
    if not complete:
        return known
    if store.kvstore is None:
        raise StoreError("Nothing is stored of this array: it has no key-value store")
    count, size = execution.call(_stored(store.kvstore.prefix))
    return replace(known, stored_bytes=size, stored_chunks=count)


async def _stored(place: KvPrefix) -> tuple[int, int]:
    """Return how many chunks are stored, and their bytes."""
    chunks = size = 0
    async for batch in place.scan():
        found = [entry for entry in batch if not is_document(entry.key)]
        unknown = [Read(entry.key, 0, 0) for entry in found if entry.size is None]
        asked = await place.read_many(unknown) if unknown else []
        chunks += len(found)
        size += sum(entry.size or 0 for entry in found) + sum(answer.size or 0 for answer in asked)
    return chunks, size


def chunk_sizes(store: Any) -> tuple[tuple[int, ...], ...]:
    """Return the sizes of the stored chunks along each dimension, cut to the domain."""
    layout = store.chunk_layout
    chunks = layout.read_chunk.shape or (None,) * store.rank
    origins = layout.grid_origin or (0,) * store.rank
    return tuple(
        _cut(low, size, chunk or max(size, 1), grid or 0)
        for low, size, chunk, grid in zip(store.domain.inclusive_min, store.shape, chunks, origins, strict=True)
    )


def _cut(low: int, size: int, chunk: int, grid: int) -> tuple[int, ...]:
    """Return the sizes of the parts of `size` elements from `low` on that a grid cuts."""
    first = min(chunk - (low - grid) % chunk, size)
    whole, rest = divmod(size - first, chunk)
    return (first, *(chunk,) * whole, *((rest,) if rest else ()))


def read_into(opened: OpenArray, out: Any) -> Future[Any]:
    """Begin to read a view into memory; the result is `out`."""
    driver, view = opened
    memory = _memory_of(out, view.input_shape, driver.dtype.numpy_dtype)
    return futures.mapped(driver.read_into(view, memory), out)


def _memory_of(out: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray[Any, np.dtype[Any]]:
    """Return the memory of an array or tensor that values are to be read into, as an array of numpy.

    Takes what has the buffer protocol or DLPack in the memory of the processor.  Its shape and type have to be those of
    the values.
    """
    memory = out if isinstance(out, np.ndarray) else _shared(out)
    if memory.shape != shape or memory.dtype != dtype:
        raise StoreError(
            f"out has the shape {memory.shape} and the type {memory.dtype}, but what is read has the shape {shape} and"
            f" the type {dtype}"
        )
    if not memory.flags.writeable:
        raise StoreError("out is read-only; give memory that may be written")
    return memory


def _shared(out: Any) -> np.ndarray[Any, np.dtype[Any]]:
    try:
        return np.asarray(memoryview(out))
    except TypeError:
        pass
    if not hasattr(out, "__dlpack__"):
        raise TypeError(f"out must be memory, such as an array of numpy or a tensor, not {type(out).__name__}")
    try:
        return np.from_dlpack(out)
    except (BufferError, RuntimeError, TypeError) as error:
        raise StoreError(f"out cannot be written from here: {error}") from None


# A picture of a store for notebooks.

_SIDE = 180  # pixels of the longest side
_MAX_LINES = 40


def store_html(store: Any, driver: str) -> str:
    """Return the picture of an array, which names its driver where it has no URL."""
    chunks: tuple[int | None, ...] | None = store.chunk_layout.write_chunk.shape
    facts = {"Shape": str(store.shape), "Data type": store.dtype.name}
    if chunks is not None:
        facts["Chunk"] = str(chunks)
    try:
        facts["URL"] = store.url
    except StoreError:
        facts["Driver"] = driver
    return html(facts, store.shape, chunks)


def html(facts: Mapping[str, str], shape: tuple[int, ...], chunks: tuple[int | None, ...] | None) -> str:
    """Return an HTML table of facts with an SVG drawing of the domain and its chunks."""
    cells = "".join(
        f"<tr><th style='text-align:left'>{name}</th><td>{escape(text)}</td></tr>" for name, text in facts.items()
    )
    return f"<table><tr><td><table>{cells}</table></td><td>{_drawing(shape, chunks)}</td></tr></table>"


def _drawing(shape: tuple[int, ...], chunks: tuple[int | None, ...] | None) -> str:
    """Return the last two dimensions as a rectangle; a grid that is too fine is left out."""
    if not shape or 0 in shape:
        return ""
    sizes = (1, *shape) if len(shape) == 1 else shape[-2:]
    steps = (None, *chunks)[-2:] if chunks else (None, None)
    scale = _SIDE / max(sizes)
    height, width = (max(12.0, size * scale) for size in sizes)
    lines = [*_lines(sizes[0], steps[0], height, width, across=True)]
    lines += _lines(sizes[1], steps[1], width, height, across=False)
    return (
        f"<svg width='{width + 2:.0f}' height='{height + 2:.0f}' style='stroke:#555;stroke-width:1'>"
        f"<rect x='1' y='1' width='{width:.1f}' height='{height:.1f}' fill='#ecb172'/>{''.join(lines)}</svg>"
    )


def _lines(size: int, step: int | None, extent: float, length: float, *, across: bool) -> list[str]:
    if not step or size / step > _MAX_LINES:
        return []
    at = [1 + extent * position / size for position in range(step, size, step)]
    if across:
        return [f"<line x1='1' y1='{y:.1f}' x2='{length + 1:.1f}' y2='{y:.1f}'/>" for y in at]
    return [f"<line x1='{x:.1f}' y1='1' x2='{x:.1f}' y2='{length + 1:.1f}'/>" for x in at]


# the kinds of NumPy types that are not taken for text or bytes, though NumPy would convert them
_NO_NUMBERS = {"char": "biufcmM", "byte": "biufcmM"}


def source_array(source: Any, target: dtype, rank: int = 32) -> Any:
    """Return `source` as an array of the target's type.

    An array must cast safely (`TypeError` otherwise); Python values convert, and raise `OverflowError` where they do
    not fit.  Lists of JSON, text and octets are arrays of at most `rank` dimensions; what is inside is an element.
    """
    native = target.numpy_dtype
    check = _CHECKS.get(target.name)
    if check is not None:
        return check(_objects(source, rank))
    if target.name in _NO_NUMBERS:
        found = np.asarray(source).dtype
        if found.kind in _NO_NUMBERS[target.name]:
            raise TypeError(f"expected {target.name}, {found} found")
    if isinstance(source, np.ndarray) or (hasattr(source, "__array__") and not isinstance(source, np.generic)):
        array = np.asarray(source)
        if array.dtype == native:
            return array
        if not np.can_cast(array.dtype, native, "safe"):
            raise TypeError(f"Cannot cast array data from {array.dtype!r} to {native!r} according to the rule 'safe'")
        return array.astype(native)
    return np.asarray(source, dtype=native)


def _objects(source: Any, rank: int) -> np.ndarray[Any, np.dtype[Any]]:
    if hasattr(source, "__array__") and not isinstance(source, np.generic):
        array = np.asarray(source)
        if rank or not array.ndim:
            return array if array.dtype.kind == "O" else array.astype(object)
        source = array.tolist()  # one element, which is a list
    shape: list[int] = []
    level: Sequence[Any] = [source]
    while len(shape) < rank and all(isinstance(each, list | tuple) for each in level):
        lengths = {len(each) for each in level}
        if len(lengths) != 1:
            break
        shape += lengths
        level = [item for each in level for item in each]
    elements = np.empty(len(level), object)
    for place, item in enumerate(level):
        elements[place] = item.item() if isinstance(item, np.generic) else item
    return elements.reshape(shape)


def _text(values: Any) -> Any:
    """Return an array of text, none of which holds half a character."""
    values = _of_type(values, str, "ustring")
    for text in values.flat:
        if not text.isascii():
            text.encode()
    return values


def _octets(values: Any) -> Any:
    return _of_type(values, bytes, "string")


def _of_type(values: Any, kind: type, name: str) -> Any:
    """Return an array of objects that are all exactly of one type; those of classes derived from it are converted."""
    found = set(map(type, values.flat))
    for wrong in sorted(each.__name__ for each in found if not issubclass(each, kind)):
        hint = "; encode it, or make the array with dtype str, which holds text" if wrong == "str" else ""
        raise TypeError(f"expected {kind.__name__} in an array of {name}, {wrong} found{hint}")
    return values if found <= {kind} else _mapped(values, kind)


def _json(values: Any) -> Any:
    return _mapped(values, dtype_of("json")) if values.size else values


def _mapped(values: Any, convert: Callable[[Any], Any]) -> Any:
    converted = np.empty(values.size, object)
    for place, item in enumerate(values.flat):
        converted[place] = convert(item)
    return converted.reshape(values.shape)


_CHECKS: Mapping[str, Callable[[Any], Any]] = MappingProxyType({"json": _json, "ustring": _text, "string": _octets})


# Indexing as NumPy means it, for tools that index with positions from zero, negative ones and negative
# steps.
#
# fsstore takes an index for what it says: -1 is a place before 0, and a slice keeps its positions. Here
# selections are written down in ascending positions, and what was wanted in descending order is turned
# round in memory.


def read_outer(
    key: Sequence[Any], shape: Sequence[int], read: Callable[[tuple[Any, ...]], Any]
) -> np.ndarray[Any, np.dtype[Any]]:
    """Return an outer selection: positions, slices, and lists of positions, one for each dimension.

    `read` takes positions and lists that are not negative, and slices that ascend and lie inside.
    """
    wanted, turned = forward_outer(key, shape)
    return np.asarray(read(wanted))[turned]


def forward_outer(key: Sequence[Any], shape: Sequence[int]) -> tuple[tuple[Any, ...], tuple[slice, ...]]:
    """Return an outer selection as it is read, and how what was read is turned round."""
    wanted: list[Any] = []
    turned: list[slice] = []
    for part, size in zip(key, shape, strict=True):
        if isinstance(part, slice):
            forward, step = _forward(part, size)
            wanted.append(forward)
            turned.append(slice(None, None, step))
        elif np.ndim(part) == 0:
            wanted.append(int(part) + (size if part < 0 else 0))
        else:
            positions = np.asarray(part)
            wanted.append(np.where(positions < 0, positions + size, positions))
            turned.append(slice(None))
    return tuple(wanted), tuple(turned)


def _forward(part: slice, size: int) -> tuple[slice, int]:
    """Return the positions of a slice in ascending order, and -1 if they are wanted in descending order."""
    positions = range(size)[part]
    if not positions:
        return slice(0, 0), 1
    if positions.step > 0:
        return slice(positions.start, positions[-1] + 1, positions.step), 1
    return slice(positions[-1], positions.start + 1, -positions.step), -1
