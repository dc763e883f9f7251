"""The file of a plan: JSON without credentials, with a version and a digest.

It is refused if it was cut off or changed, and if another version of fsstore made it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

from fsstore.context.context import Context
from fsstore.dataset.members import dtype_name
from fsstore.dataset.place import store_spec
from fsstore.errors import AlreadyExistsError, DataLossError, FailedPreconditionError, NotFoundError, UnimplementedError
from fsstore.kvstore.contract.driver import NO_VALUE, UNKNOWN, KvPrefix
from fsstore.kvstore.spec_parse import open_kv
from fsstore.task.claim import job_name

_FORMAT = "fsstore_plan"
_VERSION = 2


def _code() -> str:
    """Return the version of fsstore, which stands at its top, above this module."""
    return str(sys.modules["fsstore"].__version__)


async def plan_place(place: Any, context: Context) -> KvPrefix:
    """Return where the file of a plan is."""
    return (await open_kv(store_spec(place), context)).prefix


async def write_plan(document: Mapping[str, Any], at: KvPrefix, *, overwrite: bool) -> None:
    """Write the file of a plan; raises `AlreadyExistsError` if something is there that is not to be replaced."""
    whole = {_FORMAT: _VERSION, "fsstore": _code(), **document}
    _check_reachable(whole, at)
    whole["digest"] = job_name(whole)
    condition = UNKNOWN if overwrite else NO_VALUE
    if not overwrite and not at.driver.features.create_only:
        condition = UNKNOWN
        if (await at.read("", 0, 0)).state == "value":
            raise _there(at)
    stamp = await at.write("", json.dumps(whole, indent=1).encode(), condition)
    if stamp.generation == UNKNOWN and condition == NO_VALUE:
        raise _there(at)


def _there(place: KvPrefix) -> AlreadyExistsError:
    return AlreadyExistsError(f"There is something at {place.describe()} already; overwrite=True replaces it")


def _check_reachable(document: Mapping[str, Any], place: KvPrefix) -> None:
    """Raise if other processes can read a plan, but not the memory of this one that it tells of."""
    if '"driver": "memory"' in json.dumps(document) and place.driver.id != "memory":
        raise UnimplementedError(
            f"A plan at {place.describe()} is run by other processes, which cannot see the memory of this one; copy"
            " between files or buckets"
        )


async def read_plan(at: KvPrefix) -> dict[str, Any]:
    """Return what the file of a plan says; raises if it is none, or none of this version."""
    answer = await at.read("")
    shown = at.describe()
    if answer.state != "value":
        raise NotFoundError(f"There is no plan at {shown}; `plan_copy(…).result().save(…)` writes one")
    try:
        found = json.loads(bytes(answer.value))
        version = found[_FORMAT]
    except (ValueError, TypeError, KeyError):
        raise DataLossError(f"{shown} is no plan of fsstore, or was cut off; save it again") from None
    if version != _VERSION:
        raise UnimplementedError(
            f"The plan {shown} is of version {version}, and this fsstore knows version {_VERSION}; use the fsstore"
            " that made it"
        )
    if found.pop("digest", None) != (digest := job_name(found)):
        raise DataLossError(f"The plan {shown} was changed after it was saved; save it again")
    if found["fsstore"] != _code():
        raise FailedPreconditionError(
            f"The plan {shown} was made by fsstore {found['fsstore']}, and this is {_code()}; run all parts"
            " with the fsstore that made it"
        )
    return {**found, "digest": digest}


def plain(wishes: Mapping[str, Any]) -> Any:
    """Return wishes as JSON."""
    said = {name: dtype_name(value) if name == "dtype" else value for name, value in wishes.items()}
    return json.loads(json.dumps(said, default=_as_json))


def _as_json(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else value.to_json()
