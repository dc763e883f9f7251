"""What stands beside the package agrees with it: the citation, the recipe for conda, the workflow, and the sdist."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def document(name):
    """A file in YAML."""
    return yaml.safe_load((ROOT / name).read_text(encoding="utf-8"))


def test_the_citation_is_of_this_version():
    """Version and licence are those of the package."""
    found = document("CITATION.cff")
    assert (found["version"], found["license"]) == (PROJECT["version"], PROJECT["license"])
    assert found["title"] == PROJECT["name"]
    assert found["authors"]


def test_the_recipe_has_the_dependencies_of_the_package():
    """Version, requirements and the command are those of the package."""
    text = (ROOT / "conda" / "meta.yaml").read_text(encoding="utf-8")
    assert f'set version = "{PROJECT["version"]}"' in text
    run = text.split("  run:\n")[1].split("\n\n")[0]
    wanted = {"python " + PROJECT["requires-python"]}
    wanted |= {re.sub(r"^([\w-]+)", r"\1 ", dependency) for dependency in PROJECT["dependencies"]}
    assert set(re.findall(r"- (.+)", run)) == wanted
    ((name, target),) = PROJECT["scripts"].items()
    assert f"{name} = {target}" in text


def test_the_workflow_runs_what_is_here():
    """Every path and script that a step names exists."""
    jobs = document(".github/workflows/ci.yml")["jobs"]
    assert {job["runs-on"] for job in jobs.values()} == {"ubuntu-latest", "${{ matrix.os }}"}
    steps = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    assert ".ci/run" in steps
    named = {word for step in steps for word in re.findall(r"\btests/\w+", step)}
    assert named
    assert all((ROOT / name).is_dir() for name in named)


def test_forms_for_issues_are_well_formed():
    """Each form has a name, a description and fields with labels."""
    for path in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"):
        found = document(path.relative_to(ROOT))
        if path.stem != "config":
            assert found["name"]
            assert found["description"]
            assert all(field["attributes"]["label"] for field in found["body"])


def test_the_sdist_can_test_itself(tmp_path):
    """It builds without a network, and holds the package, its tests, its docs and its examples, and no waste."""
    command = [sys.executable, "-m", "hatchling", "build", "--target", "sdist", "--directory", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (built,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(built) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    for folder in ("fsstore", "tests", "docs", "examples"):
        here = {str(path.relative_to(ROOT)) for path in (ROOT / folder).rglob("*.py")}
        assert here <= names
    assert {"pyproject.toml", "conftest.py", "Makefile", ".ci/run", "LICENSE", "mkdocs.yml"} <= names
    assert not [name for name in names if "__pycache__" in name or name.startswith((".venv", "site/"))]
