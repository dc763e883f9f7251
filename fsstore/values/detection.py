"""Telling a format by the files of a directory or by the first and last bytes of a file; files compressed as a whole.

Each format says in its own file, as a `Detection`, how it is recognised; this module compares.  It is pure: others
read the bytes and decide what to do with the match.  Compressed files (gzip, zstd, bzip2, xz) are pure as well: bytes
in, bytes out, and never more than a limit.
"""

from __future__ import annotations

import bz2
import lzma
import zlib
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias

from fsstore.errors import DataLossError, ResourceExhaustedError


@dataclass(frozen=True, slots=True)
class Detection:
    """The signature of a format.

    `name` is its URL scheme and what messages call it.  `role` says what is opened: the `array` driver of that
    name, the `store` adapter of that name, or `foreign` for formats known by name only, which `tool` reads.

    A directory is of the format when all of `files` are in it; with `read_whole` opening it begins with reading them,
    so detection asks for no less and hands over what it got.  A file is when it has one of the `signatures` (pairs
    of an offset and the bytes there, all of one tuple together), or when `matches(head, tail)` says so, given its
    first `head` and last `tail` bytes; a file shorter than that is given whole, twice.  `at_least` is its smallest
    size.  With `confirm` that only makes it likely, and the first `confirm_head` bytes decide; a format that is certain
    then takes precedence `over` the ones named there.  `usual_head` is how files recognised by their end nearly always
    begin: where reading the end costs reading everything, only those are looked at.
    """

    name: str
    role: Literal["array", "store", "foreign"]
    files: tuple[str, ...] = ()
    read_whole: bool = False
    signatures: tuple[tuple[tuple[int, bytes], ...], ...] = ()
    matches: Callable[[bytes, bytes], bool] | None = None
    head: int = 0
    tail: int = 0
    at_least: int = 0
    confirm: Callable[[bytes], bool] | None = None
    confirm_head: int = 0
    over: tuple[str, ...] = ()
    usual_head: bytes = b""
    tool: str = ""
    title: str = ""

    def fits(self, head: bytes, tail: bytes) -> bool:
        """Return whether a file with this beginning and this end is of the format."""
        if len(head) < self.at_least:
            return False
        for signature in self.signatures:
            if all(head.startswith(magic, offset) for offset, magic in signature):
                return True
        return self.matches is not None and self.matches(head, tail)

    @property
    def is_of_files(self) -> bool:
        """Whether single files can be of the format."""
        return bool(self.signatures) or self.matches is not None


def sizes(detections: Iterable[Detection]) -> tuple[int, int]:
    """Return how many first and last bytes are enough to tell all of the formats."""
    head = tail = 0
    for each in detections:
        ends = [offset + len(magic) for signature in each.signatures for offset, magic in signature]
        head = max(head, each.head, each.at_least, *ends, 0)
        tail = max(tail, each.tail)
    return head, tail


def match_file(detections: Iterable[Detection], head: bytes, tail: bytes) -> list[Detection]:
    """Return the formats that a file with this beginning and this end can be of."""
    return [each for each in detections if each.is_of_files and each.fits(head, tail)]


def settle(found: Iterable[Detection], head: bytes) -> list[Detection]:
    """Return which of the formats found are left when the first bytes (the largest `confirm_head`) are known."""
    kept = [each for each in found if each.confirm is None or each.confirm(head)]
    beaten = {name for each in kept for name in each.over}
    return [each for each in kept if each.name not in beaten]


def match_files(detections: Iterable[Detection], present: set[str]) -> list[Detection]:
    """Return the formats that a directory can be of which has the files `present`."""
    return [each for each in detections if each.files and present.issuperset(each.files)]


def is_whole_json(head: bytes, tail: bytes) -> bool:
    """Return whether a value begins and ends like a JSON document that is an object or an array.

    Only the beginning of one that is cut off could be read, and it may be that of something else than it seems.
    Where the end is not known, nothing is said of it.

    >>> is_whole_json(b'{"a": 1}', b'{"a": 1}\\n'), is_whole_json(b'{"a": 1', b'{"a": 1')
    (True, False)
    """
    return is_text_of_json(head, tail) and (not tail or tail.rstrip(b" \t\r\n").endswith((b"}", b"]")))


def is_page(head: bytes) -> bool:
    """Return whether a value begins like a page of HTML, which web servers send for directories.

    >>> is_page(b"<!DOCTYPE HTML><html>"), is_page(b"<x>")
    (True, False)
    """
    return head.lstrip().lower().startswith((b"<!doctype html", b"<html"))


def is_text_of_json(head: bytes, tail: bytes) -> bool:  # noqa: ARG001  # the contract of `Detection.matches`
    """Return whether a value begins like a JSON document that is an object or an array.

    >>> is_text_of_json(b'  {"a": 1}', b"")
    True
    >>> is_text_of_json(b"{x", b"")
    False
    """
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip(b" \t\r\n")
    inside = text[1:].lstrip(b" \t\r\n")[:1]
    if text.startswith(b"{"):
        return inside in (b'"', b"}", b"")
    return text.startswith(b"[") and inside in b'"{[]tfn-0123456789'


# Files compressed as a whole.

Method: TypeAlias = Literal["gzip", "zstd", "bz2", "xz"]

MAGIC: Mapping[Method, bytes] = {"gzip": b"\x1f\x8b", "zstd": b"\x28\xb5\x2f\xfd", "bz2": b"BZh", "xz": b"\xfd7zXZ\0"}
"""How files of each method begin."""

DETECT = tuple(Detection(name, "store", signatures=(((0, magic),),)) for name, magic in MAGIC.items())
"""How they are recognised."""

_SUFFIXES: Mapping[str, Method] = {".gz": "gzip", ".zst": "zstd", ".zstd": "zstd", ".bz2": "bz2", ".xz": "xz"}
_PADDED = ("gzip", "xz")
_FEED = 1 << 17  # bytes given to a decompressor at a time
_STEP = 1 << 20  # bytes taken from it at a time
_LEAST = 1 << 25  # bytes that any file may decompress to: some hundred bytes may promise as much as they like
_LARGEST = 8 << 30  # bytes that a file may decompress to, if its reader does not allow more
_MEMORY = 1 << 30  # for the dictionary of xz; that of zstd is allowed 2 GiB, as its command allows at most
_SKIPPABLE = range(0x184D2A50, 0x184D2A60)


def method_of(head: bytes) -> Method | None:
    """Return how a file that begins with `head` is compressed, or None.

    >>> method_of(b"BZh91AY")
    'bz2'
    """
    return next((name for name, magic in MAGIC.items() if head.startswith(magic)), None)


def method_named(path: str) -> Method | None:
    """Return how a file of this name is to be compressed, or None.

    >>> method_named("refs.json.zst")
    'zstd'
    """
    return next((name for suffix, name in _SUFFIXES.items() if path.endswith(suffix)), None)


class Compressor(Protocol):
    """Compresses what it is given bit by bit."""

    def compress(self, data: bytes, /) -> bytes:
        """Take more data; return what is ready."""
        ...

    def flush(self) -> bytes:
        """Return the rest."""
        ...


def compressor(method: Method) -> Compressor:
    """Return the writer of a compressed file."""
    match method:
        case "zstd":
            import zstandard

            return zstandard.ZstdCompressor(level=9).compressobj()
        case "gzip":
            return zlib.compressobj(6, zlib.DEFLATED, 31)
        case "bz2":
            return bz2.BZ2Compressor()
        case "xz":
            return lzma.LZMACompressor()


def usual_limit(size: int) -> int:
    """Return how much a file of `size` bytes may decompress to, unless its reader says otherwise."""
    return min(_LARGEST, max(_LEAST, 1000 * size))


def expand(method: Method, data: Any, limit: int) -> bytes:
    """Return the content of a whole file: at most `limit` bytes, or `ResourceExhaustedError`."""
    parts = list(pieces(method, data, limit))
    return parts[0] if len(parts) == 1 else b"".join(parts)


def pieces(method: Method, data: Any, limit: int) -> Generator[bytes]:
    """Yield the same piece by piece, so that it need not be in memory as a whole."""
    size = 0
    for piece in _pieces(method, data):
        size += len(piece)
        if size > limit:
            raise ResourceExhaustedError(
                f"{len(data)} bytes compressed by {method} decompress to more than the limit of {limit} bytes"
            )
        yield piece


def beginning(method: Method, data: Any, size: int) -> bytes:
    """Return the first `size` bytes that the beginning of a file decompresses to, or as many as can be had."""
    out = bytearray()
    try:
        for piece in _pieces(method, data):
            out += piece
            if len(out) >= size:
                break
    except DataLossError:
        pass  # the beginning of a file is cut off by nature
    return bytes(out[:size])


def _pieces(method: Method, data: Any) -> Generator[bytes]:
    """Yield the content of a file, piece by piece."""
    view = memoryview(data).cast("B")
    at = 0
    while not at or at < len(view):
        if at and view[at] == 0 and method in _PADDED:
            at = len(view) - len(bytes(view[at:]).lstrip(b"\0"))
        elif bytes(view[at : at + 6]).startswith(MAGIC[method]):
            at = yield from (_frame(view, at) if method == "zstd" else _member(method, view, at))
        elif method == "zstd" and _word(view, at) in _SKIPPABLE:
            at = frame_end(view, at)
        else:
            what = f"Data compressed by {method} end at byte {at}, but something follows"
            raise DataLossError(what if at else f"Data are not compressed by {method}")
    if at > len(view):
        raise _cut_off(method, len(view))


def _member(method: Method, view: memoryview, at: int) -> Generator[bytes, None, int]:
    """Yield the content of a member or stream; return where it ends."""
    machine = _MACHINES[method]()
    while not machine.eof:
        fed = view[at : at + _FEED] if machine.needs_input else view[:0]
        if machine.needs_input and not fed:
            raise _cut_off(method, len(view))
        at += len(fed)
        try:
            piece = machine.decompress(fed, _STEP)
        except (zlib.error, OSError, EOFError, lzma.LZMAError) as error:
            raise _damaged(method, at, error) from error
        yield piece
    return at - len(machine.unused_data)


def _frame(view: memoryview, at: int) -> Generator[bytes, None, int]:
    """Yield what a frame of zstd decompresses to; return where it ends."""
    import zstandard

    try:
        end = frame_end(view, at)
        decompressor = zstandard.ZstdDecompressor(max_window_size=1 << 31)
        with decompressor.stream_reader(view[at:end], closefd=False) as stream:
            while piece := stream.read(_STEP):
                yield piece
    except zstandard.ZstdError as error:
        raise _damaged("zstd", at, error) from error
    return end


def frame_end(view: memoryview | bytes, at: int = 0) -> int:
    """Return where the frame of zstd at `at` ends by the headers of its blocks; beyond the data if it is cut off."""
    import zstandard

    if _word(view, at) in _SKIPPABLE:
        return at + 8 + _word(view, at + 4)
    header = bytes(view[at : at + 18])
    position, last = at + zstandard.frame_header_size(header), False
    while not last:
        if position + 3 > len(view):
            return len(view) + 1
        block = int.from_bytes(view[position : position + 3], "little")
        last, run_length = bool(block & 1), block >> 1 & 3 == 1
        position += 3 + (1 if run_length else block >> 3)
    return position + (4 if zstandard.get_frame_parameters(header).has_checksum else 0)


def _word(view: memoryview | bytes, at: int) -> int:
    return int.from_bytes(view[at : at + 4], "little")


def _cut_off(method: Method, size: int) -> DataLossError:
    return DataLossError(f"Data compressed by {method} are cut off after {size} bytes")


def _damaged(method: Method, at: int, error: Exception) -> DataLossError:
    return DataLossError(f"Data compressed by {method} are damaged near byte {at}: {error}")


class _Deflate:
    """The decompressor of `zlib` with the manners of those of `bz2` and `lzma`."""

    def __init__(self) -> None:
        self._machine = zlib.decompressobj(31)

    def decompress(self, data: memoryview, limit: int) -> bytes:
        return self._machine.decompress(self._machine.unconsumed_tail + data, limit)

    @property
    def eof(self) -> bool:
        return self._machine.eof

    @property
    def needs_input(self) -> bool:
        return not self._machine.unconsumed_tail

    @property
    def unused_data(self) -> bytes:
        return self._machine.unused_data


_MACHINES: Mapping[str, Callable[[], Any]] = {
    "gzip": _Deflate,
    "bz2": bz2.BZ2Decompressor,
    "xz": lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_MEMORY),
}

# Formats that are recognised without a driver of ours being needed.


def _webp(head: bytes, tail: bytes) -> bool:  # noqa: ARG001  # the contract of `Detection.matches`
    return head[:4] == b"RIFF" and head[8:12] == b"WEBP" and head[12:16] in (b"VP8 ", b"VP8L", b"VP8X")


_BRANDS = (b"avif", b"heic", b"heix", b"mif1", b"msf1")
_IMAGE_TOOL = "to open it: pip install 'fsstore[images]'"

IMAGES: tuple[Detection, ...] = (
    Detection("avif", "array", signatures=tuple(((4, b"ftyp" + brand),) for brand in _BRANDS), tool=_IMAGE_TOOL),
    Detection("bmp", "array", signatures=(((0, b"BM"),),), tool=_IMAGE_TOOL),
    Detection("jpeg", "array", signatures=(((0, b"\xff\xd8\xff"),),), tool=_IMAGE_TOOL),
    Detection("png", "array", signatures=(((0, b"\x89PNG\r\n\x1a\n"),),), tool=_IMAGE_TOOL),
    Detection(
        "tiff",
        "array",
        signatures=tuple(((0, magic),) for magic in (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")),
        at_least=32,
        tool=_IMAGE_TOOL,
    ),
    Detection("webp", "array", matches=_webp, head=32, at_least=32, tool=_IMAGE_TOOL),
)
"""Images, each with a driver of its name."""

FOREIGN: tuple[Detection, ...] = (
    Detection(
        "n5",
        "array",
        files=("attributes.json",),
        read_whole=True,
        title="N5",
        tool="tensorstore or zarr-python 2 read it",
    ),
    Detection("neuroglancer-precomputed", "array", files=("info",), title="Neuroglancer precomputed"),
    Detection("json", "array", matches=is_whole_json, head=32, tail=64),
)
"""Everything else."""
