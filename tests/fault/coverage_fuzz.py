"""Mutate the files of every format and use what they hold, led by coverage where atheris is installed.

    coverage_fuzz.py TARGET COUNT SEED

A target (`fuzz_targets`) is a few files in memory, and URLs that are opened as stores or arrays, listed and read.  An
input is the number of one file and what replaces its content.  Only errors of fsstore may come of it, within a second
of processor time, and with at most 64 MiB more than was used before; limits of the system end what does not come back.
With atheris libFuzzer chooses inputs by the branches of fsstore that they reach; without it they are drawn at random.
Prints a line of JSON for each finding, and one at the end; the input under way stands in the file `FUZZ_INPUT`.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import math
import os
import random
import resource
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

try:
    import atheris
except ImportError:  # no wheel for this interpreter or system
    atheris = None

SLOW_S, MEMORY, SPACE, HANGS_S = 1.0, 64 << 20, 3 << 29, 60
NUMBERS = (0, 1, 2, 7, 127, 128, 255, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**62, 2**63, 2**64 - 1)
ODD = (None, True, -1, 0, 2**31, 2**63, 10**30, 1e300, "", "x", "\udc80", "/", "..", "{{a}}", [], {}, [None], [[1]],
       {"name": "x"}, {"id": "x"}, "<i4", "|O", "9" * 300, "memory://x")  # fmt: skip


def mutated_json(draw: random.Random, value: Any) -> Any:
    """Return JSON with one part replaced, removed or doubled, also within text that is JSON."""
    if isinstance(value, dict) and value and draw.random() < 0.88:
        name = draw.choice(sorted(value))
        rest = {other: part for other, part in value.items() if other != name}
        return rest if draw.random() < 0.1 else {**rest, name: mutated_json(draw, value[name])}
    if isinstance(value, list) and value and draw.random() < 0.85:
        at = draw.randrange(len(value))
        part = mutated_json(draw, value[at])
        most = 40 if len(repr(part)) < 400 else 2  # lists in lists would grow by the power of their depth
        return [*value[:at], *[part] * draw.choice((0, 1, 1, 1, 2, most)), *value[at + 1 :]]
    if isinstance(value, str) and value.startswith("{") and draw.random() < 0.8:
        try:
            return json.dumps(mutated_json(draw, json.loads(value)))
        except ValueError:
            return draw.choice(ODD)
    if isinstance(value, str) and draw.random() < 0.5:
        at = draw.randrange(len(value) + 1)
        return value[:at] + draw.choice(("{", "}}", "\0", "/", "|", ":", "9" * 30, " ", "(", value)) + value[at:]
    if isinstance(value, int) and draw.random() < 0.6:
        return draw.choice((value + 1, value - 1, -value, value * 2, *NUMBERS))
    odd = draw.choice(ODD)
    for _ in range(draw.choice((0, 0, 0, 0, 1, 5, 300))):
        odd = [odd]
    return odd


def mutated_bytes(draw: random.Random, data: bytes) -> bytes:
    """Return data with some bytes changed."""
    out = bytearray(data)
    for _ in range(draw.choice((1, 1, 1, 2, 5))):
        at, action = draw.randrange(len(out) + 1), draw.random()
        if action < 0.3 and out:
            out[at % len(out)] ^= 1 << draw.randrange(8)
        elif action < 0.6:
            size = draw.choice((1, 2, 4, 8))
            number = draw.choice(NUMBERS) % 256**size
            out[at : at + size] = number.to_bytes(size, draw.choice(("little", "big")))
        elif action < 0.7:
            del out[at:]
        elif action < 0.8:
            del out[at : at + draw.choice((1, 4, 20))]
        else:
            start = draw.randrange(len(out) + 1)
            out[at : at + draw.choice((0, 8, 30))] = out[start : start + draw.choice((1, 8, 30))]
    return bytes(out)


def mutated(draw: random.Random, data: bytes) -> bytes:
    """Return an input that is another by a little: its first byte is the number of the file."""
    head, content = data[:1], data[1:]
    if content[:1] in (b"{", b"[") and draw.random() < 0.8:
        try:
            value = json.loads(content)
            for _ in range(draw.choice((1, 1, 2, 3))):
                value = mutated_json(draw, value)
            return head + json.dumps(value).encode("utf-8", "surrogatepass")
        except (ValueError, RecursionError):
            pass
    return head + mutated_bytes(draw, content)


def tell_line(facts: dict[str, Any]) -> None:
    """Print facts on a line of their own: C-Blosc tells there without one that it has no memory."""
    print(f"\n{json.dumps(facts)}", flush=True)


class Judge:
    """Runs the inputs of a target and tells what should not have come of them."""

    def __init__(self, name: str, files: dict[str, bytes], urls: tuple[str, ...]) -> None:
        self.name, self.files, self.urls = name, files, urls
        self.names = sorted(files)
        self.outcomes: Counter[str] = Counter()
        self.known: set[str] = set()
        self.slowest = 0.0
        self.journal = os.environ.get("FUZZ_INPUT")

    @property
    def seeds(self) -> list[bytes]:
        """The inputs that change nothing."""
        return [bytes([number]) + self.files[name] for number, name in enumerate(self.names)]

    def run(self, data: bytes) -> None:
        """Run one input."""
        if not data:
            return
        if self.journal:
            Path(self.journal).write_bytes(data)
        files = {**self.files, self.names[data[0] % len(self.names)]: data[1:]}
        faulthandler.dump_traceback_later(HANGS_S, exit=True)
        before, begun = memory_begun(), time.process_time()
        for url in self.urls:
            self._use(files, url, data)
        spent = time.process_time() - begun
        faulthandler.cancel_dump_traceback_later()
        more = memory("VmHWM") - before
        self.slowest = max(self.slowest, spent)
        if spent > SLOW_S * (5 if atheris else 1):  # coverage is counted in Python
            self.tell("slow", f"{spent:.1f} s", data)
        if more > MEMORY:
            self.tell("memory", f"{more >> 20} MiB", data)

    def _use(self, files: dict[str, bytes], url: str, data: bytes) -> None:
        from fsstore.errors import StoreError

        try:
            self.outcomes[use(files, url)] += 1
        except StoreError:
            self.outcomes["refused"] += 1
        except Exception as error:  # noqa: BLE001  # what is looked for
            frames = traceback.extract_tb(error.__traceback__)
            where = next((f for f in reversed(frames) if "/fsstore/" in f.filename), frames[-1])
            place = f"{Path(where.filename).name}:{where.lineno}"
            self.tell(f"{type(error).__name__} {place}", str(error)[:300], data)

    def tell(self, what: str, why: str, data: bytes) -> None:
        """Print a finding, once."""
        if what not in self.known:
            self.known.add(what)
            finding = {"target": self.name, "finding": what, "why": why, "input": data.hex()}
            tell_line(finding)

    def finish(self) -> None:
        """Print what was done."""
        done = sum(self.outcomes.values())
        tell_line({"done": done, **self.outcomes, "slowest_s": round(self.slowest, 2)})


def memory(name: str) -> int:
    """Return what the system says of the memory of this process, in bytes; `ru_maxrss` includes that of its parent."""
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return 0
    return int(status.split(f"{name}:")[1].split()[0]) * 1024


def memory_begun() -> int:
    """Return what is used, and have the system count the most from now on."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    return memory("VmRSS")


def use(files: dict[str, bytes], url: str) -> str:
    """Open, list and read what is at a URL, in a memory of its own."""
    import fsstore as ts
    from fsstore.errors import StoreError

    context = ts.Context()
    base = ts.KvStore.open("memory://", context=context).result()
    for future in [base.write(name, value) for name, value in files.items()]:
        future.result()
    if not url.endswith(("zarr2:", "zarr3:", "n5:", "precomputed:", "#")):
        store = ts.KvStore.open(url, context=context).result()
        for key in store.list().result()[:20]:
            try:
                store.read(key).result()
                store.read(key, byte_range=slice(1, 3)).result()
            except StoreError:
                continue
        return "listed"
    array = ts.open(url.removesuffix("#"), context=context).result()
    array.spec().to_json()
    shape = [*array.domain.shape, *(array.chunk_layout.write_chunk.shape or [1])]
    if array.dtype.numpy_dtype.itemsize * math.prod(map(int, shape)) > 10**6 or not all(
        0 < size < 10**4 for size in shape
    ):
        return "opened"
    array.read().result()
    array[(slice(0, 1),) * array.rank].read().result()
    return "read"


def led_by_coverage(judge: Judge, count: int, seed: int) -> None:
    """Let libFuzzer choose; it ends the process."""
    corpus = tempfile.mkdtemp(prefix="corpus-")
    for number, data in enumerate(judge.seeds):
        Path(corpus, str(number)).write_bytes(data)

    def change(data: bytes, most: int, number: int) -> bytes:
        draw = random.Random(number)
        if draw.random() < 0.3:
            return data[:1] + bytes(atheris.Mutate(data[1:], max(1, most - 1)))
        return mutated(draw, data or judge.seeds[0])[:most]

    options = [
        f"-runs={count}",
        f"-seed={seed}",
        "-max_len=16384",
        "-rss_limit_mb=4000",
        f"-timeout={HANGS_S}",
        "-verbosity=0",
    ]
    left = iter(range(count - 1, -1, -1))

    def run(data: bytes) -> None:
        after = next(left, None)
        if after is not None:
            judge.run(data)
        if after == 0:  # nothing is called when libFuzzer ends the process
            judge.finish()

    atheris.Setup([sys.argv[0], corpus, *options], run, custom_mutator=change)
    atheris.Fuzz()


def target(name: str) -> tuple[dict[str, bytes], tuple[str, ...]]:
    """Return a target, used once, so that what it needs is imported."""
    sys.path.insert(0, str(Path(__file__).parent))
    from fuzz_targets import TARGETS

    files, urls = TARGETS[name]()
    for url in urls:
        use(files, url)
    return files, urls


def main(name: str, count: int, seed: int) -> None:
    """Run a target."""
    warnings.simplefilter("ignore")
    if atheris is None:
        found = target(name)
    else:
        with atheris.instrument_imports(include=["fsstore"], enable_loader_override=False):
            found = target(name)
    judge = Judge(name, *found)
    for data in judge.seeds:
        judge.run(data)
    assert not judge.outcomes["refused"], f"{name} cannot be used even as it is"
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + SPACE, used + SPACE))
    if atheris is not None:
        led_by_coverage(judge, count, seed)
        return
    draw = random.Random(seed)
    for _ in range(count):
        judge.run(mutated(draw, draw.choice(judge.seeds)))
    judge.finish()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
