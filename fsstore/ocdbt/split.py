"""Building of nodes: how entries are divided into nodes, encoded, and told to the level above.

The division is TensorStore's, so that both libraries write the same tree for the same entries; any other would be as
readable.  `build` works upwards level by level until one node is left.  It does no I/O: `Writer` says where
the bytes of a node will lie.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from fsstore.ocdbt.format.config import Config
from fsstore.ocdbt.format.data_file import Location
from fsstore.ocdbt.format.envelope import BTREE_NODE, seal
from fsstore.ocdbt.format.interior import Child, encode_interior
from fsstore.ocdbt.format.key_column import key_lengths, shared_prefixes
from fsstore.ocdbt.format.leaf import INLINE, Leaf, cut_leaf, encode_leaf
from fsstore.ocdbt.format.node import MAX_ENTRIES
from fsstore.ocdbt.format.varint import U64, Ints
from fsstore.ocdbt.format.version import EMPTY, TreeStatistics

__all__ = ["Builder", "Place", "Root", "pieces"]

Place = Callable[[bytes], Location]
"""Takes the bytes of a node and says where they will be stored."""


class Root(NamedTuple):
    """The root of a tree; `location` is None for an empty one."""

    height: int
    location: Location | None
    statistics: TreeStatistics


def pieces(estimates: Ints, common: int, limit: int, least: int) -> Iterator[tuple[int, int]]:
    """Yield the rows `[start, stop)` of each node.

    `estimates` are the sizes of the entries, `common` what adjacent keys share at least, `limit` the greatest size of
    a node (0: any), `least` how many entries a node has at least.
    """
    count = len(estimates)
    sums = np.concatenate((np.zeros(1, np.int64), np.cumsum(estimates - common)))
    start = 0
    while start < count:
        total = int(sums[count] - sums[start]) + common
        wanted = max(-(-(count - start) // MAX_ENTRIES), -(-total // limit) if limit else 1)
        target = -(-total // wanted)
        stop = int(np.searchsorted(sums, int(sums[start]) + target - common))
        stop = max(stop, start + max(least, 1))
        if stop >= count or stop - start >= MAX_ENTRIES:
            stop = min(count, start + MAX_ENTRIES)
        elif 0 < limit < int(sums[stop] - sums[start]) + common and stop - start > least:
            stop -= 1
        yield start, stop
        start = stop


class Builder:
    """Makes nodes as a configuration wants them and places them.

    `keep` is told of every leaf made, as decoding it would give it.
    """

    def __init__(
        self, config: Config, place: Place, keep: Callable[[Location, Leaf], None] | None = None
    ) -> None:
        self._config = config
        self._place = place
        self._keep = keep

    def leaves(self, leaf: Leaf, *, may_be_root: bool) -> list[Child]:
        """Place the nodes for all entries of a level of leaves; see `_level`."""
        lengths = key_lengths(leaf.keys)
        shared = shared_prefixes(leaf.keys, lengths)
        inline = leaf.file_ids == INLINE
        paths = np.array([len(file.name) for file in leaf.files] or [0], np.int64)
        estimates = (
            16 + lengths + np.where(inline, leaf.lengths, 16 + paths[np.where(inline, 0, leaf.file_ids)])
        )
        out: list[Child] = []
        for start, stop in self._divide(estimates, shared, lengths, least=1):
            inner = shared[start : stop - 1]
            whole = may_be_root and stop - start == len(leaf.keys)
            omit = 0 if whole else int(inner.min()) if len(inner) else int(lengths[start])
            node = cut_leaf(leaf, start, stop, omit)
            location = self._store(encode_leaf(node, inner - omit, lengths[start:stop] - omit))
            if self._keep is not None:
                self._keep(location, node)
            out.append(Child(leaf.keys[start], omit, location, node.statistics(location.length)))
        return out

    def interiors(self, children: Sequence[Child], height: int, *, may_be_root: bool) -> list[Child]:
        """Place the nodes of `height` above `children` and return them as children of the next level.

        If all go into one node and it may be the root, it leaves out no prefix.
        """
        keys = [child.key for child in children]
        lengths = key_lengths(keys)
        shared = shared_prefixes(keys, lengths)
        paths = np.array([len(child.location.file.name) for child in children], np.int64)
        out: list[Child] = []
        for start, stop in self._divide(56 + lengths + paths, shared, lengths, least=2):
            group, inner = children[start:stop], shared[start : stop - 1]
            whole = may_be_root and stop - start == len(children)
            omit = 0 if whole else int(inner.min()) if len(inner) else int(lengths[start])
            omit = min(omit, *(child.prefix_length for child in group), omit)
            body = encode_interior(group, height, omit=omit, shared=inner, lengths=lengths[start:stop])
            location = self._store(body)
            out.append(Child(keys[start], omit, location, _total(group, location.length)))
        return out

    def root(self, children: list[Child], height: int) -> Root:
        """Return the root of a tree whose topmost nodes so far are `children`, of `height`."""
        if not children:
            return Root(0, None, EMPTY)
        while len(children) > 1:
            height += 1
            children = self.interiors(children, height, may_be_root=True)
        return Root(height, children[0].location, children[0].statistics)

    def _divide(
        self, estimates: Ints, shared: Ints, lengths: Ints, *, least: int
    ) -> Iterator[tuple[int, int]]:
        common = int(shared.min()) if len(shared) else int(lengths[0])
        return pieces(estimates, common, self._config.max_decoded_node_bytes, least)

    def _store(self, body: bytes) -> Location:
        return self._place(seal(BTREE_NODE, body, self._config.level))


def _total(children: Sequence[Child], node_bytes: int) -> TreeStatistics:
    columns = list(zip(*(child.statistics for child in children), strict=True))
    return TreeStatistics(
        min(sum(columns[0]), U64), min(sum(columns[1]) + node_bytes, U64), min(sum(columns[2]), U64)
    )
