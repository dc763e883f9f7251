"""Two constraints on a domain as one: unknown bounds and labels take the other side."""

from __future__ import annotations

from fsstore.errors import StoreError
from fsstore.index.domain import IndexDomain
from fsstore.index.interval import INF

__all__ = ["merge_domains"]


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
