"""How progress is shown to people: by tqdm if it is installed, as a bar in a notebook, or as a line of text."""

from __future__ import annotations

import sys
from collections.abc import Callable
from html import escape
from importlib.util import find_spec
from typing import Any

from fsstore.redaction import plain

__all__ = ["display"]


def display(what: str, total_bytes: int) -> Callable[[Any], Any]:
    """Return what shows the progress of an operation here."""
    if find_spec("tqdm") is not None:
        return _Tqdm(plain(what), total_bytes)
    if "IPython" in sys.modules and sys.modules["IPython"].get_ipython() is not None:
        return _Notebook()
    return _printed


class _Tqdm:
    """A bar of tqdm, which chooses between a terminal and a widget by itself."""

    def __init__(self, what: str, total_bytes: int) -> None:
        self._what, self._total = what, total_bytes
        self._bar: Any = None

    def __call__(self, state: Any) -> None:
        if self._bar is None:
            self._bar = self._made(state)
        done = state.nbytes + state.resumed_bytes if self._total else state.tasks + state.resumed
        if state.ended and self._total and state.share < 1 and state.total == state.tasks + state.resumed:
            self._bar.total = done  # the total was an estimate
        self._bar.n = done
        if state.retries:
            self._bar.set_postfix(retries=state.retries, refresh=False)
        self._bar.refresh()
        if state.ended:
            self._bar.close()

    def _made(self, state: Any) -> Any:
        from tqdm.auto import tqdm

        if not self._total:
            return tqdm(desc=self._what, total=state.total or None, unit="task")
        before = state.resumed_bytes
        return tqdm(desc=self._what, total=self._total, initial=before, unit="B", unit_scale=True)


class _Notebook:
    """A bar of the browser, replaced as it grows."""

    def __init__(self) -> None:
        self._handle: Any = None

    def __call__(self, state: Any) -> None:
        from IPython.display import HTML, display

        shown = HTML(f"<progress value='{state.share:.4f}' max='1'></progress> {escape(str(state))}")
        if self._handle is None:
            self._handle = display(shown, display_id=True)
        else:
            self._handle.update(shown)


def _printed(state: Any) -> None:
    is_terminal = sys.stderr.isatty()
    end = "\n" if state.ended or not is_terminal else ""
    sys.stderr.write(f"{chr(13) if is_terminal else ''}{plain(state)}{end}")
    sys.stderr.flush()
