"""The way to the root of a store: which library serves it, and who else writes there.

`engine` names the library; left out, the store has the first of its own that can.  `fsspec` is the filesystem of the
protocol, whichever store it is.
"""

from __future__ import annotations

from collections.abc import Mapping

from fsstore.errors import UnimplementedError
from fsstore.values.json_value import Fields, Json, boolean, one_of

_BUCKET = ("obstore", "fsspec")
ENGINES: Mapping[str, tuple[str, ...]] = {
    "file": ("fsstore", "fsspec"),
    "memory": ("fsstore", "fsspec"),
    "http": ("fsstore", "obstore", "fsspec"),
    "s3": _BUCKET,
    "gcs": _BUCKET,
    "gcs_grpc": _BUCKET,
    "abfs": _BUCKET,
    "fsspec": ("fsspec",),
}
"""The engines of each kind of root, by its JSON name."""


def take_engine(fields: Fields, kind: str) -> dict[str, Json]:
    """Take `engine`."""
    engine = fields.take("engine", one_of(*ENGINES[kind]))
    return {"engine": engine} if engine else {}


def take_way(fields: Fields, kind: str) -> dict[str, Json]:
    """Take `engine`, and `single_writer`: the promise that no other process writes where this store does."""
    alone = fields.take("single_writer", boolean, default=False)
    return take_engine(fields, kind) | ({"single_writer": True} if alone else {})


def refuse_way(members: Mapping[str, Json], *names: str) -> None:
    """Raise if a URL would leave out one of these members."""
    for name in names:
        if members.get(name):
            raise UnimplementedError(f"URL syntax not supported with explicit {name}")
