"""What a reference set may read: the policy, spelled-out attacks, and where URLs lead."""

from __future__ import annotations

import os

import pytest

from fsstore.errors import JsonError, PermissionDeniedError, StoreError, UnimplementedError, UrlError
from fsstore.kvstore.contract.driver import KvPrefix
from fsstore.kvstore.engine.contract import Retry
from fsstore.kvstore.engine.secret import guard
from fsstore.kvstore.local.driver import LocalDriver
from fsstore.kvstore.memory import MemoryDriver
from fsstore.kvstore.root.web import own_engine
from fsstore.kvstore.web.route import is_internal
from fsstore.reference.policy import Policy, guarded_root, has_prefix, join_relative, normalize
from fsstore.reference.targets import Targets, check_prefixes, policy_of
from fsstore.runtime import execution

REMOTE = Policy("remote")
LOCAL = Policy("local")


@pytest.mark.parametrize(
    ("url", "normal"),
    [
        ("s3://b/k", "s3://b/k"),
        ("s3a://b/k", "s3://b/k"),
        ("gcs://b/k", "gs://b/k"),
        ("HTTP://Host:80/A", "http://host/A"),
        ("https://host:443", "https://host/"),
        ("https://host:8443/x", "https://host:8443/x"),
        ("http://h/a/../b", "http://h/b"),
        ("http://h/a/%2e%2E/b", "http://h/b"),
        ("http://h/../../b?q=../c", "http://h/b?q=../c"),
        ("http://h./x", "http://h/x"),
        ("/a/b", "file:///a/b"),
        ("file:////a//b", "file:///a/b"),
        ("file:/a/b", "file:///a/b"),
        ("/a/./b/../c", "file:///a/c"),
        ("file:///a/../../b", "file:///b"),
        ("file://localhost/a", "file:///a"),
        ("local:///a", "file:///a"),
        ("s3://b/a/../../c", "s3://b/c"),
        ("http://h/a//b", "http://h/a//b"),
        ("/a/..", "file:///"),
    ],
)
def test_urls_have_one_spelling(url, normal):
    """URLs that mean the same place are compared as the same text."""
    assert normalize(url) == normal
    assert normalize(normal) == normal


@pytest.mark.parametrize("url", ["http://me@host/x", "http://me:pw@host/x", "http:///x", "http://a\\b/x", "file://host/x",
                                 "nonsense", "", "http://h\n/x", "https://[::1", "http://[zz]/x", "http://h:x/y", "http://a:b:1/"])  # fmt: skip
def test_urls_that_readers_understand_differently_are_refused(url):
    """User information, backslashes, control characters and file URLs of other hosts are no targets."""
    with pytest.raises(StoreError):
        normalize(url)


@pytest.mark.parametrize(
    "url",
    [
        "file:///etc/passwd", "/etc/passwd", "FILE:///etc/passwd", "local:///etc/passwd", "memory://x",
        "http://localhost/x", "http://LOCALHOST./x", "http://127.0.0.1/x", "http://127.1/x", "http://2130706433/x",
        "http://0x7f000001/x", "http://0177.0.0.1/x", "http://[::1]/x", "http://[::ffff:127.0.0.1]:80/x",
        "http://0.0.0.0/x", "http://169.254.169.254/latest/meta-data", "http://[fe80::1%25eth0]/x", "http://a.localhost/x",
        "http://metadata.google.internal/x", "https://127.0.0.1:8443/x", "http://127.0.0.1:9000/x", "http://%3127.0.0.1/x",
        "unknown://x/y", "data://x", "ssh://h/x", "http://[::]/x", "http://0/x", "zip://x",
    ],
)  # fmt: skip
def test_a_set_from_elsewhere_reads_nothing_of_this_machine(url):
    """Local files, memory, loopback, link-local and unspecified addresses are refused, however they are spelled."""
    with pytest.raises(PermissionDeniedError, match="allow"):
        REMOTE.check(url)


@pytest.mark.parametrize(
    "url", ["s3://b/k", "https://example.org/x", "gs://b/k", "http://10.0.0.1/x", "http://8.8.8.8/"]
)
def test_a_set_from_elsewhere_reads_remote_targets(url):
    """Ordinary remote targets need no permission."""
    assert REMOTE.check(url) == url


def test_a_local_set_reads_what_is_known():
    """A set on this machine reads files and servers, but no protocol that nobody authorised."""
    for url in ("/data/x", "http://127.0.0.1/x", "s3://b/k", "memory://x"):
        LOCAL.check(url)
    with pytest.raises(PermissionDeniedError, match="targets"):
        LOCAL.check("sqlite://x")


def test_the_place_a_set_came_from_is_trusted_with_its_targets():
    """A server on loopback that gave the set may serve its targets; another port may not."""
    policy = Policy("remote", home="http://127.0.0.1:8000/")
    policy.check("http://127.0.0.1:8000/data/x")
    with pytest.raises(PermissionDeniedError):
        policy.check("http://127.0.0.1:8001/data/x")


@pytest.mark.parametrize(
    ("url", "allowed"),
    [
        ("s3://good/a", True), ("s3a://good/a", True), ("s3://good", True), ("s3://good2/a", False), ("s3://bad/a", False),
        ("/data/set/x", True), ("/data/set/../x", False), ("/data/settings", False), ("file:///data/set/x", True),
        ("https://h/pub/x", True), ("https://h/pub?x", True), ("https://h/public", False), ("https://h/pub/../x", False),
        ("https://h/pub/%2e%2e/x", False), ("https://h.evil/pub/x", False), ("http://h/pub/x", False), ("https://H/pub/x", True),
    ],
)  # fmt: skip
def test_allow_is_strict(url, allowed):
    """With `allow`, exactly what lies at or below its prefixes is read, whatever the spelling."""
    members = {"allow": ["s3://good/", "s3://good", "/data/set", "https://h/pub"]}
    for policy in (policy_of(None, members), policy_of(KvPrefix(LocalDriver(), "/data/set/refs.json"), members)):
        if allowed:
            policy.check(url)
        else:
            with pytest.raises(PermissionDeniedError):
                policy.check(url)


def test_an_empty_allow_reads_nothing():
    """`allow: []` is the strictest policy."""
    with pytest.raises(PermissionDeniedError):
        policy_of(None, {"allow": []}).check("s3://b/k")


def test_named_targets_and_rewrites_are_granted():
    """What the caller names in `targets`, or as the new side of `rewrite`, may be read also by a remote set."""
    base = KvPrefix(MemoryDriver(), "x")
    base.driver.__class__ = type("Other", (MemoryDriver,), {"id": "other"})
    policy = policy_of(base, {"targets": {"/data/": {}}, "rewrite": {"s3://b/": "file:///copy/"}})
    assert policy.origin == "remote"
    policy.check("/data/x")
    policy.check("/copy/x")
    with pytest.raises(PermissionDeniedError):
        policy.check("/etc/x")


@pytest.mark.parametrize("host", ["example.org", "10.0.0.1", "h:80", "[2001:db8::1]:80", "1.1.1.1"])
def test_ordinary_hosts_are_not_internal(host):
    """Names and public or private unicast addresses are ordinary."""
    assert not is_internal(host)


def test_prefixes_end_at_components():
    """`s3://bucket` stands for the bucket and not for `s3://bucket2`."""
    assert has_prefix("s3://bucket/x", "s3://bucket")
    assert has_prefix("s3://bucket", "s3://bucket")
    assert has_prefix("https://h?q", "https://h")
    assert not has_prefix("s3://bucket2/x", "s3://bucket")
    assert not has_prefix("https://h@evil/x", "https://h")
    assert not has_prefix("https://h:80/x", "https://h")


def test_options_are_bound_to_hosts():
    """Options for all of HTTP would be sent to every host a set names, so they are refused."""
    with pytest.raises(JsonError, match="every host"):
        check_prefixes({"https://": {"headers": {"Authorization": "secret"}}})
    assert check_prefixes({"s3a://B/x": {"anon": True}, "https://H": {}}) == {
        "s3://B/x": {"anon": True},
        "https://h": {},
    }
    with pytest.raises(JsonError):
        check_prefixes({"relative": {}})


@pytest.mark.parametrize(
    "headers",
    [
        {"X-A": "hush\r\nX-B: c"},
        {"X-A": "hush\n"},
        {"X-A": "hush\0"},
        {"X-A\r\nX-B": "hush"},
        {"X-A: b\r\nX-B": "hush"},
        {"X A": "hush"},
        {"": "hush"},
        {1: "hush"},
        ["X-A: hush"],
        "X-A: hush",
    ],
    ids=repr,
)
def test_headers_of_options_are_lines(headers):
    """A header that would begin another one, or another request, is refused when the set opens, and is not shown."""
    options = {"headers": headers}
    for given in (options, guard(options)):
        with pytest.raises(JsonError, match='options for "https://h/": ') as found:
            check_prefixes({"https://h/": given, "s3://b/": options})
        assert "hush" not in str(found.value)
        assert len(found.value.problems) == 1
    assert check_prefixes({"https://h/": {"headers": {"X-A": "b", "Number": 3}}, "https://g/": {"headers": None}})


@pytest.mark.parametrize(
    ("directory", "relative", "path"),
    [
        ("", "a", "a"),
        ("d/", "a", "d/a"),
        ("d/e/", "../a", "d/a"),
        ("/d/", "./a/b", "/d/a/b"),
        ("/d/", "a//b", "/d/a/b"),
    ],
)
def test_relative_targets_lie_beside_the_set(directory, relative, path):
    """Relative means relative to the document, not to the working directory."""
    assert join_relative(directory, relative) == path


@pytest.mark.parametrize(
    ("directory", "relative"), [("", "../a"), ("d/", "../../a"), ("/d/", "../../a"), ("d/", "a/../../../b")]
)
def test_relative_targets_do_not_climb_out(directory, relative):
    """A relative target that climbs above the store of its set is refused."""
    with pytest.raises(PermissionDeniedError):
        join_relative(directory, relative)


def opened(calls, **members):
    """Return targets that record what they open."""

    def open_target(where, options):
        calls.append((where, None if options is None else dict(options)))
        return KvPrefix(MemoryDriver(), "")

    return Targets(
        open_target,
        policy_of(None, members),
        None,
        check_prefixes(members.get("targets") or {}),
        members.get("rewrite") or {},
    )


def test_the_longest_prefix_decides_and_credentials_stay_with_it():
    """Two buckets with different credentials in one set: each is opened with its own, others with none."""
    calls = []
    targets = opened(
        calls,
        targets={
            "s3://a/": {"key": "1"},
            "s3://a/deep": {"key": "2"},
            "s3://b": {"key": "3"},
            "gs://m/": "memory://mirror/",
        },
    )
    expected = {
        "s3://a/x": ("s3://a/", {"key": "1"}),
        "s3a://a/deep/x": ("s3://a/", {"key": "2"}),
        "s3://a/deeper": ("s3://a/", {"key": "1"}),
        "s3://b/x": ("s3://b/", {"key": "3"}),
        "s3://c/x": ("s3://c/", None),
        "gs://m/k": ("memory://mirror/", None),
    }
    for url, call in expected.items():
        execution.call(targets.root(targets.locate(url).root), waits=False)
        assert call in calls, url
    assert len(calls) == 5
    assert targets.locate("gs://m/dir/k").key == "dir/k"


def test_rewriting_applies_before_everything_else():
    """An old prefix becomes a new one, the longest wins, and the new place is permitted."""
    targets = opened([], rewrite={"s3://old/": "file:///new/", "s3://old/x/": "gs://b/", "rel/": "/abs/"})
    assert targets.rewritten("s3://old/a") == "file:///new/a"
    assert targets.locate("s3://old/x/y") == ("gs://b/", "y")
    assert targets.locate("rel/y") == ("file:///", "abs/y")


def test_links_do_not_leave_the_allowed_prefixes(tmp_path):
    """A symbolic link below an allowed path that leads elsewhere is refused."""
    (tmp_path / "in").mkdir()
    (tmp_path / "secret").write_text("x")
    (tmp_path / "in" / "fine").write_text("x")
    os.symlink(tmp_path / "secret", tmp_path / "in" / "link")
    targets = opened([], allow=[f"{tmp_path}/in/"])
    targets.locate(f"{tmp_path}/in/fine")
    with pytest.raises(PermissionDeniedError, match="link"):
        targets.locate(f"{tmp_path}/in/link")


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("zip://m/x::s3://b/a.zip", ("s3://b/ a.zip zip", "m/x")),
        ("simplecache::s3://b/k", ("s3://b/", "k")),
        ("https://h/a%20b/c?sig=1", ("https://h/a%20b/c?sig=1", "")),
        ("https://h/a%20b/c", ("https://h/", "a b/c")),
    ],
)
def test_chained_and_web_urls_have_places(url, place):
    """Members of archives, cached links, escapes and queries lead where they should."""
    assert opened([]).locate(url) == place


@pytest.mark.parametrize("url", ["tar://m::s3://b/a.tar", "reference::s3://b/r.json", "zip://::s3://b/a.zip"])
def test_other_chains_are_refused(url):
    """A link nobody can follow is an error that names it."""
    with pytest.raises(UnimplementedError, match="chained"):
        opened([]).locate(url)


def test_chains_do_not_hide_local_files():
    """The innermost link of a chain is what the policy judges."""
    targets = Targets(lambda *_: None, REMOTE)
    for url in ("zip://x::file:///etc/a.zip", "simplecache::file:///etc/passwd", "simplecache::/etc/passwd"):
        with pytest.raises(PermissionDeniedError):
            targets.locate(url)


def test_colons_are_not_chains():
    """An IPv6 address or a name with two colons is no chain, and is judged as what it is."""
    targets = opened([])
    assert targets.locate("http://[2001:db8::1]:80/x/y") == ("http://[2001:db8::1]/", "x/y")
    assert (
        targets.locate("/data/00::30.nc") == targets.locate("file:/data//00::30.nc") == ("file:///", "data/00::30.nc")
    )
    assert targets.locate("s3://b/00::30.nc") == ("s3://b/", "00::30.nc")
    with pytest.raises(PermissionDeniedError, match="loopback"):
        Targets(lambda *_: None, REMOTE).locate("http://[::1]/x")
    with pytest.raises(PermissionDeniedError):
        Targets(lambda *_: None, REMOTE).locate("file:/etc/passwd")


@pytest.mark.parametrize("url", ["C:\\data\\t.nc", "d:/data/t.nc", "\\\\server\\share\\t.nc"])
def test_paths_of_windows(url):
    """Another system's path is refused by name, and `rewrite` says where it is here."""
    with pytest.raises(UrlError, match="path of Windows; say with `rewrite`"):
        opened([]).locate(url)
    cut = url.index("t.nc")
    targets = Targets(lambda *_: None, Policy("local"), rewrite={url[:cut]: "/here/", "C": "never"})
    assert targets.locate(url) == ("file:///", "here/t.nc")
    assert targets.locate(url[:cut] + "sub\\t.nc") == ("file:///", "here/sub/t.nc")


def test_signed_urls_of_one_server_share_its_connections():
    """Every URL with a query is a root of its own; a set of thousands must not open as many connections."""
    makers = (
        lambda url: own_engine(url, {}, Retry(), None),
        lambda url: guarded_root(url, {}, bound=None, check=REMOTE.check).driver.engine,
    )
    for make in makers:
        one, two, plain, other = map(make, ("http://a/x?s=1", "http://a/y?s=2", "http://a/", "http://b/x?s=1"))
        assert one.client is two.client is plain.client is not other.client
        assert one.turns is two.turns
        assert [each.query for each in (one, two, plain, other)] == ["?s=1", "?s=2", "", "?s=1"]
    assert makers[0]("http://a/").client is not makers[1]("http://a/").client
    headed = guarded_root("http://a/", {"headers": {"k": "v"}}, bound="http://a", check=REMOTE.check)
    assert headed.driver.engine.client is not makers[1]("http://a/").client
