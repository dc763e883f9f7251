"""The reader for napari: what it hands over, and where a napari is installed the layers that it makes of that."""

from __future__ import annotations

import tomllib
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest

import fsstore as ts
from fsstore.interop.napari import get_reader


@pytest.fixture(params=[3, 2], ids=["zarr 3", "zarr 2"])
def version(request):
    return request.param


def words(version, **said):
    return {"ome": {"version": "0.5", **said}} if version == 3 else {**said}


def image(group, path, version, *, labels=False, shape=(2, 8, 6)):
    """Make an image of two levels at a path, whose values are their channel and level."""
    named = "cyx"[-len(shape) :]
    kinds = [{"name": name, "type": "channel" if name == "c" else "space"} for name in named]
    axes = [each if each["name"] == "c" else {**each, "unit": "micrometer"} for each in kinds]
    moves = [{"type": "scale", "scale": [0.5] * len(shape)}, {"type": "translation", "translation": [1.0] * len(shape)}]
    halved = [{"type": "scale", "scale": [1.0] * len(shape)}]
    datasets = [{"path": "0", "coordinateTransformations": moves}, {"path": "1", "coordinateTransformations": halved}]
    said = {"multiscales": [{"name": path, "axes": axes, "datasets": datasets}]}
    if labels:
        said["image-label"] = {"colors": [{"label-value": 3, "rgba": [255, 0, 0, 128]}]}
    else:
        channels = [
            {"label": "DNA", "color": "00FF00", "window": {"start": 1, "end": 9}, "active": False},
            {"color": "?"},
        ]
        said["omero"] = {"channels": channels}
    group.create_group(path, attributes=words(version, **said)).result()
    for number in range(2):
        sides = [side if name == "c" else side >> number for side, name in zip(shape, named, strict=True)]
        made = group.create_array(f"{path}/{number}", shape=sides, dtype="u2").result()
        made[:] = np.full(sides, 10 * number, "u2") + np.arange(sides[0], dtype="u2").reshape(
            -1, *[1] * (len(sides) - 1)
        )


def test_an_image_with_labels(tmp_path, version):
    """Each channel is a layer with its levels, place, colours and limits; the labels come behind them."""
    group = ts.open_group(tmp_path, mode="w", zarr_format=version).result()
    image(group, "cells", version)
    image(group, "cells/labels/nuclei", version, labels=True, shape=(8, 6))
    group["cells/labels"].attrs.update(words(version, labels=["nuclei"]))
    layers = get_reader(str(tmp_path / "cells"))(str(tmp_path / "cells"))
    assert [(kind, about["name"]) for _, about, kind in layers] == [
        ("image", "cells DNA"), ("image", "cells 1"), ("labels", "cells/labels/nuclei"),
    ]  # fmt: skip
    data, about, _ = layers[1]
    assert [level.shape for level in data] == [(8, 6), (4, 3)]
    assert about["multiscale"] and (about["scale"], about["translate"]) == ((0.5, 0.5), (1.0, 1.0))
    assert (about["axis_labels"], about["units"]) == (("y", "x"), ("micrometer",) * 2)
    assert "colormap" not in about
    assert (np.asarray(data[1]) == 11).all() and isinstance(data[0][2:4, 1], np.ndarray)
    assert {"contrast_limits": (1, 9), "colormap": "#00FF00", "visible": False}.items() <= layers[0][1].items()
    assert layers[2][1]["colormap"][3] == (1.0, 0.0, 0.0, 128 / 255)


def test_a_plate_lies_as_its_wells_do(tmp_path, version):
    """Rows go down, columns across, and the fields of a well stand beside each other."""
    group = ts.open_group(tmp_path, mode="w", zarr_format=version).result()
    sides = {"rows": [{"name": "A"}, {"name": "B"}], "columns": [{"name": "1"}, {"name": "2"}]}
    group.attrs.update(words(version, plate={**sides, "wells": [{"path": "A/1"}, {"path": "B/2"}]}))
    for well, fields in (("A/1", 2), ("B/2", 1)):
        group.create_group(well).result()
        group[well].attrs.update(words(version, well={"images": [{"path": str(n)} for n in range(fields)]}))
        for number in range(fields):
            image(group, f"{well}/{number}", version, shape=(8, 6))
    layers = get_reader(str(tmp_path))(str(tmp_path))
    assert {about["name"]: about["translate"] for _, about, _ in layers} == {
        "A/1/0": (1.0, 1.0), "A/1/1": (1.0, 4.0), "B/2/0": (5.0, 7.0),
    }  # fmt: skip


def test_arrays_and_what_is_none(tmp_path):
    """An array of two or more dimensions is a layer, of booleans too; what has no picture is left to other readers."""
    store = ts.open(
        {"driver": "zarr3", "kvstore": f"file://{tmp_path}/a.zarr/"}, create=True, dtype="bool", shape=[3, 4]
    )
    store.result()[1] = True
    [(data, about, kind)] = get_reader(f"{tmp_path}/a.zarr/")("")
    assert (data.shape, about["name"], kind) == ((3, 4), "a.zarr", "image")
    ts.open({"driver": "zarr3", "kvstore": f"file://{tmp_path}/b.zarr/"}, create=True, dtype="u1", shape=[3]).result()
    ts.open_group(tmp_path / "c.zarr", mode="w").result()
    for path in ("b.zarr", "c.zarr", "nothing"):
        assert get_reader(str(tmp_path / path)) is None
    assert get_reader([str(tmp_path / "a.zarr")] * 2) is None


def test_the_manifest_names_the_reader():
    """The entry point leads to the manifest, and that to the function."""
    named = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]["entry-points"][
        "napari.manifest"
    ]["fsstore"]
    package, _, name = named.partition(":")
    yaml = pytest.importorskip("yaml")
    manifest = yaml.safe_load(files(package).joinpath(name).read_text())["contributions"]
    [command], [reader] = manifest["commands"], manifest["readers"]
    assert command["python_name"] == f"{get_reader.__module__}:{get_reader.__name__}"
    assert reader["command"] == command["id"]


@pytest.mark.filterwarnings("ignore")  # napari warns of its own parts
def test_napari_makes_layers_of_them(tmp_path):
    """napari reads the levels, colours and places that the reader hands over."""
    layers = pytest.importorskip("napari.layers", reason="napari is not installed")
    group = ts.open_group(tmp_path, mode="w").result()
    image(group, "cells", 3)
    image(group, "cells/labels/nuclei", 3, labels=True, shape=(8, 6))
    group["cells/labels"].attrs.update(words(3, labels=["nuclei"]))
    made = [layers.Layer.create(*each) for each in get_reader(str(tmp_path / "cells"))("")]
    assert [type(each).__name__ for each in made] == ["Image", "Image", "Labels"]
    assert [tuple(each.scale) for each in made] == [(0.5, 0.5)] * 3
    assert made[0].colormap.map(np.ones(1)).tolist() == [[0, 1, 0, 1]]
    assert made[2].get_color(3).tolist() == pytest.approx([1, 0, 0, 128 / 255], abs=1e-6)
    assert (np.asarray(made[1].data[1]) == 11).all()
