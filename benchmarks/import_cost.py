"""What `import fsstore` costs beside `import numpy, fsspec`, in processor time of fresh interpreters.

fsstore imports a name when it is first asked for, so what a program that opens arrays pays stands beside it.
The imports take turns, so that what disturbs the machine disturbs both.  The smallest time of each counts: a
disturbance only ever adds.  Byte code is compiled before anything is measured, in a folder of its own, because an
environment that writes none would measure the compiler.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile

BASE = "import numpy, fsspec"
OURS = "import fsstore"
USED = "import fsstore; fsstore.open, fsstore.KvStore"


def cpu_seconds(code: str, compiled: str) -> float:
    """Return the processor time, user and system, of an interpreter that runs `code` with byte code in a folder."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPYCACHEPREFIX"] = compiled
    process = subprocess.Popen([sys.executable, "-c", code], env=environment)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{code!r} failed")
    return usage.ru_utime + usage.ru_stime


def compare(rounds: int = 9) -> dict[str, float]:
    """Return the processor time of each import, without what starting the interpreter costs."""
    times: dict[str, list[float]] = {"pass": [], BASE: [], OURS: [], USED: []}
    with tempfile.TemporaryDirectory() as compiled:
        cpu_seconds(f"{BASE}; {USED}", compiled)
        for _ in range(rounds):
            for code, found in times.items():
                found.append(cpu_seconds(code, compiled))
    start = min(times["pass"])
    return {code: min(found) - start for code, found in times.items() if code != "pass"}


if __name__ == "__main__":
    costs = compare(15)
    for code, seconds in costs.items():
        print(f"{code}: {seconds * 1e3:.1f} ms   ratio {seconds / costs[BASE]:.2f}")
