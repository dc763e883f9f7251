"""The error for arguments that make no sense."""

__all__ = ["UsageError"]


class UsageError(ValueError):
    """An error in the arguments of a command; the program ends with 2."""
