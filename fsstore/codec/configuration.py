"""Codec configurations: one table of members per codec, read strictly or partially.

A stored document must spell out every member that the codec needs; a spec may leave any of them open.  Both readings
come from the same table, so they cannot disagree about names, ranges or wording.  A missing optional member is left
out of the result; what it then means is decided by the codec, which alone knows its defaults.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self, TypeAlias

from fsstore.values.json_value import Fields, Json, Parser

__all__ = ["Configured", "Member", "Members", "Options", "read_options"]


@dataclass(frozen=True, slots=True)
class Member:
    """One member of a configuration.  `stored` says that a stored document must have it."""

    parse: Parser[Any]
    stored: bool = False


Members: TypeAlias = Mapping[str, Member]
Options: TypeAlias = Mapping[str, Any]


def read_options(members: Members, configuration: Mapping[str, Json]) -> dict[str, Any]:
    """Return the members present, parsed.  Raises `JsonError` with every problem of the configuration."""
    fields = Fields(configuration)
    out: dict[str, Any] = {}
    for name, member in members.items():
        if name in fields:
            out[name] = fields.take(name, member.parse)
        elif member.stored:
            fields.require(name, member.parse)
    fields.finish()
    return out


class Configured:
    """The part of a codec whose fields are its configuration: a frozen dataclass with a table of its `members`."""

    __slots__ = ()

    members: ClassVar[Members] = {}

    @classmethod
    def from_json(cls, configuration: Mapping[str, Json]) -> Self:
        """Return the codec of a stored configuration."""
        return cls(**read_options(cls.members, configuration))

    def to_json(self) -> dict[str, Json]:
        """Return the configuration as stored; a member that is None is left out."""
        given = {name: getattr(self, name) for name in self.members}
        return {name: value for name, value in given.items() if value is not None}
