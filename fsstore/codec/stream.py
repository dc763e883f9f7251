"""Decompression in bounded steps, for every library that offers incremental objects (zlib, bz2, lzma).

A stream may consist of several members, and nothing else may follow the last.  No more than one byte beyond the
expected size is ever produced.  Where the size is not known the result grows step by step in one place, so that the
most it takes is little more than the limit: a library that is asked for all at once collects pieces and joins them.
"""

from __future__ import annotations

import bz2
import lzma
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from fsstore.codec.contract import Buffer, ByteSpec
from fsstore.codec.size import encoded_bound, output_limit, too_large, too_long, too_short
from fsstore.errors import FailedPreconditionError, ResourceExhaustedError

__all__ = ["BoundStream", "Inflater", "bz2_stream", "inflate", "lzma_stream"]

_LZMA_MEMORY = 256 << 20  # bytes of a dictionary
_STEP_BYTES = 4 << 20
_FEED_BYTES = 4 << 10  # given to a member behind the first, then twice as many and so on


@dataclass(frozen=True, slots=True)
class Inflater:
    """How one library inflates: `start` makes the object for one member, `failures` are what it raises.

    `label` is the name of the function in messages, `noun` that of the stream.  `keeps_tail` says that input left
    over by a size limit is handed back (zlib) instead of kept inside (bz2, lzma).
    """

    start: Callable[[], Any]
    failures: tuple[type[BaseException], ...]
    label: str
    noun: str
    keeps_tail: bool = False


def inflate(data: Any, inflater: Inflater, size: int | None, limit: int) -> Buffer:
    """Return the bytes that `data` holds: exactly `size` if that is known, else at most `limit`."""
    data = data if isinstance(data, bytes) else bytes(data)
    failures: tuple[type[BaseException], ...] = (*inflater.failures, FailedPreconditionError)
    bound = limit if size is None else size
    # zlib hands back the rest of the input at every step: together these are no more than the result
    step = bound + 1 if size is not None else max(_STEP_BYTES, len(data))
    whole: bytes | bytearray | None = None
    total = at = 0
    while whole is None or at < len(data):
        try:
            whole, at = _with_member(whole or b"", data, at, inflater, bound=bound, step=step)
        except failures as error:
            if whole is not None and (size is None or total == size):
                raise too_long(total, total + len(data) - at) from None
            raise _failure(error, inflater, len(data), total) from None
        total = len(whole)
        if total > bound:
            raise too_large(limit) if size is None else too_long(size)
    if size is not None and total < size:
        raise too_short(size, total)
    return whole if isinstance(whole, bytes) else memoryview(whole)


def _with_member(
    whole: bytes | bytearray, data: bytes, at: int, inflater: Inflater, *, bound: int, step: int
) -> tuple[bytes | bytearray, int]:
    """Return `whole` followed by what the member at `at` holds, up to a byte past the bound, and where it ends.

    Libraries copy the input that follows a member, so only the first is given all there is.
    """
    stream = inflater.start()
    feed = _FEED_BYTES if at else len(data)
    while not stream.eof and len(whole) <= bound:
        given = stream.unconsumed_tail if inflater.keeps_tail else b""
        wants_more = not given if inflater.keeps_tail else stream.needs_input
        if wants_more:
            given = data[at : at + feed]
            at, feed = at + len(given), 2 * feed
        part: bytes = stream.decompress(given, min(step, bound + 1 - len(whole)))
        if not part and not given and not stream.eof:
            raise FailedPreconditionError(f"Truncated {inflater.noun}-compressed stream; at byte {len(data)}")
        whole = _followed(whole, part)
    return whole, at - len(stream.unused_data)


def _followed(whole: bytes | bytearray, part: bytes) -> bytes | bytearray:
    """Return both; from the second on, parts are added in place."""
    if not whole or not part:
        return whole or part
    if isinstance(whole, bytes):
        whole = bytearray(whole)
    whole += part
    return whole


def _failure(error: BaseException, inflater: Inflater, length: int, total: int) -> FailedPreconditionError:
    if isinstance(error, FailedPreconditionError):
        return error
    if isinstance(error, EOFError):
        return FailedPreconditionError(f"Truncated {inflater.noun}-compressed stream; at byte {length}")
    reason = str(error).rpartition(": ")[2] or type(error).__name__
    if "header check" in reason:
        length = min(2, length)
    return FailedPreconditionError(
        f"{inflater.label}() failed: {reason}; at byte {length}; at uncompressed byte {total}"
    )


class BoundStream:
    """A compressor of one library, bound to bytes of one size or of any size."""

    __slots__ = ("_encode", "_inflater", "decoded", "encoded")

    def __init__(self, decoded: ByteSpec, inflater: Inflater, encode: Callable[[Any], bytes]) -> None:
        self.decoded, self._inflater, self._encode = decoded, inflater, encode
        self.encoded = ByteSpec(itemsize=0, max_size=encoded_bound(decoded))

    def encode(self, data: Any) -> bytes:
        """Return `data` compressed."""
        return self._encode(data)

    def decode(self, data: Any) -> Buffer:
        """Return the bytes inflated."""
        return inflate(data, self._inflater, self.decoded.size, output_limit(self.decoded, len(data)))


def bz2_stream(decoded: ByteSpec, level: int) -> BoundStream:
    """Return bzip2 for bytes like `decoded`."""
    inflater = Inflater(bz2.BZ2Decompressor, (OSError, EOFError), "BZ2_bzDecompress", "Bzip2")
    return BoundStream(decoded, inflater, lambda data: bz2.compress(data, level))


def lzma_stream(decoded: ByteSpec, options: Mapping[str, Any]) -> BoundStream:
    """Return xz, lzma or raw lzma for bytes like `decoded`; `options` are those that numcodecs stores.

    Decoding refuses streams that need more than 256 MiB for their dictionary.
    """
    form = options.get("format", lzma.FORMAT_XZ)
    filters = options.get("filters")
    memory = None if form == lzma.FORMAT_RAW else _LZMA_MEMORY
    for entry in filters or ():
        if int(entry.get("dict_size", 0)) > _LZMA_MEMORY:
            raise ResourceExhaustedError(
                f"lzma dictionary of {entry['dict_size']} bytes is more than the {_LZMA_MEMORY} that are allowed"
            )
    container = form if form in (lzma.FORMAT_RAW, lzma.FORMAT_XZ, lzma.FORMAT_ALONE) else lzma.FORMAT_AUTO
    start = partial(lzma.LZMADecompressor, container, memory, filters if form == lzma.FORMAT_RAW else None)
    start()  # says what is wrong with the options
    inflater = Inflater(start, (lzma.LZMAError, EOFError), "lzma_code", "Lzma")
    check, preset = options.get("check", -1), options.get("preset")
    return BoundStream(decoded, inflater, lambda data: lzma.compress(data, form, check, preset, filters))
