"""`fsstore serve`: what browsers and other clients get, and what they do not."""

from __future__ import annotations

import gzip
import http.client
import json
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import unquote

import numpy as np
import pytest
import zarr

import fsstore as ts
from fsstore.serve.listener import path_of
from fsstore.serve.server import NEUROGLANCER, serve

VALUES = np.arange(6000, dtype="i4").reshape(10, 20, 30)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A hierarchy of zarr v2, so that what is served as v3 is presented and not passed on."""
    path = tmp_path_factory.mktemp("served") / "d.zarr"
    group = ts.open_group(path, mode="w", zarr_format=2).result()
    array = group.create_array(
        "sea/t", shape=VALUES.shape, dtype="i4", chunks=(5, 20, 30), dimension_names=["time", "y", "x"]
    ).result()
    array[:] = VALUES
    group.attrs["text"] = "x" * 3000
    (path.parent / "secret").write_text("not served")
    return path


@pytest.fixture
def running():
    """A function that serves places until the test ends."""
    servers = []

    def start(places, *, public=True, **options):
        server = serve(places, public=public, **options)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        servers.append((server, thread))
        return server

    yield start
    for server, thread in servers:
        server.shutdown()
        server.server_close()
        thread.join()


def ask(server, path, method="GET", **headers):
    """Return the status, the headers and the body of a request."""
    client = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=20)
    try:
        client.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
        response = client.getresponse()
        return response.status, dict(response.headers), response.read()
    finally:
        client.close()


@pytest.mark.parametrize("version", [2, 3])
def test_zarr_python_reads_what_is_served(place, running, version):
    """zarr-python opens the hierarchy over HTTP in either version and reads the values."""
    server = running(str(place), zarr_format=version)
    group = zarr.open_group(server.url, mode="r")
    assert group.metadata.zarr_format == version
    assert np.array_equal(group["sea/t"][:], VALUES)


def test_tensorstore_and_fsstore_read_it(place, running):
    """TensorStore and this library read it over HTTP."""
    import tensorstore

    server = running(str(place))
    spec = {"driver": "zarr3", "kvstore": {"driver": "http", "base_url": server.url.rstrip("/"), "path": "/sea/t/"}}
    assert np.array_equal(tensorstore.open(spec).result()[3].read().result(), VALUES[3])
    assert np.array_equal(ts.open(f"{server.url}sea/t/|zarr3:").result()[3].read().result(), VALUES[3])


def test_xarray_reads_it(place, running):
    """xarray opens it over HTTP by its consolidated metadata, with the names of dimensions."""
    xarray = pytest.importorskip("xarray")
    server = running(str(place), zarr_format=3)
    with xarray.open_zarr(server.url, group="sea", consolidated=False) as data:
        assert np.array_equal(data["t"].values, VALUES)
    with xarray.open_zarr(server.url, consolidated=True) as data:
        assert data.attrs["text"] == "x" * 3000


def test_gdal_reads_it(place, running):
    """GDAL reads a served array by ranges over HTTP, where it is installed."""
    pytest.importorskip("rasterio", reason="rasterio, which brings GDAL, is not installed: GDAL is not tried")
    server = running(str(place / "sea" / "t"), zarr_format=2)
    code = """if True:
        import sys, rasterio
        with rasterio.Env(GDAL_DISABLE_READDIR_ON_OPEN="EMPTY_DIR"), rasterio.open(sys.argv[1]) as data:
            print(data.read(1).tolist())
    """  # another process, since GDAL lets no thread of its own answer while it waits
    place = f'ZARR:"/vsicurl/{server.url}":/:3'
    command = [sys.executable, "-W", "ignore", "-c", code, place]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert json.loads(done.stdout or "[]") == VALUES[3].tolist(), done.stderr


@pytest.mark.parametrize("version", [2, 3])
def test_pages_of_neuroglancer(place, running, tmp_path, version):
    """What Neuroglancer can show has an address that opens it: its types and codecs, images as a whole, nothing else."""
    group = ts.open_group(tmp_path / "n.zarr", mode="w", zarr_format=2).result()
    for name, dtype, shape in (
        ("v", "u2", (4, 5, 6)),
        ("l", "u8", (4, 5)),
        ("wide", "f8", (4, 5)),
        ("line", "u2", (4,)),
    ):
        group.create_array(name, shape=shape, dtype=dtype).result()
    group.create_array("odd", shape=(4, 4), dtype="u1", codec={"id": "lzma"}).result()
    image = group.create_group("i m").result()
    for level in range(2):
        image.create_array(str(level), shape=(8 >> level, 8 >> level), dtype="f4").result()
    axes = [{"name": "y", "type": "space"}, {"name": "x", "type": "space"}]
    image.attrs["multiscales"] = [{"version": "0.4", "axes": axes, "datasets": [{"path": "0"}, {"path": "1"}]}]
    server = running(str(tmp_path / "n.zarr"), zarr_format=version, origins=[NEUROGLANCER])
    pages = server.neuroglancer_pages()
    recoded = ["odd"] if version == 3 else []  # served with a codec that everybody knows
    assert sorted(pages) == ["i m", "l", *recoded, "v"]
    states = {path: json.loads(unquote(page.partition("#!")[2])) for path, page in pages.items()}
    layers = {path: state["layers"][0] for path, state in states.items()}
    assert layers["v"] == {"type": "image", "source": f"zarr{version}://{server.origin}/v", "name": "v"}
    assert layers["l"]["type"] == "segmentation"
    assert layers["i m"]["source"].endswith("/i%20m")
    assert ask(server, "/i%20m/" + {2: ".zattrs", 3: "zarr.json"}[version])[0] == 200
    assert running(str(tmp_path / "n.zarr")).neuroglancer_pages() == {}
    with_token = running(str(tmp_path / "n.zarr"), token="t0ken").neuroglancer_pages()
    assert "/t0ken/v" in unquote(with_token["v"])
    both = running({"a": str(tmp_path / "n.zarr" / "v"), "b": str(tmp_path / "n.zarr")}, token="t0ken")
    assert sorted(both.neuroglancer_pages()) == ["a", "b/i m", "b/l", "b/odd", "b/v"]


def test_precomputed_volumes_have_a_page(running, tmp_path):
    """A precomputed volume is served as zarr, which Neuroglancer opens."""
    spec = {
        "driver": "neuroglancer_precomputed", "kvstore": {"driver": "file", "path": f"{tmp_path}/p/"},
        "multiscale_metadata": {"type": "image", "data_type": "uint8", "num_channels": 1},
        "scale_metadata": {"size": [8, 8, 4], "encoding": "raw", "chunk_size": [4, 4, 4], "resolution": [1, 1, 1]},
    }  # fmt: skip
    ts.open(spec, create=True).result()[:] = 3
    server = running(f"{tmp_path}/p/", origins=[NEUROGLANCER])
    (page,) = server.neuroglancer_pages().values()
    assert f"zarr3://{server.origin}" in unquote(page)
    assert (zarr.open_array(server.url, mode="r")[:] == 3).all()


def test_ranges_and_conditions(place, running):
    """Ranges are exact, HEAD tells the size, and a value that has not changed is not sent again."""
    server = running(str(place), zarr_format=2)
    status, headers, whole = ask(server, "/sea/t/0.0.0")
    assert (status, int(headers["Content-Length"])) == (200, len(whole))
    assert ask(server, "/sea/t/0.0.0", "HEAD")[1]["Content-Length"] == str(len(whole))
    for wanted, expected in {"bytes=2-5": whole[2:6], "bytes=10-": whole[10:], "bytes=-7": whole[-7:]}.items():
        status, headers, body = ask(server, "/sea/t/0.0.0", Range=wanted)
        assert (status, body) == (206, expected)
    assert headers["Content-Range"] == f"bytes {len(whole) - 7}-{len(whole) - 1}/{len(whole)}"
    assert ask(server, "/sea/t/0.0.0", Range="bytes=999999-")[0] == 416
    assert ask(server, "/sea/t/0.0.0", range="bytes=2-5")[2] == whole[2:6]  # as browsers write it
    tag = headers["ETag"]
    assert ask(server, "/sea/t/0.0.0", If_None_Match=tag)[::2] == (304, b"")
    assert ask(server, "/sea/t/9.9.9")[0] == 404
    assert ask(server, "/sea/t/0.0.0", If_None_Match="*")[0] == 304
    assert ask(server, "/sea/t/0.0.0", If_None_Match='"another"')[2] == whole
    assert ask(server, "/sea/t/0.0.0", If_Match='"another"')[::2] == (412, b"")
    assert ask(server, "/sea/t/0.0.0", If_Match=tag)[2] == whole
    assert ask(server, "/sea/t/0.0.0", If_Range=tag, Range="bytes=2-5")[::2] == (206, whole[2:6])
    assert ask(server, "/sea/t/0.0.0", If_Range='"another"', Range="bytes=2-5")[::2] == (200, whole)
    assert ask(server, "/sea/t/0.0.0", Range="bytes=0-1,4-5")[::2] == (200, whole)
    assert ask(server, "/sea/t/0.0.0", "HEAD")[1]["ETag"] == tag
    assert ask(server, "/sea/t/9.9.9", "HEAD")[0] == 404


def test_what_is_made_has_tags(place, running):
    """Documents and chunks that are made for the client have tags too, and are not sent twice."""
    server = running(str(place), zarr_format=3)
    for key in ("/zarr.json", "/sea/t/zarr.json", "/sea/t/c/0/0/0"):
        tag = ask(server, key)[1]["ETag"]
        assert ask(server, key, If_None_Match=tag)[::2] == (304, b"")
        assert ask(server, key, If_None_Match='"another"')[0] == 200


def test_what_a_request_costs(place, running):
    """A value is read with one request of the store, and for its size, or where nothing has changed, no value is read."""
    server = running(str(place), zarr_format=2)
    tag = ask(server, "/sea/t/0.0.0", "HEAD")[1]["ETag"]
    costs = {}
    for name, method, headers in (("GET", "GET", {}), ("HEAD", "HEAD", {}), ("known", "GET", {"If_None_Match": tag})):
        with ts.trace() as trace:
            ask(server, "/sea/t/0.0.0", method, **headers)
        costs[name] = [bool(each.nbytes) for each in trace.observations if each.what == "read"]
    assert costs == {"GET": [True], "HEAD": [False], "known": [False]}


def test_documents_are_compressed(place, running):
    """JSON is sent compressed where the client takes that, and nothing is written."""
    server = running(str(place), zarr_format=2)
    status, headers, body = ask(server, "/.zattrs", Accept_Encoding="gzip")
    assert (status, headers["Content-Encoding"]) == (200, "gzip")
    assert json.loads(gzip.decompress(body))["text"] == "x" * 3000
    assert ask(server, "/.zattrs", "OPTIONS")[0] == 204
    for method in ("PUT", "POST", "DELETE"):
        assert ask(server, "/.zattrs", method)[0] == 405


def test_listings(place, running):
    """Directories are listed as a page or as JSON."""
    server = running(str(place), zarr_format=2)
    assert json.loads(ask(server, "/sea/", Accept="application/json")[2]) == [".zgroup", "t/"]
    page = ask(server, "/sea/t/")[2].decode()
    assert '<a href="0.0.0">0.0.0</a>' in page
    assert ask(server, "/sea")[1]["Location"] == "sea/"


@pytest.mark.parametrize(
    "path",
    [
        "/../secret",
        "/sea/../../secret",
        "/%2e%2e/secret",
        "/sea/%2e%2e/%2e%2e/secret",
        "/..%2fsecret",
        "/..%5csecret",
        "/%00",
    ],
)
def test_nothing_beside_it_is_reached(place, running, path):
    """Paths that climb out of what is served are refused, however they are written."""
    server = running(str(place), zarr_format=2)
    status, _, body = ask(server, path)
    assert status == 400
    assert b"not served" not in body


def test_paths_are_keys():
    """A path is decoded once, and a query is no part of it."""
    assert path_of("/a%20b/c?token=x") == "a b/c"
    assert path_of("/%252e%252e/x") == "%2e%2e/x"


def test_names_with_markup(tmp_path, running):
    """A listing shows names as text, and its page runs no script."""
    group = ts.open_group(tmp_path / "x", mode="w", zarr_format=2).result()
    group.create_array("<img src=x onerror=alert(1)>", shape=[1], dtype="i1").result()
    _, headers, page = ask(running(str(tmp_path / "x"), zarr_format=2), "/")
    assert b"<img" not in page
    assert "default-src 'none'" in headers["Content-Security-Policy"]


def test_other_names_and_tokens(place, running):
    """A request under another host name, or without the token, is refused: a page of another site gets nothing."""
    server = running(str(place), zarr_format=2, token="s3cret-token", public=False)
    assert server.url.endswith("/s3cret-token/")
    assert ask(server, "/.zgroup")[0] == 401
    assert ask(server, "/wrong/.zgroup")[0] == 401
    assert ask(server, "/s3cret-token/.zgroup")[0] == 200
    assert ask(server, "/.zgroup", Authorization="Bearer s3cret-token")[0] == 200
    assert ask(server, "/s3cret-token/.zgroup", Host="evil.example")[0] == 421
    assert ask(server, "/s3cret-token/.zgroup", Host="localhost.evil.example:80")[0] == 421


def test_a_host_that_others_reach_wants_a_token(place):
    """A server beyond this machine has a token unless it is said to be public."""
    with serve(str(place), host="0.0.0.0", origins=["https://a.example"]) as server:
        assert len(server.token) > 16
    with serve(str(place), host="0.0.0.0", public=True) as server:
        assert server.token == ""


def test_many_clients_and_slow_ones(place, running):
    """Two hundred requests at once are all answered, while connections that say nothing stay open."""
    server = running(str(place), zarr_format=2)
    idle = [socket.create_connection(("127.0.0.1", server.server_port)) for _ in range(20)]
    with ThreadPoolExecutor(32) as pool:
        answers = list(pool.map(lambda number: ask(server, f"/sea/t/{number % 2}.0.0")[0], range(200)))
    assert answers == [200] * 200
    [each.close() for each in idle]


def test_two_hundred_clients_at_once(place, running):
    """Two hundred clients that are connected at the same time are all answered, whichever began first."""
    server = running(str(place), zarr_format=2)
    clients = [socket.create_connection(("127.0.0.1", server.server_port), timeout=30) for _ in range(200)]
    request = b"GET /sea/t/0.0.0 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    for client in clients:
        client.sendall(request)
    answers = []
    for client in reversed(clients):
        with client, client.makefile("rb") as stream:
            answers.append(stream.read())
    assert {answer[:15] for answer in answers} == {b"HTTP/1.1 200 OK"}
    assert len({answer.partition(b"\r\n\r\n")[2] for answer in answers}) == 1


def test_readers_that_do_not_read(place, running, tune):
    """A reader that asks for much and reads nothing keeps nobody waiting, and is cut off after a while."""
    tune("serve", PATIENCE_S=1)
    server = running(str(place), zarr_format=2)
    slow = [socket.create_connection(("127.0.0.1", server.server_port)) for _ in range(2)]
    for each in slow:
        each.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        each.sendall(b"GET /.zattrs HTTP/1.1\r\nHost: localhost\r\n\r\n" * 1000)
    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(lambda _: ask(server, "/sea/t/.zarray")[0], range(200))) == {200}
    until = time.monotonic() + 20
    while server.open_connections and time.monotonic() < until:
        time.sleep(0.05)
    assert server.open_connections == 0
    [each.close() for each in slow]


def test_thousands_of_requests(place, running):
    """Thousands of requests on one connection are answered."""
    server = running(str(place), zarr_format=2)
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=30) as client:
        request = b"HEAD /sea/t/.zarray HTTP/1.1\r\nHost: localhost\r\n\r\n"
        with client.makefile("rb") as stream:
            for _ in range(20):
                client.sendall(request * 100)
                for _ in range(100):
                    assert stream.readline() == b"HTTP/1.1 200 OK\r\n"
                    while stream.readline() != b"\r\n":
                        pass


def test_pages_of_other_sites(place, running):
    """A page of another site that was not given the token reads nothing, and one that was may send no credentials."""
    server = running(str(place), zarr_format=2, token="s3cret-token", public=False)
    origin = {"Origin": "https://evil.example"}
    assert ask(server, "/.zgroup", **origin)[0] == 401
    assert "Access-Control-Allow-Origin" not in ask(server, "/.zgroup", "OPTIONS", **origin)[1]
    status, headers, _ = ask(server, "/s3cret-token/.zgroup", "OPTIONS", **origin)
    assert (status, headers["Access-Control-Allow-Origin"]) == (204, "*")
    assert "Access-Control-Allow-Credentials" not in headers
    assert "Authorization" not in headers["Access-Control-Allow-Headers"]
    assert "Access-Control-Allow-Methods" not in headers


def test_several_places(place, running):
    """Places given by name stand below their names."""
    server = running({"one": str(place), "two": str(place / "sea")}, zarr_format=2)
    assert json.loads(ask(server, "/")[2]) == ["one", "two"]
    assert ask(server, "/one/sea/t/.zarray")[0] == ask(server, "/two/t/.zarray")[0] == 200
    assert ask(server, "/three/")[0] == 404


def test_the_command_prints_where_it_is(place):
    """`fsstore serve` prints its URL first, serves, and ends with an interrupt."""
    import signal

    process = subprocess.Popen(
        [sys.executable, "-m", "fsstore", "serve", str(place)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    url = process.stdout.readline().strip()
    assert process.stdout.readline().startswith("sea/t in Neuroglancer: https://neuroglancer-demo.appspot.com/#!%7B")
    assert np.array_equal(zarr.open_group(url, mode="r")["sea/t"][0], VALUES[0])
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=30)
    assert (process.returncode, error) == (130, "fsstore: interrupted\n")
