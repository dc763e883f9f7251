"""How the time of each kind of access grows with what it touches: elements, chunks, and arrays of a group.

Each kind is measured in memory at powers of ten, by processor time, the least of a few runs; what a power of ten more
takes is told as an exponent: 1 is linear.  `steepest` is that of the steepest step from a millisecond on, below which
the fixed cost of a request hides what grows.

Elements that leave the caches of the processor cost more than those in them, and so does new memory.  What NumPy alone
takes for the same elements has such steps too; a kind may be as much steeper than linear as that is.

python -m benchmarks.scaling
python -m benchmarks.scaling points outer                    those whose name contains one of the words
python -m benchmarks.scaling --most 8 --picture curves.svg   up to 10^8 elements, and drawn
"""

from __future__ import annotations

import argparse
import math
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

__all__ = ["Curve", "main"]

Work = Callable[[], Any]
_RUNS, _BUDGET_S, _VISIBLE_S = 5, 0.4, 1e-3
_FLAT = 1.5  # times the least memory that a request may take, however large the array is
_CHUNK = 100_000  # elements of the arrays whose elements are counted
_TINY = 8  # elements of the chunks that are counted
_FEWER = {"chunks": 2, "sub-chunks": 2, "arrays": 4, "open": 0}


Points = list[tuple[int, float]]
"""What is touched, and the seconds that it takes."""


class Curve(NamedTuple):
    """The seconds of a kind by how much it touches; `bound`: of NumPy alone, empty where it does nothing alike."""

    name: str
    unit: str
    points: Points
    bound: Points

    @property
    def exponents(self) -> list[float]:
        """What each step of the size costs: 1 is as many times more time as there is more to touch."""
        return [
            exponent
            for exponent, (_, late) in zip(_exponents(self.points), self.points[1:], strict=True)
            if late >= _VISIBLE_S
        ]

    @property
    def steepest(self) -> float:
        """The largest exponent; 0 where nothing takes a millisecond."""
        return max(self.exponents, default=0.0)

    @property
    def excess(self) -> float:
        """How much the largest exponent is above 1, or above that of NumPy for the same step; at least 0."""
        found = self.exponents
        least = _exponents(self.bound)[-len(found) :] if self.bound and found else [1.0] * len(found)
        return max([mine - max(1.0, other) for mine, other in zip(found, least, strict=True)], default=0.0)


def _exponents(points: Points) -> list[float]:
    steps = zip(points, points[1:], strict=False)
    return [math.log(late / early) / math.log(more / less) for (less, early), (more, late) in steps]


def _array(size: int, chunk: int, shard: int | None = None) -> Any:
    """Return an array in memory, whose elements are their numbers."""
    import fsstore

    codecs: list[dict[str, Any]] = [{"name": "bytes", "configuration": {"endian": "little"}}]
    if shard is not None:
        inner = {"chunk_shape": [chunk], "codecs": codecs, "index_codecs": [*codecs, {"name": "crc32c"}]}
        codecs = [{"name": "sharding_indexed", "configuration": inner}]
    grid = {"name": "regular", "configuration": {"chunk_shape": [shard or chunk]}}
    metadata = {"shape": [size], "data_type": "int32", "chunk_grid": grid, "codecs": codecs}
    spec = {"driver": "zarr3", "kvstore": "memory://", "metadata": metadata}
    array = fsstore.open(spec, create=True, context=fsstore.Context()).result()
    array.write(np.arange(size, dtype="i4")).result()
    return array


def _whole(size: int) -> Work:
    array = _array(size, _CHUNK)
    return lambda: array.read().result()


def _strided(size: int) -> Work:
    array = _array(3 * size, _CHUNK)
    return lambda: array[::3].read().result()


def _points(size: int) -> Work:
    array = _array(size, min(_CHUNK, size // 10))  # points of a single chunk need not be sorted
    places = np.random.default_rng(0).integers(0, size, size)
    return lambda: array.vindex[places].read().result()


def _outer(size: int) -> Work:
    array = _array(2 * size, _CHUNK)
    places = np.arange(0, 2 * size, 2)
    return lambda: array.oindex[places].read().result()


def _mask(size: int) -> Work:
    array = _array(2 * size, _CHUNK)
    mask = np.arange(2 * size) % 2 == 0
    return lambda: array[mask].read().result()


def _written(size: int) -> Work:
    array, values = _array(size, _CHUNK), np.arange(size, dtype="i4")
    return lambda: array.write(values).result()


def _chunks(count: int) -> Work:
    array = _array(count * _TINY, _TINY)
    return lambda: array.read().result()


def _sub_chunks(count: int) -> Work:
    array = _array(count * _TINY, _TINY, _TINY * min(count, 1000))
    return lambda: array.read().result()


def _cut_shards(count: int) -> Work:
    array = _array(count * 4 * _TINY, _TINY, 4 * _TINY)
    return lambda: array[:: 4 * _TINY].read().result()


def _boxes(count: int) -> Work:
    array = _array(count * _TINY, _TINY)
    starts = range(0, count * _TINY, _TINY)

    def read() -> None:
        for future in [array[start : start + 4].read() for start in starts]:
            future.result()

    return read


def _chunks_written(count: int) -> Work:
    array, values = _array(count * _TINY, _TINY), np.arange(count * _TINY, dtype="i4")
    return lambda: array.write(values).result()


def _opened(count: int) -> Work:
    """Open an array of which as many chunks are stored, up to 100,000, in a grid of as many."""
    import fsstore

    context = fsstore.Context()
    metadata: dict[str, Any] = {"shape": [count * _TINY], "data_type": "int32"}
    metadata["chunk_grid"] = {"name": "regular", "configuration": {"chunk_shape": [_TINY]}}
    spec = {"driver": "zarr3", "kvstore": "memory://"}
    made = fsstore.open(spec | {"metadata": metadata}, create=True, context=context).result()
    stored = min(count, 100_000) * _TINY
    made[:stored].write(np.arange(stored, dtype="i4")).result()
    fresh = spec | {"recheck_cached_metadata": True}
    return lambda: fsstore.open(fresh, context=context).result()


def _group(count: int) -> Work:
    import fsstore

    context = fsstore.Context()
    group = fsstore.open_group("memory://g/", mode="w", context=context).result()
    for number in range(count):
        group.create_array(f"a{number}", shape=(4,), dtype="i4").result()
    return lambda: list(fsstore.open_group("memory://g/", context=context).result().arrays())


KINDS: dict[str, tuple[str, Callable[[int], Work]]] = {
    "read all": ("elements", _whole),
    "strided": ("elements", _strided),
    "points": ("elements", _points),
    "outer": ("elements", _outer),
    "mask": ("elements", _mask),
    "write all": ("elements", _written),
    "read chunks": ("chunks", _chunks),
    "write chunks": ("chunks", _chunks_written),
    "many boxes": ("chunks", _boxes),
    "read sub-chunks": ("sub-chunks", _sub_chunks),
    "cut shards": ("sub-chunks", _cut_shards),
    "open an array": ("open", _opened),
    "list a group": ("arrays", _group),
}


def _numpy(name: str, size: int) -> Work | None:
    """Return what NumPy does to have the elements of a kind from an array in memory; None for chunks and arrays."""
    numbers = np.random.default_rng(0)
    values = np.arange(3 * size, dtype="i4")
    places = numbers.integers(0, size, size)
    mask = np.arange(2 * size) % 2 == 0
    alone: dict[str, Work] = {
        "read all": values[:size].copy,
        "strided": values[::3].copy,
        "points": lambda: values[places],
        "outer": values[: 2 * size : 2].copy,
        "mask": lambda: values[: 2 * size][mask],
        "write all": values[:size].copy,
    }
    return alone.get(name)


def _seconds(work: Work) -> float:
    """Return the least processor time of a call."""
    work()
    best, end = math.inf, time.perf_counter() + _BUDGET_S
    for run in range(1000):
        if run >= _RUNS and time.perf_counter() > end:
            break
        begun = time.process_time()
        work()
        best = min(best, time.process_time() - begun)
        if time.perf_counter() > end + 3:
            break
    return best


def measure(words: list[str], most: int) -> Iterator[Curve]:
    """Yield the curves whose name contains one of the words, up to a power of ten."""
    for name, (unit, make) in KINDS.items():
        if words and not any(word in name for word in words):
            continue
        lowest = 3 if unit == "elements" else 0
        sizes = [10**power for power in range(lowest, most - _FEWER.get(unit, 0) + 1)]
        alone = [(size, _numpy(name, size)) for size in sizes] if unit == "elements" else []
        bound = [(size, _seconds(work)) for size, work in alone if work is not None]
        yield Curve(name, unit, [(size, _seconds(make(size))) for size in sizes], bound)


def peak(count: int) -> int:
    """Return how many bytes opening an array of so many chunks and reading ten of them takes at most."""
    import fsstore

    context, spec = fsstore.Context(), {"driver": "zarr3", "kvstore": "memory://"}
    grid = {"name": "regular", "configuration": {"chunk_shape": [_TINY]}}
    metadata: dict[str, Any] = {"shape": [max(count, 10) * _TINY], "data_type": "int32", "chunk_grid": grid}
    made = fsstore.open(spec | {"metadata": metadata}, create=True, context=context).result()
    made[: 10 * _TINY].write(np.arange(10 * _TINY, dtype="i4")).result()
    del made

    def work() -> Any:
        return fsstore.open(spec, context=context).result()[: 10 * _TINY].read().result()

    work()
    tracemalloc.start()
    work()
    found = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return found


_WIDTH, _HEIGHT, _LEFT, _TOP, _GAP, _PANEL = 960, 360, 56, 34, 36, 265
_COLOURS = ("#0b62a4", "#c2500a", "#2f7d32", "#7a3fa0", "#b0203a", "#5a5a5a")
_PANELS = (
    ("elements", ("elements",)),
    ("chunks", ("chunks", "sub-chunks")),
    ("arrays, chunks of one", ("arrays", "open")),
)


def drawn(curves: list[Curve]) -> str:
    """Return the curves as a picture: both axes are logarithmic, dotted lines are linear."""
    parts = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif" '
            'font-size="12" role="img"><title>Time against size</title>'
            f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#ffffff"/>'
        )
    ]
    times = [spent for curve in curves for _, spent in curve.points]
    low, high = math.floor(math.log10(min(times))), math.ceil(math.log10(max(times)))
    for place, (title, units) in enumerate(_PANELS):
        shown = [curve for curve in curves if curve.unit in units]
        if shown:
            left = _LEFT + place * (_PANEL + _GAP)
            parts += _panel(title, shown, left=left, decades=(low, high), named=not place)
    return "\n".join([*parts, "</svg>", ""])


def _panel(title: str, curves: list[Curve], *, left: int, decades: tuple[int, int], named: bool) -> Iterator[str]:
    low, high = decades
    powers = [math.log10(size) for curve in curves for size, _ in curve.points]
    first, last = min(powers), max(powers)
    height = 230

    def x(power: float) -> float:
        return left + (power - first) / (last - first) * _PANEL

    def y(power: float) -> float:
        return _TOP + (high - power) / (high - low) * height

    yield f'<text x="{left}" y="{_TOP - 14}" font-weight="bold">{title}</text>'
    for power in range(low, high + 1):
        yield f'<line x1="{left}" x2="{left + _PANEL}" y1="{y(power):.1f}" y2="{y(power):.1f}" stroke="#dddddd"/>'
        if named:
            yield f'<text x="{left - 6}" y="{y(power) + 4:.1f}" text-anchor="end">{_time(power)}</text>'
    for power in range(math.ceil(first), math.floor(last) + 1):
        exponent = f'10<tspan dy="-4" font-size="9">{power}</tspan>'
        yield f'<text x="{x(power):.1f}" y="{_TOP + height + 16}" text-anchor="middle">{exponent}</text>'
    for offset in range(low - round(last), high - round(first) + 1):
        ends = [max(first, low - offset), min(last, high - offset)]
        if ends[0] < ends[1]:
            (a, b), (c, d) = [(x(end), y(end + offset)) for end in ends]
            yield f'<line x1="{a:.1f}" y1="{b:.1f}" x2="{c:.1f}" y2="{d:.1f}" stroke="#bbbbbb" stroke-dasharray="2 4"/>'
    for number, curve in enumerate(curves):
        colour = _COLOURS[number % len(_COLOURS)]
        line = " ".join(f"{x(math.log10(size)):.1f},{y(math.log10(spent)):.1f}" for size, spent in curve.points)
        yield f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>'
        row, column = divmod(number, 2)
        at, base = left + column * _PANEL // 2, _TOP + height + 44 + 18 * row
        yield f'<rect x="{at}" y="{base - 9}" width="12" height="10" fill="{colour}"/>'
        yield f'<text x="{at + 18}" y="{base}">{curve.name}</text>'


def _time(power: int) -> str:
    unit = {-6: "µs", -3: "ms", 0: "s"}[power // 3 * 3]
    return f"{10 ** (power % 3)} {unit}"


def main() -> int:
    """Print a line for each kind; return 1 if one is worse than linear and than NumPy, or memory is not flat."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scaling", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("words", nargs="*")
    parser.add_argument("--most", type=int, default=7, help="the power of ten of the most elements")
    parser.add_argument("--picture", type=Path)
    parser.add_argument("--steepest", type=float, default=1.25, help="the exponent that is taken for linear")
    options = parser.parse_args()
    curves = []
    print("| kind | of | times at powers of ten, ms | last exponent | steepest | NumPy |\n|---|---|---|---|---|---|")
    for curve in measure(options.words, options.most):
        times = ", ".join(f"{spent * 1e3:.3g}" for _, spent in curve.points)
        last = curve.exponents[-1] if curve.exponents else 0.0
        alone = f"{_exponents(curve.bound)[-1]:.2f}" if curve.bound else ""
        shown = f"{curve.name} | {curve.unit} | {times} | {last:.2f} | {curve.steepest:.2f} | {alone}"
        print(f"| {shown} |", flush=True)
        curves.append(curve)
    if not options.words or "memory" in options.words:
        peaks = [peak(10**power) for power in range(1, options.most)]
        shown = ", ".join(f"{each / 1e3:.0f}" for each in peaks)
        print(f"\nmemory to open an array of 10, 100, ... chunks and to read ten of them, KB: {shown}")
        if max(peaks) > _FLAT * min(peaks):
            return 1
    if options.picture is not None:
        options.picture.write_text(drawn(curves), encoding="utf-8")
    return int(any(curve.excess > options.steepest - 1 for curve in curves))


if __name__ == "__main__":
    sys.exit(main())
