"""Sets of FITS files, corrected by what the header says.

kerchunk's scanner gives a scaled image the type of the stored integers and multiplies where FITS divides, and takes it
that columns of an ASCII table are one character apart, which is not so in most files.  Both can be told from the cards
of the header, which it writes into the attributes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

__all__ = ["repaired"]


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
