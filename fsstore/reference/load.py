"""Names that stand elsewhere now."""

from fsstore.reference.kind import Reading, load

__all__ = ["Reading", "load"]
