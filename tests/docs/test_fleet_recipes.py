"""The recipes of the page about plans: each runs as it stands there, on the engine where that is installed."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import yaml

import fsstore as ts

PAGE = (Path(__file__).parents[2] / "docs/how-to/fleet.md").read_text(encoding="utf-8")
ENGINES = {
    "### Dask": "distributed", "With [submitit]": "submitit", "### MPI": "mpi4py", "### Ray": "ray",
    "### Apache Beam": "apache_beam", "### Lithops": "lithops",
}  # fmt: skip
HERE = [title for title, module in ENGINES.items() if find_spec(module) is not None]
SBATCH = """#!/bin/sh
# A stand-in for Slurm: it runs the tasks of an array one after the other, and then what depends on them.
last=0
for each; do
  case "$each" in --array=0-*) last=${each#--array=0-} ;; esac
  command=$each
done
for number in $(seq 0 $last); do SLURM_ARRAY_TASK_ID=$number sh -c "$command" >> jobs.log 2>&1 || exit 1; done
echo 7
"""


def block(title, language="python"):
    """Return the first block of a language behind a title, or behind words of the text."""
    found = re.search(rf"```{language}\n(.*?)```", PAGE[PAGE.index(title) :], re.DOTALL)
    assert found is not None
    return found[1]


@pytest.fixture
def values(tmp_path, monkeypatch):
    """Make the array that recipes copy, and return its values."""
    monkeypatch.chdir(tmp_path)
    made = np.random.default_rng(1).random((240, 20, 20)).astype("f4")
    options = {"dtype": "float32", "shape": made.shape, "chunks": [10, 20, 20]}
    array = ts.open(f"file://{tmp_path}/in.zarr/t/|zarr3:", create=True, **options).result()
    array[:] = made
    return made


def check_copied(values):
    """See that the copy is there."""
    assert np.array_equal(ts.open("out.zarr", context=ts.Context()).result().read().result(), values)


def environment(folder):
    """Return an environment in which the commands of this fsstore are found first."""
    (folder / "fsstore").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m fsstore "$@"\n')
    (folder / "fsstore").chmod(0o755)
    above = str(Path(ts.__file__).parents[1])
    return os.environ | {"PATH": f"{folder}:{os.environ['PATH']}", "PYTHONPATH": above}


@pytest.mark.parametrize("title", HERE)
def test_a_recipe_runs(title, values, tmp_path):
    """It copies all values, and the copy is finished."""
    ts.plan_copy("in.zarr/t", "out.zarr", schema={"chunks": [240, 10, 10]}).result().save("copy.plan")
    code = block(title).replace("AutoExecutor(", "AutoExecutor(cluster='local', ")
    begin = "import fsstore as ts\nif __name__ == '__main__':\n"
    (tmp_path / "recipe.py").write_text(begin + re.sub(r"^(?=.)", "    ", code, flags=re.MULTILINE))
    done = subprocess.run(
        [sys.executable, "recipe.py"], env=environment(tmp_path), capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    check_copied(values)


def test_the_recipe_for_slurm_runs(values, tmp_path):
    """With a stand-in for `sbatch`, and two parts instead of 500."""
    (tmp_path / "sbatch").write_text(SBATCH)
    (tmp_path / "sbatch").chmod(0o755)
    script = block("### Slurm", "sh").replace("/scratch/", "").replace("0-499", "0-1").replace("/500", "/2")
    subprocess.run(["sh", "-ec", script], env=environment(tmp_path), check=True, timeout=300)
    check_copied(values)


def test_the_recipe_for_kubernetes_is_an_indexed_job(values, tmp_path):
    """Its fields are those of the API, and its command runs the part of an index."""
    job = yaml.safe_load(block("### Kubernetes", "yaml"))
    assert (job["apiVersion"], job["kind"]) == ("batch/v1", "Job")
    spec = job["spec"]
    assert set(spec) == {"completionMode", "completions", "parallelism", "backoffLimitPerIndex", "template"}
    pod = spec["template"]["spec"]
    assert (spec["completionMode"], pod["restartPolicy"]) == ("Indexed", "Never")  # both go with a limit per index
    (container,) = pod["containers"]
    assert set(container) == {"name", "image", "command", "resources"}
    assert f"/{spec['completions']}" in container["command"][-1]
    ts.plan_copy("in.zarr/t", "out.zarr").result().save("copy.plan")
    command = [each.replace("s3://bucket/", "").replace("/500", "/2") for each in container["command"]]
    for index in (1, 0):
        ran = environment(tmp_path) | {"JOB_COMPLETION_INDEX": str(index)}
        subprocess.run(command, env=ran, check=True, timeout=100, stdout=subprocess.DEVNULL)
    assert json.loads(Path("copy.plan").read_text())["members"][0]["untouched"]
    ts.finish("copy.plan").result()
    check_copied(values)


@pytest.mark.parametrize("title", [*ENGINES, "### Airflow"])
def test_a_recipe_is_python(title):
    """Each block is parsed."""
    assert ast.parse(block(title)).body
