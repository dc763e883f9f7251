"""Servers on the loopback address that tests share: an object server that can misbehave, and a moto process.

The object server speaks as much HTTP, S3 (path style) and XML of Google's cloud as the engines need.  Faults are
scripted: the next requests whose path contains a text are answered by the given functions instead of properly.
"""

import gc
import hashlib
import itertools
import pkgutil
import re
import socket
import struct
import subprocess
import sys
import threading
import time
import urllib.request
import zlib
from collections import deque
from email.utils import formatdate
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

import pytest

from tests.servers import process as process_of_servers


@cache
def _modules_of(package):
    """Return the modules of a package, all but those with numbers that others take."""
    home = import_module(f"fsstore.{package}")
    names = [each.name for each in pkgutil.walk_packages(getattr(home, "__path__", []), f"{home.__name__}.")]
    return [home, *[import_module(name) for name in names if not name.endswith((".tuning", ".__main__"))]]


@pytest.fixture
def tune(monkeypatch):
    """Return what sets numbers of a package for a test, in whichever modules of the package use them."""

    def set_numbers(package, **numbers):
        for name, value in numbers.items():
            users = [module for module in _modules_of(package) if name in vars(module)]
            assert users, f"no module of {package} uses a {name}"
            for module in users:
                monkeypatch.setattr(module, name, value)

    return set_numbers


@pytest.fixture
def s3_credentials(monkeypatch):
    """Give the environment of S3 clients, which must not look for it elsewhere."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "id")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


_META = re.compile("x-(?:amz|goog|ms)-meta-", re.IGNORECASE)


class ObjectServer:
    """Objects by URL path, a log of requests `(method, path, range)`, the bytes of bodies taken from it, and scripted faults."""

    def __init__(self):
        self.objects = {}
        self.versions = {}
        self.metadata = {}
        self.modified = {}  # seconds since the epoch, of what requests brought
        self.numbers = itertools.count(3)
        self.log = []
        self.faults = []
        self.headers_seen = []
        self.etags = self.heeds_conditions = True
        self.bytes_sent = 0
        self.lock = threading.Lock()
        self.released = threading.Event()
        self._http = _Quiet(("127.0.0.1", 0), _handler(self))
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"
        threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True).start()

    def put(self, path, data, *, modified=1.7e9):
        """Store an object without metadata, modified long ago unless told."""
        path = "/" + path.lstrip("/")
        self.objects[path] = bytes(data)
        self.metadata.pop(path, None)
        self.modified[path] = modified

    def keep(self, path, data, headers):
        """Store an object that a request brought, with its metadata; return its version."""
        self.objects[path] = data
        self.metadata[path] = {name: value for name, value in headers.items() if _META.match(name)}
        self.versions[path] = next(self.numbers)
        self.modified[path] = time.time()
        return self.versions[path]

    def fail(self, text, *answers, method=None):
        """Answer the next `len(answers)` requests whose path contains `text` with `answers`."""
        self.faults.append((text, method, deque(answers)))

    def count(self, method="GET"):
        """Return how many requests of a method were seen."""
        return sum(entry[0] == method for entry in self.log)

    def version_of(self, path):
        """Return the number of an object as it is stored now, 0 if there is none."""
        return self.versions.get(path, 2) if path in self.objects else 0

    def take_fault(self, method, path):
        """Return the fault scripted for this request, or None; the caller holds the lock."""
        for text, only, answers in self.faults:
            if text in path and answers and only in (None, method):
                return answers.popleft()
        return None

    def reset(self):
        """Forget everything."""
        self.released.set()
        self.released = threading.Event()
        self.objects.clear()
        self.versions.clear()
        self.metadata.clear()
        self.modified.clear()
        self.log.clear()
        self.faults.clear()
        self.headers_seen.clear()
        self.etags = self.heeds_conditions = True
        self.bytes_sent = 0

    def close(self):
        """Stop serving."""
        self.released.set()
        self._http.shutdown()
        self._http.server_close()


class _Quiet(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256

    def handle_error(self, request, client_address):
        """Say nothing: broken connections are what the tests are about."""


def etag_of(data):
    """Return the entity tag of an object."""
    return '"' + hashlib.md5(data).hexdigest() + '"'


def _handler(server):
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1
        disable_nagle_algorithm = True

        def log_message(self, *args):
            """Keep quiet."""

        def handle_expect_100(self):
            """Invite the body at once: output is buffered."""
            super().handle_expect_100()
            self.wfile.flush()
            return True

        def reply(self, status, body=b"", *, send_body=True, length=None, **headers):
            """Send a response; underscores in header names become hyphens."""
            self.send_response_only(status)
            for name, value in headers.items():
                self.send_header(name.replace("_", "-"), value)
            if status not in (204, 304):
                self.send_header("Content-Length", str(len(body) if length is None else length))
            self.end_headers()
            if send_body:
                self.wfile.write(body)
                with server.lock:
                    server.bytes_sent += len(body)

        def handle_any(self):
            split = urlsplit(self.path)
            path, query = (unquote(split.path, errors="surrogateescape"), parse_qs(split.query, keep_blank_values=True))
            length = int(self.headers.get("Content-Length") or 0)
            body = self.rfile.read(length)
            if len(body) < length:  # the client has died
                self.close_connection = True
                return
            with server.lock:
                server.log.append((self.command, path, self.headers.get("Range")))
                server.headers_seen.append(dict(self.headers))
                fault = server.take_fault(self.command, path)
            if fault is not None:
                fault(self, path, body)
            else:
                self.serve(path, query, body)

        do_GET = do_HEAD = do_PUT = do_DELETE = do_POST = handle_any

        def serve(self, path, query, body):
            """Answer properly."""
            source = self.headers.get("x-amz-copy-source")
            if self.command == "PUT" and source is not None:  # inside the storage
                data = server.objects.get("/" + unquote(source).lstrip("/"))
                if data is None:
                    return self.reply(404, b"<Error><Code>NoSuchKey</Code></Error>")
                server.put(path, data)
                tag = f"<CopyObjectResult><ETag>{etag_of(data)}</ETag></CopyObjectResult>"
                self.reply(200, tag.encode())
            elif self.command == "PUT":
                self.store(path, body)
            elif self.command == "DELETE":
                server.objects.pop(path, None)
                self.reply(204)
            elif self.command == "POST" and "delete" in query:
                bucket = "/" + path.split("/")[1]
                keys = re.findall(rb"<Key>(.*?)</Key>", body)
                for key in keys:
                    server.objects.pop(f"{bucket}/{key.decode()}", None)
                gone = b"".join(b"<Deleted><Key>" + key + b"</Key></Deleted>" for key in keys)
                self.reply(200, b"<DeleteResult>" + gone + b"</DeleteResult>")
            elif "list-type" in query:
                self.reply(200, _listing(server.objects, path.strip("/"), query), Content_Type="application/xml")
            else:
                self.fetch(path)

        def store(self, path, body):
            copied = self.headers.get("x-amz-copy-source")
            with server.lock:
                if copied is not None:
                    body = server.objects["/" + unquote(copied).lstrip("/")]
                old = server.objects.get(path)
                wanted = self.headers.get("If-Match")
                clash = self.headers.get("If-None-Match") == "*" and old is not None
                clash = clash or (wanted is not None and (old is None or etag_of(old) != wanted))
                version = self.headers.get("x-goog-if-generation-match")  # Google's condition; 0 is no object
                clash = clash or (version is not None and int(version) != server.version_of(path))
                clash = clash and server.heeds_conditions
                if not clash:
                    new = server.keep(path, body, self.headers)
            if clash:
                self.reply(412, b"<Error><Code>PreconditionFailed</Code></Error>")
            elif copied is not None:
                tag = etag_of(body).replace('"', "&quot;").encode()
                when = b"<LastModified>2024-01-01T00:00:00.000Z</LastModified>"
                self.reply(200, b"<CopyObjectResult><ETag>" + tag + b"</ETag>" + when + b"</CopyObjectResult>")
            else:
                self.reply(200, ETag=etag_of(body), x_goog_generation=str(new))

        def fetch(self, path):
            data = server.objects.get(path)
            if data is None:
                self.reply(404, b"<Error><Code>NoSuchKey</Code></Error>", send_body=self.command != "HEAD")
                return
            modified = server.modified.get(path, 1.7e9)
            headers = {"Last_Modified": formatdate(modified, usegmt=True), "Date": formatdate(usegmt=True)}
            headers |= server.metadata.get(path, {})
            if server.etags:
                headers |= {"ETag": etag_of(data), "x_goog_generation": str(server.version_of(path))}
                if self.headers.get("If-None-Match") == headers["ETag"]:
                    self.reply(304, **headers)
                    return
            wanted = self.headers.get("Range")
            status, total = 200, len(data)
            if wanted:
                first, last = re.fullmatch(r"bytes=(\d*)-(\d*)", wanted).groups()
                start = int(first) if first else max(0, total - int(last))
                stop = min(int(last) + 1 if first and last else total, total)
                if start >= total:
                    self.reply(416, b"<Error><Code>InvalidRange</Code></Error>", Content_Range=f"bytes */{total}")
                    return
                headers["Content_Range"] = f"bytes {start}-{stop - 1}/{total}"
                status, data = 206, data[start:stop]
            if self.command == "HEAD":
                self.reply(status, b"", send_body=False, length=len(data), **headers)
            else:
                self.reply(status, data, Accept_Ranges="bytes", **headers)

    return Handler


def _listing(objects, bucket, query):
    prefix = query.get("prefix", [""])[0]
    after = query.get("continuation-token", query.get("start-after", [""]))[0]
    limit = int(query.get("max-keys", ["1000"])[0])
    cut = len(bucket) + 2
    found = sorted(path[cut:] for path in objects if path.startswith(f"/{bucket}/{prefix}"))
    found = [key for key in found if key > after]
    page = found[:limit]
    items = "".join(
        f"<Contents><Key>{escape(key)}</Key><Size>{len(objects[f'/{bucket}/{key}'])}</Size>"
        f"<LastModified>2024-01-01T00:00:00.000Z</LastModified><ETag>&quot;x&quot;</ETag></Contents>"
        for key in page
    )
    more = len(found) > len(page)
    token = f"<NextContinuationToken>{escape(page[-1])}</NextContinuationToken>" if more else ""
    return (
        f"<ListBucketResult><Name>{bucket}</Name><KeyCount>{len(page)}</KeyCount>"
        f"<IsTruncated>{str(more).lower()}</IsTruncated>{token}{items}</ListBucketResult>"
    ).encode()


@pytest.fixture(scope="session")
def _object_server():
    server = ObjectServer()
    yield server
    server.close()


@pytest.fixture
def object_server(_object_server):
    """Give the empty object server."""
    _object_server.reset()
    yield _object_server
    _object_server.reset()


@pytest.fixture(scope="session")
def moto_url():
    """Give the endpoint of a moto server process; it ends with the session."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    script = Path(__file__).parent / "servers" / "atomic_moto.py"
    command = [sys.executable, "-W", "ignore", str(script), str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    pause = threading.Event()
    for _ in range(600):
        try:
            urllib.request.urlopen(f"{url}/moto-api/", timeout=1).close()
            break
        except OSError:
            pause.wait(0.05)
    yield url
    process.terminate()
    process.wait(10)


@pytest.fixture(scope="session")
def moto_bucket(moto_url):
    """Give `(endpoint, bucket)` of a bucket of the moto server."""
    urllib.request.urlopen(urllib.request.Request(f"{moto_url}/tests", method="PUT")).close()
    return moto_url, "tests"


def _start(name):
    command = [sys.executable, "-W", "ignore", str(Path(__file__).parent / "servers" / "process.py"), name]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    said = process.stdout.readline().split()
    assert said, f"the {name} server did not start"
    return process, (int(said[0]), *said[1:])


@pytest.fixture(scope="session")
def real_server():
    """Give a function that returns the port of a server of a name, and what else it says; started once, ended with us.

    A test of a server that cannot be had is skipped, with what is missing.
    """
    started = {}

    def get(name):
        if name not in started:
            why = process_of_servers.missing(name)
            if why:
                pytest.skip(why)
            started[name] = _start(name)
        return started[name][1]

    yield get
    for process, _ in started.values():
        process.stdin.close()
    for process, _ in started.values():
        process.wait(20)
        process.stdout.close()


@pytest.fixture(scope="module")
def clients_gone():
    """Have the clients go before the last test ends: later ones hear that sockets are open, and would fail for it.

    A thread that has just told of a failure may hold it, and with it the client, for a moment longer.
    """
    yield
    import fsspec

    kinds = tuple(map(fsspec.get_filesystem_class, ("sftp", "ftp", "webdav")))
    for _ in range(100):
        gc.collect()
        if not any(type(each) in kinds for each in gc.get_objects()):
            return
        time.sleep(0.02)
    pytest.fail("a file system of this module is still held by something")


def build_zip(members, *, prefix=b"", shift=True, comment=b"", zip64=False, suffix=b""):
    """Return an archive built byte by byte from `(name, value, options)`.

    Options: `method`, `packed` (the compressed bytes), `flags`, `crc`, `size` (as declared), `local_extra`,
    `central_extra`, `streamed` (sizes after the data), `signed` (whether the descriptor has a signature), `wide` (a
    ZIP64 extra field).  `shift` counts offsets from the start of the archive and not of the file.
    """
    body, central = bytearray(prefix), bytearray()
    base = len(prefix) if shift else 0
    for name, value, options in members:
        raw = name if isinstance(name, bytes) else name.encode("utf-8", "surrogateescape")
        method = options.get("method", 0)
        packed = options.get("packed", zlib.compress(value, wbits=-15) if method == 8 else value)
        crc, size = options.get("crc", zlib.crc32(value)), options.get("size", len(value))
        streamed, extra = options.get("streamed", False), options.get("local_extra", b"")
        flags = options.get("flags", 0) | (8 if streamed else 0)
        offset = len(body) - base
        shown = (0, 0, 0) if streamed else (crc, len(packed), min(size, 0xFFFFFFFF))
        body += struct.pack("<4s5H3L2H", b"PK\3\4", 20, flags, method, 0, 0, *shown, len(raw), len(extra))
        body += raw + extra + packed
        if streamed:
            body += (b"PK\7\10" if options.get("signed", True) else b"") + struct.pack("<3L", crc, len(packed), size)
        fields = (crc, len(packed), size)
        central_extra = options.get("central_extra", b"")
        if options.get("wide"):
            central_extra = struct.pack("<2H3Q", 1, 24, size, len(packed), offset) + central_extra
            fields, offset = (crc, 0xFFFFFFFF, 0xFFFFFFFF), 0xFFFFFFFF
        central += struct.pack("<4s6H3L5H2L", b"PK\1\2", 20, 20, flags, method, 0, 0, *fields,
                               len(raw), len(central_extra), 0, 0, 0, 0, offset)  # fmt: skip
        central += raw + central_extra
    place, count, length = len(body) - base, len(members), len(central)
    body += central
    if zip64:
        record = len(body) - base
        body += struct.pack("<4sQ2H2L4Q", b"PK\6\6", 44, 45, 45, 0, 0, count, count, length, place)
        body += struct.pack("<4sLQL", b"PK\6\7", 0, record, 1)
        count, length, place = 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF
    body += struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, count, count, length, place, len(comment)) + comment
    return bytes(body + suffix)


@pytest.fixture(scope="session")
def zip_builder():
    """Give `build_zip`."""
    return build_zip
