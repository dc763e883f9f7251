"""Where a key-value store is and how it is opened: `KvStore.Spec`, the face of the value that is passed around."""

from __future__ import annotations

from typing import Any

from fsstore.context.context import Context, context_of
from fsstore.kvstore.spec.parse import kv_spec
from fsstore.kvstore.spec.spec_value import KvSpecValue
from fsstore.values.argument import as_flag

__all__ = ["KvSpec"]


class KvSpec(KvSpecValue):
    """A parsed key-value store specification: from JSON, a URL, another spec or a live object.

    >>> KvSpec("memory://a/b").to_json()
    {'driver': 'memory', 'path': 'a/b'}
    """

    __module__ = "fsstore"
    __qualname__ = "KvStore.Spec"
    __slots__ = ("__weakref__",)

    def __new__(cls, json: Any) -> KvSpec:
        """Parse `json`."""
        return cls.showing(kv_spec(json))

    @classmethod
    def showing(cls, value: KvSpecValue) -> KvSpec:
        """Return a spec that says what a value says; it may be changed, and the value stays."""
        self = object.__new__(cls)
        for name in KvSpecValue.__slots__:
            setattr(self, name, getattr(value, name))
        if value.base is not None:
            self.base = cls.showing(value.base)
        return self

    def update(
        self, *, unbind_context: bool = False, strip_context: bool = False, context: Context | None = None
    ) -> None:
        """Change how the spec refers to context resources, in place.

        `strip_context` removes all; `unbind_context` writes bound resources as a `context`; `context` binds.
        """
        new = self
        written_down = as_flag("unbind_context", unbind_context)
        if as_flag("strip_context", strip_context):
            new = new.unbound()
        elif written_down:
            new = KvSpec(self.to_json())
        if context is not None:
            new = new.bound(context_of(context))
        for name in KvSpecValue.__slots__:
            setattr(self, name, getattr(new, name))
