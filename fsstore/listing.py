"""`list_arrays` and `tree`: which arrays there are below a URL, without opening them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fsstore import _runtime
from fsstore._json import dumps
from fsstore.context import Context
from fsstore.driver.auto import enter_group
from fsstore.errors import NotFoundError
from fsstore.kvstore.hierarchy import Node, hierarchy

__all__ = ["ArrayEntry", "list_arrays", "tree"]


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


def list_arrays(url: Any, **storage_options: Any) -> list[ArrayEntry]:
    """Return the arrays below a URL, in order of their paths.

    Archives, databases and reference sets are entered.  Consolidated metadata are used where they are; otherwise keys
    are listed and the metadata read together.  A place without arrays,
    or none at all, gives an empty list.

    >>> list_arrays({"driver": "memory"})
    []
    """
    found = _runtime.call(_nodes(url, storage_options))
    return [_entry(node) for node in found.values() if node.kind == "array"]


def tree(url: Any, **storage_options: Any) -> str:
    """Return the groups and arrays below a URL as indented text, one a line.

    >>> print(tree({"driver": "memory"}))
    /
    """
    lines = ["/"]
    nodes = _runtime.call(_nodes(url, storage_options))
    known = set(nodes)
    for path in nodes:
        parts = path.split("/")
        known |= {"/".join(parts[:depth]) for depth in range(1, len(parts))}
    below = sorted(known - {""}, key=lambda each: each.split("/"))
    lines += [_line(path, nodes.get(path)) for path in below]
    root = nodes.get("")
    if root is not None and root.kind == "array":
        lines[0] = f"/ {_about(_entry(root))}"
    return "\n".join(lines)


def _line(path: str, node: Node | None) -> str:
    indent, name = "  " * (path.count("/") + 1), path.rpartition("/")[2]
    if node is None or node.kind == "group":
        return f"{indent}{name}/"
    return f"{indent}{name} {_about(_entry(node))}"


def _about(entry: ArrayEntry) -> str:
    chunks = "" if entry.chunks is None else f" in chunks of {_shape(entry.chunks)}"
    return f"{entry.dtype} {_shape(entry.shape)}{chunks}"


def _shape(shape: tuple[int, ...]) -> str:
    return f"({', '.join(map(str, shape))})"


async def _nodes(url: Any, storage_options: Mapping[str, Any]) -> dict[str, Node]:
    from fsstore.filesystem.place import Target, open_target

    context = Context()
    base = await open_target(Target(url, None, dict(storage_options)), context)
    directory, found = await enter_group(base, context)
    try:
        return await hierarchy(directory.prefix, known=found.answers)
    except NotFoundError:  # an empty file: no directory, and nothing in it
        return {}


def _sizes(value: Any) -> tuple[int, ...] | None:
    if isinstance(value, list) and all(isinstance(size, int) for size in value):
        return tuple(value)
    return None


_MEMBERS = {
    "zarr2": ("shape", "chunks", "dtype"),
    "zarr3": ("shape", "chunk_shape", "data_type"),
    "n5": ("dimensions", "blockSize", "dataType"),
}


def _entry(node: Node) -> ArrayEntry:
    document = node.document
    grid = document.get("chunk_grid")
    shape, chunks, dtype = _MEMBERS[node.format]
    listed = document.get(chunks)
    if node.zarr_format == 3:
        configuration = grid.get("configuration") if isinstance(grid, dict) else None
        listed = configuration.get(chunks) if isinstance(configuration, dict) else None
    kind = document.get(dtype)
    named = kind.get("name") if isinstance(kind, dict) else kind
    return ArrayEntry(
        node.path,
        _sizes(document.get(shape)) or (),
        named if isinstance(named, str) else dumps(kind),
        _sizes(listed),
        node.zarr_format,
        node.attributes,
    )
