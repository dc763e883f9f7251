"""The viewer's server: what the page is told, how little is read for it, and who may ask."""

from __future__ import annotations

import http.client
import http.server
import json
import math
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlencode

import numpy as np
import pytest

import fsstore as ts
from fsstore.errors import ResourceExhaustedError
from fsstore.viewer.door import page_server, view
from fsstore.viewer.subject import PictureLimits, axis, numbers, sampled

VALUES = np.arange(4 * 30 * 60, dtype="f4").reshape(4, 30, 60)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A hierarchy with coordinates, packed values, missing chunks, names that are markup, and an image pyramid."""
    path = tmp_path_factory.mktemp("viewed") / "d.zarr"
    group = ts.open_group(path, mode="w").result()

    def coordinate(name, values, **attributes):
        group.create_array(
            name, shape=values.shape, dtype=values.dtype.name, dimension_names=[name], attributes=attributes
        ).result()[:] = values

    coordinate("time", np.arange(4.0), units="days since 2000-02-28 12:00", calendar="standard")
    coordinate("lat", np.linspace(-87, 87, 30), units="degrees_north")
    coordinate("lon", np.arange(0, 360, 6.0), units="degrees_east")
    names = ["time", "lat", "lon"]
    whole = group.create_array("sea/t", shape=VALUES.shape, dtype="f4", chunks=(1, 10, 20), dimension_names=names)
    whole.result()[:] = VALUES
    packed = {"scale_factor": 0.5, "add_offset": 10, "_FillValue": -1, "units": "<script>alert(1)</script>"}
    part = group.create_array(
        "sea/p", shape=(30, 60), dtype="i2", chunks=(10, 20), dimension_names=names[1:], attributes=packed
    )
    part.result()[:10, :20] = np.where(np.arange(20) == 3, -1, 4).astype("i2")
    group.create_array("<img src=x onerror=alert(1)>", shape=[2], dtype="ustring").result()[:] = np.array(
        ["<b>", "a\x1b[2Jb"], object
    )
    image = group.create_group("image").result()
    base = np.arange(64 * 64, dtype="u2").reshape(64, 64)
    for level in range(3):
        data = base[:: 2**level, :: 2**level]
        image.create_array(str(level), shape=data.shape, dtype="u2", chunks=(16, 16)).result()[:] = data
    image.attrs["ome"] = {
        "multiscales": [
            {"axes": [{"name": "y"}, {"name": "x"}], "datasets": [{"path": str(level)} for level in range(3)]}
        ]
    }
    (path.parent / "secret.js").write_text("not served")
    return path


@pytest.fixture
def running():
    """A function that serves the page of something until the test ends."""
    servers = []

    def start(place, **options):
        server = page_server(place, **options)
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        servers.append((server, thread))
        return server

    yield start
    for server, thread in servers:
        server.shutdown()
        server.server_close()
        thread.join()


def ask(server, path, method="GET", *, token=None, marked=True, **headers):
    """Return the status, the headers and the body of a request below the address of the page."""
    client = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=20)
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    if marked:
        named["Fsstore-View"] = "1"
    try:
        client.request(method, f"/{server.token if token is None else token}/{path}", headers=named)
        response = client.getresponse()
        return response.status, dict(response.headers), response.read()
    finally:
        client.close()


def question(server, route, **query):
    """Return the answer to a question as JSON."""
    status, _, body = ask(server, f"api/{route}?{urlencode(query)}")
    assert status == 200, body
    return json.loads(body)


def drawn(server, route, **query):
    """Return numbers and their description."""
    status, headers, body = ask(server, f"api/{route}?{urlencode(query)}")
    assert status == 200, body
    about = json.loads(headers["Fsstore-Description"])
    return np.frombuffer(body, about["dtype"]).reshape(about["shape"]), about


def test_the_tree(place, running):
    """The page is told all arrays and groups, with shapes, and which groups are images."""
    found = question(running(str(place)), "tree")
    by_path = {each["path"]: each for each in found["members"]}
    assert by_path["sea/t"]["shape"] == [4, 30, 60]
    assert "shape" not in by_path["sea"]
    assert found["images"] == ["image"]
    assert "<img src=x onerror=alert(1)>" in by_path


def test_an_array_with_its_coordinates(place, running):
    """Coordinates of groups above are axes: times as milliseconds of 1970, and latitudes that go up."""
    found = question(running(str(place)), "array", path="sea/t")
    assert (found["rows"], found["columns"]) == (1, 2)
    time_axis, lat, lon = found["axes"]
    assert time_axis["kind"] == "time"
    assert time_axis["values"][2] - time_axis["values"][0] == 2 * 864e5
    assert time_axis["values"][0] == np.datetime64("2000-02-28T12:00", "ms").astype(int)
    assert (lat["up"], lon["up"]) == (True, False)
    assert found["chunks"] == [1, 10, 20]


def test_an_array_alone_finds_its_coordinates(place, running):
    """An array that is opened by its own place finds the coordinates that lie beside it."""
    group = ts.open_group(place).result()
    group.create_array("beside", shape=[30], dtype="u1", dimension_names=["lat"]).result()
    found = question(running(f"{place}/beside"), "array", path="")
    assert found["axes"][0]["values"][0] == -87


@pytest.mark.parametrize(
    ("units", "calendar", "kind", "first"),
    [
        ("hours since 1970-01-01", "standard", "time", 36e5),
        ("seconds since 1970-01-01 00:00:01.5 UTC", "", "time", 2500),
        ("minutes since 1970-01-01T01:00:00 +01:00", "proleptic_gregorian", "time", 6e4),
        ("days since 2000-02-28", "noleap", "text", "2000-03-01"),
        ("days since 2000-02-28", "all_leap", "text", "2000-02-29"),
        ("days since 2000-02-30", "360_day", "text", "2000-03-01"),
        ("days since 0000-99-99", "standard", "number", 1.0),
        ("fortnights since 2000-01-01", "standard", "number", 1.0),
        ("K", "", "number", 1.0),
    ],
)
def test_times(units, calendar, kind, first):
    """Times of CF become moments or dates of their calendar; what is not understood stays a number."""
    found = axis(ts.array(np.array([1.0, 2.0])), {"units": units, "calendar": calendar})
    assert (found["kind"], found["values"][0]) == (kind, first)


def test_a_picture_is_the_array(place, running):
    """Where every element has a pixel, the picture is the part of the array, in either order of dimensions."""
    server = running(str(place))
    query = {"path": "sea/t", "at": "2,0,0", "pixels": "400,400"}
    found, about = drawn(server, "picture", along="1,2", window="5,20,7,40", **query)
    assert (about["start"], about["step"]) == ([5, 7], [1, 1])
    assert np.array_equal(found, VALUES[2, 5:20, 7:40])
    turned, _ = drawn(server, "picture", along="2,1", window="0,60,0,30", **query)
    assert np.array_equal(turned, VALUES[2].T)


def test_a_coarse_picture_samples_the_array(place, running):
    """Where there are fewer pixels, samples are from the middle of their steps."""
    found, about = drawn(
        running(str(place)), "picture", path="sea/t", along="1,2", at="0,0,0", window="0,30,0,60", pixels="10,12"
    )
    assert about["step"] == [3, 5]
    assert np.array_equal(found, VALUES[0, 1::3, 2::5])


def test_packed_values(place, running):
    """Scale, offset and the marks of missing values are obeyed, in pictures and in single values."""
    server = running(str(place))
    found, _ = drawn(server, "picture", path="sea/p", along="0,1", at="0,0", window="0,1,0,5", pixels="9,9")
    assert np.array_equal(found, [[12, 12, 12, np.nan, 12]], equal_nan=True)
    assert question(server, "value", path="sea/p", at="0,0") == {"at": [0, 0], "value": "12.0", "stored": "4"}
    assert question(server, "value", path="sea/p", at="0,3")["value"] == "nan"


def test_coarser_levels_are_used(place, running):
    """An image in several resolutions is read from the coarsest that has a value for each pixel."""
    server = running(str(place))
    found = question(server, "array", path="image")
    assert [each["factors"] for each in found["levels"]] == [[1, 1], [2, 2], [4, 4]]
    assert found["names"] == ["y", "x"]
    for pixels, level in (("64,64", 0), ("32,32", 1), ("16,16", 2), ("8,8", 2)):
        values, about = drawn(server, "picture", path="image", along="0,1", at="0,0", window="0,64,0,64", pixels=pixels)
        assert about["level"] == level
        assert about["step"][0] * values.shape[0] == 64
    assert question(server, "array", path="image/1")["levels"][1]["factors"] == [2, 2]


def test_series_and_chunks(place, running):
    """A series is the array along one dimension; the chunk map tells stored from missing."""
    server = running(str(place))
    found, _ = drawn(server, "series", path="sea/t", along="0", at="0,3,4", window="0,4")
    assert np.array_equal(found, VALUES[:, 3, 4])
    stored, _ = drawn(server, "chunks", path="sea/p", along="0,1", at="0,0", window="0,3,0,3")
    assert stored.tolist() == [[1, 0, 0], [0, 0, 0], [0, 0, 0]]
    assert ask(server, "api/chunks?path=sea/p&along=0,1&at=0,0&window=0,99,0,99")[0] == 400


def test_texts_are_a_table(place, running):
    """Arrays without numbers are shown as a table of texts."""
    found = question(running(str(place)), "table", path="<img src=x onerror=alert(1)>", along="0", at="0", window="0,2")
    assert found["rows"] == [["<b>"], ["a\x1b[2Jb"]]


def test_numbers_are_what_scripts_have():
    """Every type of numbers becomes one that a script can hold, with its values."""
    for dtype, code in {"u8": "f8", "f2": "f4", "c8": "f4", "?": "u1", ">i4": "i4", "i2": "i2"}.items():
        got = numbers(np.array([0, 1], dtype), {})
        assert (got.dtype.str[1:], got.tolist()) == (code, [0, 1])
    moments = numbers(np.array(["1970-01-02", "NaT"], "M8[D]"), {})
    assert moments[0] == 864e5 and math.isnan(moments[1])
    for name in ("bfloat16", "float8_e5m2", "int4"):
        assert numbers(np.array([1], ts.dtype(name).numpy_dtype), {}).tolist() == [1]


@pytest.mark.parametrize("seed", range(40))
def test_no_picture_takes_more_than_it_may(seed):
    """Whatever array, window and pixels are, the chunks that samples lie in are few and small enough, and in order."""
    r = np.random.default_rng(seed)
    shape, chunks = r.integers(1, 10**6, 2), r.integers(1, 2000, 2)
    low = [int(r.integers(0, size)) for size in shape]
    window = [(a, int(r.integers(a + 1, size + 1))) for a, size in zip(low, shape, strict=True)]
    each = int(np.prod(chunks)) * 4
    limits = PictureLimits(int(r.integers(1, 300)), max(each, int(r.integers(1, 64 << 20))))
    plans = sampled(
        window, r.integers(1, 2000, 2).tolist(), shape=shape.tolist(), chunks=chunks.tolist(), chunk_bytes=each,
        limits=limits,
    )  # fmt: skip
    touched = 1
    for plan, size, chunk in zip(plans, shape, chunks, strict=True):
        at = np.arange(size)[plan.selection]
        assert len(at) == plan.count >= 1
        touched *= len(np.unique(at // min(chunk, size)))
    assert touched <= limits.chunks
    assert touched * each <= limits.nbytes


def test_chunks_that_are_too_large_are_refused():
    """An array whose single chunk is more than a picture may take is not read."""
    with pytest.raises(ResourceExhaustedError, match="64 MB"):
        sampled([(0, 10**6)], [100], shape=[10**6], chunks=[10**6], chunk_bytes=80 << 20)


class _Large(http.server.BaseHTTPRequestHandler):
    """An array of 102 GB whose chunks are made when they are asked for; requests and bytes are counted."""

    protocol_version = "HTTP/1.1"
    side, chunk = 160_000, np.full(256 * 256, 7, "<f4").tobytes()
    metadata = {
        "zarr_format": 3, "node_type": "array", "shape": [side, side], "data_type": "float32", "fill_value": 0,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [256, 256]}},
        "chunk_key_encoding": {"name": "default"}, "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
    }  # fmt: skip

    def do_GET(self):
        name = self.path.partition("large.zarr/")[2]
        body = json.dumps(self.metadata).encode() if name == "zarr.json" else self.chunk if name[:2] == "c/" else b""
        self.server.asked.append(self.path)
        self.send_response(200 if body else 404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(b"" if self.command == "HEAD" else body)

    do_HEAD = do_GET

    def log_message(self, *_):
        pass


def test_the_first_picture_of_a_large_remote_array(running):
    """A remote array of 102 GB shows its first picture after a bounded number of requests, of 64 MB at most."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Large) as remote:
        remote.asked = []
        thread = threading.Thread(target=remote.serve_forever, args=(0.05,))
        thread.start()
        try:
            server = running(f"http://127.0.0.1:{remote.server_port}/large.zarr")
            found = question(server, "array", path="")
            assert found["bytes"] > 100e9
            before = len(remote.asked)
            assert before <= 20
            whole = {"path": "", "along": "0,1", "at": "0,0", "pixels": "900,1200"}
            values, about = drawn(server, "picture", window="0,160000,0,160000", **whole)
            chunks = len(remote.asked) - before
            assert 100 < chunks <= 256
            assert chunks * len(_Large.chunk) <= 64 << 20
            assert (values == 7).all()
            before = len(remote.asked)
            close, about = drawn(server, "picture", window="5000,5900,70000,71200", **whole)
            assert (close.shape, about["step"]) == ((900, 1200), [1, 1])
            assert len(remote.asked) - before <= 5 * 6  # the chunks that are seen
        finally:
            remote.shutdown()
            thread.join()


def test_only_the_page_may_ask(place, running):
    """Without the token, under another name, from another site, or without the page's mark nothing is told."""
    server = running(str(place))
    assert len(server.token) >= 32
    assert ask(server, "api/tree")[0] == 200
    assert ask(server, "api/tree", token="x" * 32)[0] == 403
    assert ask(server, "api/tree", token="")[0] == 403
    assert ask(server, "api/tree", marked=False)[0] == 403  # a form or an image of another site: no origin, no mark
    for host in ("evil.example", f"127.0.0.1.evil.example:{server.server_port}", "localhost.evil.example", "[", ""):
        assert ask(server, "api/tree", Host=host)[0] == 421
    assert ask(server, "api/tree", Host=f"localhost:{server.server_port}")[0] == 200
    for origin in ("http://evil.example", "null", "http://127.0.0.1:1", f"https://127.0.0.1:{server.server_port}"):
        assert ask(server, "api/tree", Origin=origin)[0] == 403
    assert ask(server, "api/tree", Origin=f"http://127.0.0.1:{server.server_port}")[0] == 200
    assert ask(server, "api/tree", Sec_Fetch_Site="cross-site", Sec_Fetch_Mode="cors")[0] == 403
    status, headers, _ = ask(server, "api/tree", "OPTIONS", Origin="http://evil.example")
    assert status == 405
    assert not [name for name in headers if name.lower().startswith("access-control")]
    for method in ("POST", "PUT", "DELETE"):
        assert ask(server, "api/tree", method)[0] == 405


def test_the_page_runs_nothing_but_its_own(place, running):
    """The page is served with a policy that lets it load its own files and nothing else; markup is nowhere in it."""
    server = running(str(place))
    status, headers, body = ask(server, "", marked=False)
    assert status == 200
    policy = headers["Content-Security-Policy"]
    assert "default-src 'none'; script-src 'self'" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert headers["Referrer-Policy"] == "no-referrer"
    assert b"onerror" not in body
    assert b"http://" not in body.replace(b'"http://www.w3.org', b"") and b"https://" not in body
    for kind, name in (("text/javascript", "main.js"), ("text/css", "style.css"), ("image/svg+xml", "icon.svg")):
        assert ask(server, name, marked=False)[1]["Content-Type"].startswith(kind)


@pytest.mark.parametrize(
    "path", ["../secret.js", "%2e%2e/secret.js", "..%2f..%2fsecret.js", "__init__.py", "page/main.js", "main%00.js", "x" * 5000]
)  # fmt: skip
def test_no_other_files(place, running, path):
    """Only files of the page are served, however a path is written."""
    assert ask(running(str(place)), path)[0] in (403, 404)


@pytest.mark.parametrize(
    "query",
    [
        "picture?path=sea/t", "picture?path=sea/t&along=0,0&at=0,0,0&window=0,1,0,1&pixels=1,1",
        "picture?path=sea/t&along=1,2&at=0&window=0,1,0,1&pixels=1,1", "picture?path=none&along=0,1&at=0,0",
        "picture?path=sea/t&along=1,2&at=0,0,0&window=a,b,c,d&pixels=1,1", "value?path=sea/t&at=1e9",
        "picture?path=sea/t&along=1,9&at=0,0,0&window=0,1,0,1&pixels=1,1", "array?path=../../etc", "array", "frob",
        "picture?path=sea/t&along=1,2&at=0,0,0&window=0,1&pixels=1,1", "array?path=sea",
    ],
)  # fmt: skip
def test_questions_that_make_no_sense(place, running, query):
    """A question that makes no sense is answered with an error in JSON, and the server goes on."""
    server = running(str(place))
    status, _, body = ask(server, f"api/{query}")
    assert status in (400, 404, 502)
    assert json.loads(body)["error"]
    assert ask(server, "api/tree")[0] == 200


def test_bounds_are_cut(place, running):
    """Windows, places and pixels beyond the array or beyond reason are cut, not obeyed."""
    server = running(str(place))
    query = {"path": "sea/t", "along": "1,2", "at": "99,-5,99999999999", "pixels": "999999999,1"}
    values, _ = drawn(server, "picture", window="-99999,99999999999,-5,99999999999999", **query)
    assert values.shape[0] == 30


def test_slow_readers_and_idle_ones(place, running):
    """Connections that say nothing, or do not read, keep nobody else waiting; the oldest make room."""
    server = running(str(place))
    idle = [socket.create_connection(("127.0.0.1", server.server_port)) for _ in range(30)]
    slow = socket.create_connection(("127.0.0.1", server.server_port))
    query = "path=sea/t&along=1,2&at=0,0,0&window=0,30,0,60&pixels=99,99"
    request = f"GET /{server.token}/api/picture?{query} HTTP/1.1\r\nHost: localhost\r\nFsstore-View: 1\r\n\r\n"
    slow.sendall(request.encode() * 50)
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: ask(server, "api/tree")[0], range(1000)))
    assert answers == [200] * 1000
    server.most_connections = 40
    more = [socket.create_connection(("127.0.0.1", server.server_port)) for _ in range(40)]
    assert ask(server, "api/tree")[0] == 200
    for each in [*idle, *more, slow]:
        each.close()


def test_methods_serve_and_show_it(place):
    """`view` of an array and of a group serves from a thread; a notebook gets a frame of it, and it can be closed."""
    group = ts.open_group(place).result()
    for shown in (group, group["sea/t"], ts.array(np.eye(3))[1:]):
        page = shown.view(height=300)
        assert page.url in page._repr_html_()
        assert "height='300'" in page._repr_html_()
        assert page.url in repr(page)
        port = int(page.url.split(":")[2].split("/")[0])
        client = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        client.request("GET", page.url.partition(str(port))[2])
        response = client.getresponse()
        assert response.status == 200
        assert "frame-ancestors *" in response.headers["Content-Security-Policy"]
        client.close()
        page.close()
        with pytest.raises(OSError):
            socket.create_connection(("127.0.0.1", port), timeout=2).recv(1)
    page = view(str(place))
    page.close()


def test_arrays_without_a_place(running):
    """Arrays in memory, views with an origin, and arrays without chunks are shown, with their own indices in code."""
    store = ts.array(np.arange(12).reshape(3, 4))[1:, 2:]
    server = running(store)
    found = question(server, "array", path="")
    assert (found["origin"], found["shape"]) == ([1, 2], [2, 2])
    values, _ = drawn(server, "picture", path="", along="0,1", at="0,0", window="0,2,0,2", pixels="9,9")
    assert values.tolist() == [[6, 7], [10, 11]]
    assert drawn(server, "chunks", path="", along="0,1", at="0,0", window="0,1,0,1")[0].tolist() == [[1]]


def test_colours_come_together(running):
    """Three small numbers at the end are colours of a pixel, and are read together."""
    image = np.arange(5 * 6 * 3, dtype="u1").reshape(5, 6, 3)
    server = running(ts.array(image))
    found = question(server, "array", path="")
    assert (found["rows"], found["columns"], found["colours"]) == (0, 1, 2)
    values, _ = drawn(server, "picture", path="", along="0,1,2", at="0,0,0", window="0,5,0,6", pixels="9,9")
    assert np.array_equal(values, image)


def test_the_command_prints_where_it_is(place):
    """`fsstore view` prints the address first, serves until it is interrupted, and ends with the code for that."""
    import signal

    process = subprocess.Popen(
        [sys.executable, "-m", "fsstore", "view", str(place)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    url = process.stdout.readline().strip()
    assert url.startswith("http://127.0.0.1:")
    port, token = url.removeprefix("http://127.0.0.1:").rstrip("/").split("/")
    client = http.client.HTTPConnection("127.0.0.1", int(port), timeout=20)
    client.request("GET", f"/{token}/api/tree", headers={"Fsstore-View": "1"})
    assert client.getresponse().status == 200
    client.close()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (130, "fsstore: interrupted\n")
