"""How the resources of a store are written down, so that opening the JSON again shares what was shared.

A store remembers its resources as `ContextResource` objects; a tree of stores has one `context` member for all of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fsstore.context.context import ContextResource, ResourceRef
from fsstore.values.json_value import Json

__all__ = ["ResourceNames"]


class ResourceNames:
    """Names for the resources of one printed spec, and the `context` member that defines them.

    A resource keeps its key; several with one key are numbered in the order given.  `listed` writes every reference
    as a list of one, which tells a bound resource from a name still to be looked up.
    """

    def __init__(self, resources: Iterable[ContextResource], *, listed: bool = False) -> None:
        self._listed = listed
        by_key: dict[str, list[ContextResource]] = {}
        for resource in resources:
            same = by_key.setdefault(resource.key, [])
            if resource.key and not any(other is resource for other in same):
                same.append(resource)
        self._names: dict[int, str] = {}
        self.context: dict[str, Json] = {}
        taken = set(by_key)
        for key, same in by_key.items():
            for resource in same:
                name = key if len(same) == 1 else _numbered(resource.kind.name, taken)
                self._names[id(resource)] = name
                self.context[name] = resource.to_json()

    def member(self, resource: ContextResource) -> ResourceRef | None:
        """Return the spec member that refers to `resource`, or None if the default reference does."""
        name = self._names.get(id(resource))
        if name is None:
            plain: Any = resource.to_json()
            return [plain] if self._listed else plain
        if self._listed:
            return [name]
        return None if name == resource.kind.name else name


def _numbered(kind: str, taken: set[str]) -> str:
    number = 0
    while f"{kind}#{number}" in taken:
        number += 1
    taken.add(f"{kind}#{number}")
    return f"{kind}#{number}"
