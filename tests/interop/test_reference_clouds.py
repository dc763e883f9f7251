"""Reference sets on and into object storage: several protocols, several credentials, few requests."""

from __future__ import annotations

import json

import pytest

import fsstore as ts
from fsstore import references

DATA = bytes(range(256)) * 4


@pytest.fixture
def filesystem(moto_bucket):
    """Give an s3fs filesystem on the moto server, its options and a bucket."""
    import s3fs

    endpoint, bucket = moto_bucket
    options = {"key": "a", "secret": "hush", "client_kwargs": {"endpoint_url": endpoint, "region_name": "us-east-1"}}
    return s3fs.S3FileSystem(**options, skip_instance_cache=True), options, bucket


def test_one_set_reads_several_protocols(filesystem, object_server, tmp_path):
    """Targets on S3, on a web server, in a local file and in an archive, in one batch of one set."""
    import zipfile

    fs, options, bucket = filesystem
    fs.pipe_file(f"{bucket}/refs/t", DATA)
    object_server.put("t", DATA[::-1])
    (tmp_path / "t").write_bytes(DATA[7:])
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("m/t", DATA[9:])
    urls = [
        f"s3://{bucket}/refs/t",
        f"{object_server.url}/t",
        "t",
        f"zip://m/t::file://{tmp_path}/a.zip",
        f"s3a://{bucket}/refs/t",
    ]
    refs = {f"x/{n}.{m}": [url, m * 10, 10] for n, url in enumerate(urls) for m in range(20)}
    (tmp_path / "r.json").write_text(json.dumps(refs))
    store = ts.KvStore.open(
        {"driver": "reference", "base": f"file://{tmp_path}/r.json", "targets": {f"s3://{bucket}/": options}}
    ).result()
    object_server.log.clear()
    contents = [DATA, DATA[::-1], DATA[7:], DATA[9:], DATA]
    with ts.Batch() as batch:
        futures = {(n, m): store.read(f"x/{n}.{m}", batch=batch) for n in range(len(urls)) for m in range(20)}
    for (n, m), future in futures.items():
        assert bytes(future.result().value) == contents[n][m * 10 : m * 10 + 10], (n, m)
    assert object_server.count() == 1
    assert "hush" not in repr(store) + json.dumps(store.spec().to_json())


def test_a_set_on_object_storage(filesystem):
    """JSON and parquet sets are saved to a bucket and read back from it; relative targets lie beside them."""
    fs, options, bucket = filesystem
    fs.pipe_file(f"{bucket}/set/t", DATA)
    array = {
        "zarr_format": 2,
        "shape": [6],
        "chunks": [2],
        "dtype": "|u1",
        "compressor": None,
        "filters": None,
        "order": "C",
        "fill_value": 0,
    }
    refs = references.open({"x/.zarray": array, **{f"x/{n}": ["t", n * 2, 2] for n in range(3)}})
    for name, path in (("r.json.zst", "set/r.json.zst"), ("r.parq", "set/r.parq")):
        base = {"driver": "fsspec", "url": f"s3://{bucket}/{path}", "storage_options": options}
        refs.save(base, "parquet" if name.endswith("parq") else "json.zst", overwrite=True)
        array = ts.open({"driver": "zarr", "kvstore": {"driver": "reference", "base": base, "path": "x/"}}).result()
        assert array.read().result().tolist() == [0, 1, 2, 3, 4, 5]
        assert references.verify(base)


def test_a_set_on_object_storage_reads_no_local_file(filesystem, tmp_path):
    """What came from a bucket does not reach into this machine."""
    fs, options, bucket = filesystem
    (tmp_path / "secret").write_text("x")
    fs.pipe_file(f"{bucket}/evil.json", json.dumps({"x": [f"{tmp_path}/secret"]}).encode())
    base = {"driver": "fsspec", "url": f"s3://{bucket}/evil.json", "storage_options": options}
    with pytest.raises(PermissionError, match="allow"):
        ts.KvStore.open({"driver": "reference", "base": base}).result().read("x").result()
    store = ts.KvStore.open({"driver": "reference", "base": base, "allow": [str(tmp_path)]}).result()
    assert bytes(store.read("x").result().value) == b"x"


@pytest.mark.parametrize("name", ["w.json", "w.parq"])
def test_writing_to_a_set_in_a_bucket(filesystem, monkeypatch, moto_bucket, name):
    """Two clients write to one set at once, under conditions of the store; all that they wrote is there."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "id")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    endpoint, bucket = moto_bucket
    base = {"driver": "s3", "bucket": bucket, "endpoint": endpoint, "aws_region": "us-east-1", "path": f"w/{name}"}
    stores = [
        ts.KvStore.open({"driver": "reference", "base": {**base, "engine": engine}}).result()
        for engine in ("fsspec", "obstore")
    ]
    schema = {"dtype": "uint8", "shape": [40], "chunk_layout": ts.ChunkLayout(chunk_shape=[2])}
    arrays = [
        ts.open({"driver": "zarr", "kvstore": store.spec() / "x/"}, open=True, create=True, **schema).result()
        for store in stores
    ]
    begun = [arrays[n % 2][n : n + 1].write([n + 1]) for n in range(40)]
    for one in begun:
        one.result()
    again = ts.KvStore.open({"driver": "reference", "base": base}).result()
    assert ts.open({"driver": "zarr", "kvstore": again.spec() / "x/"}).result().read().result().tolist() == list(
        range(1, 41)
    )
    again.delete_range(ts.KvStore.KeyRange("x/", "x0")).result()
    assert ts.KvStore.open({"driver": "reference", "base": base}).result().list().result() == []
