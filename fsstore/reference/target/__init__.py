"""Names that stand elsewhere now."""
