"""Hard and soft constraints, and how two of them become one.

A constraint on one thing is a `Bound`: a value that is required (hard) or preferred (soft), or None where
nothing is said.  A constraint per dimension is a `Vector` of them, or None where nothing is said at all.
Merging a new constraint into an existing one:

* nothing said before: the new one is taken;
* both hard: they must be equal;
* hard beats soft, whichever came first;
* a soft one never replaces what is there.

Knows nothing of what is constrained.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias, TypeVar

from fsstore.errors import StoreError
from fsstore.index.value import check_rank

__all__ = [
    "Bound",
    "Vector",
    "braced",
    "checked_rank",
    "hard",
    "merge_bound",
    "merge_vector",
    "soft",
]

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
