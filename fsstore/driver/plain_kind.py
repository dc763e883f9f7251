"""The usual kind of array driver: defaults of all that a kind may say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fsstore.driver.contract import Role
from fsstore.errors import StoreError, UnimplementedError
from fsstore.index import IndexDomain, IndexTransform
from fsstore.schema.schema import Schema
from fsstore.values.json_value import Fields, Json

__all__ = ["OwnSpace", "PlainKind"]


class OwnSpace:
    """The part of a kind whose array has the domain and the constraints that the spec speaks of."""

    __slots__ = ()

    def base_transform(
        self, members: Mapping[str, Any], transform: IndexTransform, base: IndexDomain | None
    ) -> IndexTransform | None:
        """Return the view itself."""
        return transform

    def beneath(self, members: Mapping[str, Any], schema: Schema) -> Schema:
        """Return the constraints themselves."""
        return schema


@dataclass(frozen=True, slots=True)
class PlainKind(OwnSpace):
    """A kind without members that adds nothing to the schema; a `DriverKind` once it has `open`."""

    id: str
    schemes: tuple[str, ...] = ()
    role: Role = "standalone"
    has_mode: bool = False
    resources: tuple[str, ...] = ()

    @property
    def defaults(self) -> Mapping[str, Json]:
        """No members have defaults."""
        return {}

    def members(self, fields: Fields) -> dict[str, Any]:
        """Take no members."""
        return {}

    def constrain(self, members: Mapping[str, Any], schema: Schema) -> Schema:
        """Return the schema."""
        return schema

    def known(self, members: Mapping[str, Any], schema: Schema, bases: Sequence[Schema]) -> Schema:
        """Return what members and schema say of the array."""
        return self.constrain(members, schema)

    def kvstore_path(self, path: str) -> str:
        """Return the path as it is."""
        return path

    def from_url(self, rest: str) -> tuple[str, dict[str, Any]]:
        """Refuse anything after the colon."""
        if rest:
            raise StoreError("Path not supported")
        return "", {}

    def to_url(self, members: Mapping[str, Any]) -> str:
        """Return the scheme, if there is one."""
        if not self.schemes:
            raise UnimplementedError("URL representation not supported")
        return f"{self.schemes[0]}:"
