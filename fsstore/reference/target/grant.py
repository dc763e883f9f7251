"""The policy of a set, given where it lies and the members of its spec."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fsstore.errors import StoreError
from fsstore.kvstore.contract.driver import KvDriver, KvPrefix, StandsOver
from fsstore.kvstore.engine.secret import reveal
from fsstore.reference.target.policy import Policy, normalize, normalize_prefix
from fsstore.reference.target.targets import check_prefixes

__all__ = ["policy_of"]

_LOCAL_DRIVERS = ("file", "memory")


def _home(base: KvPrefix) -> str | None:
    """Return the prefix of the place of a set: its host."""
    url = base.driver.spec().get("base_url") or base.driver.spec().get("url")
    try:
        normal = normalize(url) if isinstance(url, str) else None
    except StoreError:
        return None
    return None if normal is None else "/".join(normal.split("/")[:3]) + "/"


def _is_local(driver: KvDriver) -> bool:
    """Return whether a store surely lies on this machine: itself, or what it is an adapter over."""
    if driver.id in _LOCAL_DRIVERS:
        return True
    if isinstance(driver, StandsOver):
        return _is_local(driver.base.driver)
    return str(driver.spec().get("url", "")).startswith(("file:", "local:", "memory:"))


def policy_of(base: KvPrefix | None, members: Mapping[str, Any]) -> Policy:
    """Return what a set at `base` may read, given the members of its spec."""
    allow = reveal(members.get("allow"))
    granted = [*check_prefixes(members.get("targets") or {})]
    replacing = (reveal(members.get("rewrite")) or {}).values()
    granted += [normalize_prefix(new) for new in replacing if new.startswith("/") or "://" in new]
    return Policy(
        "local" if base is None or _is_local(base.driver) else "remote",
        home=None if base is None else _home(base),
        allow=None if allow is None else tuple(normalize_prefix(prefix) for prefix in allow),
        granted=tuple(granted),
    )
