"""Azure and Google's cloud keep the contract, over emulators that somebody has started; see docs/development.md.

`AZURE_EMULATOR` names the address of an azurite blob service with the account it comes with, `GCS_EMULATOR` that of a
gcp-storage-emulator with the bucket `bucket`.  Without them there is nothing to run.
"""

import itertools
import os

import pytest

from fsstore.kvstore.contract.driver import KvPrefix
from fsstore.kvstore.contract.kind import KvOpening
from fsstore.kvstore.root.cloud import ABFS, GCS
from fsstore.runtime import execution
from fsstore.testing.kvstore_suite import CHECKS, filled

AZURE, GOOGLE = os.environ.get("AZURE_EMULATOR", ""), os.environ.get("GCS_EMULATOR", "")
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
def container():
    """Give a container of the Azure emulator, and the connection string."""
    import adlfs  # whoever names an emulator wants these tests to run

    address = f"{AZURE}/{ACCOUNT}"
    text = f"DefaultEndpointsProtocol=http;AccountName={ACCOUNT};AccountKey={KEY};BlobEndpoint={address};"
    name = f"c{SESSION}"
    adlfs.AzureBlobFileSystem(connection_string=text).mkdir(name)
    return name, text


@pytest.mark.skipif(not AZURE, reason="AZURE_EMULATOR names no azurite")
@pytest.mark.parametrize("engine", ["fsspec", "obstore"])
def test_azure(check, engine, container, monkeypatch):
    """Azure through adlfs, and through obstore."""
    name, text = container
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", KEY)
    members = {"container": name, "account_name": ACCOUNT, "engine": engine}
    members |= (
        {"storage_options": {"connection_string": text}}
        if engine == "fsspec"
        else {"endpoint": f"{AZURE}/{ACCOUNT}"}
    )
    run(check, ABFS, members)


@pytest.mark.skipif(not GOOGLE, reason="GCS_EMULATOR names no gcp-storage-emulator")
def test_google(check, monkeypatch):
    """Google's cloud through gcsfs; obstore speaks XML, which that emulator does not: see test_fs_stores."""
    monkeypatch.setenv("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
    options = {"token": "anon", "endpoint_url": GOOGLE}
    run(check, GCS, {"bucket": "bucket", "engine": "fsspec", "storage_options": options})
