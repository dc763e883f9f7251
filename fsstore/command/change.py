"""Commands that move and change: copy, verify, delete, append, pyramid, attrs."""

from __future__ import annotations

import json
from argparse import Namespace
from typing import Any

from fsstore.command.terminal import (
    UsageError,
    context_of,
    executor_of,
    group_of,
    place_of,
    put,
    put_json,
    read_place_of,
    selection,
    source_of,
    told,
)

__all__ = ["append", "attrs_get", "attrs_set", "copy", "delete", "pyramid", "verify"]


def copy(arguments: Namespace) -> int:
    """Copy an array or a group, or show the plan."""
    from fsstore.job.copy import copy as copied
    from fsstore.job.copy import plan_copy

    source, target = source_of(arguments, arguments.source), place_of(arguments, arguments.target)
    options: dict[str, Any] = {"schema": _schema(arguments), "max_memory": arguments.max_memory}
    if arguments.region:
        options["region"] = selection(arguments.region)
    context = context_of(arguments)
    with executor_of(arguments) as executor:
        if arguments.plan:
            put(plan_copy(source, target, executor=executor, context=context, **options).result())
            return 0
        report = copied(
            source, target, executor=executor, if_exists=arguments.if_exists, atomic=arguments.atomic,
            casting=arguments.casting, verify=arguments.verify, progress=told(arguments), context=context, **options,
        ).result()  # fmt: skip
    return _reported(report, arguments)


def _reported(report: Any, arguments: Namespace) -> int:
    if arguments.json:
        put_json({name: getattr(report, name) for name in report.__dataclass_fields__})
    else:
        put(report)
    return 0


def _schema(arguments: Namespace) -> dict[str, Any]:
    wishes: dict[str, Any] = {}
    if arguments.zarr_format is not None:
        wishes["zarr_format"] = arguments.zarr_format
    for name in ("chunks", "shards"):
        text = getattr(arguments, name)
        if text:
            try:
                wishes[name] = [int(part) for part in text.replace("x", ",").split(",")]
            except ValueError:
                raise UsageError(f"--{name} is integers with commas between them: 10,100,100") from None
    if arguments.codec:
        wishes["codec"] = None if arguments.codec == "none" else _json_or_text(arguments.codec)
    if arguments.dtype:
        wishes["dtype"] = arguments.dtype
    return wishes


def _json_or_text(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def verify(arguments: Namespace) -> int:
    """Check an array or a group; the exit code says whether anything is wrong."""
    from fsstore.job.verify import verify as verified

    against = read_place_of(arguments, arguments.against) if arguments.against else None
    if arguments.repair and against is None:
        raise UsageError("--repair copies from what --against names")
    with executor_of(arguments) as executor:
        found = verified(
            read_place_of(arguments), against, level=arguments.level, ignore=arguments.ignore, repair=arguments.repair,
            executor=executor, max_memory=arguments.max_memory, progress=told(arguments), context=context_of(arguments),
        ).result()  # fmt: skip
    if arguments.json:
        put_json(found.to_json())
    else:
        put(found)
    return 0 if found else 1


def delete(arguments: Namespace) -> int:
    """Delete an array or a group with everything in it."""
    if not arguments.yes:
        raise UsageError(f"This deletes {arguments.place} with everything in it; say --yes if that is meant")
    from fsstore.job.delete import delete as deleted

    with executor_of(arguments) as executor:
        _ = deleted(
            place_of(arguments), executor=executor, progress=told(arguments), context=context_of(arguments)
        ).result()
    return 0


def append(arguments: Namespace) -> int:
    """Make an array longer by another."""
    from fsstore.job.grow import append as appended

    dimension = arguments.dimension
    number = int(dimension) if dimension.lstrip("-").isdigit() else dimension
    with executor_of(arguments) as executor:
        report = appended(
            source_of(arguments), source_of(arguments, arguments.source), number, executor=executor,
            max_memory=arguments.max_memory, progress=told(arguments), context=context_of(arguments),
        ).result()  # fmt: skip
    return _reported(report, arguments)


def pyramid(arguments: Namespace) -> int:
    """Make the lower resolutions of an image."""
    from fsstore.job.pyramid import build_pyramid

    factors: Any = 2
    if arguments.factors:
        try:
            factors = [int(part) for part in arguments.factors.split(",")]
        except ValueError:
            raise UsageError("--factors is integers with commas between them: 1,2,2") from None
    with executor_of(arguments) as executor:
        report = build_pyramid(
            group_of(arguments, "r+"), arguments.base, levels=arguments.levels,
            factors=factors[0] if isinstance(factors, list) and len(factors) == 1 else factors,
            method=arguments.method, if_exists="replace" if arguments.replace else "raise", executor=executor,
            max_memory=arguments.max_memory, progress=told(arguments), context=context_of(arguments),
        ).result()  # fmt: skip
    return _reported(report, arguments)


def _attributes(arguments: Namespace, *, mode: str) -> Any:
    from fsstore.arrays.store import open as open_array
    from fsstore.dataset.group import Group

    found = source_of(arguments)
    if isinstance(found, Group):
        return group_of(arguments, mode).attrs if mode != "r" else found.attrs
    if mode == "r":
        return found.attrs
    return open_array(found.spec(), context=context_of(arguments)).result().attrs


def attrs_get(arguments: Namespace) -> int:
    """Print attributes."""
    attributes = _attributes(arguments, mode="r")
    if arguments.name is None:
        put_json(dict(attributes))
        return 0
    if arguments.name not in attributes:
        return 1
    value = attributes[arguments.name]
    if arguments.json or not isinstance(value, str):
        put_json(value)
    else:
        put(value)
    return 0


def attrs_set(arguments: Namespace) -> int:
    """Set attributes, or remove them."""
    changes, gone = {}, []
    for each in arguments.changes:
        name, equals, value = each.partition("=")
        if equals:
            changes[name] = _json_or_text(value)
        elif each.endswith("-"):
            gone.append(each[:-1])
        else:
            raise UsageError(
                f"{each!r} is no change of an attribute; write NAME=VALUE, or NAME- to remove it"
            )
    attributes = _attributes(arguments, mode="r+")
    if changes:
        attributes.update(changes)
    for name in gone:
        del attributes[name]
    return 0
