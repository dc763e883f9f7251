"""The format of Icechunk, on a repository of three chunks in both versions: what is read, and what damage gives."""

import base64
import random

import numpy as np
import pytest
import zstandard

from fsstore.errors import DataLossError, PermissionDeniedError, ResourceExhaustedError, StoreError
from fsstore.icechunk import encoding
from fsstore.icechunk.document import decode_manifest, decode_repo, decode_snapshot
from fsstore.icechunk.driver import KIND
from fsstore.icechunk.encoding import (
    MAGIC,
    containers_of_flexbuffer,
    containers_of_yaml,
    decode_identifier,
    encode_identifier,
    open_envelope,
)
from fsstore.icechunk.repository import KeyForm, expand, target_of

FILES = {
    1: {
        "snapshots/PNPDDKXPX9PWDJHEB1A0": (
            "SUNF8J+nikNIVU5LaWMtMC4zLjI0ICAgICAgICAgICAgICAgAQEBKLUv/QBYVQoA9hJDPiDFahoDASDTCT4CluNklm"
            "YNAUIYMEcCgAXEGgjYw7sVbdqN5t3OXWcgQHwBVXBQ0zVAxLQAFgizzaoJC7UUNAAvADcA/wTU4ITABIf4munvQPUL"
            "IMMwW7GS7hIhwWBCohowghJLifybF/assHe35u3Qm0eJoOjvAiGKb+uKihfrrYuWJd1v68rFKlUTOe7rr3/r5/6UUM"
            "cC5HFJyND+2WyG8G+v/VcOogIaIBs/x8F03jKH2fJ5niSH17cjeWLR0gxPFSMJrrclTZlhLffbqqLjvr41ncqwhBpN"
            "EVyPFP8A/sHP23/uyiTL8OD3fMMIJmD0ANNGlTN3LpizZu7uzD/9DPxvHRAfGVnIFhcAYOjDcLwaPAHfVaLQaiEX/N"
            "6muYL4RS97m6wfzY1Y7Y4SfJPt9ipeF5jMjNSNiLUrwgOJqZwEu+4M"
        ),
        "manifests/HTP89ZJ90JQZ03N48EE0": (
            "SUNF8J+nikNIVU5LaWMtMC4zLjI0ICAgICAgICAgICAgICAgAQIBKLUv/QBYRQUA4kofJ5AbMwcPFFpmZtTxcxuhQf"
            "2nyZPWA1E/MEWQCrHVBtwtd4XK1mJ7px8hXdmxa0sEQDIaKAYqxKl4Hxwv+JJtPrgop+fwngICxRBPDhzwHDqzZe7r"
            "k/nOJV4d4AtyJhI2CAws2tVlb0++NBaqRcRjRSMXHRhn3bXJJukhugsPAEenFHFji6ZTELwVsUOOLTSXVIiBST9V0z"
            "hIS4nrqPyf2d4cQUEB"
        ),
    },
    2: {
        "repo": (
            "SUNF8J+nikNIVU5LaWMtMi4zLjAgICAgICAgICAgICAgICAgAgYBKLUv/WBABMUYAAZtkEIQddMaBZCGCnsQSiUfhS"
            "IglkJ3CACADAmu/rdUWJNy/2EzkrTJPsxXQ+3CWIGvdz+DvwsMR7t3NQgnzHRmIN5kyxRzAHoAhQCVXvuJKVEXvLbR"
            "RK9ostdGLUWs76qA2ZNKa2NNZfQ655qxVu2a9Ho2ahjEeRiUt8LUu/HENt4cm2fCKMrGirrvZmqo68UpsSm/0vFbX+"
            "34jpDvGPnOkreCvDXkLSbVoke/yimLDg36s2cBryz6v0FdHv5RP8rVoV/M4xn3GOXewTOO5gqjbIIUS2lPXkzLMi2T"
            "U2b2bS3ErgcvNMEbs1iveKEppT0MTiqvNEWrvXiCdmrbq9GYyevxeNx3XAeCAQad7J1O9OaCNnLKKOuN9eRkAKCvdn"
            "fWsKA6rpD2YTCa5PeKKGzoq/T0cq7jCRh/BqVYMC4zHF5IEUKUYkofaGBqSjQvIWpYXCpIkDCB1EJqoUCaQIrA8isB"
            "oAEgTG58/KA/xv3btuVA/UkeiW7wnhv/n0p0i6rAMc9MqjBUo0lULipYZag6f6anKV+NqWczbT6aivWIydOzGpU4sa"
            "a+Np7krHFKeLVbJY6UzrmRcw3cRZyCW3sO8NuRKwYLAosOnTJo65UJxEu+925UoZxz7sR9Ka3Pyv/Ar2KKK6RKTqVX"
            "WpqKIv4ED/7Qtm3bS7SAZIkLTQWRHykDtm3DqfFXMb7b1oSIjRGA/xMa5aeEWQcYE8EQGZYSHEFqWJ6tQ3tqSmgwAV"
            "MzggMNjUyp5CKzQcZlhqWFxgUQKH9ZqBEhQ8ogNCOBRCRB4mYMQAJCkCI8DxGQLWQlJQVNZWPPMwA0mLA6+onsAbID"
            "H95gFX2NbGCH6Teg0xsHpStNJoBr0jaO3q9b3DFPFuUeZypb9P0EyoC2UoLVoBrhk9fYdnOYtmomYJ75eQ2asvHRh0"
            "rj+AHdVv5hcs1JFX0YnZ7k/K18BRZs8CiiW2OPq835mxR20HNysyd+15ieoBGY0AoW6xCQPoVo/NQlmFNrCKjO8DWo"
            "AYDCsn4AaOwoSwoeC9PzHof7W1CJbxPdUAm/VI1cKg=="
        ),
        "snapshots/0JGCSAZC0JED84VEGN30": (
            "SUNF8J+nikNIVU5LaWMtMi4zLjAgICAgICAgICAgICAgICAgAgEBKLUv/WDwAG0KAGYRPTdgjVoDgZFxQFndNcNgqw"
            "EUjVETR4txQWulkBXblrvbW8rVIfQGjrn+HUPIK5mazKV2I6EIIjsFLAAwAC4ALtcY5q8sUAk+Ulip1WMWf2bhwhaQ"
            "tCIKB4hG/OeZtzHPNWt/nPMkiTqGfwug0f0+JBuKOsp5Eh6qaIJyFFXvrbRDPRPq9PFAoKWp3/spfvmbiIQ8mQxQwY"
            "X9r1esCofVCMTH51LG5dqSe8uWpbblV6lUHgQLjk71ht8oZMGOcvRWifDzbqlamurQ//9JtvY8vp3dbSI1heD9DH7N"
            "c0IwWgGfUlZS+cuYB57bl7oBiBseHQ0HEQEkICACRoxVD5sBON39qB2YG6fMJ8fq2HAsONHcFyRZw2S+EW/xIMkUa5"
            "H1sH9v2dEDsfevcIIwGpg/AG2w1e7VZiYRXpTE3IDFaBij5Tjg8hloeW1MKA=="
        ),
        "manifests/BV9R8NVYK5H32MNFPPH0": (
            "SUNF8J+nikNIVU5LaWMtMi4zLjAgICAgICAgICAgICAgICAgAgIBKLUv/WAQAMUFAFKJHy1wazMHnA8XABf9828hDh"
            "VIAh88FyKW4gjtRi4QnthdG9I6pFb27kaJma1ZmwLPcA21DqVjAVORQUx4WF4Bxy9/tu/pM4JVVlUBaB5OOKG+edRt"
            "UGok3eEYl2QKBhNFQ8DHW9cJbUPuXGhkDGQsiwgCiY2DbuVvK3XYhSDwFxcARweniNCxGzvrGdjCFRZs9cDgxhYkWQ"
            "LbSQ2X1zAMkvNgtlRjj3I/U1hPZAW+byhjf7YAA2I="
        ),
    },
}
"""What icechunk 1.1.21 and 2.3.0 wrote: the array `a` of four chunks, one inline, one native, one virtual, one absent."""
VERSIONS = [1, 2]


def objects(version):
    """Return the repository of a version: bytes by key."""
    return {key: base64.b64decode(text) for key, text in FILES[version].items()}


def one(version, kind):
    """Return the name and the bytes of the only snapshot or manifest of a version."""
    [(key, data)] = [item for item in objects(version).items() if item[0].startswith(kind)]
    return decode_identifier(key.partition("/")[2]), data


def packed(payload, version=2, kind=2, **frame):
    """Return a document around a payload."""
    header = MAGIC + b"test".ljust(24) + bytes([version, kind, 1])
    return header + zstandard.ZstdCompressor(**frame).compress(payload)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_snapshot_names_nodes_and_manifests(version):
    """Group, array, grid and manifest of both layouts of a snapshot are what the writer was told."""
    name, data = one(version, "snapshots")
    nodes = decode_snapshot(data, name).nodes
    assert list(nodes) == ["", "a"]
    assert (nodes[""].is_array, nodes["a"].is_array) == (False, True)
    chunks = nodes["a"].chunks()
    assert chunks.counts == (4,)
    [manifest] = chunks.manifests
    assert (manifest.start, manifest.stop) == ((0,), (3,))
    assert manifest.id == one(version, "manifests")[0]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("columns", [False, True])
def test_references_are_found_in_place_and_as_columns(version, columns):
    """Inline, native and virtual references are the same by bisection and by columns; an absent chunk is none."""
    name, data = one(version, "manifests")
    [array] = decode_manifest(data, name).arrays.values()
    wanted = np.array([[0], [1], [2], [3], [7]])
    at = array.columns(1).find(wanted) if columns else [array.bisect(tuple(row)) for row in wanted.tolist()]
    assert list(at[3:]) == [-1, -1]
    inline, native, virtual = (array.reference(int(each)) for each in at[:3])
    assert bytes(inline.value) == b"hi"
    assert (native.kind, native.offset, native.length, len(native.place)) == ("native", 0, 6, 20)
    assert virtual[:4] == ("virtual", 7, 5, "s3://b/k")
    assert virtual.etag == "e"
    assert array.columns(1).lengths.tolist() == [2, 6, 7]


def test_the_root_document_names_branches_and_tags():
    """Branches and tags of version 2 lead to the snapshot."""
    repo = decode_repo(objects(2)["repo"])
    assert repo.branches["main"] == one(2, "snapshots")[0]


def test_identifiers_are_inverse():
    """Names of random identifiers lead back to their bytes, and other texts are refused."""
    for seed in range(50):
        raw = random.Random(seed).randbytes(12)
        assert decode_identifier(encode_identifier(raw).lower()) == raw
    for text in ("", "1CECHNKREP0F1RSTCMT", "1CECHNKREP0F1RSTCMTU", "é" * 20):
        with pytest.raises(StoreError, match="20 characters"):
            decode_identifier(text)


def test_an_object_under_the_name_of_another_is_refused():
    """A snapshot or manifest that was put in the place of another is damage."""
    for decode, kind in ((decode_snapshot, "snapshots"), (decode_manifest, "manifests")):
        with pytest.raises(DataLossError, match="holds another"):
            decode(one(1, kind)[1], bytes(12))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda data: data[:30], "offset 0"),
        (lambda data: b"X" + data[1:], "offset 0"),
        (lambda data: data[:36] + b"\3" + data[37:], "offset 36"),
        (lambda data: data[:37] + b"\6" + data[38:], "offset 37"),
        (lambda data: data[:38] + b"\0" + data[39:], "offset 38"),
        (lambda data: data[:39], "offset 39"),
        (lambda data: data[:-1], "cut off"),
        (lambda data: data + b"x", "followed by other bytes"),
        (lambda data: data + data[39:], "followed by other bytes"),
    ],
)
def test_a_damaged_envelope_says_where(damage, message):
    """Every part of the header, and a frame that is cut off or followed by anything, is an error with an offset."""
    name, data = one(2, "manifests")
    with pytest.raises(StoreError, match=message):
        decode_manifest(damage(data), name)


def test_a_bomb_is_refused_before_it_is_decompressed():
    """A frame that would grow past the limit is refused, whether it says so or hides its size."""
    bomb = bytes(2**22)
    for known in (True, False):
        data = packed(bomb, write_content_size=known)
        assert len(data) < 10_000
        with pytest.raises(ResourceExhaustedError, match="more than 1000000 bytes"):
            open_envelope(data, "manifest", 10**6)
        assert len(open_envelope(data, "manifest").payload) == len(bomb)
    assert encoding.MAGIC == bytes.fromhex("494345f09fa78a4348554e4b")


@pytest.mark.parametrize(
    ("kind", "version"), [("snapshots", 1), ("snapshots", 2), ("manifests", 1), ("manifests", 2), ("repo", 2)]
)
def test_mutations_give_results_or_errors_of_ours(kind, version):
    """Payloads with random bytes changed, or cut off anywhere, give a value or a `StoreError`, nothing else."""
    rng = random.Random(version)
    name, data = (b"", objects(2)["repo"]) if kind == "repo" else one(version, kind)
    number = {"snapshots": 1, "manifests": 2, "repo": 6}[kind]
    payload = zstandard.ZstdDecompressor().decompress(data[39:], max_output_size=2**20)
    failed = 0
    for _ in range(1500):
        changed = bytearray(payload)
        for _ in range(rng.randrange(1, 5)):
            at = rng.randrange(len(changed))
            changed[at] = rng.choice([0, 1, 4, 127, 128, 255, rng.randrange(256)])
        if rng.random() < 0.2:
            del changed[rng.randrange(len(changed)) :]
        failed += not _read_all(kind, packed(bytes(changed), version, number), name)
    assert 0 < failed < 1500


def _read_all(kind, data, name):
    """Read everything of a document; return whether nothing was wrong."""
    try:
        if kind == "repo":
            decode_repo(data)
        elif kind == "snapshots":
            for node in decode_snapshot(data, name).nodes.values():
                bytes(node.document)
                node.is_array and node.chunks()
        else:
            for array in decode_manifest(data, name).arrays.values():
                for index in range(5):
                    at = array.bisect((index,))
                    at >= 0 and array.reference(at)
                for at in array.columns(1).find(np.array([[0], [1], [2]])).tolist():
                    at >= 0 and array.reference(at)
    except StoreError:
        return False
    return True


def test_containers_of_both_configurations():
    """Names of containers are found in the YAML of version 1; a damaged FlexBuffer is an error, an empty one is none."""
    text = "storage: null\nvirtual_chunk_containers:\n  s3://a/:\n    name: 'a'\n    url_prefix: s3://a/\n"
    text += "    store: !s3_compatible\n      name: no\n  s3://c/:\n    name: null\n    url_prefix: s3://c/\nmanifest:\n    name: x\n"
    assert containers_of_yaml(text) == {"a": "s3://a/"}
    assert containers_of_flexbuffer(b"") == {}
    rng = random.Random(4)
    for _ in range(3000):
        data = rng.randbytes(rng.randrange(1, 40))
        try:
            containers_of_flexbuffer(data)
        except DataLossError as error:
            assert "offset" in str(error)  # noqa: PT017  # most are damaged, some happen to be well-formed


def test_locations_are_decoded_once_and_may_not_climb():
    """What the policy compares is what is read: decoded, without query, and refused where it climbs."""
    assert target_of("file:///a%20b/c?x=1") == "file:///a b/c"
    assert target_of("https://h/a%20b?x=1") == "https://h/a%20b?x=1"
    assert expand("vcc://n/a/b", {"n": "s3://b/p/"}) == "s3://b/p/a/b"
    for location in ("s3://b/a/../c", "s3://b/%2e%2e/c", "s3://u:p@b/c", "file:///a%00b", "file:///a%5Cb"):
        with pytest.raises(PermissionDeniedError):
            target_of(location)
    for location in ("vcc://m/a", "vcc://n"):
        with pytest.raises(DataLossError, match="no container"):
            expand(location, {"n": "s3://b/"})
    with pytest.raises(DataLossError, match="no URL"):
        target_of("relative/path")


@pytest.mark.parametrize(
    ("form", "index", "name"),
    [
        (KeyForm(), (0, 12), "c/0/12"),
        (KeyForm(), (), "c"),
        (KeyForm(separator="."), (1, 2), "c.1.2"),
        (KeyForm(prefixed=False, separator="."), (1, 2), "1.2"),
    ],
)
def test_names_of_chunks_are_inverse(form, index, name):
    """What an index is called is parsed to the index; other spellings of numbers are not."""
    assert form.name(index) == name
    assert form.parse(name) == index
    assert form.parse(name + "/x") is None
    if index:
        assert form.parse(name[:-1] + "0" + name[-1]) != index


@pytest.mark.parametrize(
    ("rest", "path", "members"),
    [
        ("a/b", "a/b", {}),
        ("@branch.main/a", "a", {}),
        ("@branch.a%2Fb/x", "x", {"version": "branch.a/b"}),
        ("@tag.v5", "", {"version": "tag.v5"}),
        ("@1cechnkrep0f1rstcmt0/%40x", "@x", {"version": "1CECHNKREP0F1RSTCMT0"}),
    ],
)
def test_urls_say_what_is_read(rest, path, members):
    """Selectors are parsed from URLs, and written back to what parses the same."""
    assert KIND.from_url("icechunk", rest) == (path, members)
    again = KIND.to_url(path, members).removeprefix("icechunk:")
    assert KIND.from_url("icechunk", again) == (path, members)


def test_selectors_that_name_nothing_are_refused():
    """A selector that is no branch, tag or snapshot is an error that says what would be one."""
    for rest in ("@main", "@branch.", "@x.y", "@tag.a?b"):
        with pytest.raises(StoreError):
            KIND.from_url("icechunk", rest)
