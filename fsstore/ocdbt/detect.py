"""How an OCDBT database is recognised, for automatic detection."""

from __future__ import annotations

from fsstore.values.detection import Detection

DETECT = Detection("ocdbt", "store", files=("manifest.ocdbt",))
"""The manifest is in every database."""
