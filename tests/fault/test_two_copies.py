"""Two processes copy to one target at once."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

import fsstore as ts

PROGRAM = """
import sys
import fsstore as ts

source, folder, rounds = sys.argv[1], sys.argv[2], int(sys.argv[3])
for number in range(rounds):
    sys.stdin.readline()
    try:
        ts.copy(source, f"{folder}/{number}", schema={"chunks": [7]}, max_memory="20kB").result()
        print("done", flush=True)
    except ts.errors.StoreError as error:
        print(type(error).__name__, flush=True)
"""


def check_rounds(tmp_path, rounds):
    """Have two processes copy different arrays to the same new place, again and again."""
    group = ts.open_group(tmp_path / "in", mode="w").result()
    for number in (1, 2):
        array = group.create_array(f"a{number}", shape=[200], dtype="i4", chunks=[10]).result()
        array[:] = np.full(200, number, "i4")
    both = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, f"{tmp_path}/in/a{number}", f"{tmp_path}/out", str(rounds)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for number in (1, 2)
    ]  # fmt: skip
    for number in range(rounds):
        for each in both:
            each.stdin.write("go\n")
            each.stdin.flush()
        told = [each.stdout.readline().strip() for each in both]
        assert sorted(told) in (["FailedPreconditionError", "done"], ["AlreadyExistsError", "done"])
        seen = ts.open(f"{tmp_path}/out/{number}").result().read().result()
        assert np.array_equal(seen, np.full(200, told.index("done") + 1))
        assert not [path for path in (tmp_path / f"out/{number}").iterdir() if "fsstore" in path.name]
    for each in both:
        each.communicate()


def test_one_is_right_and_the_other_an_error(tmp_path):
    """In each round."""
    check_rounds(tmp_path, 25)


@pytest.mark.long
def test_one_is_right_and_the_other_an_error_in_a_thousand_rounds(tmp_path):
    """In each round."""
    check_rounds(tmp_path, 1000)
