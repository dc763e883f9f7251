"""The methods of the filesystems that block until the coroutine of the same name is done.

fsspec makes them anew for every filesystem, by looking at each name it knows: 0.3 ms, more than opening a local store
takes.  Here they are made once.  (`walk` is fsspec's own, over `ls`.)

Data at hand (in a store that never waits) are read at once, on the thread that asks: the way to the event loop and
back takes 0.1 ms, looking at a file 0.02.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, ClassVar

from fsspec.asyn import AsyncFileSystem, sync
from fsspec.spec import AbstractFileSystem

from fsstore.runtime import execution

__all__ = ["BlockingFileSystem"]


def _blocking(name: str) -> Callable[..., Any]:
    """Return the method `name`, which runs the coroutine `_name` on the filesystem's event loop."""

    @wraps(getattr(AbstractFileSystem, name))
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return sync(self.loop, getattr(self, f"_{name}"), *args, **kwargs)

    return method


def _reading(name: str) -> Callable[..., Any]:
    """Return the method `name`, which awaits nothing but the store, and runs here if that is at hand."""
    blocking = _blocking(name)

    @wraps(blocking)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self._is_at_hand(blocking=True):
            return execution.drive(getattr(self, f"_{name}")(*args, **kwargs))
        return blocking(self, *args, **kwargs)

    return method


class BlockingFileSystem(AsyncFileSystem):  # type: ignore[misc]  # fsspec is untyped
    """An asynchronous filesystem with the blocking methods that fsspec would give each instance."""

    mirror_sync_methods: ClassVar[bool] = False

    def _is_at_hand(self, *, blocking: bool = False) -> bool:
        """Return whether nothing has to be waited for, once the place is open, which is `blocking`."""
        return False

    cat = _blocking("cat")
    cat_file = _reading("cat_file")
    cat_ranges = _reading("cat_ranges")
    copy = _blocking("copy")
    cp_file = _blocking("cp_file")
    du = _blocking("du")
    exists = _reading("exists")
    expand_path = _blocking("expand_path")
    find = _reading("find")
    get = _blocking("get")
    get_file = _blocking("get_file")
    glob = _blocking("glob")
    info = _reading("info")
    isdir = _reading("isdir")
    isfile = _reading("isfile")
    ls = _reading("ls")
    makedirs = _blocking("makedirs")
    mkdir = _blocking("mkdir")
    pipe = _blocking("pipe")
    pipe_file = _blocking("pipe_file")
    put = _blocking("put")
    put_file = _blocking("put_file")
    rm = _blocking("rm")
    rm_file = _blocking("rm_file")
    size = _reading("size")
    sizes = _blocking("sizes")
