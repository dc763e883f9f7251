"""Formats that are recognised without a driver of ours being needed: one table.

If a driver of that name is registered, it opens the file; otherwise the error names the format and a tool that reads
it.
"""

from __future__ import annotations

from fsstore.values.detection import Detection, is_whole_json

__all__ = ["FOREIGN", "IMAGES"]


def _webp(head: bytes, tail: bytes) -> bool:  # noqa: ARG001  # the contract of `Detection.matches`
    return head[:4] == b"RIFF" and head[8:12] == b"WEBP" and head[12:16] in (b"VP8 ", b"VP8L", b"VP8X")


_BRANDS = (b"avif", b"heic", b"heix", b"mif1", b"msf1")
_IMAGE_TOOL = "to open it: pip install 'fsstore[images]'"

IMAGES: tuple[Detection, ...] = (
    Detection(
        "avif", "array", signatures=tuple(((4, b"ftyp" + brand),) for brand in _BRANDS), tool=_IMAGE_TOOL
    ),
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
    Detection(
        "neuroglancer-precomputed",
        "array",
        files=("info",),
        title="Neuroglancer precomputed",
    ),
    Detection("json", "array", matches=is_whole_json, head=32, tail=64),
)
"""Everything else."""
