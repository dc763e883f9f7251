"""Names that stand elsewhere now."""

from fsstore.reference.policy import beside

__all__ = ["beside"]
