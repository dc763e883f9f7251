"""Roots in JSON and URLs, what is shown of them, and live objects in their place."""

import json
import pickle
import subprocess
import sys
from typing import ClassVar
from urllib.parse import urlsplit

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from fsstore.errors import JsonError, StoreError, UnimplementedError, UrlError
from fsstore.kvstore.contract.driver import KvOpening, KvPrefix, Read
from fsstore.kvstore.engine.secret import conceal, guard, reveal
from fsstore.kvstore.kv_store import KvStore
from fsstore.kvstore.root import open_engine as fs_open
from fsstore.kvstore.root import option as root_option
from fsstore.kvstore.root.cloud import ABFS, FSSPEC, GCS, HTTP, S3, fsspec_scheme
from fsstore.kvstore.root.live import from_live
from fsstore.kvstore.zip_driver import KIND as ZIP
from fsstore.redaction import redact
from fsstore.runtime import execution
from fsstore.values.json_value import Fields


def parsed(kind, members):
    """Return the members as the kind reads them."""
    fields = Fields(members)
    out = kind.members(fields)
    fields.finish()
    return out


# Executed against TensorStore 0.1.86: path, members, and the URL it prints.
URLS = [
    (S3, "s3://bkt", "", {"bucket": "bkt"}, "s3://bkt/"),
    (S3, "s3://bkt/a%20b", "a b", {"bucket": "bkt"}, "s3://bkt/a%20b"),
    (S3, "s3://bkt//a", "/a", {"bucket": "bkt"}, "s3://bkt//a"),
    (GCS, "gs://bkt/p", "p", {"bucket": "bkt"}, "gs://bkt/p"),
    (HTTP, "http://h/a/b?x=y", "/a/b", {"base_url": "http://h?x=y"}, "http://h/a/b?x=y"),
    (HTTP, "http://h", "", {"base_url": "http://h"}, "http://h"),
    (HTTP, "https://h/", "/", {"base_url": "https://h"}, "https://h/"),
    (HTTP, "http://h/a%20b c", "/a b c", {"base_url": "http://h"}, "http://h/a%20b%20c"),
    (ABFS, "abfs://c/x/y", "x/y", {"container": "c"}, None),
    (ABFS, "abfs://con/x/y", "x/y", {"container": "con"}, "abfs://con/x/y"),
    (
        ABFS,
        "abfs://con@mine.dfs.core.windows.net/x/y",
        "x/y",
        {"container": "con", "account_name": "mine"},
        "abfs://con@mine.dfs.core.windows.net/x/y",
    ),
    (FSSPEC, "github://o:r@main/a/b", "a/b", {"url": "github://o:r@main/"}, "github://o:r@main/a/b"),
]


@pytest.mark.parametrize(("kind", "url", "path", "members", "printed"), URLS)
def test_urls(kind, url, path, members, printed):
    """URLs are read and printed as TensorStore does."""
    scheme, _, rest = url.partition("://")
    if printed is None:
        with pytest.raises(UrlError, match="Invalid Azure container name"):
            kind.from_url(scheme, rest)
        return
    assert kind.from_url(scheme, rest) == (path, members)
    assert kind.to_url(path, members) == printed
    assert parsed(kind, members) == members


BAD_URLS = [
    (S3, "s3", "bkt/a?x=1", "Query string not supported"),
    (S3, "s3", "bkt/a#f", "Fragment identifier not supported"),
    (S3, "s3", "", 'Invalid S3 bucket name: ""'),
    (S3, "s3", "B@/x", "Invalid S3 bucket name: "),
    (GCS, "gs", "", 'Invalid GCS bucket name: ""'),
    (HTTP, "http", "h:80/x#f", "Fragment identifier not supported"),
    (ZIP, "zip", "a?b", "Query string not supported"),
]


@pytest.mark.parametrize(("kind", "scheme", "rest", "message"), BAD_URLS)
def test_bad_urls(kind, scheme, rest, message):
    """What no URL may say is refused in TensorStore's words."""
    with pytest.raises(UrlError, match=message):
        kind.from_url(scheme, rest)


BAD_MEMBERS = [
    (S3, {}, '"bucket" must be specified'),
    (S3, {"bucket": "b_"}, "Invalid S3 bucket name"),
    (S3, {"bucket": "bkt", "foo": True}, 'Object includes extra members: "foo"'),
    (S3, {"bucket": "bkt", "requester_pays": 1}, "Expected boolean"),
    (HTTP, {}, "Expected string, but member is missing"),
    (HTTP, {"base_url": "ftp://h"}, 'Expected scheme of "http" or "https" but received: "ftp"'),
    (HTTP, {"base_url": "http://h#f"}, "Fragment identifier not supported"),
    (HTTP, {"base_url": "http://h", "headers": {"A": "b"}}, "Expected array"),
    *[
        (HTTP, {"base_url": "http://h", "headers": [line]}, "Expected header [^!]*$")
        for line in ("A: !\r\nC: d", "A B: !", "A !", ": !", "é: !")
    ],
    (FSSPEC, {}, "member is missing"),
    (FSSPEC, {"url": "memory://", "storage_options": []}, "Expected object"),
]


@pytest.mark.parametrize(("kind", "members", "message"), BAD_MEMBERS)
def test_bad_members(kind, members, message):
    """Malformed members are refused with a located message."""
    with pytest.raises(JsonError, match=message):
        parsed(kind, members)


def test_secrets_stay_in_memory():
    """Credentials are held, and are in no JSON, repr, string or pickle; the harmless rest is."""
    options = {"key": "AKIA", "secret": "s3cr3t", "anon": False, "client_kwargs": {"token": "s3cr3t", "region": "x"}}
    members = parsed(FSSPEC, {"url": "ftp://me:s3cr3t@host/d", "storage_options": options})
    web = parsed(HTTP, {"base_url": "http://h?X-Amz-Signature=s3cr3t", "headers": ["Cookie: s3cr3t", "Accept: b"]})
    for shown in (members, web):
        text = json.dumps(shown) + repr(shown) + str(shown) + str(pickle.dumps(shown))
        assert "s3cr3t" not in text
        assert "AKIA" not in text
    assert members["storage_options"] == options
    assert dict(members["storage_options"].items()) == {"anon": False, "client_kwargs": {"region": "x"}}
    assert reveal(members["storage_options"]) == options
    assert reveal(members["url"]) == "ftp://me:s3cr3t@host/d"
    assert reveal(web["base_url"]) == "http://h?X-Amz-Signature=s3cr3t"
    assert reveal(pickle.loads(pickle.dumps(web))["base_url"]) == "http://h?X-Amz-Signature=s3cr3t"  # its own
    assert "s3cr3t" not in FSSPEC.from_url("sftp", "me:s3cr3t@host/d")[1]["url"]


@pytest.mark.parametrize("name", ["passphrase", "passwd", "pwd", "tok", "creds", "pkey", "oauth", "sas_token"])
def test_options_of_filesystems_that_are_credentials(name):
    """The names that fsspec's filesystems have for credentials are known."""
    assert conceal({name: "s3cr3t", "port": 22}) == {"port": 22}


def test_credentials_in_lists_are_concealed():
    """Headers may be pairs in a list, and mappings may be in one."""
    options = {"headers": [["Authorization", "s3cr3t"], ["Accept", "b"]], "many": [{"token": "s3cr3t", "a": 1}]}
    assert conceal(options) == {"headers": [["Accept", "b"]], "many": [{"a": 1}]}
    assert reveal(guard(options)) == options


def test_what_is_harmless_is_not_guarded():
    """Values without credentials are left alone."""
    assert conceal({"bypass": 1, "compass": [1, "a"]}) == {"bypass": 1, "compass": [1, "a"]}
    assert type(guard("http://h?x=1")) is str
    assert type(guard({"anon": True})) is dict
    assert conceal({"a": {}, "b": 1}) == {"a": {}, "b": 1}


@pytest.mark.parametrize(
    "text",
    [
        "GET https://h/a?X-Amz-Signature=s3cr3t&b=c failed",
        "see ftp://me:s3cr3t@host/x",
        "Authorization: Bearer s3cr3t",
        "password=s3cr3t, more",
        "AccountName=me;AccountKey=s3cr3t;more",
        "api_key: s3cr3t",
        "short\n\nDebug source: s3cr3t",
    ],
)
def test_foreign_messages_are_redacted(text):
    """Errors of libraries lose queries, user information, headers and debug dumps."""
    assert "s3cr3t" not in redact(text)
    assert len(redact("x" * 10**6)) < 1000


@pytest.mark.parametrize(
    "piece", ["x", "x-", "a.", "a://", "a://b?", "('a', 'b", '"a": "', "tokensecret", "(", "//@", "Bearer "]
)
def test_redacting_takes_time_in_proportion(piece):
    """No text of a server keeps the process busy, whatever it repeats."""
    program = f"from fsstore.redaction import redact; redact({piece!r} * 10**5)"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_every_protocol_of_fsspec_is_a_scheme():
    """Protocols fsspec knows are roots, unless the word means something else here."""
    assert fsspec_scheme("sftp") is FSSPEC
    assert fsspec_scheme("github") is FSSPEC
    for scheme in ("zip", "memory", "file", "zarr3", "auto", "nonsense", "s3"):
        assert fsspec_scheme(scheme) is None


class Login(MemoryFileSystem):
    """A filesystem that logs in at a host when it is made."""

    protocol = "login"
    cachable = False
    hosts: ClassVar[list[str]] = []

    def __init__(self, host, **options):
        super().__init__(**options)
        self.hosts.append(host)
        if host == "closed":
            raise EOFError("no password=s3cr3t")

    @staticmethod
    def _get_kwargs_from_urls(path):
        return {"host": urlsplit(path).hostname}


@pytest.fixture
def login(monkeypatch):
    """Give fsspec a protocol whose filesystems log in."""
    fsspec.register_implementation("login", Login, clobber=True)
    monkeypatch.setattr(Login, "hosts", [])


@pytest.mark.parametrize("url", ["login://server", "login://server/", "login://server/data"])
def test_a_host_is_asked_once_and_by_its_name(login, url):
    """A filesystem that logs in is made once, with what the URL says."""
    execution.call(FSSPEC.open(KvOpening({"url": url})))
    assert Login.hosts == ["server"]


def test_a_login_that_fails_is_an_error_of_ours(login):
    """Whatever a library raises when it logs in names the filesystem, and shows no password."""
    with pytest.raises(StoreError, match=r'Cannot open the filesystem "login": EOFError: no password=<omitted>'):
        execution.call(FSSPEC.open(KvOpening({"url": "login://closed/"})))


@pytest.mark.parametrize("engine", ["obstore", "fsspec"])
def test_a_profile_that_is_none_is_an_error_of_ours(engine, monkeypatch, tmp_path):
    """Of both clients, whether one reads or writes."""
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    resources = {"aws_credentials": {"type": "profile", "profile": "none"}}

    async def write():
        store = KvPrefix(await S3.open(KvOpening({"bucket": "bucket", "engine": engine}, resources)))
        await store.write("k", b"v")

    with pytest.raises(StoreError, match="The config profile .none. could not be found"):
        execution.call(write())


def test_a_missing_package_is_named(monkeypatch):
    """An optional dependency that is not installed is named, with the extra that brings it."""
    import sys
    from importlib import import_module

    monkeypatch.setitem(sys.modules, "gcsfs", None)
    monkeypatch.setattr(import_module("fsspec.registry"), "registry", {})  # nothing was imported before
    with pytest.raises(UnimplementedError, match=r"gcsfs.*fsstore\[gcs\]"):
        fs_open.filesystem_class("gs")
    monkeypatch.setattr(root_option, "find_spec", lambda name: None)
    with pytest.raises(UnimplementedError, match=r"fsstore\[fast\]"):
        root_option.choose_engine({"engine": "obstore"}, possible=True)
    assert root_option.choose_engine({}, possible=True) == "fsspec"
    with pytest.raises(StoreError, match="Unknown filesystem"):
        fs_open.filesystem_class("nonsense")


def test_a_filesystem_that_its_package_has_given_up_is_not_available(monkeypatch):
    """fsspec may name a class that the package has no longer, as adlfs has none of the first Azure Data Lake."""
    from importlib import import_module

    known = import_module("fsspec.registry").known_implementations
    monkeypatch.setitem(known, "gone", {"class": "fsspec.spec.NoSuchClass"})
    with pytest.raises(UnimplementedError, match='filesystem "gone" is not available.*NoSuchClass'):
        fs_open.filesystem_class("gone")


def test_live_objects():
    """Filesystems, mappers, paths and mappings open as stores at their place."""
    from upath import UPath

    fs = fsspec.filesystem("memory")
    fs.pipe_file("/live/a/k", b"v")
    for source in (fs.get_mapper("/live/a"), UPath("memory:///live/a/"), UPath("memory:///live/a")):
        prefix = from_live(source)
        key = "k" if not prefix.path or prefix.path.endswith("/") else "/k"
        assert bytes(execution.call(prefix.read(key)).value) == b"v"
    assert bytes(execution.call(from_live(fs).join("live/a/").read("k")).value) == b"v"
    assert bytes(execution.call(from_live({"k": bytearray(b"abc")}).read("k", 1, 3), waits=False).value) == b"bc"
    with pytest.raises(StoreError, match="received: int"):
        from_live(5)


def test_a_live_web_filesystem_reads_at_its_url(object_server):
    """A synchronous HTTP filesystem keeps its own loop, and its URL with query."""
    from upath import UPath

    object_server.put("d/x", b"0123")
    prefix = from_live(UPath(object_server.url + "/d/"))
    assert bytes(execution.call(prefix.read_many([Read("x", 1, 3)]))[0].value) == b"12"
    with pytest.raises(StoreError, match="with a URL"):
        from_live(fsspec.filesystem("http"))


def test_http_as_fsspec_takes_its_options(object_server):
    """`fsspec` over a web URL is served strictly, with the options of the HTTP filesystem."""
    object_server.put("d/x", b"0123")
    members = {"url": object_server.url + "/d/?q=1", "storage_options": {"headers": {"X-Mine": "yes"}}}
    driver = execution.call(FSSPEC.open(KvOpening(members, {})))
    assert bytes(execution.call(KvPrefix(driver).read("x", 1, 3)).value) == b"12"
    assert object_server.headers_seen[-1]["X-Mine"] == "yes"
    assert driver.id == "fsspec"


def test_s3_urls_need_no_endpoint():
    """An endpoint or options cannot be said in a URL."""
    for members in ({"bucket": "bkt", "endpoint": "http://x"}, {"bucket": "bkt", "storage_options": {"anon": True}}):
        with pytest.raises(UnimplementedError, match="URL syntax not supported"):
            S3.to_url("", members)
    with pytest.raises(UnimplementedError):
        FSSPEC.to_url("", {"url": "simplecache::s3://b", "storage_options": {"s3": {"anon": True}}})


@pytest.mark.parametrize("url", ["http://h:99999/x", "http://h h/x"])
def test_a_host_or_port_that_is_none_is_an_error_of_ours(url):
    """What the client library refuses is told with the URL."""
    with pytest.raises(UrlError, match="Cannot open"):
        KvStore.open(url).result()


@pytest.mark.parametrize("live", [{"a": b"1"}, fsspec.filesystem("memory")])
def test_live_objects_are_not_pickled(live):
    """What may hold credentials, files or memory of this process stays here, and the error says what does not."""
    with pytest.raises(UnimplementedError, match=r"cannot be pickled.*opened by URL or JSON"):
        pickle.dumps(KvStore.open(live).result())
