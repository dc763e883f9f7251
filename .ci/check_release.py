"""Check the archives of a release: `check_release.py TAG FOLDER`.

The tag is `v` and the version; the same version stands in `pyproject.toml`, `fsstore/__init__.py`, `CITATION.cff`,
`conda/meta.yaml`, and in the changelog.  The wheel holds the package and nothing else, the sdist what builds and tests
it, both the licence.  The wheel alone, in a new environment, opens an array.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
LARGEST = {"wheel": 2_000_000, "sdist": 8_000_000}  # bytes; a file that slipped in shows here
PROGRAM = """
import fsstore as ts
array = ts.open({"driver": "zarr3", "kvstore": "memory://"}, create=True, dtype="int32", shape=[3]).result()
array[...] = [1, 2, 3]
assert array.read().result().tolist() == [1, 2, 3]
print(ts.__version__)
"""


def stated_versions() -> dict[str, str]:
    """Return the version that each file states."""
    patterns = {
        "pyproject.toml": r'^version = "(.+)"',
        "fsstore/__init__.py": r'^__version__ = "(.+)"',
        "CITATION.cff": r"^version: (.+)",
        "conda/meta.yaml": r'set version = "(.+)" %',
        "CHANGELOG.md": r"^## (\S+)",
    }
    found = {}
    for name, pattern in patterns.items():
        match = re.search(pattern, (ROOT / name).read_text(encoding="utf-8"), re.MULTILINE)
        found[name] = match[1] if match else "none"
    return found


def problems_of_wheel(wheel: Path) -> list[str]:
    """Return what is wrong with the wheel."""
    names = set(zipfile.ZipFile(wheel).namelist())
    foreign = [name for name in names if not re.match(r"fsstore(-[^/]+\.dist-info)?/", name)]
    found = [f"the wheel holds {name}" for name in foreign]
    modules = {str(path.relative_to(ROOT)) for path in (ROOT / "fsstore").rglob("*.py")}
    found += [f"the wheel lacks {name}" for name in sorted(modules | {"fsstore/py.typed"}) if name not in names]
    if not any(name.endswith("/licenses/LICENSE") for name in names):
        found.append("the wheel lacks the licence")
    return found


def problems_of_sdist(sdist: Path) -> list[str]:
    """Return what is wrong with the sdist."""
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    needed = {"LICENSE", "README.md", "CHANGELOG.md", "Makefile", "pyproject.toml", "mkdocs.yml", ".ci/run"}
    found = [f"the sdist lacks {name}" for name in sorted(needed - names)]
    waste = [name for name in names if "__pycache__" in name or name.startswith((".venv", "site/", ".git/"))]
    return found + [f"the sdist holds {name}" for name in waste]


def opened_by_the_wheel(wheel: Path) -> str:
    """Return the version that the wheel tells in an environment where nothing else was installed."""
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=True)
        python = Path(folder, "bin" if sys.platform != "win32" else "Scripts", "python")
        subprocess.run([python, "-m", "pip", "install", "--quiet", wheel.resolve()], check=True)
        done = subprocess.run([python, "-I", "-c", PROGRAM], cwd=folder, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else done.stderr


def main(tag: str, folder: Path) -> int:
    """Print what is wrong, one line each; return the exit code."""
    found = [
        f"{name} states {version}, the tag is {tag}"
        for name, version in stated_versions().items()
        if f"v{version}" != tag
    ]
    archives = {"wheel": list(folder.glob("*.whl")), "sdist": list(folder.glob("*.tar.gz"))}
    for kind, files in archives.items():
        if len(files) != 1:
            found.append(f"{folder} holds {len(files)} files of the kind {kind}, not one")
        found += [
            f"{path.name} has {path.stat().st_size:,} bytes, more than {LARGEST[kind]:,}"
            for path in files
            if path.stat().st_size > LARGEST[kind]
        ]
        found += [f"{path.name} is not of {tag}" for path in files if f"fsstore-{tag[1:]}" not in path.name]
    if not found:
        (wheel,), (sdist,) = archives.values()
        found = problems_of_wheel(wheel) + problems_of_sdist(sdist)
        told = opened_by_the_wheel(wheel)
        if f"v{told}" != tag:
            found.append(f"the wheel alone says: {told}")
    print("\n".join(found) if found else f"{tag} can be released")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2])))
