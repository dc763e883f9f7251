"""`open_multiscale`: images of other writers, of the specifications' examples, and our own read by others."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import tensorstore
import tifffile
import zarr

import fsstore as ts
from fsstore.dataset.multiscale import described

VALUES = np.random.default_rng(0).integers(0, 1000, (2, 64, 48)).astype("u2")
OME = {3: lambda image: {"ome": {"version": "0.5", "multiscales": [image]}},
       2: lambda image: {"multiscales": [{**image, "version": "0.4"}]}}  # fmt: skip


def scale(*numbers):
    return {"type": "scale", "scale": list(numbers)}


def shift(*numbers):
    return {"type": "translation", "translation": list(numbers)}


def levels(place, version, sizes, names=("0", "1", "2"), **options):
    """Make arrays of ones of the sizes, and return the group."""
    group = ts.open_group(place, mode="w", zarr_format=version).result()
    for number, (name, size) in enumerate(zip(names, sizes, strict=False)):
        group.create_array(name, shape=size, dtype="u2", **options).result()[:] = np.uint16(number)
    return group


@pytest.fixture(params=[3, 2], ids=["zarr 3", "zarr 2"])
def version(request):
    return request.param


def test_levels_axes_and_places(tmp_path, version):
    """Scales and translations of a level come before those of the image, and axes have names, kinds and units."""
    group = levels(tmp_path, version, [(4, 8, 6), (4, 4, 3)])
    image = {
        "name": "cells", "type": "gaussian",
        "axes": [{"name": "t", "type": "time", "unit": "second"}, {"name": "y", "type": "space", "unit": "micrometer"},
                 {"name": "x", "type": "space"}],
        "datasets": [
            {"path": "0", "coordinateTransformations": [scale(1, 0.5, 0.25)]},
            {"path": "1", "coordinateTransformations": [scale(1, 1, 0.5), shift(0, 0.25, 0.125)]},
        ],
        "coordinateTransformations": [scale(10, 1, 2), shift(5, 0, 0)],
    }  # fmt: skip
    group.attrs.update(OME[version](image))
    found = ts.open_multiscale(str(tmp_path)).result()
    assert (found.name, found.method) == ("cells", "gaussian")
    assert found.vocabulary == ("OME-Zarr 0.5" if version == 3 else "OME-Zarr 0.4")
    assert [(axis.name, axis.kind, axis.unit) for axis in found.axes] == [
        ("t", "time", "second"), ("y", "space", "micrometer"), ("x", "space", None),
    ]  # fmt: skip
    assert [level.scale for level in found] == [{"t": 10, "y": 0.5, "x": 0.5}, {"t": 10, "y": 1, "x": 1}]
    assert found[1].translation == {"t": 5, "y": 0.25, "x": 0.25}
    assert found[1].store.domain.labels == ("t", "y", "x")
    assert (found[-1][0, :2].read().result() == 1).all()
    assert found[1].coordinates("t").tolist() == [5, 15, 25, 35]
    assert np.array_equal(found[0].region(t=(14, 31), y=(1, 2.9))[:].domain.shape, (2, 4, 6))
    assert found[0].region(y=(100, 200)).shape == (4, 0, 6)


def test_a_level_is_chosen_by_the_size_of_its_elements(tmp_path):
    """It is the coarsest that is fine enough along all axes that are named; the finest where none is."""
    group = ts.open_group(tmp_path, mode="w").result()
    base = group.create_array(
        "0", shape=[2, 64, 48], dtype="u2", chunks=[1, 16, 16], dimension_names=["c", "y", "x"],
        attributes={"dimension_units": [None, "0.5 um", "0.25 um"]},
    ).result()  # fmt: skip
    base[:] = VALUES
    ts.build_pyramid(group, levels=3).result()
    image = ts.open_multiscale(group).result()
    assert [axis.unit for axis in image.axes] == [None, "micrometer", "micrometer"]
    assert [image.at(size).path for size in (0.1, 0.5, 0.9, 1, 2, 100)] == ["0", "0", "0", "1", "2", "2"]
    assert image.at(x=0.5).path == "1" == image.at(y=1.0).path
    assert image.at(4.0, y=0.6).path == "0"
    middle = image[1]
    assert middle.translation == {"c": 0, "y": 0.25, "x": 0.125}
    assert np.array_equal(middle.store.read().result(), VALUES.reshape(2, 32, 2, 24, 2).mean((2, 4)).round())
    again = pickle.loads(pickle.dumps(image))
    assert again == image or repr(again) == repr(image)
    assert again[2].store.read().result().shape == (2, 16, 12)
    assert repr(image).splitlines()[1:] == [
        '  0: <Level "0" uint16 (2, 64, 48), scale c 1, y 0.5, x 0.25>',
        '  1: <Level "1" uint16 (2, 32, 24), scale c 1, y 1, x 0.5>',
        '  2: <Level "2" uint16 (2, 16, 12), scale c 1, y 2, x 1>',
    ]
    assert "<td>2 × 32 × 24</td>" in image._repr_html_()
    assert "1 micrometer" in image._repr_html_()


@pytest.mark.filterwarnings("ignore")  # ome-zarr warns of its own classes
def test_what_others_write_and_read(tmp_path, version):
    """Levels that ome-zarr writes are opened, and it reads those of `build_pyramid` with the same places."""
    pytest.importorskip("ome_zarr", reason="ome-zarr is not installed")
    from ome_zarr.format import FormatV04, FormatV05
    from ome_zarr.io import parse_url
    from ome_zarr.reader import Reader
    from ome_zarr.writer import write_image

    form = FormatV05() if version == 3 else FormatV04()
    theirs = tmp_path / "theirs.zarr"
    write_image(VALUES, zarr.open_group(theirs, mode="w", zarr_format=version), axes="cyx", fmt=form)
    image = ts.open_multiscale(theirs).result()
    assert image.vocabulary == f"OME-Zarr {form.version}"
    assert np.array_equal(image[0].store.read().result(), VALUES)
    assert [level.scale["y"] for level in image][:3] == [1, 2, 4]
    assert np.array_equal(image[1].store.read().result(), zarr.open_group(theirs)[image[1].path][:])
    group = ts.open_group(tmp_path / "ours.zarr", mode="w", zarr_format=version).result()
    base = group.create_array("0", shape=VALUES.shape, dtype="u2", dimension_names=["c", "y", "x"]).result()
    base[:] = VALUES
    ts.build_pyramid(group, levels=3).result()
    ours = ts.open_multiscale(group).result()
    [node] = Reader(parse_url(tmp_path / "ours.zarr", fmt=form))()
    assert [axis["name"] for axis in node.metadata["axes"]] == ["c", "y", "x"]
    for level, data, moves in zip(ours, node.data, node.metadata["coordinateTransformations"], strict=True):
        assert np.array_equal(level.store.read().result(), np.asarray(data))
        assert moves[0]["scale"] == list(level.scale.values())
        assert [move["translation"] for move in moves[1:]] in ([], [list(level.translation.values())])


def test_the_convention_of_zarr(tmp_path, version):
    """Levels are placed by those that they are derived from; a level may be a group, of which one array is meant."""
    group = levels(tmp_path, version, [(8, 6), (4, 3), (2, 1)], ("full/data", "half/data", "quarter/data"))
    group["full"].create_array("y", shape=[8], dtype="f8").result()
    group.attrs["multiscales"] = {
        "resampling_method": "average",
        "layout": [
            {"asset": "full"},
            {"asset": "quarter", "derived_from": "half", "transform": {"scale": [2.0, 2.0], "translation": [0.5, 0.5]}},
            {"asset": "half", "derived_from": "full", "transform": {"scale": [2.0, 2.0], "translation": [0.5, 0.5]}},
        ],
    }  # fmt: skip
    image = ts.open_multiscale(group).result()
    assert (image.vocabulary, image.method) == ("the convention multiscales", "average")
    assert [level.path for level in image] == ["full", "half", "quarter"]
    assert [list(level.scale.values()) for level in image] == [[1, 1], [2, 2], [4, 4]]
    assert [list(level.translation.values()) for level in image] == [[0, 0], [0.5, 0.5], [1.5, 1.5]]
    assert [axis.kind for axis in image.axes] == ["space"] * 2
    assert (image.at(3.0)[:].read().result() == 1).all()
    group["half"].create_array("other", shape=[4, 3], dtype="u2").result()
    with pytest.raises(ts.errors.StoreError, match='"half" is a group of the arrays "data", "other"; choose one'):
        ts.open_multiscale(group).result()
    assert len(ts.open_multiscale(group, variable="data").result()) == 3


def test_scales_of_a_precomputed_volume(tmp_path):
    """Each scale is a level, with the resolution for its scale and the unit of its axes."""
    base = {"driver": "neuroglancer_precomputed", "kvstore": f"file://{tmp_path}/"}
    for number in range(3):
        size = [8 >> number, 8 >> number, 4]
        scale = {"size": size, "resolution": [4 << number, 4 << number, 40], "encoding": "raw", "chunk_size": [4, 4, 4]}
        kind = {"data_type": "uint8", "num_channels": 1, "type": "image"}
        spec = {**base, "scale_metadata": scale, "multiscale_metadata": kind}
        tensorstore.open(spec, create=True).result().write(np.uint8(number)).result()
    image = ts.open_multiscale(str(tmp_path)).result()
    assert [axis.name for axis in image.axes] == ["x", "y", "z", "channel"]
    assert image.axes[0].unit == "nm"
    assert [level.scale["x"] for level in image] == [4, 8, 16]
    assert image.at(x=10).shape == (4, 4, 4, 1)
    assert (image[2].store.read().result() == 2).all()
    assert ts.open_multiscale(f"file://{tmp_path}/|neuroglancer-precomputed:").result().at(x=16).path == "16_16_40"


def test_a_tiff_file_with_overviews(tmp_path):
    """The overviews of a TIFF file are levels."""
    with tifffile.TiffWriter(tmp_path / "a.tif") as file:
        file.write(VALUES[0], subifds=1, tile=(16, 16))
        file.write(VALUES[0, ::2, ::2], subfiletype=1, tile=(16, 16))
    image = ts.open_multiscale(tmp_path / "a.tif").result()
    assert [level.shape for level in image] == [(64, 48), (32, 24)]
    assert np.array_equal(image[1][:].read().result(), VALUES[0, ::2, ::2])


def image_of(**changes):
    datasets = [{"path": "0", "coordinateTransformations": [scale(1, 1)]}]
    return {"multiscales": [{"axes": ["y", "x"], "datasets": datasets, **changes}]}


@pytest.mark.parametrize(
    ("attributes", "why"),
    [
        ({}, "has no metadata of an image in several resolutions; build_pyramid makes one"),
        (image_of(datasets=[]), '"datasets" of an image is no list of 1 to 64 entries'),
        (image_of(datasets=[{"path": 3}]), '"path" of a level is no path: 3'),
        (image_of(datasets=[{"path": "9"}]), "There is no array or group at"),
        (image_of(axes=["y", "y"]), '"axes" of an image has the same name twice'),
        (image_of(axes=["z", "y", "x"]), r"A scale has 2 numbers|has the axes z, y, x, but the level \"0\" has 2"),
        (image_of(coordinateTransformations=[{"type": "affine"}]), 'placed by "affine"; scales, translations'),
        (image_of(coordinateTransformations=[scale(1, "2")]), "is not placed by numbers"),
        (image_of(coordinateTransformations=[scale(1, 0)]), "has a scale of 0"),
        ({"multiscales": {"layout": [{"asset": "0", "derived_from": "0"}]}}, "which is derived from itself"),
        ({"multiscales": {"layout": [{"asset": "0", "derived_from": "7"}]}}, 'names "7", which is no level'),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(attributes, why):
    """Metadata that cannot be understood are refused in one sentence that names the place."""
    group = levels("memory://", 2, [(4, 4)])
    group.attrs.update(attributes)
    with pytest.raises(ts.errors.StoreError, match=why):
        ts.open_multiscale(group).result()


def test_what_may_be_meant_is_named(tmp_path):
    """A group of images names them, an unknown axis the close one, and a missing place is missing."""
    group = ts.open_group(tmp_path, mode="w").result()
    image = levels(tmp_path / "A" / "1", 3, [(4, 4)])
    image.attrs.update({"ome": {"version": "0.5", **image_of()}})
    with pytest.raises(ts.errors.NotFoundError, match='open one of the images below it: "A/1"'):
        ts.open_multiscale(group).result()
    opened = ts.open_multiscale(tmp_path / "A" / "1").result()
    with pytest.raises(ts.errors.StoreError, match="There is no axis"):
        opened.at(yy=3.0)
    with pytest.raises(ts.errors.StoreError, match=r"at\(2.0\)"):
        opened.at()
    with pytest.raises(ts.errors.StoreError, match="no image number 1; the attributes describe 1"):
        ts.open_multiscale(tmp_path / "A" / "1", number=1).result()
    with pytest.raises(ts.errors.NotFoundError, match="nowhere"):
        ts.open_multiscale(tmp_path / "nowhere").result()


def test_what_was_said_before_stays(tmp_path, version):
    """Making levels keeps the name, the units and the omero metadata that are there, and the second image."""
    group = levels(tmp_path, version, [(64, 64)])
    said = OME[version]({"name": "n", "axes": [{"name": "y", "type": "space", "unit": "nanometer"},
                                              {"name": "x", "type": "space", "unit": "nanometer"}],
                         "datasets": [{"path": "0", "coordinateTransformations": [scale(3, 3), shift(1, 1)]}]})  # fmt: skip
    holder = said["ome"] if version == 3 else said
    holder["omero"] = {"id": 7}
    holder["multiscales"].append({"name": "other"})
    group.attrs.update(said)
    ts.build_pyramid(group, levels=2, method="stride").result()
    image = ts.open_multiscale(group).result()
    assert (image.name, image.axes[0].unit) == ("n", "nanometer")
    assert image[1].scale == {"y": 6, "x": 6}
    assert image[1].translation == {"y": 1, "x": 1}
    now = group.attrs["ome"] if version == 3 else group.attrs
    assert now["omero"] == {"id": 7}
    assert now["multiscales"][1] == {"name": "other"}
    assert described(group.attrs.asdict()).levels[0].place.scale == (3, 3)


def plate(place, version):
    """Make a plate of two wells, with an image of two levels in each field and labels of the first."""
    group = ts.open_group(place, mode="w", zarr_format=version).result()
    words = (lambda **said: {"ome": {"version": "0.5", **said}}) if version == 3 else dict
    group.attrs.update(words(plate={
        "rows": [{"name": "A"}, {"name": "B"}], "columns": [{"name": "1"}], "version": "0.4",
        "wells": [{"path": "A/1", "rowIndex": 0, "columnIndex": 0}, {"path": "B/1", "rowIndex": 1, "columnIndex": 0}],
    }))  # fmt: skip
    datasets = [{"path": str(n), "coordinateTransformations": [scale(2.0**n, 2.0**n)]} for n in range(2)]
    axes = [{"name": "y", "type": "space", "unit": "micrometer"}, {"name": "x", "type": "space", "unit": "micrometer"}]
    said = {"axes": axes, "datasets": datasets}
    for well, count in (("A/1", 2), ("B/1", 1)):
        group.create_group(well).result()
        group[well].attrs.update(words(well={"images": [{"path": str(n), "acquisition": n} for n in range(count)]}))
        for number in range(count):
            levels_in(group, f"{well}/{number}", words(multiscales=[{**said, "name": f"{well} {number}"}]))
    group["A/1/0"].create_group("labels", attributes=words(labels=["cells"])).result()
    colours = [{"label-value": 1, "rgba": [255, 0, 0, 255]}]
    levels_in(group, "A/1/0/labels/cells", words(multiscales=[said], **{"image-label": {"colors": colours}}))
    return group


def levels_in(group, path, attributes):
    group.create_group(path, attributes=attributes).result()
    for number in range(2):
        made = group.create_array(f"{path}/{number}", shape=[8 >> number] * 2, dtype="u2").result()
        made[:] = np.uint16(number + 1)


FOUND = [
    ("A/1/0", "image", "A/1", 0), ("A/1/0/labels/cells", "labels", "A/1", 0),
    ("A/1/1", "image", "A/1", 1), ("B/1/0", "image", "B/1", 0),
]  # fmt: skip


def test_images_of_a_plate_are_listed_and_opened(tmp_path, version):
    """A plate leads to its wells, they to their fields, and images to their labels; each opens at its path."""
    group = plate(tmp_path, version)
    found = ts.list_images(tmp_path)
    assert [(each.path, each.kind, each.well, each.acquisition) for each in found] == FOUND
    assert [(each.name, each.axes, each.levels) for each in found][2] == ("A/1 1", ("y", "x"), 2)
    for each in found:
        image = ts.open_multiscale(tmp_path / each.path).result()
        assert len(image) == each.levels
        assert (image[-1].store.read().result() == 2).all()
    assert [each.path for each in ts.list_images(group["A/1"])] == ["0", "0/labels/cells", "1"]
    assert [each.path for each in ts.list_images(group["A/1/0"])] == ["", "labels/cells"]
    assert [each.path for each in ts.list_images(group["A/1/0/labels"])] == ["cells"]
    group["B"].attrs["more"] = 1
    assert [each.path for each in ts.list_images(group["B"])] == ["1/0"], "a row leads nowhere, and is listed"


def test_images_of_a_plate_need_no_listing(tmp_path, version):
    """The attributes lead to the images, and nothing is listed on the way."""
    group = plate(tmp_path, version)
    with ts.trace() as seen:
        assert [each.path for each in ts.list_images(group)] == [path for path, *_ in FOUND]
    assert not [each for each in seen.observations if each.what == "list"]
    with ts.trace() as seen:
        ts.list_arrays(tmp_path)
    assert [each for each in seen.observations if each.what == "list"], "a trace would say it"


def test_the_tree_says_what_groups_are(tmp_path, version):
    """A plate, its wells, images and labels are told apart in the tree, in that of notebooks and by the command."""
    group = plate(tmp_path, version)
    assert group.tree().splitlines()[:5] == [
        "/ plate, 2 by 1, 2 wells", "  A/", "    1/ well, 2 fields", "      0/ image, 2 levels",
        f"        0 {'uint16' if version == 3 else '<u2'} (8, 8) in chunks of (8, 8)",
    ]  # fmt: skip
    assert "            cells/ labels, 2 levels"[2:] in group.tree()
    assert "well, 1 field<" in group._repr_html_()
    assert ts.tree(tmp_path) == group.tree()


@pytest.mark.parametrize(
    ("attributes", "why"),
    [
        ({"plate": {"wells": [{"path": "A/1"}, {"path": "A/2"}]}}, "A/2.*missing"),
        ({"plate": {"wells": [{"path": "0"}]}}, '"0" is left out: it is an array'),
        ({"plate": {"wells": {}}}, '"wells" of OME-Zarr is no list'),
        ({"plate": {"wells": [{"path": "../../A"}]}}, "no path of a member"),
        ({"plate": {"wells": [3]}}, "An entry of OME-Zarr is no object"),
        ({"well": {"images": [{}]}}, '"path" of a level is no path'),
        ({"labels": [""]}, '"path" of a level is no path'),
        ({"multiscales": [{"datasets": 7}]}, '"datasets" of an image is no list'),
    ],
)
def test_what_leads_nowhere_is_named(attributes, why):
    """A well, field or label image that is missing or cannot be understood is left out with a warning."""
    group = levels("memory://", 2, [(4, 4)], ("0",))
    group.create_group("A/1").result()
    group.attrs.update(attributes)
    with pytest.warns(UserWarning, match=why):
        assert ts.list_images(group) == []
    group.tree()
