"""The saved document of a dataset: read, and replaced in one step by one that refers to what was copied into it.

The document names what was copied, so that files can be added afterwards: the arrays of files are put together
anew then, and those that were copied stay as they are.
"""

from __future__ import annotations

from dataclasses import replace

from fsstore.errors import FailedPreconditionError, NotFoundError, StoreError
from fsstore.kvstore.contract.driver import KvPrefix, ReadResult
from fsstore.kvstore.contract.key_range import KeyRange, key_text
from fsstore.mosaic.document import mosaic_of, stored_of
from fsstore.mosaic.stored import StoredColumns, from_bytes, to_json, to_parquet
from fsstore.mosaic.value import Mosaic
from fsstore.reference.state.refset import TableSet
from fsstore.reference.state.rewritten import add_page, with_references
from fsstore.reference.state.set_state import State, Taking
from fsstore.reference.table.builder import TableBuilder
from fsstore.runtime import execution
from fsstore.values.json_value import quote

__all__ = ["document_like", "load_mosaic", "with_copied", "with_copy"]

_COPIED = "copied"
"""The fact that names what was copied: paths with a slash at the end, and single documents."""
_PARQUET = b"PAR1"


async def load_mosaic(base: KvPrefix, *, with_scan: bool = False) -> tuple[Mosaic, ReadResult]:
    """Return the dataset at a place, and the answer that had its document."""
    found = await base.read()
    if found.state != "value":
        raise NotFoundError(
            f"There is no virtual dataset at {base.describe()}; `combine` saves one under a name such as all.mosaic"
        )

    def parsed() -> Mosaic:
        stored: StoredColumns = from_bytes(found.value, with_scan=with_scan)
        return mosaic_of(stored, stored if with_scan else None, base)

    try:
        return await execution.offload(parsed, kind="compute"), found
    except StoreError as error:
        raise error.within(f"Error opening virtual dataset {base.describe()}") from error


def document_like(mosaic: Mosaic, before: ReadResult, place: KvPrefix) -> bytes:
    """Return the document of a dataset that was loaded with its scan, in the form of the one before."""
    stored = stored_of(mosaic, {} if mosaic.scan is None else mosaic.scan.scan, place)
    return to_parquet(stored) if bytes(before.value[:4]) == _PARQUET else to_json(stored)


async def with_copy(mosaic: Mosaic, taking: Taking) -> Mosaic:
    """Return a dataset with what it takes of a copy."""
    kept = {
        path: each for path, each in mosaic.layered.items() if not taking.deletes(f"{path}/" if path else "")
    }
    used = {source.path for each in kept.values() for source in each.sources}
    unused = {source.path for each in mosaic.layered.values() for source in each.sources} - used
    gone = [*taking.deleted, *(KeyRange.prefix(f"{path}/") for path in sorted(unused))]
    state = await with_references(State(mosaic.references), replace(taking, deleted=gone))
    heads = [key_text(each.common_prefix) for each in taking.deleted]
    single = [key for key in taking.writes if not key.startswith(tuple(heads))]
    copied = sorted({*_copied(mosaic), *heads, *single})
    assert isinstance(state.base, TableSet)
    return replace(mosaic, references=state.base, layered=kept, facts={**mosaic.facts, _COPIED: copied})


def with_copied(whole: Mosaic, before: Mosaic) -> Mosaic:
    """Return a dataset, put together anew from files, with what had been copied into it before."""
    whole, copied = replace(whole, as_scanned=before.as_scanned), _copied(before)
    if not copied:
        return whole
    builder = TableBuilder()
    for names, found in whole.references.batches(KeyRange()):
        add_page(builder, names, found)
    for head in copied:
        is_path = not head or head.endswith("/")
        ranged = KeyRange.prefix(head) if is_path else KeyRange(head, head + "\0")
        listed = [name for names, _ in whole.references.batches(ranged) for name in names]
        if is_path and (listed or any(f"{path}/".startswith(head) for path in whole.layered)):
            raise FailedPreconditionError(
                f"{quote(head.rstrip('/'))} was replaced by a copy, and the files have it too; leave it out of them, or"
                " combine them anew"
            )
        for names, found in before.references.batches(ranged):
            add_page(builder, names, found)
    return replace(whole, references=TableSet(builder.finish()), facts={**whole.facts, _COPIED: list(copied)})


def _copied(mosaic: Mosaic) -> tuple[str, ...]:
    found = mosaic.facts.get(_COPIED)
    return tuple(each for each in found if isinstance(each, str)) if isinstance(found, list) else ()
