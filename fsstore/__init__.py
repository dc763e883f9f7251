"""One URL opens any chunked array, on any fsspec filesystem.

TensorStore's model and Python API, in pure Python: `import fsstore as ts`.

>>> import fsstore as ts
>>> store = ts.open("memory://|zarr3:", create=True, dtype=ts.uint16, shape=[4]).result()
>>> store[1:3] = 7
>>> store.read().result()
array([0, 7, 7, 0], dtype=uint16)
"""

from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

from fsstore.codec_spec import CodecSpec
from fsstore.context import Context
from fsstore.dtype_names import *
from fsstore.dtype_names import __all__ as _dtype_names
from fsstore.dtypes import dtype
from fsstore.future import Future, FutureLike, WriteFutures
from fsstore.index import (
    Dim,
    DimExpression,
    DimSelection,
    Indexable,
    IndexDomain,
    IndexTransform,
    OutputIndexMap,
    OutputIndexMaps,
    OutputIndexMethod,
    d,
    inf,
    newaxis,
)
from fsstore.layout import ChunkLayout
from fsstore.open_mode import OpenMode
from fsstore.opening import open
from fsstore.promise import Promise
from fsstore.schema import Schema
from fsstore.spec import Spec
from fsstore.store import TensorStore
from fsstore.units import Unit

if _TYPE_CHECKING:
    from fsstore import ocdbt, references
    from fsstore.kvstore.batch import Batch
    from fsstore.kvstore.store import KvStore
    from fsstore.kvstore.transaction import Transaction
    from fsstore.layered import concat, downsample, overlay, stack
    from fsstore.listing import list_arrays, tree
    from fsstore.mapper import get_mapper, open_mapper
    from fsstore.virtual import VirtualChunkedReadParameters, VirtualChunkedWriteParameters, virtual_chunked
    from fsstore.wrapped import array, cast

__version__ = "0.1.0"

# What few programs use is imported when it is first asked for: `import fsstore` stays light.
_LATER = {
    "Batch": "fsstore.kvstore.batch",
    "KvStore": "fsstore.kvstore.store",
    "Transaction": "fsstore.kvstore.transaction",
    "VirtualChunkedReadParameters": "fsstore.virtual",
    "VirtualChunkedWriteParameters": "fsstore.virtual",
    "array": "fsstore.wrapped",
    "cast": "fsstore.wrapped",
    "concat": "fsstore.layered",
    "downsample": "fsstore.layered",
    "get_mapper": "fsstore.mapper",
    "list_arrays": "fsstore.listing",
    "ocdbt": "fsstore.ocdbt",
    "open_mapper": "fsstore.mapper",
    "overlay": "fsstore.layered",
    "references": "fsstore.references",
    "stack": "fsstore.layered",
    "tree": "fsstore.listing",
    "virtual_chunked": "fsstore.virtual",
}


def __getattr__(name: str) -> _Any:
    """Return a public name of `_LATER`, imported now."""
    if name not in _LATER:
        raise AttributeError(f"module 'fsstore' has no attribute {name!r}")
    from importlib import import_module

    module = import_module(_LATER[name])
    value = module if _LATER[name] == f"fsstore.{name}" else getattr(module, name)
    globals()[name] = value
    return value


__all__ = [
    "Batch",
    "ChunkLayout",
    "CodecSpec",
    "Context",
    "Dim",
    "DimExpression",
    "DimSelection",
    "Future",
    "FutureLike",
    "IndexDomain",
    "IndexTransform",
    "Indexable",
    "KvStore",
    "OpenMode",
    "OutputIndexMap",
    "OutputIndexMaps",
    "OutputIndexMethod",
    "Promise",
    "Schema",
    "Spec",
    "TensorStore",
    "Transaction",
    "Unit",
    "VirtualChunkedReadParameters",
    "VirtualChunkedWriteParameters",
    "WriteFutures",
    "array",
    "cast",
    "concat",
    "d",
    "downsample",
    "dtype",
    "get_mapper",
    "inf",
    "list_arrays",
    "newaxis",
    "ocdbt",
    "open",
    "open_mapper",
    "overlay",
    "references",
    "stack",
    "tree",
    "virtual_chunked",
    *_dtype_names,
]
