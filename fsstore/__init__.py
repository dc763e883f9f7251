"""One URL opens any chunked array, on any fsspec filesystem.

TensorStore's model and Python API, in pure Python: `import fsstore as ts`.

>>> import fsstore as ts
>>> store = ts.open("memory://|zarr3:", create=True, dtype=ts.uint16, shape=[4]).result()
>>> store[1:3] = 7
>>> store.read().result()
array([0, 7, 7, 0], dtype=uint16)
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fsstore import errors, ocdbt, references
    from fsstore.arrays.layers import DownsampleMethod, array, cast, concat, downsample, overlay, stack, virtual_chunked
    from fsstore.arrays.spec import Spec
    from fsstore.arrays.store import TensorStore, open
    from fsstore.context.context import Context
    from fsstore.dataset.group import Group, open_group
    from fsstore.dataset.listing import list_arrays, tree
    from fsstore.dataset.multiscale import Multiscale, list_images, open_multiscale
    from fsstore.driver.virtual_chunked import VirtualChunkedReadParameters, VirtualChunkedWriteParameters
    from fsstore.filesystem.protocols import get_mapper, open_mapper
    from fsstore.index import (
        Dim,
        DimExpression,
        DimSelection,
        DimSelectionLike,
        Indexable,
        IndexDomain,
        IndexTransform,
        NumpyIndexingSpec,
        NumpyIndexTerm,
        OutputIndexMap,
        OutputIndexMaps,
        OutputIndexMethod,
        d,
        inf,
        newaxis,
    )
    from fsstore.interop.dataset_write import write_dataset
    from fsstore.job.copy import copy
    from fsstore.job.delete import delete
    from fsstore.job.fleet import finish, plan_copy, plan_pyramid, run, status
    from fsstore.job.grow import append
    from fsstore.job.pyramid import build_pyramid
    from fsstore.job.verify import verify
    from fsstore.kvstore.kv_store import KvStore
    from fsstore.kvstore.operation import Batch
    from fsstore.kvstore.transaction import Transaction
    from fsstore.observation import (
        Trace,
        experimental_collect_matching_metrics,
        experimental_collect_prometheus_format_metrics,
        experimental_push_metrics_to_prometheus,
        experimental_update_verbose_logging,
        parse_tensorstore_flags,
        trace,
    )
    from fsstore.runtime.future import Future, FutureLike, Promise, T, WriteFutures
    from fsstore.schema.chunk_layout import ChunkLayout
    from fsstore.schema.schema import OpenMode, RecheckCacheOption, Schema
    from fsstore.schema.value import CodecSpec
    from fsstore.sync import save
    from fsstore.values.dtype_names import *
    from fsstore.values.dtypes import DTypeLike, dtype
    from fsstore.values.units import Unit

__version__ = "0.1.0"

# Where each name comes from.  It is imported when it is first asked for: `import fsstore` costs next to nothing, and a
# program pays for what it uses.
_HOMES = {
    "schema.value": "CodecSpec",
    "context.context": "Context",
    "values.dtypes": "DTypeLike dtype",
    "driver.virtual_chunked": "VirtualChunkedReadParameters VirtualChunkedWriteParameters",
    "errors": "errors",
    "runtime.future": "Future FutureLike T WriteFutures Promise",
    "index": "Dim DimExpression DimSelection DimSelectionLike IndexDomain IndexTransform Indexable"
    " NumpyIndexTerm NumpyIndexingSpec OutputIndexMap OutputIndexMaps OutputIndexMethod d inf newaxis",
    "interop.dataset_write": "write_dataset",
    "job.copy": "copy",
    "job.delete": "delete",
    "job.fleet": "finish plan_copy plan_pyramid run status",
    "job.grow": "append",
    "job.pyramid": "build_pyramid",
    "job.verify": "verify",
    "kvstore.operation": "Batch",
    "kvstore.kv_store": "KvStore",
    "kvstore.transaction": "Transaction",
    "arrays.layers": "DownsampleMethod array cast concat downsample overlay stack virtual_chunked",
    "schema.chunk_layout": "ChunkLayout",
    "dataset.group": "Group open_group",
    "dataset.listing": "list_arrays tree",
    "filesystem.protocols": "get_mapper open_mapper",
    "dataset.multiscale": "Multiscale list_images open_multiscale",
    "observation": "experimental_collect_matching_metrics experimental_collect_prometheus_format_metrics"
    " experimental_push_metrics_to_prometheus experimental_update_verbose_logging parse_tensorstore_flags Trace trace",
    "ocdbt": "ocdbt",
    "references": "references",
    "schema.schema": "OpenMode RecheckCacheOption Schema",
    "arrays.spec": "Spec",
    "arrays.store": "TensorStore open",
    "sync": "save",
    "values.units": "Unit",
}
_HOME = {name: home for home, names in _HOMES.items() for name in names.split()}

if not TYPE_CHECKING:  # type checkers know the names from the imports above, and find one that is misspelt

    def __getattr__(name: str) -> Any:
        """Return a public name, imported now from its module."""
        if name not in __all__:
            raise AttributeError(f"module 'fsstore' has no attribute {name!r}")
        from importlib import import_module

        place = _HOME.get(name, "values.dtype_names")  # public names without a home are data types
        home = import_module(f"fsstore.{place}")
        value = home if place == name else getattr(home, name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    """List the public names, imported or not."""
    return sorted([*__all__, "__version__"])


__all__ = [
    "Batch",
    "ChunkLayout",
    "CodecSpec",
    "Context",
    "DTypeLike",
    "Dim",
    "DimExpression",
    "DimSelection",
    "DimSelectionLike",
    "DownsampleMethod",
    "Future",
    "FutureLike",
    "Group",
    "IndexDomain",
    "IndexTransform",
    "Indexable",
    "KvStore",
    "Multiscale",
    "NumpyIndexTerm",
    "NumpyIndexingSpec",
    "OpenMode",
    "OutputIndexMap",
    "OutputIndexMaps",
    "OutputIndexMethod",
    "Promise",
    "RecheckCacheOption",
    "Schema",
    "Spec",
    "T",
    "TensorStore",
    "Trace",
    "Transaction",
    "Unit",
    "VirtualChunkedReadParameters",
    "VirtualChunkedWriteParameters",
    "WriteFutures",
    "append",
    "array",
    "bfloat16",
    "bool",
    "build_pyramid",
    "byte",
    "cast",
    "char",
    "complex64",
    "complex128",
    "concat",
    "copy",
    "d",
    "delete",
    "downsample",
    "dtype",
    "errors",
    "experimental_collect_matching_metrics",
    "experimental_collect_prometheus_format_metrics",
    "experimental_push_metrics_to_prometheus",
    "experimental_update_verbose_logging",
    "finish",
    "float4_e2m1fn",
    "float8_e3m4",
    "float8_e4m3b11fnuz",
    "float8_e4m3fn",
    "float8_e4m3fnuz",
    "float8_e5m2",
    "float8_e5m2fnuz",
    "float8_e8m0fnu",
    "float16",
    "float32",
    "float64",
    "get_mapper",
    "inf",
    "int2",
    "int4",
    "int8",
    "int16",
    "int32",
    "int64",
    "json",
    "list_arrays",
    "list_images",
    "newaxis",
    "ocdbt",
    "open",
    "open_group",
    "open_mapper",
    "open_multiscale",
    "overlay",
    "parse_tensorstore_flags",
    "plan_copy",
    "plan_pyramid",
    "references",
    "run",
    "save",
    "stack",
    "status",
    "string",
    "trace",
    "tree",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "ustring",
    "verify",
    "virtual_chunked",
    "write_dataset",
]
