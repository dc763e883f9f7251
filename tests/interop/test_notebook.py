"""In a notebook: arrays, groups, traces and the page of the viewer show themselves, in a kernel as notebooks have it."""

from __future__ import annotations

import re

import pytest

nbformat = pytest.importorskip(
    "nbformat", reason="nbclient is not installed (make test installs it): no notebook is run"
)
nbclient = pytest.importorskip(
    "nbclient", reason="nbclient is not installed (make test installs it): no notebook is run"
)

CELLS = [
    """import fsstore as ts, numpy as np, urllib.request
group = ts.open_group("memory://sea/", mode="w").result()
array = group.create_array("t", shape=[40, 60], dtype="f4", dimension_names=["lat", "lon"]).result()
array[:] = np.arange(2400, dtype="f4").reshape(40, 60)
group""",
    "group['t']",
    "page = group.view(height=333)\npage",
    """request = urllib.request.Request(page.url + "api/tree", headers={"Fsstore-View": "1"})
with urllib.request.urlopen(page.url) as found, urllib.request.urlopen(request) as tree:
    print(found.headers["Content-Security-Policy"].partition("frame-ancestors")[2], b"picture" in found.read(), tree.read())
page.close()""",
    "with ts.trace() as trace:\n    array.read().result()\ntrace",
]


@pytest.fixture(scope="module")
def outputs():
    """What the cells of a notebook show: text on standard output, or the forms of their value."""
    cells = [nbformat.v4.new_code_cell(text) for text in CELLS]
    notebook = nbformat.v4.new_notebook(cells=cells)
    nbclient.NotebookClient(notebook, timeout=60, kernel_name="python3").execute()
    shown = [cell.outputs[-1] for cell in notebook.cells]
    return [each.get("data", {}).get("text/html") or each.get("text", "") for each in shown]


def test_groups_and_arrays_show_themselves(outputs):
    """A group shows a tree of what is in it, and an array its facts and its chunk grid."""
    assert "Group of zarr 3" in outputs[0] and "float32" in outputs[0]
    assert "(40, 60)" in outputs[1] and "<svg" in outputs[1]


def test_the_page_is_a_frame(outputs):
    """`view()` shows the page of the viewer in a frame, which the kernel serves and notebooks may frame."""
    assert re.search(r"<iframe src='http://127\.0\.0\.1:\d+/[\w-]{20,}/'[^>]* height='333'", outputs[2])
    assert outputs[3].split()[:2] == ["*", "True"]
    assert '"path":"t"' in outputs[3]


def test_a_trace_is_a_picture(outputs):
    """A trace shows its table and its timeline."""
    assert "<svg" in outputs[4] and "busy ms" in outputs[4]
