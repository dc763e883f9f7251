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

import fsstore
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
    return "\n".join(f"seed {p['seed']}\n  " + "\n  ".join(p["history"]) + f"\n  {p['problem']}" for p in problems[:5])


def test_random_chains_agree():
    """Transforms, domains, images of points and kinds of errors agree on 1500 chains."""
    problems, _, crashes = run_chains(0, 1500)
    assert not problems, shown(problems)
    assert crashes <= 15


ENDS = [0, 1, -5, *(sign * (2**power + more) for sign in (1, -1) for power in (60, 61, 62) for more in (-2, -1, 0))]


def line(library, low, size, offset, stride):
    """Return a transform of one dimension."""
    output = library.OutputIndexMap(offset=offset, stride=stride, input_dimension=0)
    return library.IndexTransform(input_inclusive_min=[low], input_shape=[size], output=[output])


STEPS = {
    "composed": lambda library, first, second, _: line(library, *first)[line(library, *second)],
    "translate_by": lambda library, first, _, number: line(library, *first).translate_by[number],
    "translate_to": lambda library, first, _, number: line(library, *first).translate_to[number],
    "backwards": lambda library, first, _, number: line(library, *first).translate_backward_by[number],
    "index": lambda library, first, _, number: line(library, *first)[number],
    "slice": lambda library, first, second, _: line(library, *first)[second[0] : second[0] + second[1]],
}


def outcome(library, step, *arguments):
    """Return the text of a transform, or the class of an error and those that it derives from."""
    try:
        return str(step(library, *arguments))
    except (IndexError, ValueError) as error:
        return type(error).__mro__


@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
def test_where_integers_end(step):
    """Near the first and the last index, transforms and kinds of errors agree: the quick ways stop before."""
    rng, errors = random.Random(1), 0
    for _ in range(500):
        first, second = (
            (rng.choice(ENDS), rng.choice([1, 3, 2**61]), rng.choice(ENDS), rng.choice([1, 1, -1, 3, 2**60]))
            for _ in range(2)
        )
        number = rng.choice(ENDS)
        ours, theirs = (outcome(library, step, first, second, number) for library in (fsstore, tensorstore))
        case = first, second, number
        assert ours == theirs if isinstance(theirs, str) else theirs[0] in ours, case
        errors += not isinstance(theirs, str)
    assert 50 < errors < 500


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
