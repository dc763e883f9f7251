"""What `import fsstore` costs beside `import numpy, fsspec`, in processor time of fresh interpreters.

The two imports take turns, so that what disturbs the machine disturbs both.  The smallest time of each counts: a
disturbance only ever adds.
"""

from __future__ import annotations

import os
import subprocess
import sys

BASE = "import numpy, fsspec"
OURS = "import fsstore"


def cpu_seconds(code: str) -> float:
    """Return the processor time, user and system, of an interpreter that runs `code`."""
    process = subprocess.Popen([sys.executable, "-c", code])
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{code!r} failed")
    return usage.ru_utime + usage.ru_stime


def compare(rounds: int = 9) -> tuple[float, float]:
    """Return the processor times of the base and of ours, without what starting the interpreter costs."""
    start, base, ours = [], [], []
    for _ in range(rounds):
        start.append(cpu_seconds("pass"))
        base.append(cpu_seconds(BASE))
        ours.append(cpu_seconds(OURS))
    return min(base) - min(start), min(ours) - min(start)


if __name__ == "__main__":
    base_s, ours_s = compare(15)
    print(f"{BASE}: {base_s * 1e3:.1f} ms   {OURS}: {ours_s * 1e3:.1f} ms   ratio {ours_s / base_s:.2f}")
