"""How much of an array is stored: `TensorStore.StorageStatistics`."""

from __future__ import annotations

__all__ = ["Stored"]


class Stored:
    """How much of a store is stored; None where it was not asked."""

    __slots__ = ("fully_stored", "not_stored")

    def __init__(self, *, not_stored: bool | None = None, fully_stored: bool | None = None) -> None:
        self.not_stored, self.fully_stored = not_stored, fully_stored

    def __eq__(self, other: object) -> bool:
        """Return whether both say the same."""
        return isinstance(other, Stored) and repr(self) == repr(other)

    def __hash__(self) -> int:
        """Return a hash that agrees with equality."""
        return hash(repr(self))

    def __repr__(self) -> str:
        """Return the form TensorStore prints."""
        return (
            f"TensorStore.StorageStatistics(not_stored={self.not_stored}, fully_stored={self.fully_stored})"
        )
