"""A snapshot as a reference set: documents and small chunks inline, the others as references.

Virtual chunks keep their URLs, with the names of containers expanded.  Chunks of the repository itself are relative to
its directory.  Sets have no checksums, so what the repository says of its targets is lost.
"""

from __future__ import annotations

from typing import Any

from fsstore.errors import StoreError
from fsstore.kvstore.icechunk.driver import IcechunkDriver
from fsstore.kvstore.icechunk.format.manifest import Reference
from fsstore.kvstore.icechunk.keys import DOCUMENT
from fsstore.kvstore.icechunk.listing import pages_of
from fsstore.kvstore.icechunk.location import NAMED
from fsstore.kvstore.icechunk.virtual import urls_of

__all__ = ["references_of"]


async def references_of(driver: IcechunkDriver, prefix: str = "") -> dict[str, Any]:
    """Return the references below a path, by the rest of their keys, as a mapping that is a set of version 0."""
    repository = driver.repository
    session = await repository.session()
    out: dict[str, Any] = {}
    found: list[tuple[str, Reference]] = []
    for path, node in session.snapshot.nodes.items():
        head = f"{path}/" if path else ""
        if (head + DOCUMENT).startswith(prefix):
            out[(head + DOCUMENT)[len(prefix) :]] = bytes(node.document)
        if node.is_array and (head.startswith(prefix) or prefix.startswith(head)):
            async for page in pages_of(repository, session, node):
                pairs = zip(page.names, page.tables, strict=True)
                found += [(name, page.array.reference(at)) for name, at in pairs if name.startswith(prefix)]
    virtual = [each for _, each in found if each.kind == "virtual"]
    named = any(each.place.startswith(NAMED) for each in virtual)
    try:
        urls = iter(urls_of(virtual, await repository.containers() if named else {}))
    except StoreError as error:
        raise error.within(f"Error reading {repository.described}") from error
    for name, each in found:
        if each.kind == "inline":
            out[name[len(prefix) :]] = bytes(each.value)
        else:
            place = next(urls) if each.kind == "virtual" else f"chunks/{each.place}"
            out[name[len(prefix) :]] = [place, each.offset, each.length]
    return out
