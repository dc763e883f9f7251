"""Objects that a scan leaves out: said as warnings inside the scanner's process, which hands them over."""

from __future__ import annotations

import warnings

__all__ = ["LeftOutWarning", "leave_out"]


class LeftOutWarning(UserWarning):
    """A part of a file is not in its documents."""


def leave_out(name: str, why: str) -> None:
    """Say that a part of the file, named as in the document, is not in it."""
    warnings.warn(f'"{name}": {why}', LeftOutWarning, stacklevel=2)
