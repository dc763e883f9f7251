"""Arrays in memory as stores: `array`, a NumPy array; and image files, `jpeg`, `png`, `webp`, `bmp`, `avif` and `tiff`.

An image is read-only and of rank 3: rows, columns, channels.  The file is read and decoded when it is opened.  Elements
are `uint8`, as in TensorStore.  Decoding is done by imagecodecs, which the extra `images` installs.  Size and depth in
the header are checked before anything is decoded.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np

from fsstore.chunk.request import Affine, Constant, Indexed, OutputMap, broadcast, located, new_array
from fsstore.codec.image_header import checked_image, image_size, tiff_pages
from fsstore.context.context import ContextResource
from fsstore.driver.contract import Array, ArrayDriver, OpenArray, Opening, PlainKind, Role, Statistics
from fsstore.errors import (
    DataLossError,
    FailedPreconditionError,
    NotFoundError,
    ResourceExhaustedError,
    StoreError,
    UnimplementedError,
)
from fsstore.index import IndexDomain, IndexTransform, OutputIndexMap
from fsstore.index.compose import compose
from fsstore.index.transform import identity
from fsstore.kvstore.spec_parse import OpenKv
from fsstore.runtime import execution
from fsstore.runtime import future as futures
from fsstore.runtime.future import Future
from fsstore.schema.constraint import elements_json, elements_of, merge_domains
from fsstore.schema.layout_value import GRIDS, LayoutValue
from fsstore.schema.schema import Schema, recheck
from fsstore.values.dtypes import dtype, dtype_of
from fsstore.values.json_value import Fields, Json, boolean, integer


@dataclass(frozen=True, slots=True)
class ArrayKind(PlainKind):
    """The driver kind: nested lists in the member `array`."""

    id: str = "array"
    resources: tuple[str, ...] = ("data_copy_concurrency",)

    def members(self, fields: Fields) -> dict[str, Any]:
        """Take the member `array`, nested lists."""
        value = fields.require("array", lambda item: item)
        return {"array": elements_json(value, dtype_of(value.dtype)) if isinstance(value, np.ndarray) else value}

    def constrain(self, members: Mapping[str, Any], schema: Schema) -> Schema:
        """Return the schema with the shape of the nested lists merged in."""
        if schema.dtype is None:
            return schema
        merged = schema.copy()
        merged.update(rank=_nested(members["array"], schema.dtype).ndim)
        return merged

    def known(self, members: Mapping[str, Any], schema: Schema, bases: Sequence[Schema]) -> Schema:
        """Return the schema with the shape of the nested lists."""
        if schema.dtype is None:
            return schema
        known = schema.copy()
        values = _nested(members["array"], schema.dtype)
        known.update(rank=values.ndim)
        return known.over(IndexDomain(shape=values.shape))

    async def open(self, opening: Opening) -> OpenArray:
        """Return the array as a store."""
        kind = opening.schema.dtype
        if kind is None:
            raise StoreError('Error opening "array" driver: dtype must be specified')
        values = _nested(opening.members["array"], kind)
        _check(opening.schema, values.shape)
        driver = InMemoryDriver(values, kind, opening.resources, opening.schema.dimension_units)
        return opening.view_of(driver)


KIND = ArrayKind()


def _nested(value: Any, kind: dtype) -> Array:
    numbers = _numbers(value, kind.numpy_dtype) if isinstance(value, list) else None
    if numbers is not None:
        return numbers
    try:
        return elements_of(value, kind)
    except StoreError as error:
        raise error.within('Error parsing object member "array"') from None


def _numbers(value: list[Any], native: np.dtype[Any]) -> Array | None:
    """Return nested lists of plain numbers as NumPy converts them, a hundred times as fast; None for other elements."""
    if native.kind not in "iuf":
        return None
    try:
        found = np.asarray(value)
        if found.dtype.kind not in ("iuf" if native.kind == "f" else "iu") or not found.size:
            return None
        made: Array = found.astype(native)
    except (TypeError, ValueError, OverflowError):
        return None
    return made if native.kind == "f" or (made == found).all() else None


def _check(schema: Schema, shape: tuple[int, ...]) -> None:
    """Raise for constraints that an array in memory cannot meet."""
    layout = schema.chunk_layout._value.required()
    chunked = any(layout.grid(name).shape is not None for name in GRIDS)
    refused = {"fill_value": schema.fill_value is not None, "codec": schema.codec is not None, "chunking": chunked}
    for what in (name for name, given in refused.items() if given):
        raise StoreError(f'Error opening "array" driver: {what} not supported')
    try:
        own = LayoutValue().with_inner_order(range(len(shape)), is_hard=True)
        own.with_grid_origin([0] * len(shape), is_hard=True).merged(layout)
    except StoreError as error:
        raise error.within('Error opening "array" driver') from None
    try:
        merge_domains(schema.domain, IndexDomain(shape=shape))
    except StoreError as error:
        raise error.within('Error opening "array" driver: Mismatch between domain in schema and array') from None


class InMemoryDriver(ArrayDriver):
    """An array in memory as a store."""

    def __init__(
        self, values: Array, kind: dtype, resources: Mapping[str, ContextResource], units: Sequence[Any] | None = None
    ) -> None:
        self.kind = KIND
        self._units = units
        self.dtype = kind
        self._array = values
        self._bounds = identity(IndexDomain(shape=values.shape))
        self._resources = resources
        self.writable = values.flags.writeable

    def domain(self) -> IndexDomain:
        """Return the shape, with explicit bounds."""
        return self._bounds.domain

    def members(self) -> Mapping[str, Any]:
        """Return the elements as nested lists."""
        return {"array": elements_json(self._array, self.dtype)}

    def seen(self, transform: IndexTransform) -> tuple[Mapping[str, Any], IndexTransform]:
        """Return the elements that a view shows, once each along repeated dimensions, and the view of them."""
        shape, index = self._index(transform)
        values = np.broadcast_to(self._array[(*index, ...)], shape)
        kept = [axis for axis, size in enumerate(shape) if size != 1 and (values.strides[axis] or not values.size)]
        values = values[(*(slice(None) if axis in kept else 0 for axis in range(len(shape))), ...)]
        domain = compose(transform, self._bounds).domain
        output = [OutputIndexMap(offset=-domain.inclusive_min[axis], input_dimension=axis) for axis in kept]
        return {"array": elements_json(values, self.dtype)}, IndexTransform(domain=domain, output=output)

    def resources(self) -> Mapping[str, ContextResource]:
        """Return the context resources in use."""
        return self._resources

    def schema(self) -> Schema:
        """Return shape, type and the order in memory."""
        from fsstore.schema.chunk_layout import ChunkLayout

        order = tuple(np.argsort([-stride for stride in self._array.strides], kind="stable").tolist())
        layout = ChunkLayout(inner_order=order, grid_origin=(0,) * self._array.ndim)
        return Schema(dtype=self.dtype, domain=self.domain(), chunk_layout=layout, dimension_units=self._units)

    def _located(self, transform: IndexTransform) -> tuple[tuple[int, ...], list[OutputMap]]:
        """Return the shape of a view, and the output maps into the array, counted from zero."""
        return located(transform, self._bounds)

    def _view(self, shape: tuple[int, ...], maps: Sequence[OutputMap]) -> Array | None:
        """Return a NumPy view of the array, of size one along a dimension that only repeats elements.

        None if positions are listed, or if one dimension of the view runs along two of the array.
        """
        axes = [output.axis for output in maps if isinstance(output, Affine)]
        if len(set(axes)) < len(axes) or any(isinstance(output, Indexed) for output in maps) or 0 in shape:
            return None
        chosen = [_selection(output, shape) for output in maps]
        view = self._array[(*chosen, ...)]  # the ellipsis makes an array even of one Python object
        spread: list[Any] = [slice(None) if axis in axes else None for axis in range(len(shape))]
        return view.transpose(np.argsort(axes))[(*spread, ...)]

    def _index(self, transform: IndexTransform) -> tuple[tuple[int, ...], list[Any]]:
        shape, maps = self._located(transform)
        return shape, [_positions(output, shape) for output in maps]

    def memory(self, transform: IndexTransform) -> Array | None:
        """Return a NumPy view of the array, or None where elements are repeated or stand in no order."""
        shape, maps = self._located(transform)
        view = self._view(shape, maps)
        return view if view is not None and view.shape == shape else None

    def read(self, transform: IndexTransform, order: str = "C") -> Future[Array]:
        """Return a copy of a view."""
        try:
            shape, maps = self._located(transform)
            view = self._view(shape, maps)
            index: list[Any] = [] if view is not None else [_positions(output, shape) for output in maps]
            values = broadcast(view if view is not None else self._array[(*index, ...)], shape)
            out = new_array(shape, self._array.dtype, order)
        except StoreError as error:
            return futures.failed(error)
        out[...] = values
        return futures.ready(out)

    def write(self, transform: IndexTransform, values: Array) -> Future[None]:
        """Write to the array."""
        try:
            shape, maps = self._located(transform)
            spread = broadcast(values, shape)
        except StoreError as error:
            return futures.failed(error)
        view = self._view(shape, maps)
        if view is not None and view.shape == shape:
            view[...] = spread
            return futures.ready(None)
        # the ellipsis keeps an array of one Python object from holding the array written
        places: list[Any] = [np.broadcast_to(_positions(output, shape), shape) for output in maps]
        self._array[(*places, ...)] = spread
        return futures.ready(None)

    async def resolve(self, transform: IndexTransform, *, fix: bool = False) -> IndexTransform:
        """Return the view with its bounds filled in."""
        return compose(transform, self._bounds)

    async def statistics(self, transform: IndexTransform, *, not_stored: bool, fully_stored: bool) -> Statistics:
        """Report that every element is stored."""
        return Statistics(False if not_stored else None, True if fully_stored else None)


def _selection(output: OutputMap, shape: Sequence[int]) -> int | slice:
    """Return the index or slice of a dimension of the array that an affine map chooses; the map must not be empty."""
    if isinstance(output, Constant):
        return output.position
    assert isinstance(output, Affine)
    stop = output.first + output.step * shape[output.axis]
    return slice(output.first, None if stop < 0 else stop, output.step)


def _positions(output: OutputMap, shape: Sequence[int]) -> Array:
    """Return the positions that a map chooses, along the dimensions of the view."""
    if isinstance(output, Constant):
        return np.asarray(output.position)
    if isinstance(output, Indexed):
        return output.positions
    along = [1] * len(shape)
    along[output.axis] = shape[output.axis]
    return (output.first + output.step * np.arange(shape[output.axis])).reshape(along)


# Image files.

_LARGEST = 2**30  # bytes decoded
_INT32 = integer(-(2**31), 2**31 - 1)
_FROM_ZERO = IndexDomain(inclusive_min=[0, 0, 0])


@dataclass(frozen=True, slots=True)
class ImageKind(PlainKind):
    """The driver kind of an image format.

    `decoder` is the name of the format in imagecodecs, `writing` the members that only writers use.
    """

    role: Role = "store"
    resources: tuple[str, ...] = ("cache_pool", "data_copy_concurrency")
    decoder: str = ""
    writing: Mapping[str, int] = field(default_factory=dict)

    @property
    def defaults(self) -> Mapping[str, Json]:
        """Members printed with `include_defaults`."""
        return {"recheck_cached_data": "open", **self.writing}

    def members(self, fields: Fields) -> dict[str, Any]:
        """Take the recheck option, the page of a TIFF file, and the members that only writers use."""
        bound = fields.take("recheck_cached_data", recheck, default="open")
        out: dict[str, Any] = {} if bound == "open" else {"recheck_cached_data": bound}
        if self.id == "tiff" and "page" in fields:
            out["page"] = fields.take("page", integer(0, 2**31 - 1))
        for name, usual in self.writing.items():
            given = fields.take(name, boolean if isinstance(usual, bool) else _INT32, default=usual)
            out |= {} if given == usual else {name: given}
        return out

    def constrain(self, members: Mapping[str, Any], schema: Schema) -> Schema:
        """Return the schema of type uint8 and rank 3, counted from zero."""
        merged = schema.copy()
        merged.update(dtype="uint8", domain=_FROM_ZERO)
        return merged

    def to_url(self, members: Mapping[str, Any]) -> str:
        """Return the scheme; a page has no URL."""
        if "page" in members:
            raise UnimplementedError(f"{self.id} URL syntax not supported with page specified")
        return f"{self.id}:"

    async def open(self, opening: Opening) -> OpenArray:
        """Read and decode the image."""
        try:
            return await self._open(opening)
        except StoreError as error:
            raise error.within(f'Error opening "{self.id}" driver') from error

    async def _open(self, opening: Opening) -> OpenArray:
        kvstore = opening.kvstore
        if kvstore is None:
            raise StoreError('"kvstore" must be specified')
        answer = await kvstore.prefix.read()
        where = f"Error reading {kvstore.prefix.describe()}"
        if answer.state == "missing":
            raise NotFoundError(where)
        try:
            page = opening.members.get("page")
            pixels = await execution.offload(_decode, self, bytes(answer.value), page, kind="compute")
        except StoreError as error:
            raise error.within(where) from error
        self.constrain(opening.members, opening.schema)
        driver = ImageDriver(self, pixels, kvstore, opening.members, opening.resources)
        return opening.view_of(driver)


def _kind(name: str, decoder: str, **writing: int) -> ImageKind:
    return ImageKind(name, (name,), decoder=decoder, writing=writing)


AVIF = _kind("avif", "avif", quantizer=0, speed=6)
BMP = _kind("bmp", "bmp")
JPEG = _kind("jpeg", "jpeg8", quality=75)
PNG = _kind("png", "png", compression_level=-1)
TIFF = _kind("tiff", "tiff")
WEBP = _kind("webp", "webp", lossless=True, quality=95)


class ImageDriver(InMemoryDriver):
    """A decoded image."""

    def __init__(
        self,
        kind: ImageKind,
        pixels: Array,
        kvstore: OpenKv,
        members: Mapping[str, Any],
        resources: Mapping[str, ContextResource],
    ) -> None:
        super().__init__(pixels, dtype_of("uint8"), resources)
        self.kind = kind
        self.kvstore = kvstore
        self._members = dict(members)
        self.writable = False

    def members(self) -> Mapping[str, Any]:
        """Return the JSON members."""
        return self._members

    def seen(self, transform: IndexTransform) -> tuple[Mapping[str, Any], IndexTransform]:
        """Return the members and the view."""
        return self._members, transform

    def schema(self) -> Schema:
        """Return shape and type."""
        return Schema(dtype=self.dtype, domain=self.domain())


def _decode(kind: ImageKind, data: bytes, page: int | None) -> Array:
    try:
        import imagecodecs
    except ImportError:
        raise UnimplementedError(f"the \"{kind.id}\" driver needs imagecodecs: pip install 'fsstore[images]'") from None
    _check_size(kind.id, data, page or 0)
    data = checked_image(kind.id, data)
    decode = getattr(imagecodecs, f"{kind.decoder}_decode")
    if kind.id == "tiff" and page is None:
        _check_page(data)
    try:
        pixels = np.asarray(decode(data, page or 0) if kind.id == "tiff" else decode(data))
    except (RuntimeError, ValueError, IndexError, MemoryError, imagecodecs.DelayedImportError) as error:
        raise DataLossError(f"Invalid {kind.id} image: {error}") from error
    if pixels.dtype != np.uint8:
        raise UnimplementedError(f'"{kind.id}" driver only supports uint8 images, not {pixels.dtype}')
    if pixels.ndim == 2:
        pixels = pixels[:, :, np.newaxis]
    if pixels.ndim != 3:
        raise FailedPreconditionError(f"the image has {pixels.ndim} dimensions")
    pixels.flags.writeable = False
    return pixels


def _check_page(data: bytes) -> None:
    try:
        several = len(list(islice(tiff_pages(data), 2))) > 1
    except struct.error:  # a directory is cut off, which the decoder reports
        return
    if several:
        raise DataLossError("Multi-page TIFF image encountered without a specified page")


def _check_size(kind: str, data: bytes, page: int) -> None:
    """Refuse an image with wider elements, or with a size in its header that is beyond all reason."""
    size = image_size(kind, data, page)
    if size.bits > 8:
        raise UnimplementedError(f'"{kind}" driver only supports uint8 images, not samples of {size.bits} bits')
    if size.nbytes > _LARGEST:
        raise ResourceExhaustedError(
            f"the image has {size.width} x {size.height} pixels of {size.samples} samples, more than fit in 1 GiB"
        )
