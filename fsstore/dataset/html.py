"""A tree of groups and arrays for notebooks: it opens and closes, without a script."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from html import escape

from fsstore.dataset.listing import ArrayEntry, Described

__all__ = ["tree_html"]

_STYLE = (
    "font-family:monospace;font-size:13px;line-height:1.5;border:1px solid rgba(128,128,128,.3);"
    "border-radius:6px;padding:8px 12px;max-width:60em"
)
_TIMES = " \N{MULTIPLICATION SIGN} "
_DIM = "opacity:.65"
_INNER = "margin-left:1.1em;border-left:1px solid rgba(128,128,128,.3);padding-left:.7em"
_CLOSE = "</div></details>"
_MOST = 2000  # lines; a notebook with more is slow, and nobody reads them


def tree_html(title: str, shown: Described) -> str:
    """Return the tree under its title; what is beyond the first two thousand members is counted."""
    paths = shown.paths()
    more = f"<div style='{_DIM}'>and {len(paths) - _MOST} more</div>" if len(paths) > _MOST else ""
    inner = "".join(_pieces(paths[:_MOST], shown)) or f"<div style='{_DIM}'>empty</div>"
    return f"<div style='{_STYLE}'><div><b>{escape(title)}</b></div>{inner}{more}</div>"


def _pieces(paths: Sequence[str], shown: Described) -> Iterator[str]:
    """Yield the lines of members, each after the group it lies in; groups may be nested to any depth."""
    begun: list[str] = []  # the groups that are not closed yet, each with a slash behind it
    for path in paths:
        while begun and not path.startswith(begun[-1]):
            begun.pop()
            yield _CLOSE
        name, entry = escape(path.rpartition("/")[2]), shown.entries.get(path)
        if path in shown.left_out:
            yield f"<div style='{_DIM}'><s>{name}</s> is left out: {escape(shown.left_out[path])}</div>"
        elif entry is None:
            is_open = " open" if not begun else ""
            yield f"<details{is_open}><summary>{name}/</summary><div style='{_INNER}'>"
            begun.append(f"{path}/")
        else:
            yield f"<div title='{_attributes(entry)}'><b>{name}</b> <span style='{_DIM}'>{_about(entry)}</span></div>"
    yield _CLOSE * len(begun)


def _about(entry: ArrayEntry) -> str:
    shape = _TIMES.join(map(str, entry.shape)) or "scalar"
    chunks = ""
    if entry.chunks and all(entry.chunks):
        count = math.prod(-(-size // step) for size, step in zip(entry.shape, entry.chunks, strict=False))
        chunks = f", {count:,} chunk{'s' if count != 1 else ''} of {_TIMES.join(map(str, entry.chunks))}"
    return f"{escape(entry.dtype)} {shape}{chunks}"


def _attributes(entry: ArrayEntry) -> str:
    lines = [f"{name}: {str(value)[:80]}" for name, value in list(entry.attributes.items())[:20]]
    return escape("\n".join(lines), quote=True)
