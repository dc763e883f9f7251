"""Sets of FITS files, corrected by what the header says.

kerchunk's scanner gives a scaled image the type of the stored integers and multiplies where FITS divides, and takes it
that columns of an ASCII table are one character apart, which is not so in most files.  Both can be told from the cards
of the header, which it writes into the attributes.  Compressed images it takes for plain ones; they are refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from fsstore.errors import UnimplementedError

__all__ = ["refuse_compressed", "repaired"]


def refuse_compressed(refs: Mapping[str, Any], units: Any, compressed: type) -> None:
    """Raise an error if an array is a compressed image: its references are to a table of tiles, not to numbers.

    `units` are those of the file, as astropy opens it; kerchunk names arrays by name or, without one, by number.
    """
    for key in refs:
        name = key.removesuffix("/.zarray")
        if name != key and isinstance(units[int(name) if name.isdigit() else name], compressed):
            raise UnimplementedError(
                f'"{name}" is a compressed image, which references cannot describe; choose others with `extension`'
            )


def repaired(refs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the references of a FITS file with scaled images and ASCII tables as the header describes them."""
    out = dict(refs)
    for key in refs:
        path, _, name = key.rpartition("/")
        if name == ".zarray" and f"{path}/.zattrs" in refs:
            _repair(out, path, json.loads(refs[key]), json.loads(refs[f"{path}/.zattrs"]))
    return out


def _repair(refs: dict[str, Any], path: str, array: dict[str, Any], cards: Mapping[str, Any]) -> None:
    """Correct one array in place."""
    for codec in array["filters"] or ():
        if codec["id"] == "fixedscaleoffset":
            codec["scale"] = 1 / float(cards.get("BSCALE", 1))
            array["dtype"] = codec["dtype"]
        elif codec["id"] == "FITSAscii":
            codec["indtypes"] = _columns(codec["outdtypes"], cards)
            url, offset, _ = refs[f"{path}/0"]
            refs[f"{path}/0"] = [url, offset, int(cards["NAXIS1"]) * int(cards["NAXIS2"])]
        else:
            continue
        refs[f"{path}/.zarray"] = json.dumps(array)


def _columns(fields: list[Any], cards: Mapping[str, Any]) -> list[list[str]]:
    """Return the columns of a row of text, each as far as the next one begins."""
    starts = [int(cards[f"TBCOL{number}"]) - 1 for number in range(1, len(fields) + 1)]
    stops = [*starts[1:], int(cards["NAXIS1"])]
    starts[0] = 0
    widths = (stop - start for start, stop in zip(starts, stops, strict=True))
    return [[field[0], f"S{width}"] for field, width in zip(fields, widths, strict=True)]
