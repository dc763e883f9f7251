"""TIFF files put together tag by tag: JPEG of the old style, logarithms of light, colours with fewer samples than pixels."""

from __future__ import annotations

import io
import struct
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

_FORMS = {3: "H", 4: "I"}
_SAMPLING = {0: (1, 1), 1: (2, 1), 2: (2, 2)}  # by the number that Pillow gives it
_TURN = 0xD0


class Part(NamedTuple):
    """A place in one of the parts of a page that stand outside of its directory."""

    name: str
    more: int = 0


class Page(NamedTuple):
    """One picture: its tags, as types and values, and the parts that they lead to."""

    tags: dict[int, tuple[int, list[Any]]]
    parts: dict[str, bytes]


def joined(*pages: Page, letter: str = "<") -> bytes:
    """Return the file of pages."""
    out = bytearray((b"II*\0" if letter == "<" else b"MM\0*") + bytes(4))
    link = 4
    for page in pages:
        at = {}
        for name, part in page.parts.items():
            at[name] = len(out)
            out += part + bytes(len(part) % 2)
        entries = b""
        for tag, (kind, values) in sorted(page.tags.items()):
            numbers = [at[each.name] + each.more if isinstance(each, Part) else each for each in values]
            data = struct.pack(f"{letter}{len(numbers)}{_FORMS[kind]}", *numbers)
            if len(data) > 4:
                place = struct.pack(f"{letter}I", len(out))
                out += data + bytes(len(data) % 2)
                data = place
            entries += struct.pack(f"{letter}HHI", tag, kind, len(numbers)) + data.ljust(4, b"\0")
        struct.pack_into(f"{letter}I", out, link, len(out))
        out += struct.pack(f"{letter}H", len(page.tags)) + entries + bytes(4)
        link = len(out) - 4
    return bytes(out)


def page(shape: tuple[int, ...], compression: int, photometric: int, strips: list[bytes], **more: Any) -> Page:
    """Return a page of strips; `more` are `rows` of a strip, `bits`, `format` and `sampling`."""
    height, width = shape[:2]
    samples = shape[2] if len(shape) > 2 else 1
    parts = {f"strip {number}": data for number, data in enumerate(strips)}
    tags: dict[int, tuple[int, list[Any]]] = {
        256: (4, [width]),
        257: (4, [height]),
        258: (3, [more.get("bits", 8)] * samples),
        259: (3, [compression]),
        262: (3, [photometric]),
        273: (4, [Part(name) for name in parts]),
        277: (3, [samples]),
        278: (4, [more.get("rows", height)]),
        279: (4, [len(data) for data in strips]),
        339: (3, [more.get("format", 1)] * samples),
    }
    if "sampling" in more:
        tags[530] = (3, list(more["sampling"]))
    return Page(tags, parts)


def _segments(jpeg: bytes) -> tuple[list[tuple[int, bytes]], int]:
    """Return the segments of a JPEG stream, and where its scan begins."""
    at, out = 2, []
    while not out or out[-1][0] != 0xDA:
        length = int.from_bytes(jpeg[at + 2 : at + 4], "big")
        out.append((jpeg[at + 1], jpeg[at + 4 : at + 2 + length]))
        at += 2 + length
    return out, at


def _jpeg(values: Any, sampling: int, **more: Any) -> bytes:
    out = io.BytesIO()
    Image.fromarray(values).save(
        out, "JPEG", quality=90, **({"subsampling": sampling} if values.ndim > 2 else {}), **more
    )
    return out.getvalue()


def old_jpeg_stream(values: Any, sampling: int = 0) -> Page:
    """Return a page of old JPEG in one stream (JPEGInterchangeFormat), whose scan is the strip."""
    jpeg = _jpeg(values, sampling)
    scan = _segments(jpeg)[1]
    colours = values.ndim > 2
    out = page(values.shape, 6, 6 if colours else 1, [b""], **({"sampling": _SAMPLING[sampling]} if colours else {}))
    out.tags.update({513: (4, [Part("stream")]), 514: (4, [len(jpeg)])})
    out.tags.update({273: (4, [Part("stream", scan)]), 279: (4, [len(jpeg) - scan])})
    return Page(out.tags, {"stream": jpeg})


def old_jpeg_tables(values: Any, sampling: int = 0, strips: int = 1) -> Page:
    """Return a page of old JPEG in strips, whose tables stand apart (JPEGQTables and others)."""
    colours = values.ndim > 2
    across, down = (8 * each for each in (_SAMPLING[sampling] if colours else (1, 1)))
    rows = -(-values.shape[0] // strips // down) * down
    blocks = -(-values.shape[1] // across) * (rows // down)
    jpeg = _jpeg(values, sampling, restart_marker_blocks=blocks)
    segments, scan = _segments(jpeg)
    tables: dict[str, bytes] = {}
    for marker, data in segments:
        while marker in (0xDB, 0xC4) and data:
            size = 65 if marker == 0xDB else 17 + sum(data[1:17])
            name = "q" if marker == 0xDB else "ac" if data[0] >> 4 else "dc"
            tables[f"{name} {data[0] & 15}"] = data[1:size]
            data = data[size:]
    left, cut = jpeg[scan:-2], []
    for number in range(strips):
        data, _, left = left.partition(bytes((0xFF, _TURN + number % 8)))
        cut.append(data)
    more = {"rows": rows, **({"sampling": _SAMPLING[sampling]} if colours else {})}
    out = page(values.shape, 6, 6 if colours else 1, cut, **more)
    which = [0, 1, 1] if colours else [0]
    for tag, name in {519: "q", 520: "dc", 521: "ac"}.items():
        out.tags[tag] = (4, [Part(f"{name} {number}") for number in which])
    out.tags[515] = (3, [blocks])
    return Page(out.tags, {**tables, **out.parts})


def logarithms(codes: Any, *, colours: bool, bits: int, form: int) -> Page:
    """Return a page of LogL (codes of 16 bits) or LogLuv (of 32), run by run, octet by octet."""
    size = codes.dtype.itemsize
    octets = codes.astype(codes.dtype.newbyteorder(">")).view("u1").reshape(*codes.shape, size)
    data = b"".join(
        bytes((len(run),)) + run.tobytes()
        for row in octets
        for place in range(size)
        for run in np.array_split(row[:, place], -(-len(row) // 100))
    )
    shape = (*codes.shape, 3) if colours else codes.shape
    return page(shape, 34676, 32845 if colours else 32844, [data], bits=bits, format=form)
