"""A kind of key-value store, as its module registers it: its names, its JSON, its URLs, how to open it.

A `KvKind` is the static side of a driver.  `KvStore.Spec`, URL pipelines and detection are written once, over
kinds; adding a key-value store is one new file with a `KIND` and one registry line.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol

from fsstore.context.context import Context
from fsstore.errors import UnimplementedError
from fsstore.kvstore.contract.driver import KvDriver, KvPrefix
from fsstore.values.json_value import Fields, Json
from fsstore.values.url import decode_path, reject_query

__all__ = ["AdapterKind", "KindDefaults", "KvKind", "KvOpening", "RootKind"]


@dataclass(frozen=True, slots=True)
class KvOpening:
    """Everything a kind needs to open a driver.

    `members` is what `KvKind.members` returned; `resources` maps the names in `KvKind.resources` to the values of
    the context resources (`context.Resource.value`); `base` is the opened store below an adapter.
    `path` is the path of the spec, for kinds whose path selects the store; others ignore it.
    `context` is where a kind opens further stores (the targets of references, a database's manifests).
    """

    members: Mapping[str, Json] = field(default_factory=dict)
    resources: Mapping[str, Any] = field(default_factory=dict)
    base: KvPrefix | None = None
    path: str = ""
    context: Context | None = None


class KvKind(Protocol):
    """A kind of key-value store.  Implementations are plain frozen objects, one a module, called `KIND`."""

    @property
    def id(self) -> str:
        """The `driver` member in JSON."""
        ...

    @property
    def schemes(self) -> tuple[str, ...]:
        """URL schemes (`"file"`, `"zip"`, `("gs",)`), the preferred one first; may be empty."""
        ...

    @property
    def role(self) -> Literal["root", "adapter"]:
        """Whether it stands at the start of a URL pipeline (`scheme://path`) or after a store (`scheme:path`)."""
        ...

    @property
    def resources(self) -> tuple[str, ...]:
        """Names of the context resources it takes as members; the resource type is the name's."""
        ...

    @property
    def defaults(self) -> Mapping[str, Json]:
        """Members with the values that are left out of JSON, for `to_json(include_defaults=True)`."""
        ...

    @property
    def single_file(self) -> bool:
        """Whether the empty path can be a file."""
        ...

    @property
    def sequential(self) -> bool:
        """Whether reading the end of a value costs reading all of it."""
        ...

    def members(self, fields: Fields) -> dict[str, Json]:
        """Take the kind's own JSON members from `fields` and return them in canonical form, defaults left out.

        `driver`, `path`, `base`, `context` and the resources are taken by the caller.  `fields.finish` too is the
        caller's.  Values stay JSON.
        """
        ...

    def check_path(self, path: str) -> str:
        """Return the path in the form the spec keeps, or raise `StoreError` (`file` refuses `..`)."""
        ...

    def base_path(self, path: str) -> str:
        """Return the path of the base store in the form the adapter needs (`ocdbt` appends `/`)."""
        ...

    def from_url(self, scheme: str, rest: str) -> tuple[str, dict[str, Json]]:
        """Return path and members of a URL component; `rest` follows `scheme://` (root) or `scheme:` (adapter).

        `rest` is still percent-encoded; `fsstore.values.url.decode_path` decodes it.
        """
        ...

    def to_url(self, path: str, members: Mapping[str, Json]) -> str:
        """Return the URL component, scheme included, or raise `UnimplementedError` if no URL can say it."""
        ...

    def with_options(self, members: Mapping[str, Json], options: Mapping[str, Any]) -> dict[str, Json]:
        """Return the members of a root with `storage_options` put in, or raise an error that names an unknown one.

        Raises `UnimplementedError` where there are none at all.
        """
        ...

    async def open(self, opening: KvOpening) -> KvDriver:
        """Return the opened driver."""
        ...


class KindDefaults:
    """The usual kind: members have no defaults to print, and values are files that can be read in parts."""

    __slots__ = ()
    defaults: ClassVar[Mapping[str, Json]] = {}
    single_file: bool = False
    sequential: bool = False

    def with_options(self, members: Mapping[str, Json], options: Mapping[str, Any]) -> dict[str, Json]:
        """Refuse all: a store that no client library serves has none."""
        raise UnimplementedError("This kind of store has no storage options")


class RootKind(KindDefaults):
    """The usual kind at the start of a URL: any path will do, and there is no base."""

    role: Literal["root"] = "root"

    def check_path(self, path: str) -> str:
        """Return the path: any string begins a key."""
        return path

    def base_path(self, path: str) -> str:
        """Return the path: a root has no base."""
        return path


class AdapterKind(KindDefaults):
    """The usual kind behind a store in a URL, which says nothing but a path: any will do."""

    __slots__ = ()
    role: Literal["adapter"] = "adapter"

    def check_path(self, path: str) -> str:
        """Return the path: any string begins a key."""
        return path

    def base_path(self, path: str) -> str:
        """Return the path of the base as it is: that of a file, or what the keys of files begin with."""
        return path

    def from_url(self, scheme: str, rest: str) -> tuple[str, dict[str, Json]]:
        """Return the path of a URL component."""
        reject_query(rest)
        return decode_path(rest), {}
