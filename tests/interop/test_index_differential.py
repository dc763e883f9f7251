"""Indexing is TensorStore's: random chains of operations give the same transforms and the same kinds of errors.

Executed against TensorStore 0.1.86.  What differs on purpose is listed with reasons in `index_chains.DELIBERATE`.
TensorStore runs in a process of its own, because some expressions crash it; the run goes on after the crash.
"""

import importlib.util
import json
import random
import subprocess
import sys
from pathlib import Path

import pytest
import tensorstore

import fsstore.index

WORKER = Path(__file__).parent / "index_chains.py"
ROOT = Path(__file__).parents[2]


def run_chains(first, count):
    """Return `(disagreements, results compared, crashes)` of `count` seeds."""
    end, problems, compared, crashes = first + count, [], 0, 0
    while first < end:
        done = subprocess.run(
            [sys.executable, str(WORKER), str(first), str(end - first)],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode <= 0, done.stderr
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        problems += [line for line in lines if "problem" in line]
        compared += sum(line.get("compared", 0) for line in lines)
        if done.returncode == 0:
            break
        crashes += 1
        first = lines[-1]["seed"] + 1
    return problems, compared, crashes


def shown(problems):
    """Return the first disagreements, one below the other."""
    return "\n".join(
        f"seed {p['seed']}\n  " + "\n  ".join(p["history"]) + f"\n  {p['problem']}" for p in problems[:5]
    )


def test_random_chains_agree():
    """Transforms, domains, images of points and kinds of errors agree on 1500 chains."""
    problems, _, crashes = run_chains(0, 1500)
    assert not problems, shown(problems)
    assert crashes <= 15


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_many_random_chains_agree():
    """The same for 20,000 other chains."""
    problems, _, crashes = run_chains(1_000_000, 20_000)
    assert not problems, shown(problems)
    assert crashes <= 200


def test_random_domains_agree():
    """Intersection, hull, restriction, JSON and accessors of domains and dimensions agree on 1500 expressions."""
    where = importlib.util.spec_from_file_location("index_chains", WORKER)
    chains = importlib.util.module_from_spec(where)
    where.loader.exec_module(chains)
    for seed in range(1500):
        text = chains.domain_expression(random.Random(seed))
        theirs, their_error = chains.evaluate(text, tensorstore)
        ours, our_error = chains.evaluate(text, fsstore.index)
        assert (their_error and chains.kind(their_error)) == (our_error and chains.kind(our_error)), text
        assert str(theirs) == str(ours), text
