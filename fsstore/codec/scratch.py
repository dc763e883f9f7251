"""Memory for elements that are needed only until the next ones are decoded: one piece a thread, used again and again.

Memory fresh from the system costs about a tenth of the time of decompressing into it.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

__all__ = ["scratch"]

_KEPT_BYTES = 16 << 20
_thread = threading.local()


def scratch(size: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return `size` bytes of any content, which the thread's next call may hand out again."""
    kept: np.ndarray[Any, np.dtype[np.uint8]] | None = getattr(_thread, "octets", None)
    if kept is None or len(kept) < size:
        kept = np.empty(size, np.uint8)
        if size <= _KEPT_BYTES:
            _thread.octets = kept
    return kept[:size]
