"""Reference sets whose targets lie in buckets of Google's cloud and containers of Azure.

obstore speaks to Google's cloud as this test run serves it.  gcsfs, adlfs and obstore's Azure need an emulator that
the tests start: see docs/development.md.
"""

from __future__ import annotations

import json
import os

import numpy as np
import pytest

import fsstore as ts
from fsstore import references
from fsstore.errors import DataLossError
from fsstore.kvstore.client import object_store

ACCOUNT = "devstoreaccount1"  # azurite's, with the key that its documentation prints
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
VALUES = np.arange(1200, dtype="<i4").reshape(60, 20)


def document(url):
    """Return a set of an array of 30 chunks whose bytes lie in a target, after a header; the last one inline."""
    array = {"zarr_format": 2, "dtype": "<i4", "order": "C", "filters": None, "fill_value": 0, "compressor": None}
    chunks = {f"x/{n}.0": [url, 16 + n * 160, 160] for n in range(29)}
    refs = {"x/.zarray": json.dumps({**array, "shape": [60, 20], "chunks": [2, 20]}), **chunks}
    return refs | {"x/29.0": VALUES[58:].tobytes()}


def target():
    """Return the bytes of the target."""
    return bytes(16) + VALUES.tobytes()


def check(base, refs, members):
    """Save a set at a URL and read the array, a chunk and the report through it; a short target is an error."""
    references.open(refs).save(base)
    spec = {"driver": "reference", "base": base, "path": "x/", **members}
    array = ts.open({"driver": "zarr", "kvstore": spec}).result()
    np.testing.assert_array_equal(array.read().result(), VALUES)
    np.testing.assert_array_equal(array[31:33].read().result(), VALUES[31:33])
    assert references.verify(base, decode=True, **members)
    url = refs["x/0.0"][0]
    references.open(refs | {"x/3.0": [url, len(target()) - 159, 160]}).save(base, overwrite=True)
    assert references.verify(base, **members).problems[0].keys
    with pytest.raises(DataLossError, match=r"x/3\.0"):
        ts.open({"driver": "zarr", "kvstore": spec}).result().read().result()


@pytest.fixture
def google(object_server, tmp_path, monkeypatch):
    """Give Google's cloud as obstore sees it: the shared server."""
    account = {"gcs_base_url": object_server.url, "disable_oauth": True, "client_email": "", "private_key": ""}
    (tmp_path / "account.json").write_text(json.dumps({**account, "private_key_id": ""}))
    monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT", str(tmp_path / "account.json"))
    make = object_store.bucket_engine

    def plainly(*arguments, **options):
        return make(*arguments, **{**options, "plain": True})

    monkeypatch.setattr(object_store, "bucket_engine", plainly)  # HTTP, for this cloud has no such member
    return object_server


@pytest.mark.parametrize("form", ["json", "json.zst", "parquet"])
def test_targets_in_google_cloud_through_obstore(google, tmp_path, form):
    """Adjacent chunks are one request; a set in the bucket itself names its target relatively."""
    google.put("bucket/data", target())
    check(f"file://{tmp_path}/refs.{form}", document("gs://bucket/data"), {})
    google.log.clear()
    references.open(document("gs://bucket/data")).save(f"file://{tmp_path}/again.{form}")
    array = ts.open(f"file://{tmp_path}/again.{form}|reference:x/|zarr2:").result()
    np.testing.assert_array_equal(array.read().result(), VALUES)
    assert google.count() == 1
    check(f"gs://bucket/{form}/refs.{form}", document("../data"), {})


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("form", ["json", "parquet"])
def test_targets_in_google_cloud_through_gcsfs(tmp_path, form, real_server):
    """Storage options bound to the bucket, and a kvstore spec, lead to gcsfs."""
    options = {"token": "anon", "endpoint_url": f"http://127.0.0.1:{real_server('gcs')[0]}"}
    import gcsfs

    gcsfs.GCSFileSystem(**options).pipe_file("bucket/refs/data", target())
    refs = document("gs://bucket/refs/data")
    check(f"file://{tmp_path}/refs.{form}", refs, {"targets": {"gs://bucket/": options}})
    spec = {"driver": "gcs", "bucket": "bucket", "engine": "fsspec", "storage_options": options}
    check(f"file://{tmp_path}/spec.{form}", refs, {"targets": {"gs://bucket/": spec}})
    members = {"targets": {"gs://bucket/": options}, "rewrite": {"s3://gone/": "gs://bucket/refs/"}}
    check(f"file://{tmp_path}/moved.{form}", document("s3://gone/data"), members)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("engine", ["fsspec", "obstore"])
def test_targets_in_azure(tmp_path, monkeypatch, engine, real_server):
    """Storage options bound to the container lead to adlfs, specs to either library."""
    address = f"http://127.0.0.1:{real_server('azure')[0]}/{ACCOUNT}"
    import adlfs

    text = f"DefaultEndpointsProtocol=http;AccountName={ACCOUNT};AccountKey={KEY};BlobEndpoint={address};"
    name = f"r{os.urandom(4).hex()}"
    filesystem = adlfs.AzureBlobFileSystem(connection_string=text)
    filesystem.mkdir(name)
    filesystem.pipe_file(f"{name}/refs/data", target())
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", KEY)
    refs = document(f"abfs://{name}/refs/data")
    options = {"connection_string": text}
    if engine == "fsspec":
        check(f"file://{tmp_path}/options.json", refs, {"targets": {f"abfs://{name}/": options}})
    spec = {"driver": "abfs", "container": name, "account_name": ACCOUNT, "engine": engine}
    spec |= {"storage_options": options} if engine == "fsspec" else {"endpoint": address}
    check(f"file://{tmp_path}/spec.json", refs, {"targets": {f"abfs://{name}/": spec}})
