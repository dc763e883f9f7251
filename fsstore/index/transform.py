"""Index transforms: functions from one index space to another, on which every view rests.

A transform is a domain and one output map for each output dimension.  All indexing is composition of transforms;
nothing is read until the engine asks a transform which cells it touches.  For planners: `domain` with its tuples,
and `maps`, a tuple of light `OutputMap`s.

Values are immutable and may be shared between threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from fsstore.errors import OutOfRangeError, StoreError
from fsstore.index import interval as iv
from fsstore.index.compose import check_index, effective
from fsstore.index.domain import MAX_RANK, IndexDomain, checked_vector, from_components
from fsstore.index.indexable import Indexable
from fsstore.index.output_map import (
    ARRAY,
    CONSTANT,
    SINGLE,
    OutputIndexMap,
    OutputIndexMaps,
    OutputMap,
    array_text,
    constant_map,
    same_map,
    single_map,
)

__all__ = ["IndexTransform", "checked", "identity"]


class _Mapping:
    """What can be read from a transform."""

    __slots__ = ("_domain", "_maps")
    _domain: IndexDomain
    _maps: tuple[OutputMap, ...]

    @property
    def domain(self) -> IndexDomain:
        """The input domain."""
        return self._domain

    @property
    def maps(self) -> tuple[OutputMap, ...]:
        """The output maps as light tuples, for planners."""
        return self._maps

    @property
    def output(self) -> OutputIndexMaps:
        """The output index maps."""
        return OutputIndexMaps(self._maps)

    @property
    def input_rank(self) -> int:
        """The number of input dimensions."""
        return self._domain.rank

    @property
    def output_rank(self) -> int:
        """The number of output dimensions."""
        return len(self._maps)

    @property
    def input_origin(self) -> tuple[int, ...]:
        """The first index of each input dimension."""
        return self._domain.inclusive_min

    @property
    def input_inclusive_min(self) -> tuple[int, ...]:
        """The first index of each input dimension."""
        return self._domain.inclusive_min

    @property
    def input_inclusive_max(self) -> tuple[int, ...]:
        """The last index of each input dimension."""
        return self._domain.inclusive_max

    @property
    def input_exclusive_max(self) -> tuple[int, ...]:
        """The index after the last of each input dimension."""
        return self._domain.exclusive_max

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The size of each input dimension."""
        return self._domain.shape

    @property
    def input_labels(self) -> tuple[str, ...]:
        """The label of each input dimension."""
        return self._domain.labels

    @property
    def implicit_lower_bounds(self) -> tuple[bool, ...]:
        """Whether each lower bound is implicit."""
        return self._domain.implicit_lower_bounds

    @property
    def implicit_upper_bounds(self) -> tuple[bool, ...]:
        """Whether each upper bound is implicit."""
        return self._domain.implicit_upper_bounds

    @property
    def ndim(self) -> int:
        """The number of input dimensions."""
        return self._domain.rank

    @property
    def origin(self) -> tuple[int, ...]:
        """The first index of each input dimension."""
        return self._domain.inclusive_min

    @property
    def shape(self) -> tuple[int, ...]:
        """The size of each input dimension."""
        return self._domain.shape

    @property
    def size(self) -> int:
        """The number of points of the domain."""
        return self._domain.size

    @property
    def is_identity(self) -> bool:
        """Whether every point maps to itself."""
        return len(self._maps) == self._domain.rank and all(
            output[:4] == (SINGLE, 0, 1, dim) for dim, output in enumerate(self._maps)
        )


class IndexTransform(_Mapping, Indexable):
    """A function from an input domain to an output index space, immutable.

    `IndexTransform(3)` is the identity of rank 3; `IndexTransform(domain, output)`, `IndexTransform(json={...})` and
    `IndexTransform(input_shape=[3, 2], output=[...])` give the domain in the ways of `IndexDomain`, with names that
    start with `input_`, and a sequence of `OutputIndexMap`; without `output` the transform is the identity.

    >>> IndexTransform(2)[3, 5:8]
    Rank 1 -> 2 index space transform:
      Input domain:
        0: [5, 8)
      Output index maps:
        out[0] = 3
        out[1] = 0 + 1 * in[0]
    <BLANKLINE>
    """

    __slots__ = ()
    __hash__ = None  # type: ignore[assignment]  # as in TensorStore

    def __init__(
        self,
        input_rank: int | IndexDomain | Sequence[Any] | None = None,
        *positional: Any,
        output: Iterable[OutputIndexMap] | None = None,
        **components: Any,
    ) -> None:
        if "json" in components:
            from fsstore.index.wire import transform_from_json

            value = components.pop("json")
            if input_rank is not None or positional or components or output is not None:
                raise TypeError("IndexTransform(json=...) takes no other argument")
            made = transform_from_json(value)
            self._domain, self._maps = made._domain, made._maps
            return
        domain, output = _parsed(input_rank, positional, output, components)
        made = identity(domain) if output is None else checked(domain, _output_maps(output))
        self._domain, self._maps = made._domain, made._maps

    @classmethod
    def _of(cls, domain: IndexDomain, maps: tuple[OutputMap, ...]) -> IndexTransform:
        """Return the transform of parts that are known to fit together."""
        made = object.__new__(cls)
        made._domain, made._maps = domain, maps
        return made

    def _apply(self, change: Callable[[IndexTransform], IndexTransform]) -> IndexTransform:
        return change(self)

    def __call__(self, indices: Iterable[int]) -> tuple[int, ...]:
        """Return the output point of an input point; see `apply`."""
        return self.apply(indices)

    def apply(self, point: Iterable[int]) -> tuple[int, ...]:
        """Return the output point of the input point `point`.

        `OutOfRangeError` when it lies outside an explicit bound, or an index array outside its range.
        """
        where = checked_vector("indices", point)
        if len(where) != self.input_rank:
            raise StoreError(
                f"input indices vector of length {len(where)} cannot be used with index transform with input rank "
                f"{self.input_rank}"
            )
        for dim, index in enumerate(where):
            low, high = effective(self._domain, dim)
            if not iv.contains(low, high, index):
                raise OutOfRangeError(
                    f"Index {index} is not contained in the domain {iv.interval_text(low, high)} "
                    f"for input dimension {dim}"
                )
        return tuple([self._image(dim, output, where) for dim, output in enumerate(self._maps)])

    def _image(self, dim: int, output: OutputMap, where: tuple[int, ...]) -> int:
        array = output.index_array
        if output.method == CONSTANT or (array is None and output.method != SINGLE):
            return output.offset
        if array is None:
            index = where[output.input_dimension]
        else:
            places = zip(where, self._domain.inclusive_min, array.shape, strict=True)
            index = int(array[tuple([0 if size == 1 else i - low for i, low, size in places])])
            try:
                check_index(index, output.index_range)
            except StoreError as error:
                place = f"Computing index for output dimension {dim}: Checking result of index array output index map"
                raise error.within(place) from None
        return iv.check_int64(
            output.offset + output.stride * index, f"output index for output dimension {dim}"
        )

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form; an identity has no `output`."""
        from fsstore.index.wire import transform_to_json

        return transform_to_json(self)

    def __eq__(self, other: object) -> bool:
        """Return whether domains and output maps are equal, index arrays by the values they spread."""
        if not isinstance(other, IndexTransform):
            return NotImplemented
        if self._domain != other._domain or len(self._maps) != len(other._maps):
            return False
        pairs = zip(self._maps, other._maps, strict=True)
        return all(mine is theirs or _same_values(mine, theirs) for mine, theirs in pairs)

    def __repr__(self) -> str:
        """Return several lines: the domain, then each output map."""
        lines = [f"Rank {self.input_rank} -> {self.output_rank} index space transform:", "  Input domain:"]
        from fsstore.values.json_value import quote

        for dim, label in enumerate(self._domain.labels):
            low, high, first, last = self._domain.bounds(dim)
            text = iv.bounds_text(low, high, implicit_low=first, implicit_high=last)
            lines.append(f"    {dim}: {text}{' ' + quote(label) if label else ''}")
        lines.append("  Output index maps:")
        lines += [f"    out[{dim}] = {_formula(output)}" for dim, output in enumerate(self._maps)]
        return "\n".join(lines) + "\n"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by value."""
        return _restore, (self._domain, self._maps)

    def __copy__(self) -> IndexTransform:
        """Return the same value; it cannot change."""
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> IndexTransform:
        """Return the same value; it cannot change."""
        return self


_IDENTITIES = tuple(single_map(dim) for dim in range(MAX_RANK))


def _restore(domain: IndexDomain, maps: tuple[OutputMap, ...]) -> IndexTransform:
    for output in maps:
        if output.index_array is not None:
            output.index_array.flags.writeable = False
    return IndexTransform._of(domain, maps)


def identity(domain: IndexDomain) -> IndexTransform:
    """Return the transform that maps each point of `domain` to itself."""
    return IndexTransform._of(domain, _IDENTITIES[: domain.rank])


def _parsed(
    first: Any, rest: tuple[Any, ...], output: Any, components: dict[str, Any]
) -> tuple[IndexDomain, Iterable[OutputIndexMap] | None]:
    """Return the domain and the output maps that the arguments of `IndexTransform` mean."""
    if "domain" in components:
        rest, first = (first, *rest) if first is not None else rest, components.pop("domain")
        by_rank = False
    else:
        by_rank = first is None or hasattr(first, "__index__")
    if rest and (by_rank or len(rest) > 1 or output is not None):
        raise TypeError("IndexTransform takes (input_rank, ...) or (domain, output)")
    if not by_rank:
        if components:
            raise TypeError("IndexTransform(domain, output) takes no other argument")
        domain = first if isinstance(first, IndexDomain) else IndexDomain._of_dims(first)
        return domain, rest[0] if rest else output
    plain = {"implicit_lower_bounds", "implicit_upper_bounds"}
    if any(name not in plain and not name.startswith("input_") for name in components):
        raise TypeError(f"unexpected keyword argument(s): {', '.join(sorted(components))}")
    given = {name.removeprefix("input_"): value for name, value in components.items()}
    return from_components({"rank": first, **given}, "input_"), output


def _output_maps(output: Any) -> list[OutputMap]:
    if not isinstance(output, Iterable):
        raise TypeError(f"output must be a sequence of OutputIndexMap, not {type(output).__name__}")
    maps = list(output)
    if not all(isinstance(item, OutputIndexMap) for item in maps):
        raise TypeError("output must be a sequence of OutputIndexMap")
    return [item._map for item in maps]


def checked(domain: IndexDomain, maps: Sequence[OutputMap]) -> IndexTransform:
    """Return the transform of `domain` and `maps`; `StoreError` when they do not fit together."""
    if len(maps) > MAX_RANK:
        raise StoreError(f"Number of output dimensions ({len(maps)}) exceeds maximum rank of {MAX_RANK}")
    empty = domain.explicitly_empty
    out = []
    for dim, output in enumerate(maps):
        if output.method == SINGLE and not 0 <= output.input_dimension < domain.rank:
            raise StoreError(
                f"Input dimension {output.input_dimension} specified for output dimension {dim} is outside valid "
                f"range [0, {domain.rank})"
            )
        if output.index_array is not None:
            _check_array(domain, output, dim)
        if output.index_array is not None and empty:
            out.append(constant_map(0))
        elif output.method != CONSTANT and output.stride == 0:
            out.append(constant_map(output.offset))
        else:
            out.append(output)
    return IndexTransform._of(domain, tuple(out))


def _check_array(domain: IndexDomain, output: OutputMap, dim: int) -> None:
    shape = output.index_array.shape if output.index_array is not None else ()
    if len(shape) != domain.rank:
        raise StoreError(
            f"Index array for output dimension {dim} has rank {len(shape)} but must have rank {domain.rank}"
        )
    if not all(size in (1, full) for size, full in zip(shape, domain.shape, strict=True)):
        shown, wanted = (", ".join(map(str, sizes)) for sizes in (shape, domain.shape))
        raise StoreError(
            f"Index array for output dimension {dim} has shape {{{shown}}} which does not match "
            f"input_shape {{{wanted}}}"
        )
    for i, size in enumerate(shape):
        if size != 1 and (domain.implicit_lower_bounds[i] or domain.implicit_upper_bounds[i]):
            raise StoreError(
                f"Index array for output dimension {dim} depends on input dimension {i} with implicit bounds"
            )


def _same_values(a: OutputMap, b: OutputMap) -> bool:
    if a.index_array is None or b.index_array is None:
        return same_map(a, b)
    if a[:4] != b[:4] or a.index_range != b.index_range:
        return False
    return bool((a.index_array == b.index_array).all())


def _formula(output: OutputMap) -> str:
    if output.method == CONSTANT:
        return str(output.offset)
    if output.method != ARRAY or output.index_array is None:
        return f"{output.offset} + {output.stride} * in[{output.input_dimension}]"
    limits = iv.interval_text(*output.index_range)
    return (
        f"{output.offset} + {output.stride} * bounded({limits}, array(in)), where array =\n"
        f"      {array_text(output.index_array)}"
    )
