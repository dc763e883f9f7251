"""The manifest: the configuration, the newest versions, and references to the nodes that hold the older ones.

In a numbered database `manifest.ocdbt` holds the configuration alone and every commit makes a file
`manifest.<generation>`; those files carry the kind "single", which `decode_manifest` puts right when told so.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from fsstore.ocdbt.format.config import Config
from fsstore.ocdbt.format.data_file import decode_files, encode_files, sorted_files
from fsstore.ocdbt.format.envelope import MANIFEST, seal, unseal
from fsstore.ocdbt.format.varint import Cursor
from fsstore.ocdbt.format.version import (
    Version,
    VersionNodeRef,
    encode_refs,
    encode_versions,
    take_refs,
    take_versions,
)
from fsstore.ocdbt.format.version_tree import check_refs, files_of, ranges_below

__all__ = [
    "MANIFEST_KEY",
    "Manifest",
    "decode_manifest",
    "encode_manifest",
    "manifest_number",
    "numbered_key",
]

MANIFEST_KEY = "manifest.ocdbt"


@dataclass(frozen=True, slots=True)
class Manifest:
    """A decoded manifest.  `versions` is empty only in the constant manifest of a numbered database."""

    config: Config
    versions: tuple[Version, ...] = ()
    refs: tuple[VersionNodeRef, ...] = ()

    @property
    def newest(self) -> Version:
        """The newest version."""
        return self.versions[-1]

    @property
    def generation(self) -> int:
        """The newest generation, 0 if there is none."""
        return self.versions[-1].generation if self.versions else 0


def numbered_key(generation: int) -> str:
    """Return the key of the manifest whose newest generation this is."""
    return f"manifest.{generation:016x}"


def manifest_number(key: str) -> int:
    """Return the generation in the name of a numbered manifest, 0 if the name is another."""
    digits = key.removeprefix("manifest.")
    if len(key) != 25 or len(digits) != 16 or digits.strip("0123456789abcdef"):
        return 0
    return int(digits, 16)


def encode_manifest(manifest: Manifest) -> bytes:
    """Return the stored form: the constant one if there are no versions, else one that carries the kind "single"."""
    config = manifest.config
    if not manifest.versions:
        return seal(MANIFEST, config.encoded(), config.level)
    table, index = sorted_files(files_of(manifest.versions, manifest.refs))
    parts = (
        replace(config, manifest_kind="single").encoded(),
        encode_files(table),
        encode_versions(manifest.versions, index),
        encode_refs(manifest.refs, index, heights=True),
    )
    return seal(MANIFEST, b"".join(parts), config.level)


def decode_manifest(data: bytes, *, number: int = 0) -> Manifest:
    """Return the manifest stored as `data`; `number` is that in the name of a numbered one."""
    what = "manifest"
    cursor = Cursor(unseal(MANIFEST, data, what), what)
    config = Config.take(cursor)
    if config.manifest_kind == "numbered":
        cursor.finish()
        if number:
            raise cursor.corrupt("a numbered manifest must hold versions")
        return Manifest(config)
    files = decode_files(cursor, b"")
    arity_log2 = config.version_tree_arity_log2
    versions = take_versions(cursor, files, arity_log2)
    refs = take_refs(cursor, files, 64, None)
    _check(cursor, versions, refs, arity_log2)
    cursor.finish()
    if number:
        if versions[-1].generation != number:
            raise cursor.corrupt(f"expected generation {number} but received: {versions[-1].generation}")
        config = replace(config, manifest_kind="numbered")
    return Manifest(config, tuple(versions), tuple(refs))


def _check(cursor: Cursor, versions: list[Version], refs: list[VersionNodeRef], arity_log2: int) -> None:
    """Raise unless the references stand where the newest generation wants them."""
    ranges = {
        height: (first, last) for height, first, last in ranges_below(versions[-1].generation, arity_log2)
    }
    previous = 65
    for ref in refs:
        first, last = ranges.get(ref.height, (1, 0))
        if ref.height >= previous or ref.height > 63 // arity_log2 - 1:
            raise cursor.corrupt(f"Version tree node of height {ref.height} is out of place")
        if not first <= ref.generation <= last or ref.generation % (1 << arity_log2 * ref.height):
            raise cursor.corrupt(f"Version tree node of height {ref.height} cannot end in {ref.generation}")
        previous = ref.height
    check_refs(cursor, refs, arity_log2)
    if refs and refs[-1].commit_time >= versions[0].commit_time:
        raise cursor.corrupt("Commit times are not strictly increasing")
