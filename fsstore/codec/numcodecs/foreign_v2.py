"""The contract of codecs that other packages bring into zarr v2, most of which are read, never written.

A reference set points into TIFF, GRIB, FITS and zip files, so its chunks are encoded as those files encode them.  The
names that scanners write for this lead to classes through `fsstore.values.registry.codecs_v2` and through nothing
else: the registries of other libraries are not asked.  Each class tells its kind, is made from a name and options as
stored, which it checks, and binds to flat data of a known size; its decoder gives exactly that, or says what is
wrong.

Libraries are imported when an array is opened, and the error that one is missing says how to install it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np

from fsstore.codec.contract import BoundCodec, ByteSpec, Kind
from fsstore.codec.numcodecs.flat import FlatSpec, size_of
from fsstore.codec.size import check_size
from fsstore.errors import FailedPreconditionError, StoreError, UnimplementedError
from fsstore.values.json_value import Json, quote

__all__ = ["BoundReader", "ForeignCodec", "fixed_size"]


class ForeignCodec(Protocol):
    """A codec of another file format, as configured."""

    kind: ClassVar[Kind]

    def __init__(self, name: str, options: Mapping[str, Json]) -> None:
        """Take a configuration; raises `JsonError` when it is malformed."""
        ...

    def encoded(self, decoded: FlatSpec) -> FlatSpec:
        """Return what encoding `decoded` would give."""
        ...

    def bind(self, decoded: FlatSpec) -> BoundCodec:
        """Return the codec for data like `decoded`; raises `UnimplementedError` when its library is missing."""
        ...


@dataclass(frozen=True, slots=True)
class BoundReader:
    """A decoder between checks: what comes out has the size of `decoded`, and `failures` say that data is damaged."""

    name: str
    decoded: FlatSpec
    encoded: ByteSpec
    read: Callable[[Any], Any]
    failures: tuple[type[BaseException], ...]

    def encode(self, data: Any) -> Any:
        """Refuse: these encodings belong to files that something else writes."""
        raise UnimplementedError(f"Codec {quote(self.name)} can be read, not written")

    def decode(self, data: Any) -> Any:
        """Return the decoded array or buffer."""
        check_size(size_of(data), self.encoded.size)
        try:
            out = self.read(data)
        except StoreError:
            raise
        except self.failures as error:
            reason = " ".join(str(error).split()) or type(error).__name__
            raise FailedPreconditionError(f"Invalid {self.name} data: {reason}") from None
        if not (isinstance(out, np.ndarray) and out.dtype.hasobject):
            check_size(size_of(out), self.decoded.size)
        return out


def fixed_size(name: str, decoded: FlatSpec) -> int:
    """Return the size of decoded data, or raise `StoreError` when it is not fixed."""
    if decoded.size is None:
        raise StoreError(f"Codec {quote(name)} requires data of a fixed size")
    return decoded.size
