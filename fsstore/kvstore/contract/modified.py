"""The times of last modification, which some stores can tell."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

__all__ = ["TellsModified"]


@runtime_checkable
class TellsModified(Protocol):
    """A driver that can tell when a value was last modified."""

    async def modified(self, key: str) -> float | None:
        """Return when the value was modified, in seconds since 1970; None if that is not known."""
        ...
