"""Codecs that look at each element by itself, applied to a large chunk block by block.

numcodecs computes step by step, and each step makes an array as large as the chunk, or larger, which the C library
keeps when it is freed.  A block stays in the caches of the processor, and the chunk is in memory once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from fsstore.codec.contract import Array
from fsstore.codec.numcodecs.flat import as_array
from fsstore.codec.scratch import passing
from fsstore.codec.tuning import ELEMENTWISE_BLOCK

__all__ = ["BLOCKS_BYTES", "in_blocks", "is_elementwise"]

_NAMES = frozenset({"bitround", "fixedscaleoffset", "quantize"})
BLOCKS_BYTES = 3 * 8 * ELEMENTWISE_BLOCK  # what the steps take for one


def is_elementwise(name: str, options: Mapping[str, Any]) -> bool:
    """Return whether a codec with these options does the same to every element; numcodecs takes a list for each."""
    return name in _NAMES and not any(np.ndim(option) for option in options.values())


def in_blocks(function: Callable[[Array], Any], elements: Array, dtype: np.dtype[Any]) -> Any:
    """Return what `function` makes of flat `elements`, as many of `dtype`."""
    if len(elements) <= ELEMENTWISE_BLOCK:
        return function(elements)
    out: Array = passing(len(elements) * dtype.itemsize).view(dtype)
    for start in range(0, len(elements), ELEMENTWISE_BLOCK):
        block = slice(start, start + ELEMENTWISE_BLOCK)
        out[block] = as_array(function(elements[block]), dtype)
    return out
