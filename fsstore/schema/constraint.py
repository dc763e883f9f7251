"""Hard and soft constraints, and how two of them become one.

A constraint is a `Bound`: a value that is required (hard) or preferred (soft), or None where nothing is said.  A
constraint for each dimension is a `Vector` of them, or None where nothing is said at all.  A new constraint is merged
into an existing one by four rules:

* nothing said before: the new one is taken;
* both hard: they must be equal;
* hard beats soft, whichever came first;
* a soft one never replaces an existing one.

Domains merge in the same spirit: unknown bounds and labels take the other side.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias, TypeVar

from fsstore.errors import StoreError
from fsstore.index.interval import INF
from fsstore.index.transform import IndexDomain
from fsstore.index.value import check_rank

T = TypeVar("T")
Bound: TypeAlias = tuple[T, bool] | None
Vector: TypeAlias = tuple[Bound[T], ...] | None


def braced(values: Sequence[object]) -> str:
    """Return values as messages print them: `{1, 2}`."""
    return "{" + ", ".join(str(value) for value in values) + "}"


def checked_rank(new: int, existing: int) -> int:
    """Return the rank both agree on; -1 says nothing.  Raises `StoreError` for a bad or different one."""
    check_rank(new)
    if existing not in (-1, new):
        raise StoreError(f"Rank {new} does not match existing rank {existing}")
    return new


def merge_bound(
    existing: Bound[T], new: Bound[T], show: Callable[[T], str] = str, where: str = ""
) -> Bound[T]:
    """Return the merged constraint, or raise `StoreError` where two hard ones differ.

    `where` goes into the message (` for dimension 0`), values through `show`.
    """
    if new is None:
        return existing
    if existing is None:
        return new
    if existing[1] and new[1] and existing[0] != new[0]:
        raise StoreError(
            f"New hard constraint ({show(new[0])}){where} does not match "
            f"existing hard constraint ({show(existing[0])})"
        )
    return new if new[1] and not existing[1] else existing


def merge_vector(existing: Vector[T], new: Vector[T], show: Callable[[T], str] = str) -> Vector[T]:
    """Return the constraints merged dimension by dimension.  The lengths must be equal."""
    if existing is None or new is None:
        return existing or new
    return tuple(
        merge_bound(old, added, show, f" for dimension {dimension}")
        for dimension, (old, added) in enumerate(zip(existing, new, strict=True))
    )


def _chosen(vector: Vector[T], rank: int, is_hard: bool) -> tuple[T | None, ...] | None:
    if rank < 0:
        return None
    if vector is None:
        return (None,) * rank
    return tuple(bound[0] if bound is not None and bound[1] is is_hard else None for bound in vector)


def hard(vector: Vector[T], rank: int) -> tuple[T | None, ...] | None:
    """Return the required values, None where there is none, or None altogether without a rank."""
    return _chosen(vector, rank, is_hard=True)


def soft(vector: Vector[T], rank: int) -> tuple[T | None, ...] | None:
    """Return the preferred values, as `hard` does the required ones."""
    return _chosen(vector, rank, is_hard=False)


# Two constraints on a domain as one: unknown bounds and labels take the other side.


def merge_domains(existing: IndexDomain | None, new: IndexDomain | None) -> IndexDomain | None:
    """Return the domain that satisfies both; None is any.

    An infinite implicit bound gives way to any, a missing label to a label.  Equal bounds are implicit where both
    are.  Raises `StoreError` that names the dimension where bounds or labels differ, or the ranks.
    """
    if existing is None or new is None:
        return existing if new is None else new
    if existing.rank != new.rank:
        raise _conflict(existing, new, "Ranks do not match")
    lower: list[tuple[int, bool]] = []
    upper: list[tuple[int, bool]] = []
    labels: list[str] = []
    for dim in range(existing.rank):
        try:
            lower.append(
                _merged(
                    (existing.inclusive_min[dim], existing.implicit_lower_bounds[dim]),
                    (new.inclusive_min[dim], new.implicit_lower_bounds[dim]),
                    "Lower bounds",
                )
            )
            upper.append(
                _merged(
                    (existing.exclusive_max[dim], existing.implicit_upper_bounds[dim]),
                    (new.exclusive_max[dim], new.implicit_upper_bounds[dim]),
                    "Upper bounds",
                )
            )
            labels.append(_merged_label(existing.labels[dim], new.labels[dim]))
        except StoreError as error:
            raise _conflict(existing, new, f"Mismatch in dimension {dim}: {error.message}") from None
    return IndexDomain(
        inclusive_min=[value for value, _ in lower],
        exclusive_max=[value for value, _ in upper],
        implicit_lower_bounds=[implicit for _, implicit in lower],
        implicit_upper_bounds=[implicit for _, implicit in upper],
        labels=labels,
    )


def _conflict(existing: IndexDomain, new: IndexDomain, why: str) -> StoreError:
    return StoreError(f"Cannot merge index domain {existing} with index domain {new}: {why}")


def _merged(existing: tuple[int, bool], new: tuple[int, bool], what: str) -> tuple[int, bool]:
    if existing[0] == new[0]:
        return existing[0], existing[1] and new[1]
    if abs(existing[0]) >= INF and existing[1]:
        return new
    if abs(new[0]) >= INF and new[1]:
        return existing
    raise StoreError(f"{what} do not match")


def _merged_label(existing: str, new: str) -> str:
    if existing and new and existing != new:
        raise StoreError("Dimension labels do not match")
    return existing or new
