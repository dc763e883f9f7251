"""What is left at the end of a process that used Azure through adlfs, over azurite; see docs/development.md."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import fsstore as ts

ACCOUNT = "devstoreaccount1"  # azurite's, with the key that its documentation prints
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
PROGRAM = """
import sys
import fsstore as ts
options = {"storage_options": {"connection_string": sys.argv[1]}}
store = ts.KvStore.open({"driver": "fsspec", "url": "abfs://end/folder/", **options}).result()
store["k"] = b"v"
assert store["k"] == b"v"
"""


@pytest.mark.filterwarnings("ignore")
def test_a_process_that_used_azure_ends_silently(real_server):
    """No connection is left open at the end, and nothing is printed there."""
    address = f"http://127.0.0.1:{real_server('azure')[0]}/{ACCOUNT}"
    import adlfs

    text = f"DefaultEndpointsProtocol=http;AccountName={ACCOUNT};AccountKey={KEY};BlobEndpoint={address};"
    adlfs.AzureBlobFileSystem(connection_string=text).mkdir("end")
    environment = {**os.environ, "PYTHONPATH": str(Path(ts.__file__).parents[1])}
    command = [sys.executable, "-c", PROGRAM, text]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environment)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
