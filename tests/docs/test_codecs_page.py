"""The page about codecs lists exactly the codecs there are."""

from __future__ import annotations

import re
from pathlib import Path

import numcodecs
import numcodecs.registry
from zarr.abc.codec import ArrayArrayCodec, ArrayBytesCodec, BytesBytesCodec
from zarr.codecs import numcodecs as zarr_numcodecs

from fsstore.codec.chain import find_codec
from fsstore.codec.numcodecs import numcodecs_v2
from fsstore.codec.numcodecs.compressor_v2 import parse_compressor
from fsstore.errors import StoreError
from fsstore.values import registry

PAGE = Path(__file__).parents[2] / "docs" / "codecs.md"


def rows(heading):
    """The cells of the table below a heading."""
    section = PAGE.read_text(encoding="utf-8").split(f"## {heading}\n")[1].split("\n## ")[0]
    return [
        [cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if line.startswith("| `")
    ]


def test_the_table_of_version_3_is_the_registry():
    """Every registered codec has a row with its kind and its members, and no row is made up."""
    table = {row[0].strip("`"): row for row in rows("zarr version 3")}
    assert sorted(set(table) - {"numcodecs.<name>"}) == registry.codecs.names()
    for name in registry.codecs.names():
        codec = registry.codecs.get(name)
        assert table[name][1] == codec.kind.replace("_", " ")
        assert set(re.findall(r"`(\w+)`:", table[name][2])) == set(codec.members)


def test_the_table_of_version_2_is_the_list_of_allowed_codecs():
    """Every allowed codec has a row that says where it may stand and under which name version 3 has it."""
    table = {row[0].strip("`"): row for row in rows("zarr version 2")}
    allowed = numcodecs_v2.ARRAY_CODECS | numcodecs_v2.BYTES_CODECS | numcodecs_v2.OBJECT_CODECS
    assert set(table) == allowed | numcodecs_v2.PACKING_CODECS
    for name, row in table.items():
        found = numcodecs_v2.find(f"numcodecs.{name}")
        assert row[2] == (f"`{found.name}`" if found else "none")


def test_every_codec_that_numcodecs_registers_is_on_the_page():
    """What numcodecs, kerchunk or anybody else here registers is either in a table or refused by name."""
    names = set(numcodecs.registry.codec_registry) | set(numcodecs.registry.entries)
    tables = "zarr version 2", "Codecs of other file formats"
    known = {row[0].strip("`") for heading in tables for row in rows(heading)}
    assert {name for name in names - known if not name.startswith("imagecodecs_")} == {"pickle", "FITSVarBintable"}
    assert known >= {"pcodec", "zfpy", "msgpack2"}


def test_every_codec_of_zarr_python_from_numcodecs_has_its_kind():
    """Each `numcodecs.*` name that zarr-python writes stands in the same place of a chain here."""
    kinds = {BytesBytesCodec: "bytes_to_bytes", ArrayArrayCodec: "array_to_array", ArrayBytesCodec: "array_to_bytes"}
    found = [getattr(zarr_numcodecs, name) for name in zarr_numcodecs.__all__ if not name.startswith("_")]
    assert len(found) > 15
    for codec in found:
        (kind,) = [kind for base, kind in kinds.items() if issubclass(codec, base)]
        assert find_codec(codec.codec_name).kind == kind, codec


def test_the_table_of_other_file_formats_is_the_registry():
    """Every codec of another file format has a row that says where it may stand, and no row is made up."""
    table = {row[0].strip("`"): row for row in rows("Codecs of other file formats")}
    assert set(table) == set(registry.codecs_v2.names()) - numcodecs_v2.PACKING_CODECS
    for name, row in table.items():
        kind = registry.codecs_v2.get(name).kind
        objects = name == "fill_hdf_strings"
        assert row[1] == ("filter" if kind == "array_to_array" or objects else "compressor, filter")


def test_defaults_of_version_2_are_those_of_the_table():
    """Compressors that TensorStore knows get the defaults that the page names."""
    for name, _, _, options in rows("zarr version 2")[:5]:
        stated = dict(re.findall(r"`(\w+)`: `?([-\w]+)", options))
        stored = parse_compressor({"id": name.strip("`")}).to_json()
        assert {key: str(value) for key, value in stored.items() if key != "id"} == stated


def test_what_the_page_calls_refused_is_refused():
    """The names under the heading raise."""
    section = PAGE.read_text(encoding="utf-8").split("## Refused\n")[1].split("\n## ")[0]
    for name in re.findall(r"`([\w]+)`", section):
        try:
            parse_compressor({"id": name})
        except (StoreError, NotImplementedError):
            continue
        raise AssertionError(name)
