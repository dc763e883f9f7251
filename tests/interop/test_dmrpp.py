"""DMR++ documents open as the HDF5 files that they describe; what they cannot say is left out by name."""

from __future__ import annotations

import base64
import zlib
from xml.sax.saxutils import quoteattr

import h5py
import numpy as np
import pytest

import fsstore as ts
from fsstore import references
from fsstore.errors import StoreError

NAMES = {"f": "Float", "i": "Int", "u": "UInt"}
FILTERS = {1: "deflate", 2: "shuffle", 3: "fletcher32"}
HEAD = (
    '<?xml version="1.0" encoding="ISO-8859-1"?>\n<Dataset xmlns="http://xml.opendap.org/ns/DAP/4.0#"'
    ' xmlns:dmrpp="http://xml.opendap.org/dap/dmrpp/1.0.0#" name="a.h5" dmrpp:href={}>'
)
SLOPE = np.arange(35 * 12, dtype="f8").reshape(35, 12)


def document(body, href="OPeNDAP_DMRpp_DATA_ACCESS_URL"):
    """Return a document with a body."""
    return HEAD.format(quoteattr(href)) + body + "</Dataset>"


def variable(name, body, shape=(4,), kind="Int32"):
    """Return a variable of dimensions without names."""
    dims = "".join(f'<Dim size="{size}"/>' for size in shape)
    return f"<{kind} name={quoteattr(name)}>{dims}{body}</{kind}>"


def described(dataset):
    """Return a dataset of h5py in the words of DMR++."""
    dtype, name = dataset.dtype, dataset.name.rpartition("/")[2]
    kind = "String" if dtype.kind == "S" else f"{NAMES[dtype.kind]}{dtype.itemsize * 8}"
    parts = [f'<FixedLengthStringArray string_length="{dtype.itemsize}"/>'] if dtype.kind == "S" else []
    parts += [
        f'<Attribute name="{key}" type="Float32"><Value>{value}</Value></Attribute>'
        for key, value in dataset.attrs.items()
    ]
    order, fill = "BE" if dtype.byteorder == ">" else "LE", dataset.fillvalue
    fill = fill.decode() if dtype.kind == "S" else fill
    if dataset.chunks is None:
        place = f'<dmrpp:chunk offset="{dataset.id.get_offset()}" nBytes="{dataset.id.get_storage_size()}"/>'
        place = place if dataset.id.get_offset() else ""
        parts.append(f'<dmrpp:chunks fillValue="{fill}" byteOrder="{order}">{place}</dmrpp:chunks>')
        return variable(name, "".join(parts), dataset.shape, kind)
    steps = dataset.id.get_create_plist()
    words = " ".join(FILTERS[steps.get_filter(number)[0]] for number in range(steps.get_nfilters()))
    parts.append(f'<dmrpp:chunks compressionType="{words}" deflateLevel="4" fillValue="{fill}" byteOrder="{order}">')
    parts.append(f"<dmrpp:chunkDimensionSizes>{' '.join(map(str, dataset.chunks))}</dmrpp:chunkDimensionSizes>")
    for number in range(dataset.id.get_num_chunks()):
        info = dataset.id.get_chunk_info(number)
        at = ",".join(map(str, info.chunk_offset))
        parts.append(
            f'<dmrpp:chunk offset="{info.byte_offset}" nBytes="{info.size}" chunkPositionInArray="[{at}]"'
            f' fm="{info.filter_mask}"/>'
        )
    return variable(name, "".join(parts) + "</dmrpp:chunks>", dataset.shape, kind)


def written(path):
    """Write an HDF5 file of all kinds of storage, and the document that describes it."""
    with h5py.File(path, "w") as file:
        options = {"chunks": (8, 5), "compression": "gzip"}
        file.create_dataset("plain", data=SLOPE, chunks=(8, 5))
        file.create_dataset("packed", data=SLOPE.astype(">i4"), shuffle=True, fletcher32=True, **options)
        file.create_dataset("holes", (35, 12), "f4", fillvalue=-7.5, **options)[3:9, 2:4] = 1
        file.create_dataset("run", data=SLOPE.astype("u2"))
        file.create_dataset("never", (3, 2), "i2", fillvalue=-3)
        file.create_dataset("texts", data=np.array([b"ab", b"cde"], "S3"))
        file.create_dataset("one", data=np.float32(2.5))
        masked = file.create_dataset("masked", (16, 5), "i4", shuffle=True, **options)
        masked.id.write_direct_chunk((0, 0), SLOPE[:8, :5].astype("i4").tobytes(), 3)
        masked[8:] = 4
        file["g/h/inner"] = SLOPE
        file["plain"].attrs["scale"] = np.float32(0.1)
        file.flush()
        root = [described(each) for each in file.values() if isinstance(each, h5py.Dataset)]
        inner = described(file["g/h/inner"])
    groups = f'<Group name="g"><Group name="h">{inner}</Group></Group>'
    path.with_suffix(".h5.dmrpp").write_text(document("".join(root) + groups))
    return path.with_suffix(".h5.dmrpp")


PATHS = ["plain", "packed", "holes", "run", "never", "texts", "one", "masked", "g/h/inner"]


def values(url, path):
    """Return an array of a store."""
    return ts.open(f"{url}{path}/|zarr2:").result().read().result()


def test_arrays_are_those_of_h5py(tmp_path):
    """Every storage, byte order, filter, mask and hole reads as h5py reads it, and so does a saved scan."""
    place = written(tmp_path / "a.h5")
    assert {entry.path for entry in ts.list_arrays(f"file://{place}")} == set(PATHS)
    references.scan(place).save(tmp_path / "a.json")
    with h5py.File(tmp_path / "a.h5") as file:
        for path in PATHS:
            want = file[path][()]
            for url in (f"file://{place}|dmrpp:", f"file://{tmp_path}/a.json|reference:"):
                got = values(url, path)
                assert got.dtype == want.dtype.newbyteorder("=")
                np.testing.assert_array_equal(got, want)
    group = ts.open_group(f"file://{place}").result()
    assert dict(group["plain"].attrs)["scale"] == pytest.approx(0.1)


def test_values_in_the_document(tmp_path):
    """Compact values and values that only the document has, compressed, are shown as they are."""
    numbers = np.arange(6, dtype="<i4")
    compact = base64.b64encode(numbers.tobytes()).decode()
    packed = base64.b64encode(zlib.compress(numbers.tobytes())).decode()
    body = variable("a", f"<dmrpp:compact>{compact}</dmrpp:compact>", (2, 3))
    body += variable("b", f"<dmrpp:missingdata>\n {packed}\n</dmrpp:missingdata>", (6,))
    (tmp_path / "a.dmrpp").write_text(document(body))
    assert values(f"file://{tmp_path}/a.dmrpp|dmrpp:", "a").tolist() == [[0, 1, 2], [3, 4, 5]]
    assert values(f"file://{tmp_path}/a.dmrpp|dmrpp:", "b").tolist() == list(range(6))


def test_the_file_is_that_of_the_document(tmp_path):
    """`href` names the file, of the document or of one chunk; one that is not there is an error at the read."""
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "b.bin").write_bytes(np.arange(4, dtype="<i4").tobytes())
    chunk = '<dmrpp:chunks><dmrpp:chunk offset="0" nBytes="16"{}/></dmrpp:chunks>'
    body = variable("x", chunk.format("")) + variable("y", chunk.format(' href="d/b.bin"'))
    (tmp_path / "a.dmrpp").write_text(document(body, "d/c.bin"))
    assert values(f"file://{tmp_path}/a.dmrpp|dmrpp:", "y").tolist() == [0, 1, 2, 3]
    with pytest.raises(StoreError, match=r"c\.bin"):
        values(f"file://{tmp_path}/a.dmrpp|dmrpp:", "x")
    (tmp_path / "d" / "c.bin").write_bytes(bytes(15))
    with pytest.raises(StoreError, match="offset 0"):
        values(f"file://{tmp_path}/a.dmrpp|dmrpp:", "x")


CHUNK = '<dmrpp:chunk offset="8" nBytes="16" {}/>'
LEFT_OUT = {
    "nothing says where its values are": "",
    'its filter "szip" is not known': f'<dmrpp:chunks compressionType="szip">{CHUNK.format("")}</dmrpp:chunks>',
    'its byte order "PDP" is not known': '<dmrpp:chunks byteOrder="PDP"/>',
    "its values have 16 bytes, and its shape says 32": f"<dmrpp:chunks>{CHUNK.format('')}</dmrpp:chunks>",
    "a chunk of it is described twice": f"<dmrpp:chunks>{CHUNK.format('') * 2}</dmrpp:chunks>",
    "1 of its 2 chunks have no place, and no fill value is given": (
        f"<dmrpp:chunks><dmrpp:chunkDimensionSizes>4</dmrpp:chunkDimensionSizes>{CHUNK.format('')}</dmrpp:chunks>"
    ),
    "a chunk of it is said to be at [3], where none can be": (
        "<dmrpp:chunks><dmrpp:chunkDimensionSizes>4</dmrpp:chunkDimensionSizes>"
        + CHUNK.format('chunkPositionInArray="[3]"')
        + "</dmrpp:chunks>"
    ),
    "its chunks are [0], and its shape is [8]": (
        "<dmrpp:chunks><dmrpp:chunkDimensionSizes>0</dmrpp:chunkDimensionSizes></dmrpp:chunks>"
    ),
    "a chunk of it has no place": '<dmrpp:chunks><dmrpp:chunk offset="-8" nBytes="16"/></dmrpp:chunks>',
    "its values are stored in linked blocks": "<dmrpp:chunks><dmrpp:block/></dmrpp:chunks>",
    "its chunks consist of linked blocks": (
        "<dmrpp:chunks>" + CHUNK.format('LinkedBlockIndex="0"') + "</dmrpp:chunks>"
    ),
    'its fill value "many" is none of its type': '<dmrpp:chunks fillValue="many"/>',
    "the value in the document has 3 bytes, and its shape says 32": "<dmrpp:compact>AAAA</dmrpp:compact>",
}


@pytest.mark.parametrize("why", LEFT_OUT)
def test_what_cannot_be_shown_is_named(tmp_path, why):
    """A variable that is described incompletely is left out with its reason, and the others are shown."""
    good = variable("good", '<dmrpp:chunks fillValue="1"/>')
    (tmp_path / "a.dmrpp").write_text(document(variable("bad", LEFT_OUT[why], (8,)) + good))
    with pytest.warns(UserWarning, match="bad") as caught:
        references.scan(tmp_path / "a.dmrpp")
    assert why in str(caught[0].message)
    assert values(f"file://{tmp_path}/a.dmrpp|dmrpp:", "good").tolist() == [1] * 4


def test_types_that_are_not_shown_are_named(tmp_path):
    """Structures, sequences and texts of any length are left out by name."""
    (tmp_path / "a.dmrpp").write_text(document(variable("s", "", (), "Structure") + variable("t", "", (), "String")))
    with pytest.warns(UserWarning, match="variables of the type Structure are not shown.*of the type String"):
        references.scan(tmp_path / "a.dmrpp")


HOSTILE = {
    "document type": HEAD.replace("<Dataset", '<!DOCTYPE x [<!ENTITY a "b">]>\n<Dataset', 1).format('""')
    + "&a;</Dataset>",
    "nested more than": document("<Group name='a'>" * 100 + "</Group>" * 100),
    "no well-formed XML": document("<Group>"),
    "more than 1000 elements": document("<a/>" * 1001),
}


@pytest.mark.parametrize("why", HOSTILE)
def test_hostile_documents_are_refused(tmp_path, why, tune):
    """No entity is expanded, and depth and size are bounded: the error names the document and the reason."""
    tune("scan", MOST_ELEMENTS=1000)
    (tmp_path / "a.dmrpp").write_text(HOSTILE[why])
    with pytest.raises(StoreError, match=rf"a\.dmrpp.*{why}"):
        ts.list_arrays(f"file://{tmp_path}/a.dmrpp|dmrpp:")


def test_a_document_instead_of_a_scan(tmp_path):
    """The set of a file by its document is that of a scan, and serves as the file's index."""
    place = written(tmp_path / "a.h5")
    references.scan(tmp_path / "a.h5", dmrpp=place).save(tmp_path / "a.json")
    spec = {"driver": "hdf5", "base": f"file://{tmp_path}/a.h5", "index": str(tmp_path / "a.json"), "path": "packed/"}
    got = ts.open({"driver": "zarr", "kvstore": spec}).result().read().result()
    np.testing.assert_array_equal(got, SLOPE.astype("i4"))


def moved(path):
    """Write the file again, with its chunks elsewhere."""
    written(path)
    with h5py.File(path, "w", userblock_size=512) as file:
        file.create_dataset("packed", data=SLOPE.astype(">i4"), chunks=(8, 5), compression="gzip")
        file["more"] = np.zeros(20000)


def cut(path):
    """Cut the file off."""
    written(path)
    path.write_bytes(path.read_bytes()[:9000])


def other(path):
    """Put another kind of file in its place."""
    written(path)
    path.write_bytes(bytes(20000))


@pytest.mark.parametrize(
    ("change", "why"), [(moved, "is not at the place"), (cut, "the file at 9000"), (other, "is no HDF5 file")]
)
def test_the_document_of_another_file_is_refused(tmp_path, change, why):
    """By the file's format, its size, or chunks that do not decode, with both named."""
    change(tmp_path / "a.h5")
    with pytest.raises(StoreError, match=rf"a\.h5.*{why}"):
        references.scan(tmp_path / "a.h5", dmrpp=tmp_path / "a.h5.dmrpp")
