"""Who may import whom, and what `import fsstore` costs.

`PACKAGES` is the order of the packages: each imports from itself and from those before it, and no module imports
another in a circle.  Imports inside functions and for type checkers count like all others: a hidden arrow is an arrow.
"""

from __future__ import annotations

import ast
import importlib
import json
import re
import subprocess
import sys
import tomllib
from collections import Counter
from functools import cache
from importlib.util import resolve_name
from pathlib import Path
from typing import Any

import pytest
from source_nodes import nodes, parsed

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "fsstore"

# Lowest first.  A module at the top of the package is a package of its own; the empty name is the door of users.
PACKAGES: tuple[str, ...] = (
    "redaction",
    "errors",
    "values",
    "runtime",
    "context",
    "observation",
    "index",
    "schema",
    "codec",
    "codec.numcodecs",
    "kvstore.contract",
    "kvstore.local",
    "kvstore.engine",
    "kvstore.web",
    "kvstore.client",
    "kvstore.root",
    "kvstore",
    "task",  # work in many pieces, whatever it is
    "ocdbt",
    "reference.table",
    "reference",
    "icechunk",
    "scan",
    "scan.hdf5",
    "scan.document",
    "chunk",
    "chunk.read",
    "chunk.write",
    "format",
    "driver",
    "precomputed",
    "arrays",
    "filesystem",
    "combine",
    "references",
    "dataset",
    "job",
    "sync",
    "interop",
    "serve",
    "viewer",
    "",
    "command",
    "__main__",
    "plugin",
    "testing",
    "compat",  # our doors under other names
)

# Packages that must not know each other, nor what is in them.
STRANGERS = {frozenset({store, "codec"}) for store in ("kvstore", "ocdbt", "icechunk", "reference", "scan")}

MODULES_IN_A_PACKAGE = 18
# package -> (its own ceiling, why)
LARGE_PACKAGES: dict[str, tuple[int, str]] = {}

# Third-party modules and who may import them.  What is not listed is not imported.
EVERYONE = ("",)
ALLOWED: dict[str, tuple[str, ...]] = {
    "numpy": EVERYONE,
    "ml_dtypes": EVERYONE,
    "fsspec": ("kvstore.client", "kvstore.root", "filesystem"),
    "numcodecs": ("codec", "scan.hdf5.structure"),
    "zstandard": ("codec", "values.detection", "ocdbt", "icechunk", "kvstore.zip_driver", "kvstore.zip_writing"),
    "imagecodecs": ("codec", "driver.array", "precomputed.codec"),
    "eccodes": ("codec.numcodecs.kerchunk_v2", "scan.grib_message"),
    "msgpack": ("codec.numcodecs.filters",),
    "pcodec": ("codec.numcodecs.numeric_v2",),
    "zfpy": ("codec.numcodecs.numeric_v2", "codec.zfp"),
    "zlib_ng": ("codec",),
    "google_crc32c": ("codec", "kvstore", "ocdbt", "runtime.cache"),
    "pyarrow": ("reference", "combine.mosaic_stored"),
    "fastparquet": ("reference",),
    "obstore": ("kvstore",),
    "aiohttp": ("kvstore.client.web", "reference.policy"),
    "yarl": ("kvstore.client.web",),
    "aiobotocore": ("kvstore.root.option",),
    "botocore": ("kvstore.root",),
    "zarr": ("kvstore.root.live", "interop"),
    "xarray": ("interop",),
    "dask": ("interop",),
    "torch": ("interop.torch",),
    "pandas": ("reference",),
    "distributed": ("command.terminal", "interop.dataset_blocks"),
    "tqdm": ("task.runner",),
    "IPython": ("task.runner",),
    "h5py": ("scan.hdf5",),
    "hdf5plugin": ("scan.hdf5.filters",),
    "virtualizarr": ("interop.virtualizarr",),
    "icechunk": ("interop.icechunk",),
    "kerchunk": ("filesystem.kerchunk",),
}

# Modules that are used where they are found, without an extra of their own, and why.
UNDECLARED = {
    "aiobotocore": "comes with s3fs, whose sessions it makes",
    "IPython": "shows progress where a notebook runs",
    "fastparquet": "reads parquet where pyarrow is not installed",
    "pandas": "comes with fastparquet, whose results it holds",
}

# What opening an array may not pull in unless the array needs it.
LATE = {
    "aiohttp", "botocore", "dask", "eccodes", "fastparquet", "google_crc32c", "h5py", "imagecodecs",
    "numcodecs", "obstore", "pandas", "pyarrow", "pytest", "s3fs", "tensorstore", "upath", "torch", "xarray", "zarr",
    "zstandard",
}  # fmt: skip


def dotted(path: Path) -> str:
    """Return the name of a module below the package: `kvstore.fs`, or the empty text for the package itself."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def modules() -> dict[str, Path]:
    """Return the modules of the package by their name below it."""
    return {dotted(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def imported(name: str, path: Path) -> set[str]:
    """Return the full names of what a module imports; `from a import b` is `a.b` when that is a module."""
    package = f"fsstore.{name}" if path.name == "__init__.py" else f"fsstore.{name}".rpartition(".")[0]
    found = set()
    for node in nodes(path):
        if isinstance(node, ast.Import):
            found |= {item.name for item in node.names}
        elif isinstance(node, ast.ImportFrom):
            origin = (
                resolve_name("." * node.level + (node.module or ""), package.rstrip(".")) if node.level else node.module
            )
            for item in node.names:
                inner = f"{origin}.{item.name}".removeprefix("fsstore.")
                found.add(f"{origin}.{item.name}" if inner in modules() else origin)
    return found


@cache
def arrows() -> list[tuple[str, str]]:
    """Return (importer, imported) for the modules of the package."""
    found = []
    for name, path in modules().items():
        for target in imported(name, path):
            if target == "fsstore" or target.startswith("fsstore."):
                found.append((name, target.removeprefix("fsstore").removeprefix(".")))
    return sorted(found)


@cache
def third_party() -> dict[str, set[str]]:
    """Return the modules of others that the package imports, and which of its modules import each."""
    found: dict[str, set[str]] = {}
    for name, path in modules().items():
        for target in imported(name, path):
            top = target.split(".")[0]
            if top != "fsstore" and top not in sys.stdlib_module_names:
                found.setdefault(top, set()).add(name)
    return found


def _covers(owner: str, name: str) -> bool:
    return name == owner or name.startswith((f"{owner}.", f"{owner}_"))


def package_of(name: str) -> str:
    """Return the package in which a module stands; a module at the top stands for itself."""
    path = modules()[name]
    return name if path.name == "__init__.py" else name.rpartition(".")[0] or name


def test_every_package_has_its_place():
    """The order names every package there is, and none that is gone."""
    assert {package_of(name) for name in modules()} == set(PACKAGES)
    assert len(set(PACKAGES)) == len(PACKAGES)


def test_imports_point_downwards():
    """No module imports from a package above its own."""
    place = {package: number for number, package in enumerate(PACKAGES)}
    problems = [
        f"{importer} imports {target}"
        for importer, target in arrows()
        if place[package_of(importer)] < place[package_of(target)]
    ]
    assert not problems, "\n" + "\n".join(problems)


def test_packages_are_small():
    """A package has so few modules that its docstring names them all; an exception gives a reason and is needed."""
    names = [name for name, path in modules().items() if path.name != "__init__.py"]
    counts = Counter(map(package_of, names))
    large = {package: count for package, count in counts.items() if count > MODULES_IN_A_PACKAGE}
    assert large.keys() == LARGE_PACKAGES.keys()
    for package, (ceiling, reason) in LARGE_PACKAGES.items():
        assert large[package] <= ceiling
        assert len(reason.split()) >= 4


def test_no_class_name_stands_for_two_things():
    """Every class of the package has a name of its own."""
    where: dict[str, list[str]] = {}
    for name, path in modules().items():
        for node in parsed(path).body:
            if isinstance(node, ast.ClassDef):
                where.setdefault(node.name, []).append(name)
    assert not {name: homes for name, homes in where.items() if len(homes) > 1}


def test_modules_offer_what_others_import():
    """What a module imports by name from another stands in `__all__` there, or is public where there is no such list."""
    problems = []
    for name, path in modules().items():
        for node in nodes(path):
            if not isinstance(node, ast.ImportFrom) or node.level or not (node.module or "").startswith("fsstore"):
                continue
            origin = node.module.removeprefix("fsstore").removeprefix(".")
            offered = getattr(importlib.import_module(node.module), "__all__", None)
            for item in node.names:
                is_module = f"{origin}.{item.name}".removeprefix(".") in modules()
                hidden = item.name.startswith("_") if offered is None else item.name not in {*offered, "*"}
                if not is_module and hidden:
                    problems.append(f"{name} imports {item.name}, which {origin} does not offer")
    assert not problems, "\n" + "\n".join(problems)


def test_strangers_stay_strangers():
    """Stores and codecs do not know each other."""
    problems = [
        f"{importer} imports {target}"
        for importer, target in arrows()
        if frozenset({importer.split(".")[0], target.split(".")[0]}) in STRANGERS
    ]
    assert not problems, "\n" + "\n".join(problems)


def test_modules_do_not_import_in_circles():
    """No chain of imports leads back to its start, whether at the top, in functions, or for type checkers."""
    graph: dict[str, set[str]] = {name: set() for name in modules()}
    for importer, target in arrows():
        graph[importer].add(target)
    done: set[str] = set()

    def visit(name: str, chain: tuple[str, ...]) -> None:
        assert name not in chain, " -> ".join([*chain[chain.index(name) :], name])
        for target in sorted(graph[name] - done):
            visit(target, (*chain, name))
        done.add(name)

    for name in graph:
        visit(name, ())


def test_third_party_modules_stay_where_they_belong():
    """Each third-party module is imported only by those that own the contact with it."""
    found = third_party()
    problems = [
        f"{name} imports {top}"
        for top, importers in found.items()
        for name in importers
        if not any(_covers(owner, name) for owner in ALLOWED.get(top, ())) and ALLOWED.get(top) != EVERYONE
    ]
    assert not problems, "\n" + "\n".join(sorted(problems))


def test_permissions_to_import_are_needed():
    """No module is listed as an importer of what it does not import any more."""
    found = third_party()
    problems = [
        f"{owner} does not import {top}"
        for top, owners in ALLOWED.items()
        for owner in owners
        if not any(not owner or _covers(owner, name) for name in found.get(top, ()))
    ]
    assert not problems, "\n" + "\n".join(sorted(problems))


def test_what_is_imported_is_declared():
    """Whatever the package imports is a dependency or stands in an extra."""
    project = _project()
    declared = list(project["dependencies"])
    for extra in project["optional-dependencies"].values():
        declared += extra
    names = {_distribution(requirement) for requirement in declared}
    assert set(third_party()) - set(UNDECLARED) <= names


def test_what_is_always_installed_is_imported():
    """No dependency is left of what the package does not import any more."""
    needed = {_distribution(requirement) for requirement in _project()["dependencies"]}
    assert needed <= set(third_party())


def _project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def _distribution(requirement: str) -> str:
    return re.split(r"[^\w.-]", requirement, maxsplit=1)[0].replace("-", "_")


def _run(code: str) -> str:
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_import_is_light():
    """Opening arrays loads none of the modules that only some of them need."""
    loaded = json.loads(_run("import fsstore, sys, json; fsstore.open; print(json.dumps(sorted(sys.modules)))"))
    assert not LATE & set(loaded)


def test_names_are_imported_when_they_are_asked_for():
    """`import fsstore` loads no other module of its own, nor numpy; then every public name is there, and listed."""
    code = """
import fsstore, json, sys
loaded = [name for name in sys.modules if name.startswith("fsstore.") or name == "numpy"]
listed = set(fsstore.__all__) - set(dir(fsstore))
missing = [name for name in fsstore.__all__ if not hasattr(fsstore, name)]
unlisted = set(fsstore._HOME) - set(fsstore.__all__)
print(json.dumps([loaded, *map(sorted, (listed, missing, unlisted))]))
"""
    assert json.loads(_run(code)) == [[], [], [], []]


@pytest.mark.parametrize("backwards", [False, True])
def test_modules_import_in_any_order(backwards):
    """After the package itself, its modules import in any order, and none warns."""
    names = sorted((f"fsstore.{name}".rstrip(".") for name in modules()), reverse=backwards)
    code = f"""
import importlib
for name in {names!r}:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("fsstore") or not name.startswith("fsstore.interop"):
            raise
"""
    _run(code)


@pytest.mark.parametrize(
    ("requirement", "name"),
    [("numpy>=1.26", "numpy"), ("google-crc32c>=1.5", "google_crc32c"), ("dask[array]", "dask"), ("h5py", "h5py")],
)
def test_requirements_are_read(requirement, name):
    """The name of a requirement is what stands before its extras and versions."""
    assert _distribution(requirement) == name
