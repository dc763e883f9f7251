"""`list_arrays` and `tree`: which arrays there are below a URL, without opening them."""

from __future__ import annotations

import math
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from types import MappingProxyType
from typing import Any, NamedTuple

from fsstore.context.context import Context, context_of
from fsstore.dataset.image import role_of
from fsstore.driver.auto import Hierarchy, Node, enter_group, hierarchy
from fsstore.errors import DataLossError, NotFoundError, StoreError
from fsstore.kvstore.spec_value import given_options
from fsstore.runtime import execution
from fsstore.values.json_value import dumps, one_line, quote


@dataclass(frozen=True, slots=True)
class ArrayEntry:
    """An array found in a listing.  `dtype` is named as its format names it; `path` is empty for the place itself.

    `zarr_format` is 0 for arrays of N5.
    """

    path: str
    shape: tuple[int, ...]
    dtype: str
    chunks: tuple[int, ...] | None
    zarr_format: int
    attributes: Mapping[str, Any]


def list_arrays(url: Any, *, storage_options: Mapping[str, Any] | None = None, context: Any = None) -> list[ArrayEntry]:
    """Return the arrays below a URL, in order of their paths.

    Archives, databases and reference sets are entered.  Consolidated metadata are used where they are; otherwise keys
    are listed and the metadata read together.  An array whose metadata cannot be read, or say nothing of its shape, is
    left out with a warning that names it, and so is what a file holds and cannot be shown.  A place without arrays, or
    none at all, gives an empty list.

    >>> list_arrays({"driver": "memory"})
    []
    """
    found = _look(url, storage_options, context)
    for path, why in found.left_out.items():
        warnings.warn(f"{quote(path)} is left out: {why}", stacklevel=2)
    return list(found.entries.values())


def tree(url: Any, *, storage_options: Mapping[str, Any] | None = None, context: Any = None) -> str:
    """Return the groups and arrays below a URL as indented text, one a line; what a file holds and cannot be shown
    stands there with the reason.

    >>> print(tree({"driver": "memory"}))
    /
    """
    return tree_text(_look(url, storage_options, context))


def tree_text(shown: Described) -> str:
    """Return groups and arrays by path as indented text, one a line."""
    top = _about(shown.entries[""]) if "" in shown.entries else shown.groups.get("", "")
    lines = [f"/ {top}".rstrip()]
    return "\n".join([*lines, *(_line(path, shown) for path in shown.paths())])


class Described(NamedTuple):
    """The groups and the arrays of a listing, and why objects of a scanned file are left out of it, by path."""

    groups: Mapping[str, str]
    """For each what it is among images, in a few words; nothing for most."""
    entries: Mapping[str, ArrayEntry]
    left_out: Mapping[str, str] = MappingProxyType({})

    def paths(self) -> list[str]:
        """Return all paths below the root, groups on the way included, each after the one it lies in."""
        return paths_of((*self.groups, *self.left_out), self.entries)


def paths_of(groups: Collection[str], entries: Mapping[str, ArrayEntry]) -> list[str]:
    """Return all paths below the root, groups on the way included, each after the one it lies in."""
    known = {*groups, *entries}
    for path in tuple(known):
        while (path := path.rpartition("/")[0]) and path not in known:  # up to one that is known
            known.add(path)
    return sorted(known - {""}, key=lambda each: each.split("/"))


def _look(url: Any, storage_options: Mapping[str, Any] | None, context: Any) -> Described:
    """Return the groups and the arrays below a URL; warns of metadata that cannot be read."""
    return described(execution.call(_hierarchy(url, storage_options, context_of(context))), level=4)


def described(listed: Hierarchy, level: int = 3) -> Described:
    """Return the groups and the arrays of a listing; warns, at the caller `level` frames up, of metadata that cannot be
    read.
    """
    entries: dict[str, ArrayEntry] = {}
    damaged = dict(listed.damaged)
    for path, node in listed.nodes.items():
        if node.kind == "array":
            try:
                entries[path] = entry_of(node)
            except StoreError as error:
                damaged[path] = error
    for path, why in damaged.items():
        warnings.warn(f"{quote(path or '/')} is left out: {why}", stacklevel=level)
    groups = {path: role_of(node.attributes) for path, node in listed.nodes.items() if node.kind == "group"}
    return Described(groups, entries, listed.left_out)


def _line(path: str, shown: Described) -> str:
    indent, name = "  " * (path.count("/") + 1), one_line(path.rpartition("/")[2])
    entry, why = shown.entries.get(path), shown.left_out.get(path)
    if why is not None:
        return f"{indent}{name} is left out: {one_line(why)}"
    return (
        f"{indent}{name}/ {shown.groups.get(path, '')}".rstrip() if entry is None else f"{indent}{name} {_about(entry)}"
    )


def _about(entry: ArrayEntry) -> str:
    chunks = "" if entry.chunks is None else f" in chunks of {_shape(entry.chunks)}"
    return f"{entry.dtype} {_shape(entry.shape)}{chunks}"


def _shape(shape: tuple[int, ...]) -> str:
    return f"({', '.join(map(str, shape))})"


async def _hierarchy(url: Any, storage_options: Mapping[str, Any] | None, context: Context) -> Hierarchy:
    from fsstore.filesystem.place import Target, open_target

    base = await open_target(Target(url, None, given_options(storage_options)), context)
    directory, found = await enter_group(base, context)
    try:
        return await hierarchy(directory.prefix, known=found.answers)
    except NotFoundError:  # an empty file: no directory, and nothing in it
        return Hierarchy({}, {})


def _sizes(value: Any) -> tuple[int, ...] | None:
    if isinstance(value, list) and all(isinstance(size, int) for size in value):
        return tuple(value)
    return None


_MEMBERS = {
    "zarr2": ("shape", "chunks", "dtype"),
    "zarr3": ("shape", "chunk_shape", "data_type"),
    "n5": ("dimensions", "blockSize", "dataType"),
}


def entry_of(node: Node) -> ArrayEntry:
    """Return what the metadata of an array say; raise if they do not say its shape or type."""
    document = node.document
    grid = document.get("chunk_grid")
    shape, chunks, dtype = _MEMBERS[node.format]
    listed = document.get(chunks)
    if node.zarr_format == 3:
        configuration = grid.get("configuration") if isinstance(grid, dict) else None
        listed = configuration.get(chunks) if isinstance(configuration, dict) else None
    sizes, kind = _sizes(document.get(shape)), document.get(dtype)
    if sizes is None or kind is None:
        raise DataLossError(f"its metadata hold no {quote(shape if sizes is None else dtype)}")
    named = kind.get("name") if isinstance(kind, dict) else kind
    return ArrayEntry(
        node.path,
        sizes,
        named if isinstance(named, str) else dumps(kind),
        _sizes(listed),
        node.zarr_format,
        node.attributes,
    )


# A tree of groups and arrays for notebooks: it opens and closes, without a script.

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
    begun: list[str] = []  # the open groups, each with a trailing slash
    for path in paths:
        while begun and not path.startswith(begun[-1]):
            begun.pop()
            yield _CLOSE
        name, entry = escape(path.rpartition("/")[2]), shown.entries.get(path)
        if path in shown.left_out:
            yield f"<div style='{_DIM}'><s>{name}</s> is left out: {escape(shown.left_out[path])}</div>"
        elif entry is None:
            is_open = " open" if not begun else ""
            role = (
                f" <span style='{_DIM}'>{escape(shown.groups.get(path, ''))}</span>" if shown.groups.get(path) else ""
            )
            yield f"<details{is_open}><summary>{name}/{role}</summary><div style='{_INNER}'>"
            begun.append(f"{path}/")
        else:
            size = f"<span style='{_DIM}'>{_size_in_html(entry)}</span>"
            yield f"<div title='{_attributes(entry)}'><b>{name}</b> {size}</div>"
    yield _CLOSE * len(begun)


def _size_in_html(entry: ArrayEntry) -> str:
    shape = _TIMES.join(map(str, entry.shape)) or "scalar"
    chunks = ""
    if entry.chunks and all(entry.chunks):
        count = math.prod(-(-size // step) for size, step in zip(entry.shape, entry.chunks, strict=False))
        chunks = f", {count:,} chunk{'s' if count != 1 else ''} of {_TIMES.join(map(str, entry.chunks))}"
    return f"{escape(entry.dtype)} {shape}{chunks}"


def _attributes(entry: ArrayEntry) -> str:
    lines = [f"{name}: {str(value)[:80]}" for name, value in list(entry.attributes.items())[:20]]
    return escape("\n".join(lines), quote=True)
