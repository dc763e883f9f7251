"""Where the documents of a repository are read: its root, snapshots, manifests.

Everything but the root is immutable and kept, in the pool of the context and in a few megabytes of its own.
A branch is looked up again as often as the staleness bound of reads says; of a far repository at most once a second.
An object that something refers to and that is not there is an error, never "missing".
"""

from __future__ import annotations

import json
import re
import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple
from urllib.parse import quote as percent_encode

from fsstore.errors import DataLossError, NotFoundError, StoreError
from fsstore.icechunk.document import (
    ArrayChunks,
    ChunkManifest,
    HierarchySnapshot,
    Repo,
    SnapshotNode,
    decode_manifest,
    decode_repo,
    decode_snapshot,
)
from fsstore.icechunk.encoding import containers_of_yaml, decode_identifier, encode_identifier
from fsstore.icechunk.tuning import SNAPSHOTS_KEPT_BYTES, TRUSTED_S
from fsstore.kvstore.contract.driver import NO_VALUE, UNKNOWN, KvPrefix, Read, ReadResult, now
from fsstore.runtime.cache_pool import CachePool
from fsstore.values.json_value import loads, quote

# The name of what is read: `branch.NAME`, `tag.NAME`, or the 20 characters of a snapshot.


MAIN = "branch.main"


class Selector(NamedTuple):
    """A branch or tag by its name, or a snapshot by its identifier."""

    by: Literal["branch", "tag", "snapshot"]
    name: str

    def __str__(self) -> str:
        """Return the text it is parsed from."""
        return self.name if self.by == "snapshot" else f"{self.by}.{self.name}"


def parse_selector(text: str) -> Selector:
    """Return what a text names.

    >>> parse_selector("tag.v5")
    Selector(by='tag', name='v5')
    >>> str(parse_selector("1cechnkrep0f1rstcmt0"))
    '1CECHNKREP0F1RSTCMT0'
    """
    kind, dot, name = text.partition(".")
    if dot and name and kind == "branch":
        return Selector("branch", name)
    if dot and name and kind == "tag":
        return Selector("tag", name)
    if dot or len(text) != 20:
        raise StoreError(
            f'Expected "branch.NAME", "tag.NAME" or the 20 characters of a snapshot, but received: {quote(text)}'
        )
    return Selector("snapshot", encode_identifier(decode_identifier(text)))


# Which array and which chunk a key names.


DOCUMENT = "zarr.json"
_COORDINATE = re.compile(r"0|[1-9][0-9]{0,9}")


@dataclass(frozen=True, slots=True)
class KeyForm:
    """How the chunks of an array are called below its path: `c/0/1`, `c.0.1`, `0.1` or `0/1`."""

    prefixed: bool = True
    separator: str = "/"

    def parse(self, name: str) -> tuple[int, ...] | None:
        """Return the index of a chunk by its name, or None if it is the name of none.

        >>> KeyForm().parse("c/0/12"), KeyForm().parse("c"), KeyForm().parse("c/01")
        ((0, 12), (), None)
        """
        parts = name.split(self.separator)
        if self.prefixed:
            if parts[0] != "c":
                return None
            parts = parts[1:]
        if not all(map(_COORDINATE.fullmatch, parts)):
            return None
        index = tuple(map(int, parts))
        return index if max(index, default=0) < 2**32 else None

    def name(self, index: Sequence[int]) -> str:
        """Return the name of a chunk; a scalar is `c` or `0`."""
        parts = [*("c" for _ in range(self.prefixed)), *map(str, index)]
        return self.separator.join(parts) or "0"


def form_of(document: memoryview) -> KeyForm:
    """Return how an array calls its chunks, by its document; the usual way if that does not say."""
    try:
        encoding = loads(bytes(document)).get("chunk_key_encoding")
    except (StoreError, AttributeError):
        return KeyForm()  # what is wrong with it is said when the array is opened
    if isinstance(encoding, str):
        encoding = {"name": encoding}
    if not isinstance(encoding, Mapping):
        return KeyForm()
    inner = encoding.get("configuration")
    separator = inner.get("separator") if isinstance(inner, Mapping) else None
    plain = encoding.get("name") == "v2"
    return KeyForm(not plain, separator if separator in (".", "/") else "." if plain else "/")


def array_of(key: str, nodes: Mapping[str, SnapshotNode]) -> tuple[SnapshotNode, str] | None:
    """Return the array with the longest path that a key begins with, and the rest of the key."""
    at = len(key)
    while True:
        at = key.rfind("/", 0, at)
        node = nodes.get(key[: max(at, 0)])
        if node is not None:
            return (node, key[at + 1 :]) if node.is_array else None
        if at <= 0:
            return None


_ROOT = "repo"
_MOST_FORMS = 100_000
_UNENCODED = string.ascii_letters + string.digits + " !$&'()+,-.:;=@_"


@dataclass(slots=True)
class PinnedSnapshot:
    """A snapshot, which the ref named at `time`; `generation` is that of the object that said so."""

    snapshot: HierarchySnapshot
    generation: bytes
    time: float


@dataclass(slots=True)
class _Named:
    """The snapshot that a ref names, and the object at `key`, with its generation, that says so."""

    snapshot: bytes
    key: str = ""
    generation: bytes = UNKNOWN


class Repository:
    """The repository in the directory `base`, of which `selector` is read."""

    def __init__(self, base: KvPrefix, selector: Selector, pool: CachePool | None) -> None:
        self.base, self.selector = base, selector
        self._pool = pool
        self._own = CachePool(SNAPSHOTS_KEPT_BYTES)
        self._owner = ("icechunk", base.describe())
        self._session: PinnedSnapshot | None = None
        self._named: _Named | None = None
        self._newest: dict[bytes, ChunkManifest] = {}
        self._containers: Mapping[str, str] | None = None
        self._forms: dict[tuple[bytes, str], KeyForm] = {}

    @property
    def described(self) -> str:
        """How messages call what is read."""
        return f"Icechunk repository {self.base.describe()} at {self.selector}"

    def form(self, session: PinnedSnapshot, node: SnapshotNode) -> KeyForm:
        """Return how an array calls its chunks."""
        key = (session.snapshot.id, node.path)
        form = self._forms.get(key)
        if form is None:
            if len(self._forms) >= _MOST_FORMS:
                self._forms.clear()
            form = self._forms[key] = form_of(node.document)
        return form

    async def session(self, newest: float = float("inf")) -> PinnedSnapshot:
        """Return the snapshot that is named at `newest` or later."""
        last, named = self._session, self._named
        if last is not None and named is not None:
            trusted = TRUSTED_S if self.base.driver.features.waits else 0.0
            if self.selector.by != "branch" or last.time >= newest or now() - last.time < trusted:
                return last
            if await self._is_current(named):
                self._session = PinnedSnapshot(last.snapshot, last.generation, now())
                return self._session
        time = now()
        named = await self._resolve()
        if last is None or last.snapshot.id != named.snapshot:
            snapshot = await self._snapshot(named.snapshot)
        else:
            snapshot = last.snapshot
        self._named, self._session = named, PinnedSnapshot(snapshot, named.snapshot, time)
        return self._session

    async def _is_current(self, named: _Named) -> bool:
        if named.generation in (UNKNOWN, NO_VALUE):
            return False
        found = (await self.base.read_many([Read(named.key, 0, None, named.generation)]))[0]
        return found.state == "unspecified"

    async def _resolve(self) -> _Named:
        if self.selector.by == "snapshot":
            return _Named(decode_identifier(self.selector.name))
        if self._named is None or self._named.key == _ROOT:
            found = await self.base.read(_ROOT)
            if found.state == "value":
                return self._named_by_root(found)
        return await self._named_by_file()

    def _named_by_root(self, found: ReadResult) -> _Named:
        repo: Repo = self._decode(decode_repo, found.value, _ROOT)
        self._containers = repo.containers
        known = repo.branches if self.selector.by == "branch" else repo.tags
        if self.selector.name not in known:
            raise self._unknown(sorted(known))
        return _Named(known[self.selector.name], _ROOT, found.generation)

    async def _named_by_file(self) -> _Named:
        """Return what a ref of format version 1 names; a tag that was deleted has a mark beside it."""
        names = dict.fromkeys((_folder(self.selector), str(self.selector)))
        if any("/" in name or name in ("", ".", "..") for name in names):
            raise self._unknown(None)
        keys = [f"refs/{name}/ref.json" for name in names]
        marks = [f"{key}.deleted" for key in keys if self.selector.by == "tag"]
        found = await self.base.read_many([Read(key) for key in (*keys, *marks)])
        if any(answer.state == "value" for answer in found[len(keys) :]):
            raise self._unknown(None)
        for key, answer in zip(keys, found, strict=False):
            if answer.state == "value":
                return _Named(self._decode(_snapshot_of_ref, answer.value, key), key, answer.generation)
        if self.selector == ("branch", "main"):
            raise NotFoundError(f"There is no Icechunk repository at {self.base.describe()}")
        raise self._unknown(None)

    def _unknown(self, known: Sequence[str] | None) -> NotFoundError:
        listed = "" if known is None else f"; there are: {', '.join(map(quote, known[:20])) or 'none'}"
        name = f"{self.selector.by} {quote(self.selector.name)}"
        return NotFoundError(f"There is no {name} in the Icechunk repository {self.base.describe()}{listed}")

    async def _snapshot(self, identifier: bytes) -> HierarchySnapshot:
        key = f"snapshots/{encode_identifier(identifier)}"
        kept: HierarchySnapshot | None = self._get(key)
        if kept is not None:
            return kept
        found = await self.base.read(key)
        if found.state != "value":
            raise self._absent(key)
        snapshot: HierarchySnapshot = self._decode(
            partial(decode_snapshot, expected=identifier), found.value, key
        )
        self._put(key, snapshot, snapshot.nbytes)
        return snapshot

    def chunks(self, session: PinnedSnapshot, node: SnapshotNode) -> ArrayChunks:
        """Return where the chunks of an array of a snapshot are found."""
        key = f"snapshots/{session.snapshot.name} {node.path}"
        kept: ArrayChunks | None = self._get(key)
        if kept is None:
            kept = self._decode(lambda _: node.chunks(), b"", f"snapshots/{session.snapshot.name}")
            self._put(key, kept, 200 + 200 * len(kept.manifests))
        return kept

    async def manifests(self, identifiers: Sequence[bytes]) -> dict[bytes, ChunkManifest]:
        """Return manifests by their identifiers; those that are not kept are read together."""
        out: dict[bytes, ChunkManifest] = {}
        wanted: dict[bytes, str] = {}
        for identifier in identifiers:
            key = f"manifests/{encode_identifier(identifier)}"
            kept = self._newest.get(identifier) or self._get(key)
            if kept is None:
                wanted[identifier] = key
            else:
                out[identifier] = kept
        answers = await self.base.read_many([Read(key) for key in wanted.values()]) if wanted else []
        for (identifier, key), answer in zip(wanted.items(), answers, strict=True):
            if answer.state != "value":
                raise self._absent(key)
            made = self._decode(partial(decode_manifest, expected=identifier), answer.value, key)
            out[identifier] = made
            self._put(key, made, 2 * made.nbytes)  # columns may come
        if wanted:
            self._newest = {identifier: out[identifier] for identifier in identifiers}
        return out

    async def containers(self) -> Mapping[str, str]:
        """Return the URL prefixes of virtual chunk containers by their names."""
        if self._containers is None:
            root = await self.base.read(_ROOT)
            if root.state == "value":
                self._containers = self._decode(decode_repo, root.value, _ROOT).containers
            else:
                found = await self.base.read("config.yaml")
                text = bytes(found.value).decode("utf-8", "replace") if found.state == "value" else ""
                self._containers = containers_of_yaml(text)
        return self._containers

    def _decode(self, decode: Callable[[bytes], Any], value: Any, key: str) -> Any:
        try:
            return decode(bytes(value))
        except StoreError as error:
            raise error.within(f"Error reading {self.base.describe(key)}") from error

    def _absent(self, key: str) -> DataLossError:
        return DataLossError(
            f"{self.base.describe(key)} is referred to, but does not exist;"
            " if its snapshot has expired, open a newer one"
        )

    def _get(self, key: str) -> Any:
        found = self._own.get(key)
        return found if found is not None or self._pool is None else self._pool.get((*self._owner, key))

    def _put(self, key: str, value: Any, size: int) -> None:
        self._own.put(key, value, size)
        if self._pool is not None:
            self._pool.put((*self._owner, key), value, size)


def _folder(selector: Selector) -> str:
    """Return the folder of a ref as local repositories call it: most marks and all other letters percent-encoded."""
    return percent_encode(str(selector).encode("utf-8", "surrogateescape"), safe=_UNENCODED).replace(
        "~", "%7E"
    )


def _snapshot_of_ref(data: bytes) -> bytes:
    try:
        name = json.loads(data)["snapshot"]
    except (ValueError, KeyError, TypeError) as error:
        raise DataLossError('The object is no JSON with a member "snapshot"; at offset 0') from error
    if not isinstance(name, str):
        raise DataLossError("The name of the snapshot is no string; at offset 0")
    return decode_identifier(name)
