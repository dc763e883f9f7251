"""`stack`, `concat`, `overlay`, `downsample`, `cast`, `array`, `virtual_chunked`: arrays over arrays and functions.

The first three make the driver `stack`; they differ in where they put the layers.  Nothing is copied.  Drivers are
imported on first use.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from operator import index
from typing import Any, Literal, TypeAlias, TypeVar, Unpack

import numpy as np

from fsstore.arrays.protocols import source_array
from fsstore.arrays.spec import OpenLayer, Spec, SpecLayer
from fsstore.arrays.store import TensorStore
from fsstore.context.context import Context, context_of
from fsstore.driver.contract import Layer, OpenArray, Opening
from fsstore.errors import StoreError, UnimplementedError
from fsstore.index import Dim, IndexDomain, IndexTransform, OutputIndexMap, d
from fsstore.index.transform import checked_vector, identity
from fsstore.kvstore.transaction import Transaction, check_transaction
from fsstore.runtime import execution
from fsstore.schema.constraint import braced
from fsstore.schema.schema import CompositeOptions, OpenMode, Schema, SchemaOptions
from fsstore.values.dtypes import DTypeLike, any_dtype, dtype, dtype_of
from fsstore.values.json_value import as_flag

_Layer = TensorStore | Spec
_S = TypeVar("_S", TensorStore, Spec)
_CONSTRAINTS = CompositeOptions.__optional_keys__
DownsampleMethod: TypeAlias = Literal["stride", "median", "mode", "mean", "min", "max"]
"""How a block of elements becomes one."""


class OverlayOptions(CompositeOptions, total=False):
    """The options that `stack` and `concat` pass to `overlay`."""

    read: bool | None
    write: bool | None
    context: Context | None
    transaction: Transaction | None


def overlay(
    layers: Iterable[_Layer],
    *,
    read: bool | None = None,
    write: bool | None = None,
    context: Context | None = None,
    transaction: Transaction | None = None,
    **constraints: Unpack[CompositeOptions],
) -> TensorStore:
    """Return a store over layers in one index space; where layers overlap the later one counts.

    Layers that are specs need a known domain and are opened when they are needed.  Constraints are those of a schema:
    `rank`, `dtype`, `domain`, `shape`, `dimension_units`, `schema`.

    >>> import fsstore as ts
    >>> overlay([ts.array([1, 2, 3]), ts.array([7, 8]).translate_to[2]]).read().result()
    array([1, 2, 7, 8])
    """
    from fsstore.driver.stack import KIND

    unknown = sorted(set(constraints) - _CONSTRAINTS)
    if unknown:
        raise TypeError(f"unexpected keyword argument: {', '.join(unknown)}")
    check_transaction(transaction)
    read, write, context = as_flag("read", read), as_flag("write", write), context_of(context)
    checked = [_checked(each) for each in layers]
    bound = tuple(_layer(each, context) for each in checked)
    opening = Opening(
        members={},
        schema=Schema(**constraints),
        mode=OpenMode(),
        context=context,
        resources={"data_copy_concurrency": context["data_copy_concurrency"]},
        layers=bound,
        transaction=transaction,
    )
    opened = execution.call(KIND.open(opening), waits=False)
    readable, writable = read or not write, write or not read
    opened.driver.readable, opened.driver.writable = readable, writable
    return TensorStore._of(opened, readable=readable, writable=writable)


def _checked(layer: Any) -> _Layer:
    if not isinstance(layer, TensorStore | Spec):
        raise TypeError(f"A layer is a TensorStore or a Spec, not {type(layer).__name__}")
    return layer


def _layer(layer: _Layer, context: Context) -> Layer:
    if isinstance(layer, Spec):
        return SpecLayer(layer.bound(context))
    return OpenLayer(layer._opened, readable=layer._readable, writable=layer._writable)


def _placed(layer: _Layer, number: int, place: Callable[[_Layer, IndexDomain], _Layer]) -> _Layer:
    domain = layer.domain
    if domain is None:
        raise StoreError(f"Layer {number}: Domain must be specified")
    return place(layer, domain)


def stack(layers: Iterable[_Layer], axis: int = 0, **options: Unpack[OverlayOptions]) -> TensorStore:
    """Return a store over layers side by side along a new dimension; options as for `overlay`.

    >>> import fsstore as ts
    >>> stack([ts.array([1, 2]), ts.array([3, 4])]).read().result()
    array([[1, 2],
           [3, 4]])
    """
    listed, axis = list(map(_checked, layers)), index(axis)
    if not listed:
        raise StoreError("At least one layer must be specified for stack")

    def inserted(number: int) -> Callable[[_Layer, IndexDomain], _Layer]:
        def place(layer: _Layer, domain: IndexDomain) -> _Layer:
            at = _normal(axis, domain.rank + 1)
            dims = list(domain)
            dims.insert(at, Dim(inclusive_min=number, exclusive_max=number + 1))
            kept = [dimension for dimension in range(domain.rank + 1) if dimension != at]
            output = [OutputIndexMap(input_dimension=dimension) for dimension in kept]
            return layer[IndexTransform(domain=IndexDomain(dims), output=output)]

        return place

    placed = [_placed(layer, number, inserted(number)) for number, layer in enumerate(listed)]
    return overlay(placed, **options)


def _normal(axis: int, rank: int) -> int:
    if not -rank <= axis < rank:
        raise StoreError(f"Dimension index {axis} is outside valid range [-{rank}, {rank})")
    return axis % rank


def concat(layers: Iterable[_Layer], axis: int | str, **options: Unpack[OverlayOptions]) -> TensorStore:
    """Return a store over layers one after the other along a dimension, by number or label; options as for `overlay`.

    >>> import fsstore as ts
    >>> concat([ts.array([1, 2]), ts.array([3])], axis=0).read().result()
    array([1, 2, 3])
    """
    listed = list(map(_checked, layers))
    if not listed:
        raise StoreError("At least one layer must be specified for concat")
    at = _axis_of(listed, axis)
    placed: list[_Layer] = []
    end: int | None = None
    for number, layer in enumerate(listed):
        start = end

        def moved(layer: _Layer, domain: IndexDomain, start: int | None = start) -> _Layer:
            dimension = _normal(at, domain.rank)
            return layer if start is None else layer[d[dimension].translate_to[start]]

        placed.append(_placed(layer, number, moved))
        domain = placed[-1].domain
        assert domain is not None
        end = domain.exclusive_max[_normal(at, domain.rank)]
    return overlay(placed, **options)


def _axis_of(layers: list[_Layer], axis: int | str) -> int:
    if not isinstance(axis, str):
        axis, rank = index(axis), layers[0].rank
        return axis if rank is None else _normal(axis, rank)
    seen: tuple[str, ...] = ()
    for layer in layers:
        labels = layer.domain.labels if layer.domain is not None else ()
        if axis in labels:
            return labels.index(axis)
        seen = seen or labels
    shown = ", ".join(f'"{label}"' for label in seen)
    raise StoreError(f'Label "{axis}" does not match one of {{{shown}}}')


def downsample(base: _S, downsample_factors: Iterable[int], method: DownsampleMethod) -> _S:
    """Return a store or spec at a lower resolution.

    Each element stands for a block of the base, reduced by the method: `stride` (the first), `mean`, `min`, `max`,
    `median` or `mode`.

    >>> import fsstore as ts
    >>> downsample(ts.array([1, 2, 3, 5]), [2], "mean").read().result()
    array([2, 4])
    """
    from fsstore.driver.downsample import KIND, METHODS, DownsampleDriver

    factors = checked_vector("downsample_factors", downsample_factors)
    if not isinstance(method, str):
        raise TypeError(f"method must be str, not {type(method).__name__}")
    if method not in METHODS:
        choices = ", ".join(f'"{name}"' for name in METHODS)
        raise StoreError(f'Expected one of {choices}, but received: "{method}"')
    if any(factor < 1 for factor in factors):
        raise StoreError(f"Downsample factors {braced(factors)} are not all positive")
    if isinstance(base, TensorStore):
        driver = DownsampleDriver(OpenArray(base._driver, base._transform), factors, method)
        return type(base)._of(OpenArray(driver, identity(driver.domain())), readable=base._readable)
    if not isinstance(base, Spec):
        raise TypeError(f"downsample() takes a TensorStore or a Spec, not {type(base).__name__}")
    members = {"downsample_factors": factors, "downsample_method": method}
    kind = None if base.dtype is None else dtype_of(base.dtype)
    spec = Spec.of(KIND, base_spec=base, members=members, base_schema=Schema(dtype=kind))
    spec._below()  # says whether factors and base fit
    return spec


# `array`, `cast`, `virtual_chunked`.


def array(
    array: Any,
    dtype: DTypeLike | None = None,
    context: Context | None = None,
    *,
    copy: bool | None = None,
    write: bool | None = None,
) -> TensorStore:
    """Return a store over an array: a view of a NumPy array, or a copy if `copy` is true.

    An array that is read-only gives a store that is, or is copied if `write` is true; `copy=False` refuses to copy.
    Objects are JSON unless `dtype` says what they are.

    >>> array([1, 2, 3], dtype="uint32").read().result()
    array([1, 2, 3], dtype=uint32)
    """
    from fsstore.driver.array import InMemoryDriver

    given = dtype is not None
    values = array if given else np.asarray(array)
    kind = any_dtype(dtype if given else "json" if values.dtype.kind == "O" else values.dtype)
    if given or values.dtype.kind == "O":
        values = source_array(values, kind)
    is_own = not isinstance(array, np.ndarray) or not np.may_share_memory(values, array)
    refuses_copy = copy is not None and not as_flag("copy", copy)
    must_copy = bool(copy) or (as_flag("write", write) and not values.flags.writeable)
    if refuses_copy and (is_own or must_copy):
        raise StoreError("Unable to avoid copy while creating an array as requested.")
    if must_copy and not is_own:
        values = values.copy()
    resources = {"data_copy_concurrency": context_of(context)["data_copy_concurrency"]}
    driver = InMemoryDriver(values, kind, resources)
    return TensorStore._of(
        OpenArray(driver, identity(driver.domain())), writable=write is not False and driver.writable
    )


def cast(base: _S, dtype: DTypeLike) -> _S:
    """Return a store or spec shown with another data type."""
    kind = any_dtype(dtype)
    if isinstance(base, TensorStore):
        return base.astype(kind)
    if isinstance(base, Spec):
        return _cast_spec(base, kind)
    raise TypeError(f"cast() takes a TensorStore or a Spec, not {type(base).__name__}")


def _cast_spec(base: Spec, kind: dtype) -> Spec:
    from fsstore.driver.cast import KIND

    return type(base).of(
        KIND,
        base_spec=base.replace(transform_=None, shows_transform=False),
        members={"dtype": kind.name},
        base_schema=Schema(dtype=kind),
        transform_=base.transform_,
    )


Function = Callable[[Any, Any, Any], Any]


def virtual_chunked(
    read_function: Function | None = None,
    write_function: Function | None = None,
    *,
    loop: asyncio.AbstractEventLoop | None = None,
    context: Context | None = None,
    transaction: Transaction | None = None,
    **constraints: Unpack[SchemaOptions],
) -> TensorStore:
    """Return a store whose chunks `read_function(domain, array, parameters)` fills and `write_function` takes.

    Constraints are those of a schema: `dtype`, `domain` or `shape`, `chunk_layout`, `dimension_units`, `schema`.
    Functions may be coroutine functions; they run on `loop`, or the loop that runs now.

    >>> def fill(domain, array, parameters):
    ...     array[...] = domain.inclusive_min[0]
    >>> virtual_chunked(fill, dtype="int32", shape=[3]).read().result()
    array([0, 0, 0], dtype=int32)
    """
    from fsstore.driver.virtual_chunked import opened_functions

    check_transaction(transaction)
    if transaction is not None:
        raise UnimplementedError('"virtual_chunked" driver does not support transactions')
    return TensorStore._of(
        opened_functions(read_function, write_function, loop, context=context_of(context), constraints=constraints)
    )
