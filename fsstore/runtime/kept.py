"""Values that a process keeps by name for work that is sent to it in many small pieces; the names used last stay.

A worker opens the stores of a job once, and finds them here for each task of the job.  A forked child begins empty,
because open stores may have connections and threads of the parent.
"""

from __future__ import annotations

from collections import OrderedDict
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any

from fsstore.runtime import fork
from fsstore.runtime.state import OfProcess
from fsstore.runtime.tuning import KEPT_JOBS

__all__ = ["keep", "kept", "shares_memory"]


_values: OfProcess[OrderedDict[str, Any]] = OfProcess(OrderedDict)
_lock = fork.lock()


def keep(name: str, value: Any) -> Any:
    """Keep a value under a name unless there is one; return the one that is kept."""
    with _lock:
        found = _values.now.setdefault(name, value)
        _values.now.move_to_end(name)
        while len(_values.now) > KEPT_JOBS:
            _values.now.popitem(last=False)
        return found


def kept(name: str) -> Any:
    """Return the value of a name, or None."""
    with _lock:
        return _values.now.get(name)


def shares_memory(executor: Executor) -> bool:
    """Return whether an executor works in this process, where nothing has to be sent."""
    return isinstance(executor, ThreadPoolExecutor)
