"""Schemas, layouts, codec specs: what is ours alone; copies, pickles, bad input, deliberate differences."""

import copy
import pickle

import numpy as np
import pytest

from fsstore.errors import StoreError
from fsstore.index import IndexDomain, d
from fsstore.schema.chunk_layout import ChunkLayout
from fsstore.schema.schema import Schema
from fsstore.schema.value import CodecSpec, merge_codecs


def full():
    """Return a schema with every constraint."""
    return Schema(
        dtype="int8",
        domain=IndexDomain(shape=[3, 4], labels=["x", "y"]),
        chunk_layout=ChunkLayout(chunk_shape=[3, 2], inner_order=[1, 0]),
        codec=CodecSpec({"driver": "zarr3", "codecs": ["gzip"]}),
        fill_value=[1, 2, 3, 4],
        dimension_units=["4nm", None],
    )


@pytest.mark.parametrize("make", [full, lambda: full().chunk_layout, lambda: full().chunk_layout.read_chunk])
def test_copies_and_pickles(make):
    """A copy or pickle is equal, prints alike and changes by itself."""
    value = make()
    for other in (copy.copy(value), copy.deepcopy(value), pickle.loads(pickle.dumps(value))):
        assert other == value
        assert other.to_json() == value.to_json()
    with pytest.raises(TypeError):
        hash(value)


def test_json_round_trip():
    """A schema is what its JSON says."""
    assert Schema(full().to_json()) == full()
    assert Schema(json=full().to_json()) == full()


def test_a_refused_update_changes_nothing():
    """`update` takes all constraints or none."""
    schema, layout = full(), full().chunk_layout
    with pytest.raises(StoreError):
        schema.update(rank=2, dimension_units=[None, "s"], fill_value=7)
    assert schema == full()
    with pytest.raises(StoreError):
        layout.update(grid_origin=[0, 0], chunk_shape=[9, 9])
    assert layout == full().chunk_layout


def test_properties_are_copies():
    """Changing what a property returned does not change the schema."""
    schema = full()
    schema.chunk_layout.update(grid_origin=[0, 0])
    schema.fill_value[0] = 9
    schema.codec.to_json()["driver"] = "zarr"
    assert schema == full()


def test_unknown_names_and_types():
    """Unknown constraints and values of wrong types are a TypeError that names them."""
    for make in (Schema, ChunkLayout, ChunkLayout.Grid):
        with pytest.raises(TypeError, match="foo"):
            make(foo=1)
        with pytest.raises(TypeError):
            make({}, rank=1)
        assert make() != 5


def test_every_problem_is_reported():
    """All problems of a document are in one error."""
    with pytest.raises(StoreError) as caught:
        Schema({"dtype": "foo", "rank": 99, "chunk_layout": {"rank": -1, "chunk": {"shape": ["x"]}}, "zzz": 1})
    assert len(caught.value.problems) == 5


def test_fill_values_agree_as_the_type():
    """Fill values are compared as values of the schema's type; NaN agrees with NaN."""
    schema = Schema(dtype="int32", fill_value=3)
    schema.update(schema=Schema(fill_value=3.0))
    assert schema.fill_value.dtype == np.int32
    floating = Schema(fill_value=float("nan"))
    floating.update(fill_value=float("nan"))
    with pytest.raises(StoreError, match="does not match existing value"):
        schema.update(schema=Schema(fill_value=4.0))


def test_fill_value_of_extension_types():
    """Types that TensorStore does not have take fill values and print them."""
    schema = Schema(dtype="datetime64[D]", fill_value="2020-01-02")
    assert schema.fill_value == np.datetime64("2020-01-02")
    assert schema.to_json()["fill_value"] == "2020-01-02"
    assert Schema(schema.to_json()) == schema
    assert Schema(dtype="U3", fill_value="abc").to_json()["fill_value"] == "abc"
    assert Schema({"dtype": "complex64", "fill_value": [1, 2]}).fill_value == 1 + 2j


@pytest.mark.parametrize(
    ("dtype", "fill", "text"),
    [
        ("S3", b"ab", "YWIA"),
        ("V3", np.void(b"a\0b"), "YQBi"),
        ([("a", ">i2"), ("b", [("c", "S1")])], (1, (b"x",)), "AQB4"),
    ],
)
def test_fill_value_of_octets(dtype, fill, text):
    """Elements of a fixed number of bytes are base64 in JSON, structures in the byte order of their dtype."""
    native = np.dtype(dtype)
    schema = Schema(dtype=native, fill_value=np.array(fill, native))
    assert schema.to_json()["fill_value"] == text
    assert text in repr(schema)
    assert Schema(schema.to_json()) == schema
    for bad in ("YWI=", "?", 1):
        with pytest.raises(StoreError, match=f"Expected {native.itemsize} base64|Expected string"):
            Schema({**schema.to_json(), "fill_value": bad})


@pytest.mark.parametrize("bad", [[], [[]], np.zeros((0, 3))])
def test_empty_fill_values(bad):
    """A fill value without elements is refused."""
    with pytest.raises(StoreError):
        Schema(fill_value=bad)


def test_deep_json_fill_value():
    """A fill value nested deeply is refused or kept as JSON, without harm."""
    deep = []
    for _ in range(200):
        deep = [deep]
    with pytest.raises(StoreError):
        Schema({"dtype": "int8", "fill_value": deep})


def test_fill_value_of_unknown_domain():
    """A view that keeps a dimension whole keeps its fill value; one that cuts it must know the domain."""
    schema = Schema(rank=2, fill_value=[1, 2, 3])
    assert schema.T.to_json() == {"fill_value": [[1], [2], [3]], "rank": 2}
    assert schema[1].to_json() == {"fill_value": [1, 2, 3], "rank": 1}
    with pytest.raises(StoreError, match="not known"):
        schema[..., 1]


def test_indexing_without_rank():
    """A schema without a rank cannot be indexed and has no shape."""
    with pytest.raises(ValueError, match="unspecified rank"):
        Schema()[3]
    with pytest.raises(StoreError, match="unspecified rank"):
        _ = Schema().shape
    with pytest.raises(TypeError):
        list(Schema(rank=1))


def test_views_follow_labels():
    """Dimension expressions address the labels of the schema's domain."""
    view = full()[d["y"][1:3]]
    assert view.shape == (3, 2)
    assert view.fill_value.tolist() == [2, 3]
    assert view.chunk_layout == full().chunk_layout


def test_codec_specs():
    """Codec specs compare by what they say, hash alike, and merge within one driver."""
    gzip = CodecSpec({"driver": "zarr3", "codecs": ["gzip"]})
    assert gzip == CodecSpec({"driver": "zarr3", "codecs": [{"name": "gzip"}]}) == CodecSpec(gzip)
    assert len({gzip, CodecSpec(gzip.to_json())}) == 1
    assert pickle.loads(pickle.dumps(gzip)) == copy.deepcopy(gzip) == gzip
    level = CodecSpec({"driver": "zarr3", "codecs": [{"name": "gzip", "configuration": {"level": 3}}]})
    assert merge_codecs(gzip, level) == level
    assert merge_codecs(None, gzip) is gzip
    assert merge_codecs(None, None) is None
    with pytest.raises(StoreError, match="Cannot merge codec spec"):
        merge_codecs(gzip, CodecSpec({"driver": "zarr"}))


def test_codec_chunk_keywords():
    """Keywords with the prefix `codec_chunk_` set the codec chunk."""
    layout = ChunkLayout(codec_chunk_shape=[3], codec_chunk_aspect_ratio=[2], codec_chunk_elements=5)
    assert layout.to_json() == {"codec_chunk": {"aspect_ratio": [2.0], "elements": 5, "shape": [3]}}


def test_soft_grids():
    """`grid_soft_constraint` adds another grid's constraints as preferences."""
    other = ChunkLayout.Grid(shape=[2, 3], elements=3)
    grid = ChunkLayout.Grid(shape=[1, None], grid_soft_constraint=other)
    assert grid.to_json() == {"elements_soft_constraint": 3, "shape": [1, None], "shape_soft_constraint": [None, 3]}
