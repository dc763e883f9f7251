"""The wheel: it builds, it carries what it must, and it works where nothing of the checkout is in sight."""

from __future__ import annotations

import ast
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
UNTESTED = {"torch"}  # libraries that are too large for the environment of the tests
COMING = "zarr.abc.url_pipeline"  # of a release of zarr-python that is to come


def _project() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """Build the wheel with the build backend that is installed: no network is needed."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (built,) = folder.glob("*.whl")
    return built


def test_wheel_carries_every_module_and_nothing_else(wheel):
    """The wheel has all modules of the package, the type marker and the licence, and no tests."""
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    expected = {str(path.relative_to(ROOT)) for path in (ROOT / "fsstore").rglob("*.py")}
    page = {str(path.relative_to(ROOT)) for path in (ROOT / "fsstore" / "viewer" / "page").iterdir()}
    assert len(page) > 5
    assert names == expected | page | {"fsstore/py.typed", "fsstore/interop/napari.yaml"}
    licences = [name for name in zipfile.ZipFile(wheel).namelist() if name.endswith("/licenses/LICENSE")]
    assert len(licences) == 1


def test_wheel_imports_without_the_checkout(wheel, tmp_path):
    """Installed into an environment of its own beside the dependencies, the package imports from there."""
    home = tmp_path / "env"
    venv.create(home, with_pip=False)
    python = home / "bin" / "python"
    site = Path(
        subprocess.check_output(
            [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], text=True
        ).strip()
    )
    zipfile.ZipFile(wheel).extractall(site)
    # Dependencies come last on the path.  A plain path runs none of its .pth files, so the editable install of the
    # checkout is out of sight.
    code = f"""
import sys
sys.path.append({sysconfig.get_path("purelib")!r})
import fsstore, importlib.metadata
print(fsstore.__file__)
print(importlib.metadata.version("fsstore"))
"""
    done = subprocess.run([python, "-I", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    where, version = done.stdout.split()
    assert Path(where).is_relative_to(site)
    assert version == _project()["version"]


def test_entry_points_exist():
    """Every entry point of the project names something that can be imported."""
    for group, entries in _project().get("entry-points", {}).items():
        for name, where in entries.items():
            module, _, attribute = where.partition(":")
            try:
                found = import_module(module)
            except ModuleNotFoundError as error:  # of releases that do not look for these entry points
                assert (group, error.name) == ("zarr.url_adapters", COMING)
                continue
            is_file = group == "napari.manifest" and Path(found.__file__).with_name(attribute).is_file()
            assert is_file or hasattr(found, attribute), f"{group}: {name} = {where}"


def test_entry_points_are_installed():
    """The environment under test was made from the entry points that stand in pyproject.toml now."""
    from importlib.metadata import distribution

    installed = {(entry.group, entry.name): entry.value for entry in distribution("fsstore").entry_points}
    declared = {
        (group, name): where
        for group, entries in _project().get("entry-points", {}).items()
        for name, where in entries.items()
    }
    declared |= {("console_scripts", name): where for name, where in _project().get("scripts", {}).items()}
    assert installed == declared


def test_registered_names_exist():
    """Every built-in name of a registry leads to an object."""
    from fsstore.values import registry

    problems = []
    for table in (registry.kvstores, registry.drivers, registry.codecs):
        for name in table.names():
            try:
                assert table.get(name) is not None
            except (ImportError, AttributeError) as error:
                problems.append(f"{table.group}: {name}: {error}")
    assert not problems, "\n" + "\n".join(problems)


def test_built_ins_are_assigned_to_their_contracts():
    """Every built-in of a registry stands in `tests/typing`, where the type checker compares it with its contract."""
    from fsstore.values import registry

    assigned = set()
    for node in ast.walk(ast.parse((ROOT / "tests" / "typing" / "conformance.py").read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            assigned |= {f"{node.module}:{item.name}" for item in node.names}
    tables = (registry.kvstores, registry.drivers, registry.codecs)
    assert (
        not {where for table in tables for where in map(table.where, table.names()) if where.startswith("fsstore.")}
        - assigned
    )


def test_public_names_are_declared():
    """`__all__` of each module names only what exists, and each name once."""
    problems = []
    for path in sorted((ROOT / "fsstore").rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        try:
            module = import_module(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
        except ModuleNotFoundError as error:
            if error.name not in {*UNTESTED, COMING}:
                raise
            continue
        names = list(getattr(module, "__all__", ()))
        problems += [f"{path.name}: {name} does not exist" for name in names if not hasattr(module, name)]
        problems += [f"{path.name}: {name} stands twice" for name in set(names) if names.count(name) > 1]
    assert not problems, "\n" + "\n".join(problems)
