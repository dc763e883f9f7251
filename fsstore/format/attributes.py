"""Groups, attributes, dimension names and missing-value marks: where they stand in each format, and how they change.

A group of zarr v3 is a `zarr.json` that also holds its attributes; zarr v2 has `.zgroup` and `.zattrs`; N5 has
`attributes.json` for both, in which the members of an array are not attributes.  Nothing here reads or writes.

Names of dimensions stand in `dimension_names` of zarr v3, and in the attribute `_ARRAY_DIMENSIONS` beside zarr v2.
Both become the labels of a domain.  Labels must be distinct; names that are not leave all dimensions unlabeled, and so
does an attribute that does not name every dimension: it belongs to the user, and says nothing about the data.

The value that marks missing data is the fill value of an array in zarr v2.  In other formats it is the attribute
`_FillValue`: a plain value, but base64 for floats in zarr v3, because JSON cannot write all of them.
"""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np

from fsstore.errors import DataLossError, NotFoundError
from fsstore.values import registry
from fsstore.values.json_value import Json, loads, quote, show

NodeKind: TypeAlias = Literal["array", "group"]

_N5_OWN = frozenset(("dimensions", "blockSize", "dataType", "compression", "n5"))


@dataclass(frozen=True, slots=True)
class NodeWords:
    """How a format says that there is a group or an array, and what its attributes are."""

    driver: str
    """The driver of its arrays."""
    group: str
    """The document that makes a group."""
    array: str
    """The document that makes an array."""
    attributes: str
    """The document that holds attributes."""
    zarr_format: int
    """The version of zarr, or 0."""

    @property
    def documents(self) -> tuple[str, ...]:
        """The names of all documents of a node, those that make it one first."""
        return tuple(dict.fromkeys((self.group, self.array, self.attributes)))

    def new_group(self, attributes: Mapping[str, Any]) -> dict[str, bytes]:
        """Return the documents of a new group, that which makes it one last."""
        if self.zarr_format == 3:
            return {self.group: _bytes({"zarr_format": 3, "node_type": "group", "attributes": dict(attributes)})}
        if self.zarr_format == 2:
            beside = {self.attributes: _bytes(dict(attributes))} if attributes else {}
            return {**beside, self.group: _bytes({"zarr_format": 2})}
        return {self.group: _bytes({"n5": "4.0.0", **attributes})}

    def attributes_of(self, document: Mapping[str, Any]) -> dict[str, Any]:
        """Return the attributes that a document holds."""
        if self.zarr_format == 3:
            inner = document.get("attributes")
            return dict(inner) if isinstance(inner, Mapping) else {}
        if self.zarr_format == 2:
            return dict(document)
        return {name: value for name, value in document.items() if name not in _N5_OWN}

    def with_attributes(self, stored: bytes | None, attributes: Mapping[str, Any], where: str) -> bytes:
        """Return the document that holds `attributes` and otherwise what is stored; `where` names it in errors."""
        document = {} if stored is None else parsed(stored, where)
        if self.zarr_format == 3:
            if stored is None:
                raise NotFoundError(f"There is no array or group at {where} any more")
            return _bytes({**document, "attributes": dict(attributes)})
        if self.zarr_format == 2:
            return _bytes(dict(attributes))
        own = {name: value for name, value in document.items() if name in _N5_OWN}
        wrong = sorted(_N5_OWN & set(attributes))
        if wrong:
            raise ValueError(f"{show(wrong[0])} says what the array is in N5 and cannot be an attribute")
        for name in ("axes", "units"):
            if "dimensions" in own and not isinstance(attributes.get(name, []), list):
                raise ValueError(f"{show(name)} is a list with one text a dimension in N5; choose another name for it")
        return _bytes({**own, **attributes})


def parsed(data: bytes, where: str) -> dict[str, Any]:
    """Return a stored document, which must be a JSON object."""
    try:
        document = loads(data, lenient=True)
    except ValueError as error:
        raise DataLossError(f"Error reading {where}: {error}") from error
    if not isinstance(document, dict):
        raise DataLossError(f"Error reading {where}: Expected object, but received: {show(document)[:80]}")
    return document


_GROUP_MEMBERS = frozenset(("zarr_format", "node_type", "attributes", "consolidated_metadata"))


def group_problem(document: Mapping[str, Any]) -> str | None:
    """Return why the document of a group of zarr v3 is not understood, or None.

    Members beyond those of the specification must say that readers may ignore them.
    """
    strange = [name for name in document if name not in _GROUP_MEMBERS and _must_be_known(document[name])]
    if strange:
        return f'Unsupported metadata field {quote(strange[0])} is not marked {{"must_understand": false}}'
    collected = document.get("consolidated_metadata")
    if collected is not None and inline_metadata(document) is None and _must_be_known(collected):
        return 'Unsupported "consolidated_metadata" is not marked {"must_understand": false}'
    return None


def inline_metadata(document: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the consolidated metadata in the document of a group of zarr v3, or None if none are of a known kind."""
    collected = document.get("consolidated_metadata")
    if not isinstance(collected, Mapping) or collected.get("kind", "inline") != "inline":
        return None
    inner = collected.get("metadata")
    return inner if isinstance(inner, Mapping) else None


def _must_be_known(member: Any) -> bool:
    return not isinstance(member, Mapping) or member.get("must_understand") is not False


def _bytes(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()


ZARR3_WORDS = NodeWords("zarr3", "zarr.json", "zarr.json", "zarr.json", 3)
ZARR2_WORDS = NodeWords("zarr", ".zgroup", ".zarray", ".zattrs", 2)
N5_WORDS = NodeWords("n5", "attributes.json", "attributes.json", "attributes.json", 0)
WORDS = {words.zarr_format: words for words in (ZARR3_WORDS, ZARR2_WORDS, N5_WORDS)}


def words_of(driver: str) -> NodeWords | None:
    """Return the words of the format that an array driver reads, or None if it has no groups."""
    return next((words for words in WORDS.values() if words.driver == driver), None)


ARRAY_DIMENSIONS = "_ARRAY_DIMENSIONS"
"""The attribute in which xarray names the dimensions of arrays of zarr v2."""


def labels_of(names: Sequence[str | None]) -> tuple[str, ...]:
    """Return names as labels, one a dimension; names that occur twice leave all dimensions unlabeled."""
    labels = tuple(name or "" for name in names)
    named = [label for label in labels if label]
    return labels if len(set(named)) == len(named) else ("",) * len(labels)


def labels_of_attributes(attributes: bytes | None, rank: int) -> tuple[str, ...]:
    """Return the labels that an attributes document gives to `rank` dimensions; none where it gives none."""
    try:
        value = None if attributes is None else loads(attributes, lenient=True)
    except DataLossError:
        return ()
    names = value.get(ARRAY_DIMENSIONS) if isinstance(value, dict) else None
    if not isinstance(names, list) or len(names) != rank or not all(isinstance(name, str) for name in names):
        return ()
    labels = labels_of(names)
    return labels if any(labels) else ()


BESIDE = ".fsstore-job"
"""How the names of directories begin in which jobs keep what is theirs: nothing in them is a part of a hierarchy."""

DOCUMENTS = frozenset(("zarr.json", ".zarray", ".zgroup", ".zattrs", ".zmetadata", "attributes.json"))
"""The names of metadata documents, in every format that has groups."""


def is_document(key: str) -> bool:
    """Whether a key is a metadata document."""
    return key.rpartition("/")[2] in DOCUMENTS


MARK = "_FillValue"


def fill_marks(store: str, fill: Any) -> bool:
    """Return whether the fill value of an array of zarr v2 in a store of this kind marks missing data.

    The fill value of a scanned file stands for unwritten elements, and so do the zeros of a reference set.
    """
    if fill is None or store == "mosaic" or registry.scanners.get(store) is not None:
        return False
    return store != "reference" or bool(np.any(fill))


def mark_of(attributes: Mapping[str, Any], native: np.dtype[Any], zarr_format: int | None) -> Any:
    """Return the value that the attribute of an array says, None if there is none; another form marks nothing."""
    value = attributes.get(MARK)
    if value is None:
        return None
    try:
        return _decoded(value, native) if zarr_format == 3 else _plain(value, native)
    except (ValueError, TypeError, OverflowError, struct.error):
        return None


def in_zarr3(mark: Any, native: np.dtype[Any]) -> Json:
    """Return the attribute of zarr v3 for a value; None for types of which xarray reads none."""
    if native.kind in "biu":
        plain: Json = np.asarray(mark).item()
        return plain
    if native.kind == "f" and native.itemsize > 1:
        return _packed(float(mark))
    if native.kind == "c":
        return [_packed(float(np.real(mark))), _packed(float(np.imag(mark)))]
    return str(mark) if native.kind in "OU" and isinstance(mark, str) else None


def plain_mark(mark: Any, native: np.dtype[Any]) -> Json:
    """Return the attribute of other formats for a value, None if JSON has none for it."""
    if native.kind in "biuf":
        plain: Json = np.asarray(mark).item()
        return plain
    return str(mark) if isinstance(mark, str) else None


def _packed(value: float) -> str:
    return base64.standard_b64encode(struct.pack("<d", value)).decode()


def _unpacked(value: Any) -> float:
    if not isinstance(value, str):
        return float(value)
    return float(struct.unpack("<d", base64.standard_b64decode(value))[0])


def _decoded(value: Any, native: np.dtype[Any]) -> Any:
    if native.kind == "f":
        return np.asarray(_unpacked(value)).astype(native)[()]
    if native.kind == "c":
        return np.asarray(complex(*map(_unpacked, value))).astype(native)[()]
    if native.kind == "S":
        return np.asarray(base64.standard_b64decode(value)).astype(native)[()]
    return _plain(value, native)


def _plain(value: Any, native: np.dtype[Any]) -> Any:
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if native.kind == "O":
        return value if isinstance(value, str) else None
    if native.kind == "c" and isinstance(value, list):
        value = complex(*value)
    if native.kind == "S" and isinstance(value, str):
        value = value.encode()
    if native.kind not in "biufcSU":
        return None
    mark = np.asarray(value)
    return mark.astype(native)[()] if mark.ndim == 0 else None
