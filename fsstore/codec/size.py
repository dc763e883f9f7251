"""How many bytes an encoding may decode to, and the errors when it does not.

A decoder that knows the exact size of its result allocates that and nothing more.  One that does not (text, JSON,
bytes behind another compressor) may still not be driven out of memory by a few bytes, so it stops at a limit that
grows with the input.
"""

from __future__ import annotations

from fsstore.codec.contract import ByteSpec
from fsstore.errors import FailedPreconditionError, ResourceExhaustedError

__all__ = ["FREE_BYTES", "check_size", "encoded_bound", "output_limit", "too_large", "too_long", "too_short"]

FREE_BYTES = 64 << 20  # that anything may decode to
_RATIO = 256  # times its own size that more may


def too_short(expected: int, actual: int) -> FailedPreconditionError:
    """Return the error of `actual` bytes where `expected` are needed."""
    missing = expected - actual
    return FailedPreconditionError(
        f"Not enough data: expected at least {expected} or {missing} more; at byte {actual}"
    )


def too_long(expected: int, actual: int | None = None) -> FailedPreconditionError:
    """Return the error of bytes left over after `expected`; `actual` is the whole length where it is known."""
    rest = "" if actual is None else f" remaining length: {actual - expected};"
    return FailedPreconditionError(f"End of data expected;{rest} at byte {expected}")


def too_large(limit: int) -> ResourceExhaustedError:
    """Return the error of data of unknown size that grows past `limit` bytes."""
    return ResourceExhaustedError(f"Decoded data is larger than the limit of {limit} bytes; refused")


def check_size(actual: int, expected: int | None) -> None:
    """Raise `FailedPreconditionError` unless `actual` bytes are what was expected, if anything was."""
    if expected is not None and actual != expected:
        raise too_short(expected, actual) if actual < expected else too_long(expected, actual)


def output_limit(decoded: ByteSpec, encoded_size: int) -> int:
    """Return the largest result that decoding `encoded_size` bytes may have."""
    if decoded.size is not None:
        return decoded.size
    limit = max(FREE_BYTES, _RATIO * encoded_size)
    return limit if decoded.max_size is None else min(limit, decoded.max_size)


def encoded_bound(decoded: ByteSpec) -> int | None:
    """Return a generous bound of the size of an encoding, for compressors applied to compressed data."""
    size = decoded.size if decoded.size is not None else decoded.max_size
    return None if size is None else 2 * size + 4096
