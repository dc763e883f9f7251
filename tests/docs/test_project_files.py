"""What stands beside the package agrees with it: citation, recipe for conda, workflows, forms, checklist and sdist."""

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
    targets = {each["target"] for each in jobs["others"]["strategy"]["matrix"]["include"]}
    assert targets <= make_targets()
    steps = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    assert ".ci/run" in steps
    named = {word for step in steps for word in re.findall(r"\btests/\w+", step)}
    assert named
    assert all((ROOT / name).is_dir() for name in named)


def make_targets() -> set[str]:
    """The targets of the Makefile that are commands."""
    phony = re.findall(r"^\.PHONY: (.+)", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    return {name for line in phony for name in line.split()}


def test_actions_are_pinned_and_jobs_have_few_rights():
    """Every action of others is named by the hash of a commit and its version; no workflow may write by default."""
    for path in (ROOT / ".github" / "workflows").glob("*.yml"):
        for use in re.findall(r"uses: (.+)", path.read_text(encoding="utf-8")):
            assert use.startswith("./") or re.match(r"[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", use), use
        found = document(path.relative_to(ROOT))
        assert found["permissions"] in ({}, {"contents": "read"})


def test_only_the_approved_job_can_publish():
    """The right to publish is given to one job, which waits for the tests and for the environment, and has no token."""
    path = ROOT / ".github" / "workflows" / "release.yml"
    jobs = document(path.relative_to(ROOT))["jobs"]
    able = [name for name, job in jobs.items() if "id-token" in job.get("permissions", {})]
    assert able == ["publish"]
    assert set(jobs["publish"]["needs"]) == {"ci", "build"}
    assert jobs["publish"]["environment"]
    assert "secrets." not in path.read_text(encoding="utf-8")


def test_a_release_has_one_version(tmp_path):
    """The check of a release finds the same version in every file, and refuses a tag that is not it."""
    check = [sys.executable, str(ROOT / ".ci" / "check_release.py")]
    done = subprocess.run([*check, "v9.9.9", str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stdout.count(f"states {PROJECT['version']}, the tag is v9.9.9") == 5
    assert "holds 0 files of the kind wheel" in done.stdout


def test_targets_that_pages_name_exist():
    """Each `make` command of the checklist and of the pages for contributors is a target."""
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    named = {
        name
        for page in pages
        for name in re.findall(r"\bmake ([a-z-]+)[`\n ]", page.read_text(encoding="utf-8"))
        if f"`make {name}" in page.read_text(encoding="utf-8")
    }
    assert {"demo", "test", "test-oldest", "release-dry-run"} <= named
    assert named <= make_targets()


def test_forms_for_discussions_are_well_formed():
    """Each form has fields with labels."""
    forms = list((ROOT / ".github" / "DISCUSSION_TEMPLATE").glob("*.yml"))
    assert forms
    for path in forms:
        assert all(field["attributes"]["label"] for field in document(path.relative_to(ROOT))["body"])


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
