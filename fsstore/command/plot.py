"""Numbers as characters: an image in shades for two dimensions, a line for one, bars for a histogram."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

__all__ = ["bars", "plotted"]

_SHADES = " .:-=+*#%@"
_LEVELS = "\u2581\u2582\u2583\u2584\u2585\u2586\u2587\u2588"
_WIDTH, _HEIGHT = 72, 24


def plotted(values: Any) -> str:
    """Return a picture of one or two dimensions; others must have size one."""
    flat = np.squeeze(values)
    if flat.ndim > 2 or flat.ndim < 1:
        raise ValueError(f"A picture has one or two dimensions; the selection has shape {values.shape}")
    numbers = flat.astype("f8")
    finite = numbers[np.isfinite(numbers)]
    if not finite.size:
        return "nothing but NaN"
    low, high = float(finite.min()), float(finite.max())
    thin = numbers[:: -(-flat.shape[0] // (_WIDTH if flat.ndim == 1 else _HEIGHT))]
    if flat.ndim == 2:
        thin = thin[:, :: -(-flat.shape[1] // _WIDTH)]
    ramp = _LEVELS if flat.ndim == 1 else _SHADES
    share = np.nan_to_num((thin - low) / ((high - low) or 1), nan=-1)
    places = np.clip(share * len(ramp), 0, len(ramp) - 1).astype(int)
    lines = [
        "".join("?" if part < 0 else ramp[place] for place, part in zip(row, parts, strict=True))
        for row, parts in zip(np.atleast_2d(places).tolist(), np.atleast_2d(share).tolist(), strict=True)
    ]
    return "\n".join([*lines, f"{ramp[0]!r} is {low:g}, {ramp[-1]!r} is {high:g}"])


def bars(edges: Sequence[float], counts: Sequence[int]) -> str:
    """Return a histogram, one line a bin."""
    most = max(counts) or 1
    lines = []
    for low, count in zip(edges, counts, strict=False):
        lines.append(f"{low:>12.5g}  {'#' * round(40 * count / most):<40}  {count}")
    return "\n".join(lines)
