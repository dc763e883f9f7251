"""Commands for reference sets and OCDBT databases."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields, is_dataclass
from typing import Any

from fsstore.command.output import columns, put, put_json
from fsstore.command.places import context_of, place_of
from fsstore.command.usage import UsageError

__all__ = [
    "ocdbt_compact",
    "ocdbt_dump",
    "ocdbt_verify",
    "ocdbt_versions",
    "refs_convert",
    "refs_inspect",
    "refs_make",
    "refs_rewrite",
    "refs_verify",
]


def _shown(arguments: Namespace, value: Any) -> None:
    if arguments.json:
        put_json(_plain(value))
    else:
        put(_text(value))


def _plain(value: Any) -> Any:
    """Return a report as JSON has it."""
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
    found.save(arguments.target, overwrite=arguments.overwrite)
    return 0


def refs_rewrite(arguments: Namespace) -> int:
    """Write a set whose targets are elsewhere."""
    found = _opened(arguments).rewrite(_rewriting(arguments.changes))
    found.save(arguments.target, overwrite=arguments.overwrite)
    return 0


def _opened(arguments: Namespace) -> Any:
    """Return a dataset of many files, or a set."""
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

    found = ocdbt.verify(
        place_of(arguments), version=arguments.version, context=context_of(arguments)
    ).result()
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
