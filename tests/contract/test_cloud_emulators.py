"""Azure and Google's cloud keep the contract, over azurite and gcp-storage-emulator; see docs/development.md."""

import itertools
import os

import pytest

from fsstore.kvstore.contract.driver import KvOpening, KvPrefix
from fsstore.kvstore.root.cloud import ABFS, GCS
from fsstore.runtime import execution
from fsstore.testing.kvstore_suite import CHECKS, filled

ACCOUNT = "devstoreaccount1"  # azurite's, with the key that its documentation prints
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
NUMBERS = itertools.count()
SESSION = os.urandom(4).hex()

# names are text there, and the client libraries leave sockets open at exit
BATTERY = [check for name, check in CHECKS.items() if name != "keys_of_bytes"]
pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.parametrize("check", BATTERY, ids=lambda check: check.__name__),
]


def run(check, kind, members):
    """Run a check over a new folder of a bucket."""
    driver = execution.call(kind.open(KvOpening(members, {})))
    check(lambda contents: filled(KvPrefix(driver, f"{SESSION}/{next(NUMBERS)}/"), contents))


@pytest.fixture(scope="module")
def container(real_server):
    """Give a container of the Azure emulator, the connection string, and the address."""
    port = real_server("azure")[0]
    import adlfs

    address = f"http://127.0.0.1:{port}/{ACCOUNT}"
    text = f"DefaultEndpointsProtocol=http;AccountName={ACCOUNT};AccountKey={KEY};BlobEndpoint={address};"
    name = f"c{SESSION}"
    adlfs.AzureBlobFileSystem(connection_string=text).mkdir(name)
    return name, text, address


@pytest.mark.parametrize("engine", ["fsspec", "obstore"])
def test_azure(check, engine, container, monkeypatch):
    """Azure through adlfs, and through obstore."""
    name, text, address = container
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", KEY)
    members = {"container": name, "account_name": ACCOUNT, "engine": engine}
    members |= {"storage_options": {"connection_string": text}} if engine == "fsspec" else {"endpoint": address}
    run(check, ABFS, members)


def test_google(check, real_server):
    """Google's cloud through gcsfs; obstore speaks XML, which that emulator does not: see test_fs_stores."""
    options = {"token": "anon", "endpoint_url": f"http://127.0.0.1:{real_server('gcs')[0]}"}
    run(check, GCS, {"bucket": "bucket", "engine": "fsspec", "storage_options": options})
