"""Telling a virtual dataset by its first bytes, for automatic detection."""

from __future__ import annotations

from fsstore.mosaic.stored import is_mosaic
from fsstore.values.detection import Detection

__all__ = ["DETECT"]

DETECT = Detection(
    "mosaic",
    "store",
    matches=is_mosaic,
    head=256,
    confirm=is_mosaic,
    confirm_head=256,
    over=("json", "reference"),
    title="a virtual dataset",
)
