"""`jpeg`, `png`, `webp`, `bmp`, `avif`, `tiff`: an image file as a read-only array of rank 3: rows, columns, channels.

The file is read and decoded when the array is opened.  Elements are `uint8`, as in TensorStore.  Decoding is done by
imagecodecs, which the extra `images` installs.  Size and depth in the header are checked before anything is decoded.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np

from fsstore.codec.image_header import checked_image, image_size, tiff_pages
from fsstore.context.context import ContextResource
from fsstore.driver.array import InMemoryDriver
from fsstore.driver.contract import Array, OpenArray, Opening, PlainKind, Role
from fsstore.errors import (
    DataLossError,
    FailedPreconditionError,
    NotFoundError,
    ResourceExhaustedError,
    StoreError,
    UnimplementedError,
)
from fsstore.index import IndexDomain, IndexTransform
from fsstore.kvstore.spec.parse import OpenKv
from fsstore.runtime import execution
from fsstore.schema.open_mode import recheck
from fsstore.schema.schema import Schema
from fsstore.values.dtypes import dtype_of
from fsstore.values.json_value import Fields, Json, boolean, integer

_LARGEST = 2**30  # bytes decoded
_INT32 = integer(-(2**31), 2**31 - 1)
_FROM_ZERO = IndexDomain(inclusive_min=[0, 0, 0])


@dataclass(frozen=True, slots=True)
class ImageKind(PlainKind):
    """The driver kind of an image format; `decoder` is its name in imagecodecs, `writing` what only writers use."""

    role: Role = "store"
    resources: tuple[str, ...] = ("cache_pool", "data_copy_concurrency")
    decoder: str = ""
    writing: Mapping[str, int] = field(default_factory=dict)

    @property
    def defaults(self) -> Mapping[str, Json]:
        """Members printed with `include_defaults`."""
        return {"recheck_cached_data": "open", **self.writing}

    def members(self, fields: Fields) -> dict[str, Any]:
        """Take the recheck option, the page of a TIFF file, and what only writers use."""
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
        raise UnimplementedError(
            f"the \"{kind.id}\" driver needs imagecodecs: pip install 'fsstore[images]'"
        ) from None
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
    """Refuse a file of several pages."""
    try:
        several = len(list(islice(tiff_pages(data), 2))) > 1
    except struct.error:  # a directory is cut off, as the decoder will say
        return
    if several:
        raise DataLossError("Multi-page TIFF image encountered without a specified page")


def _check_size(kind: str, data: bytes, page: int) -> None:
    """Refuse an image whose header promises more than is reasonable, or wider elements."""
    size = image_size(kind, data, page)
    if size.bits > 8:
        raise UnimplementedError(
            f'"{kind}" driver only supports uint8 images, not samples of {size.bits} bits'
        )
    if size.nbytes > _LARGEST:
        raise ResourceExhaustedError(
            f"the image has {size.width} x {size.height} pixels of {size.samples} samples, more than fit in 1 GiB"
        )
