"""`install_as_tensorstore` in processes of their own."""

from __future__ import annotations

import subprocess
import sys

import pytest

INSTALL = "from fsstore.compat.tensorstore import install_as_tensorstore as install\n"


def run(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)


def test_imports_mean_fsstore_afterwards():
    """Every form of import gives fsstore, once and again; before the call nothing has changed."""
    done = run(
        INSTALL + "import sys; assert 'tensorstore' not in sys.modules\n"
        "install(); install()\n"
        "import fsstore, tensorstore, tensorstore as ts\n"
        "from tensorstore import ocdbt, open\n"
        "import tensorstore.ocdbt\n"
        "assert ts is fsstore and open is fsstore.open and tensorstore.ocdbt is fsstore.ocdbt is ocdbt\n"
        "spec = {'driver': 'zarr3', 'kvstore': {'driver': 'memory'}}\n"
        "store = ts.open(spec, create=True, dtype=ts.int8, shape=[3]).result()\n"
        "print(type(store).__module__)\n"
    )
    assert (done.returncode, done.stdout) == (0, "fsstore\n"), done.stderr


@pytest.mark.parametrize("before", ["import tensorstore\n"])
def test_who_has_the_real_one_is_told(before):
    """Where tensorstore is imported already, the call is refused with what to do."""
    done = run(before + INSTALL + "install()")
    assert "before anything imports tensorstore" in done.stderr
