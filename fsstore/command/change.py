"""Commands that move and change: arrays and groups, reference sets, OCDBT databases."""

from __future__ import annotations

import json
import re
import warnings
from argparse import Namespace
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, fields, is_dataclass
from typing import Any

from fsstore.command.terminal import (
    UsageError,
    columns,
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


def copy(arguments: Namespace) -> int:
    """Copy an array or a group, or show the plan."""
    from fsstore.job.copy import copy as copied
    from fsstore.job.fleet import plan_copy

    source, target = source_of(arguments, arguments.source), place_of(arguments, arguments.target)
    options: dict[str, Any] = {"schema": _schema(arguments), "max_memory": arguments.max_memory}
    if arguments.region:
        options["region"] = selection(arguments.region)
    context = context_of(arguments)
    with executor_of(arguments) as executor:
        if arguments.plan or arguments.save_plan:
            casting = arguments.casting
            plan = plan_copy(source, target, executor=executor, casting=casting, context=context, **options).result()
            return _planned(plan, arguments)
        report = copied(
            source, target, executor=executor, if_exists=arguments.if_exists, atomic=arguments.atomic,
            casting=arguments.casting, verify=arguments.verify, progress=told(arguments), context=context, **options,
        ).result()  # fmt: skip
    return _reported(report, arguments)


def _planned(plan: Any, arguments: Namespace) -> int:
    """Show a plan, and save it where that is asked for."""
    put(plan.text(arguments.workers, _rates(arguments)))
    if arguments.save_plan:
        plan.save(place_of(arguments, arguments.save_plan))
    return 0


def convert(arguments: Namespace) -> int:
    """Copy an array or a group, into zarr version 3 where neither an option nor the target names a format."""
    if arguments.zarr_format is None and not re.search(r"\|(zarr[23]?|n5):?$", arguments.target):
        arguments.zarr_format = 3
    return copy(arguments)


def run(arguments: Namespace) -> int:
    """Run a part of a plan; 1 if the rest of it waits for other parts."""
    from fsstore.job.fleet import run as ran

    number, slash, parts = arguments.part.partition("/")
    if not (slash and number.isdecimal() and parts.isdecimal()):
        raise UsageError("--part is a number and how many there are: 17/500")
    with executor_of(arguments) as executor:
        report = ran(
            place_of(arguments, arguments.plan), (int(number), int(parts)), executor=executor,
            progress=told(arguments), context=context_of(arguments),
        ).result()  # fmt: skip
    return _reported(report, arguments) or min(report.waits, 1)


def status(arguments: Namespace) -> int:
    """Say what is done of a plan; 1 if anything is missing."""
    from fsstore.job.fleet import status as looked

    found = looked(place_of(arguments, arguments.plan), context=context_of(arguments)).result()
    missing = None if arguments.parts is None else found.missing_parts(arguments.parts)
    if arguments.json:
        cost = found.estimate(arguments.workers, _rates(arguments)).to_json()
        put_json(asdict(found) | {"whole": found.whole.to_json(), "rest": cost, "missing_parts": missing})
    elif missing is None:
        put(found.text(arguments.workers, _rates(arguments)))
    else:
        put(" ".join(map(str, missing)))
    return 0 if found else 1


def _rates(arguments: Namespace) -> dict[str, Any]:
    """Return what an estimate is to assume."""
    pairs = [text.partition("=") for text in arguments.rates.split(",") if text]
    try:
        return {name: value if name == "currency" else float(value) for name, _, value in pairs}
    except ValueError:
        raise UsageError("--rates is names and numbers: per_worker_hour=0.2,per_gigabyte=0.09") from None


def finish(arguments: Namespace) -> int:
    """Check what the parts of a plan have done, and let the copy appear."""
    from fsstore.job.fleet import finish as finished

    with executor_of(arguments) as executor:
        report = finished(
            place_of(arguments, arguments.plan), verify=arguments.verify, give_up=arguments.give_up,
            executor=executor, progress=told(arguments), context=context_of(arguments),
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

    if arguments.repair and not arguments.against:
        raise UsageError("--repair copies from what --against names")
    if arguments.copy and arguments.against:
        raise UsageError("Two places are data and their copy; leave --against out, or the second place")
    place, *other = [each for each in (arguments.copy, arguments.place, arguments.against) if each]
    against = read_place_of(arguments, *other) if other else None
    with executor_of(arguments) as executor:
        found = verified(
            read_place_of(arguments, place), against, level=arguments.level, ignore=arguments.ignore,
            repair=arguments.repair, executor=executor, max_memory=arguments.max_memory, progress=told(arguments),
            context=context_of(arguments),
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
    """Make the lower resolutions of an image, or show the plan."""
    from fsstore.job.fleet import plan_pyramid
    from fsstore.job.pyramid import build_pyramid

    factors: Any = 2
    if arguments.factors:
        try:
            factors = [int(part) for part in arguments.factors.split(",")]
        except ValueError:
            raise UsageError("--factors is integers with commas between them: 1,2,2") from None
    options: dict[str, Any] = {
        "levels": arguments.levels, "method": arguments.method, "max_memory": arguments.max_memory,
        "factors": factors[0] if isinstance(factors, list) and len(factors) == 1 else factors,
        "context": context_of(arguments),
    }  # fmt: skip
    if arguments.plan or arguments.save_plan:
        return _planned(plan_pyramid(group_of(arguments, "r+"), arguments.base, **options).result(), arguments)
    with executor_of(arguments) as executor:
        report = build_pyramid(
            group_of(arguments, "r+"), arguments.base, if_exists="replace" if arguments.replace else "raise",
            executor=executor, progress=told(arguments), **options,
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
            raise UsageError(f"{each!r} is no change of an attribute; write NAME=VALUE, or NAME- to remove it")
    attributes = _attributes(arguments, mode="r+")
    if changes:
        attributes.update(changes)
    for name in gone:
        del attributes[name]
    return 0


# Commands for reference sets and OCDBT databases.


def _shown(arguments: Namespace, value: Any) -> None:
    if arguments.json:
        put_json(_plain(value))
    else:
        put(_text(value))


def _plain(value: Any) -> Any:
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return value._asdict()
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else value


def _text(value: Any) -> str:
    """Return a report as text: its own, or its parts as columns."""
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return columns(list(value._asdict().items()))
    if not is_dataclass(value) or type(value).__str__ is not object.__str__:
        return str(value)
    rows = []
    for part in fields(value):
        inner = getattr(value, part.name)
        if isinstance(inner, Mapping):
            inner = "\n".join(f"{name}: {_text(each)}" for name, each in inner.items())
        elif isinstance(inner, tuple | list):
            inner = ", ".join(map(str, inner))
        rows.append((part.name, inner))
    return columns(rows)


def refs_make(arguments: Namespace) -> int:
    """Make the reference set of a file."""
    from fsstore import references

    references.scan(arguments.file).save(arguments.target, overwrite=arguments.overwrite)
    return 0


def refs_inspect(arguments: Namespace) -> int:
    """Describe a set: its arrays, codecs, places and bytes."""
    from fsstore import references

    _shown(arguments, references.inspect(place_of(arguments)))
    return 0


def refs_convert(arguments: Namespace) -> int:
    """Write a set in another form, or with other places."""
    found, changes = _opened(arguments), _rewriting(arguments.rewrite or ())
    if changes:
        found = found.rewrite(changes)
    _save(found, arguments)
    return 0


def refs_rewrite(arguments: Namespace) -> int:
    """Write a set whose targets are elsewhere."""
    found = _opened(arguments).rewrite(_rewriting(arguments.changes))
    _save(found, arguments)
    return 0


def _save(found: Any, arguments: Namespace) -> None:
    from fsstore.references import References

    if not isinstance(found, References):
        if arguments.trusted:
            raise UsageError("--trusted is for reference sets; a dataset of many files has no such limits")
        found.save(arguments.target, overwrite=arguments.overwrite)
    else:
        found.save(arguments.target, overwrite=arguments.overwrite, trusted=arguments.trusted)


def _opened(arguments: Namespace) -> Any:
    from fsstore import references
    from fsstore.errors import StoreError

    try:
        return references.Combined.open(place_of(arguments))
    except StoreError:  # it is no dataset; what else is wrong is said of the set
        return references.open(place_of(arguments))


def _rewriting(changes: Iterable[str]) -> dict[str, str]:
    found = {}
    for each in changes:
        old, equals, new = each.partition("=")
        if not equals:
            raise UsageError(f"{each!r} is not OLD=NEW, two prefixes of URLs")
        found[old] = new
    return found


def refs_verify(arguments: Namespace) -> int:
    """Check a set against its targets."""
    from fsstore import references

    members = {"allow": arguments.allow} if arguments.allow else {}
    found = references.verify(place_of(arguments), decode=arguments.decode, **members)
    _shown(arguments, found)
    return 0 if found else 1


def ocdbt_versions(arguments: Namespace) -> int:
    """List the versions of a database."""
    from fsstore import ocdbt

    found = ocdbt.versions(place_of(arguments), context=context_of(arguments)).result()
    if arguments.json:
        put_json([each._asdict() for each in found])
    else:
        for each in found:
            when = each.commit_time.isoformat(timespec="milliseconds")
            put(f"{each.generation:>8}  {when}  {each.num_keys:,} keys, {each.value_bytes:,} bytes")
    return 0


def ocdbt_verify(arguments: Namespace) -> int:
    """Check every node and value of a version."""
    from fsstore import ocdbt

    found = ocdbt.verify(place_of(arguments), version=arguments.version, context=context_of(arguments)).result()
    _shown(arguments, found)
    return 0 if found.ok else 1


def ocdbt_compact(arguments: Namespace) -> int:
    """Copy one version into a new database."""
    from fsstore import ocdbt

    target = place_of(arguments, arguments.target)
    _shown(arguments, ocdbt.compact(place_of(arguments), target, version=arguments.version).result())
    return 0


def ocdbt_dump(arguments: Namespace) -> int:
    """Print the manifest of a database, or a node of it, as JSON."""
    from fsstore import ocdbt

    put_json(ocdbt.dump(place_of(arguments), arguments.node, context=context_of(arguments)).result())
    return 0


_FILES = (("files",), {"nargs": "+", "metavar": "FILE", "help": "files, or patterns of them"})
_EXECUTOR = (("--executor",), {"help": "threads, processes, or the address of a dask scheduler"})
_JOURNAL = (("--journal",), {"metavar": "PLACE", "help": "a directory that lets a killed run go on"})

_COORD = (
    ("--coord",),
    {
        "action": "append",
        "metavar": "DIM=RULE",
        "help": "where files lie: attr:NAME, or a regular expression of their names",
    },
)

COMBINE: tuple[Any, ...] = (
    (("target",), {"metavar": "TARGET", "help": "the dataset: .mosaic, .mosaic.json, or a set: .json, .parq"}),
    _FILES,
    (("--dim",), {"action": "append", "required": True, "metavar": "DIM", "help": "a dimension to combine along"}),
    (("--dry-run",), {"action": "store_true", "help": "print the report and write nothing"}),
    (("--on-difference",), {"choices": ("layer", "raise", "skip"), "default": "layer", "help": "of files that differ"}),
    (("--on-overlap",), {"choices": ("raise", "first", "last"), "default": "raise", "help": "of files that overlap"}),
    _COORD,
    (
        ("--rename",),
        {"action": "append", "metavar": "OLD=NEW", "help": "a variable, and its dimension, under another name"},
    ),
    (
        ("--along",),
        {"action": "append", "metavar": "NAME=DIM", "help": "a variable that is repeated along a dimension"},
    ),
    (("--leave-out",), {"action": "append", "metavar": "NAME", "help": "a variable that is not taken"}),
    (("--overwrite",), {"action": "store_true", "help": "replace what is there"}),
    _EXECUTOR,
    _JOURNAL,
)

_DATASET = (("target",), {"metavar": "TARGET", "help": "a dataset made by `refs combine`"})

APPEND: tuple[Any, ...] = (_DATASET, _FILES, _EXECUTOR, _JOURNAL)

REPLACE: tuple[Any, ...] = (_DATASET, _FILES, _EXECUTOR)

DROP: tuple[Any, ...] = (
    _DATASET,
    (("files",), {"nargs": "+", "metavar": "FILE", "help": "files as the dataset has them, or patterns of these"}),
)


def _pairs(given: Iterable[str] | None, what: str) -> dict[str, str]:
    found = {}
    for each in given or ():
        old, equals, new = each.partition("=")
        if not equals or not old or not new:
            raise UsageError(f"{each!r} is not {what}")
        found[old] = new
    return found


def _rules(given: Iterable[str] | None) -> dict[str, Any]:
    """Return where files lie by what was given: an attribute, or a pattern."""
    rules: dict[str, Any] = {}
    for dim, rule in _pairs(given, "DIM=RULE").items():
        try:
            rules[dim] = rule if rule.startswith("attr:") else re.compile(rule)
        except re.error as error:
            raise UsageError(f"{rule!r} is no regular expression: {error}") from error
    return rules


def _printed(arguments: Namespace, report: Any) -> None:
    if arguments.json:
        put_json(report.to_json())
    else:
        put(str(report))


@contextmanager
def _told_by_report() -> Iterator[None]:
    """Hold back the warning about files that are left out: the report that is printed names them."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".* are left out")
        yield


def refs_combine(arguments: Namespace) -> int:
    """Combine files, print the report, and save the dataset; 1 if files were left out."""
    from fsstore import references

    names: dict[str, Any] = _pairs(arguments.rename, "OLD=NEW, two names of variables")
    names.update(dict.fromkeys(arguments.leave_out or ()))
    with executor_of(arguments) as executor, _told_by_report():
        combined = references.combine(
            arguments.files, arguments.dim, coords=_rules(arguments.coord), variables=names,
            along=_pairs(arguments.along, "NAME=DIM"),
            on_difference=arguments.on_difference, on_overlap=arguments.on_overlap,
            executor=executor, progress=told(arguments), journal=arguments.journal,
        ).result()  # fmt: skip
    _printed(arguments, combined.report)
    if not arguments.dry_run:
        combined.save(place_of(arguments, arguments.target), overwrite=arguments.overwrite)
    return 1 if combined.report.left_out else 0


def refs_append(arguments: Namespace) -> int:
    """Add files to a dataset and print the report of the whole; 1 if files were left out."""
    from fsstore import references

    with executor_of(arguments) as executor, _told_by_report():
        report = references.append(
            place_of(arguments, arguments.target), arguments.files,
            executor=executor, progress=told(arguments), journal=arguments.journal,
        ).result()  # fmt: skip
    _printed(arguments, report)
    return 1 if report.left_out else 0


def refs_replace(arguments: Namespace) -> int:
    """Scan files of a dataset again, and print the report of the whole."""
    from fsstore import references

    with executor_of(arguments) as executor:
        report = references.replace(
            place_of(arguments, arguments.target), arguments.files, executor=executor, progress=told(arguments)
        ).result()
    _printed(arguments, report)
    return 0


def refs_drop(arguments: Namespace) -> int:
    """Take files out of a dataset, and print the report of the rest."""
    from fsstore import references

    _printed(arguments, references.drop(place_of(arguments, arguments.target), arguments.files).result())
    return 0
