"""Dimension expressions: `d["x", 0].translate_to[3].stride[2]`, operations on selected dimensions.

A `DimSelection` names dimensions; each operation adds a step.  Applied to a transform, the steps run in order, each on
the dimensions that the step before left selected.  Expressions print as they are written.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn, Protocol, SupportsIndex, TypeAlias, TypeVar, Union

from fsstore.errors import InvalidIndexError, StoreError
from fsstore.index import operation
from fsstore.index.numpy_index import NumpyIndex, index_advanced, parse_index
from fsstore.index.operation import DimSpecs, resolve
from fsstore.index.value import TransformValue
from fsstore.values.json_value import literal

T = TypeVar("T", bound=TransformValue)


def parse_selection(selection: Any) -> DimSpecs:
    """Return the ints, labels and ranges of a selection, nested sequences and selections flattened."""
    if isinstance(selection, str):
        return (selection,)
    if isinstance(selection, slice):
        parts = [
            None if part is None else _position(part) for part in (selection.start, selection.stop, selection.step)
        ]
        if parts[2] == 0:
            raise TypeError("the step of a range of dimensions must not be 0")
        return (slice(*parts),)
    if isinstance(selection, DimSelection):
        return selection._specs
    if hasattr(selection, "__index__") and getattr(selection, "ndim", 0) == 0:
        return (_position(selection),)
    if isinstance(selection, DimExpression) or not isinstance(selection, Iterable):
        raise TypeError(f"a dimension selection cannot contain {type(selection).__name__}")
    out: DimSpecs = ()
    for item in selection:
        out += parse_selection(item)
    return out


def _position(value: Any) -> int:
    number = operator.index(value)
    if not -(2**63) <= number < 2**63:
        raise TypeError(f"{number} is no number of a dimension")
    return number


def _selection_text(specs: DimSpecs) -> str:
    return ",".join(map(_spec_text, specs)) or "()"


def _spec_text(part: int | str | slice) -> str:
    if isinstance(part, str):
        return literal(part)
    if isinstance(part, slice):
        text = ":".join("" if end is None else str(end) for end in (part.start, part.stop))
        return text if part.step is None else f"{text}:{part.step}"
    return str(part)


class _Step(Protocol):
    """One operation: apply it to the selected dimensions of a transform."""

    def __str__(self) -> str: ...

    def start(self, transform: T, specs: DimSpecs) -> tuple[T, list[int]]:
        """Apply the operation as the first one, on a selection that is not resolved yet."""

    def apply(self, transform: T, dims: list[int]) -> tuple[T, list[int]]:
        """Apply the operation to dimensions; return those that are selected after it."""


class _Simple:
    """An operation that selects existing dimensions before it starts."""

    def start(self, transform: T, specs: DimSpecs) -> tuple[T, list[int]]:
        """Resolve the selection and apply the operation."""
        return self.apply(transform, resolve(specs, transform.domain.labels))

    def apply(self, transform: T, dims: list[int]) -> tuple[T, list[int]]:
        """Apply the operation; each subclass does."""
        raise NotImplementedError  # every subclass defines it


@dataclass(frozen=True, slots=True)
class _LabelStep(_Simple):
    names: tuple[str, ...]

    def apply(self, transform: T, dims: list[int]) -> tuple[T, list[int]]:
        """Set the labels."""
        return operation.label(transform, dims, self.names), dims

    def __str__(self) -> str:
        return f".label[{','.join(map(literal, self.names))}]"


@dataclass(frozen=True, slots=True)
class _VectorStep(_Simple):
    name: str
    vector: operation.Vector

    def apply(self, transform: T, dims: list[int]) -> tuple[T, list[int]]:
        """Move or stride the dimensions."""
        return getattr(operation, self.name)(transform, dims, self.vector), dims

    def __str__(self) -> str:
        if isinstance(self.vector, tuple):
            return f".{self.name}[{','.join(map(str, self.vector)) or '()'}]"
        return f".{self.name}[{self.vector}]"


@dataclass(frozen=True, slots=True)
class _TransposeStep(_Simple):
    target: tuple[Any, ...]

    def apply(self, transform: T, dims: list[int]) -> tuple[T, list[int]]:
        """Move the dimensions to their new positions."""
        rank = transform.input_rank
        targets = _targets(self.target, len(dims), rank)
        order: list[int] = [-1] * rank
        for dim, target in zip(dims, targets, strict=True):
            order[target] = dim
        rest = iter([dim for dim in range(rank) if dim not in set(dims)])
        order = [next(rest) if dim < 0 else dim for dim in order]
        return operation.reorder(transform, order), targets

    def __str__(self) -> str:
        return f".transpose[{_selection_text(self.target)}]"


def _targets(specs: DimSpecs, count: int, rank: int) -> list[int]:
    """Return the new positions of `count` dimensions; a single number is the first of consecutive ones."""
    if any(isinstance(part, str) for part in specs):
        raise StoreError("Target dimensions cannot be specified by label")
    if len(specs) == 1 and isinstance(specs[0], int):
        positions = rank - count + 1
        first = specs[0]
        if not -positions <= first < positions:
            raise StoreError(f"Dimension index {first} is outside valid range [-{positions}, {positions})")
        first += positions if first < 0 else 0
        return list(range(first, first + count))
    targets: list[int] = []
    for part in specs:
        targets += resolve((part,), ("",) * rank)
    if len(targets) != count:
        raise StoreError(
            f"Number of selected dimensions ({count}) must equal number of target dimensions ({len(targets)})"
        )
    for target in targets:
        if targets.count(target) > 1:
            raise StoreError(f"Target dimension {target} occurs more than once")
    return targets


@dataclass(frozen=True, slots=True)
class _DiagonalStep(_Simple):
    def apply(self, transform: T, dims: list[int]) -> tuple[T, list[int]]:
        """Merge the dimensions."""
        return operation.diagonal(transform, dims), [0]

    def __str__(self) -> str:
        return ".diagonal"


@dataclass(frozen=True, slots=True)
class _ImplicitStep(_Simple):
    lower: bool | None
    upper: bool | None

    def apply(self, transform: T, dims: list[int]) -> tuple[T, list[int]]:
        """Mark the bounds."""
        return operation.mark_bounds_implicit(transform, dims, self.lower, self.upper), dims

    def __str__(self) -> str:
        if self.lower == self.upper and self.lower is not None:
            return f".mark_bounds_implicit[{self.lower}]"
        lower, upper = ("" if side is None else side for side in (self.lower, self.upper))
        return f".mark_bounds_implicit[{lower}:{upper}]"


@dataclass(frozen=True, slots=True, eq=False)
class _IndexStep:
    index: NumpyIndex
    mode: str

    def start(self, transform: T, specs: DimSpecs) -> tuple[T, list[int]]:
        """Index the dimensions; new axes may be selected."""
        return self._composed(transform, specs, chained=False)

    def apply(self, transform: T, dims: list[int]) -> tuple[T, list[int]]:
        """Index dimensions that exist."""
        return self._composed(transform, tuple(dims), chained=True)

    def _composed(self, transform: T, specs: DimSpecs, *, chained: bool) -> tuple[T, list[int]]:
        return index_advanced(transform, self.index, self.mode, specs, chained=chained)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _IndexStep):
            return NotImplemented
        return self.mode == other.mode and self.index.same(other.index)

    def __hash__(self) -> int:
        return hash(self.mode)

    def __str__(self) -> str:
        return f"{'' if self.mode == 'default' else '.' + self.mode}[{self.index}]"


class _Pending:
    """`expression.name`, to be followed by `[argument]`."""

    __slots__ = ("_expression", "_make", "_name")

    def __init__(self, expression: DimExpression, name: str, make: Any) -> None:
        self._expression, self._name, self._make = expression, name, make

    def __getitem__(self, argument: Any) -> DimExpression:
        """Return the expression with the operation added."""
        return self._expression._then(self._make(argument))

    def __iter__(self) -> NoReturn:
        """Raise: subscripting with 0, 1, ... is not iteration."""
        raise TypeError(f"{self._name} is not iterable")

    def __repr__(self) -> str:
        return f"{self._expression!r}.{self._name}"


class DimExpression:
    """Operations on selected dimensions, applied by `view[expression]`.  Immutable.

    >>> d["x", 0].translate_to[3].stride[2]
    d['x',0].translate_to[3].stride[2]
    """

    __module__ = "fsstore"
    __slots__ = ("_specs", "_steps")
    __hash__ = None  # type: ignore[assignment]  # as in TensorStore
    _specs: DimSpecs
    _steps: tuple[_Step, ...]

    @classmethod
    def _of(cls, specs: DimSpecs, steps: tuple[_Step, ...] = ()) -> DimExpression:
        made = object.__new__(cls)
        made._specs, made._steps = specs, steps
        return made

    def _then(self, step: _Step) -> DimExpression:
        return DimExpression._of(self._specs, (*self._steps, step))

    def apply(self, transform: T) -> T:
        """Return `transform` after all operations; `StoreError` when there is none."""
        if not self._steps:
            raise StoreError("Must specify at least one operation in dimension expression")
        transform, dims = self._steps[0].start(transform, self._specs)
        for step in self._steps[1:]:
            transform, dims = step.apply(transform, dims)
        return transform

    def _vector(self, name: str) -> _Pending:
        return _Pending(self, name, lambda vector: _VectorStep(name, operation.vector_argument(vector)))

    @property
    def label(self) -> _Pending:
        """`label["x", "y"]`: set or change the labels."""
        return _Pending(self, "label", lambda labels: _LabelStep(operation.labels_argument(labels)))

    @property
    def translate_to(self) -> _Pending:
        """`translate_to[5]`: give the dimensions new origins."""
        return self._vector("translate_to")

    @property
    def translate_by(self) -> _Pending:
        """`translate_by[5]`: move the dimensions by offsets."""
        return self._vector("translate_by")

    @property
    def translate_backward_by(self) -> _Pending:
        """`translate_backward_by[5]`: move the dimensions by negated offsets."""
        return self._vector("translate_backward_by")

    @property
    def stride(self) -> _Pending:
        """`stride[2]`: keep the multiples of 2 among the coordinates, and divide them by 2."""
        return self._vector("stride")

    @property
    def transpose(self) -> _Pending:
        """`transpose[1, 0]`: give the dimensions new positions; one number is the first of consecutive ones."""
        return _Pending(self, "transpose", lambda target: _TransposeStep(parse_selection(target)))

    @property
    def diagonal(self) -> DimExpression:
        """Merge the dimensions into one, the first, along their diagonal."""
        return self._then(_DiagonalStep())

    @property
    def mark_bounds_implicit(self) -> _Pending:
        """`mark_bounds_implicit[True]` or `[lower:upper]`: mark the bounds as implicit or explicit."""
        return _Pending(self, "mark_bounds_implicit", lambda mark: _ImplicitStep(*operation.implicit_argument(mark)))

    @property
    def oindex(self) -> _Pending:
        """`oindex[...]`: index the dimensions, arrays apply independently."""
        return _Pending(self, "oindex", partial(self._indexed, mode="oindex"))

    @property
    def vindex(self) -> _Pending:
        """`vindex[...]`: index the dimensions, arrays apply jointly and their dimensions come first."""
        return _Pending(self, "vindex", partial(self._indexed, mode="vindex"))

    def _indexed(self, key: Any, mode: str) -> _IndexStep:
        index = parse_index(key)
        if self._steps and any(term is None for term in index.terms):
            raise InvalidIndexError("tensorstore.newaxis (`None`) not valid in chained indexing operations")
        return _IndexStep(index, mode)

    def __getitem__(self, key: Any) -> DimExpression:
        """Index the dimensions by a numpy-style index, which must consume them all."""
        return self._then(self._indexed(key, "default"))

    def __iter__(self) -> NoReturn:
        """Raise: subscripting with 0, 1, ... is not iteration."""
        raise TypeError(f"{type(self).__name__!r} object is not iterable")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, DimExpression):
            return NotImplemented
        return self._specs == other._specs and self._steps == other._steps

    def __repr__(self) -> str:
        return f"d[{_selection_text(self._specs)}]{''.join(map(str, self._steps))}"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self)._of, (self._specs, self._steps)


class DimSelection(DimExpression):
    """Selected dimensions, the start of a dimension expression: `d[0, "x", 2:5]`."""

    __module__ = "fsstore"
    __slots__ = ()


DimSelectionLike: TypeAlias = Union[
    DimSelection, SupportsIndex, str, "slice", Sequence["DimSelectionLike"]  # a recursive type
]
"""Ways to select dimensions: numbers, labels, ranges, and sequences of these."""


class _Selector:
    """`d`: subscripting it selects dimensions."""

    __slots__ = ()

    def __getitem__(self, selection: DimSelectionLike) -> DimSelection:
        """Return the selection of dimensions by number, label, range, or sequences of these."""
        made = DimSelection._of(parse_selection(selection))
        assert isinstance(made, DimSelection)
        return made

    def __iter__(self) -> NoReturn:
        """Raise: subscripting with 0, 1, ... is not iteration."""
        raise TypeError("d is not iterable")


d = _Selector()
"""Starts a dimension expression: `d["x", 0].label["y", "z"]`."""
