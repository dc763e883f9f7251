"""Suites of other projects, run over fsstore: `python -m tests.suites zarr DIR [-- OPTIONS OF PYTEST]`.

`DIR` has the tests of the project in the version that is installed; for xarray and VirtualiZarr, which install theirs,
it is their package.  Nothing of theirs is changed: `tests.suites.stand_in` puts our stores and filesystems in the place
of those that they would take.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
FILES = {
    "zarr": (
        "test_api.py",
        "test_array.py",
        "test_group.py",
        "test_attributes.py",
        "test_indexing.py",
        "test_properties.py",
    ),
    "xarray": (str(ROOT / "tests/suites/xarray_backends.py"),),
    "kerchunk": ("",),
    "virtualizarr": ("test_integration.py", "test_writers"),
}


def main(arguments: list[str]) -> int:
    """Run one suite and return pytest's verdict."""
    name, directory, *options = [each for each in arguments if each != "--"]
    files = [str(Path(directory, each)) for each in FILES[name]]
    plain = ["-p", "no:cacheprovider", "-p", "tests.suites.stand_in", "-q", "--timeout=600", "-W", "ignore"]
    command = [sys.executable, "-m", "pytest", *plain, "--rootdir", directory, "-c", "/dev/null", *files, *options]
    return subprocess.call(command, cwd=ROOT)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
