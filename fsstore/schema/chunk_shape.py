"""The choice of a chunk shape from constraints: pure arithmetic, TensorStore's results to the element.

A dimension whose size is asked for keeps it.  The others share the rest of a target number of elements in the
proportions of the aspect ratio: their sizes are `ratio * factor`, at least 1 and at most the domain's, and the factor
is found by bisection.  Preferences count where nothing is required.

One grid serves formats that read and write the same chunks.  Two grids serve sharded formats: the read chunk must
divide the write chunk, so candidates are rounded to divisors or multiples of known sizes.  Divisors are found in
bounded time (Miller-Rabin, Pollard's rho): counting up to the next one would never end for a large prime.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Final, TypeAlias

from fsstore.errors import StoreError
from fsstore.schema.constraint import Bound, Vector
from fsstore.schema.layout_value import GridValue, LayoutValue, merge_grids

# Divisors of integers up to 2^63, in bounded time: Miller-Rabin finds primes, Pollard's rho splits the
# rest.

# These bases decide primality for every integer below 2^64.
_BASES: Final = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37)


def _is_prime(number: int) -> bool:
    if number < 2:
        return False
    for prime in _BASES:
        if number % prime == 0:
            return number == prime
    twos = (number - 1 & -(number - 1)).bit_length() - 1
    odd = (number - 1) >> twos
    for base in _BASES:
        power = pow(base, odd, number)
        if power in (1, number - 1):
            continue
        if not any((power := power * power % number) == number - 1 for _ in range(twos - 1)):
            return False
    return True


def _factor(number: int) -> int:
    """Return a factor of a composite number that is neither 1 nor the number."""
    if number % 2 == 0:
        return 2
    for increment in range(1, number):
        slow = fast = 2
        common = 1
        while common == 1:
            slow = (slow * slow + increment) % number
            fast = (fast * fast + increment) % number
            fast = (fast * fast + increment) % number
            common = math.gcd(abs(slow - fast), number)
        if common != number:
            return common
    return number


def _primes(number: int) -> list[int]:
    found, todo = list[int](), [number]
    while todo:
        part = todo.pop()
        if part == 1:
            continue
        if _is_prime(part):
            found.append(part)
        else:
            factor = _factor(part)
            todo += [factor, part // factor]
    return found


@lru_cache(maxsize=256)
def divisors(number: int) -> tuple[int, ...]:
    """Return all divisors of a positive number, ascending."""
    found = {1}
    for prime in _primes(number):
        found |= {divisor * prime for divisor in found}
    return tuple(sorted(found))


def nearest_divisor(dividend: int, size: int) -> int:
    """Return the divisor of `dividend` nearest to `size`, the smaller of two equally near."""
    candidates = divisors(dividend)
    position = bisect_left(candidates, size)
    if position == 0:
        return candidates[0]
    if position == len(candidates):
        return dividend
    below, above = candidates[position - 1], candidates[position]
    return below if size - below <= above - size else above


DEFAULT_ELEMENTS: Final = 1024 * 1024  # TensorStore's
_SATURATED: Final = 2**63 - 1  # what larger products count as
_MAX_SIZE: Final = 2**62
_MAX_FACTOR: Final = 1e300  # a float that can still be doubled

Shape: TypeAlias = tuple[int, ...]
Rounding: TypeAlias = Callable[[int, int], int]


def choose_one_grid(layout: LayoutValue, domain_shape: Sequence[int]) -> Shape:
    """Return the chunk shape where read and write chunks are the same.

    `domain_shape` has the rank of the layout; write constraints come after read constraints.
    Raises `StoreError` where required read and write sizes differ.
    """
    try:
        grid = merge_grids(layout.read_chunk, layout.write_chunk, "read_chunk")
    except StoreError as error:
        raise error.within("write_chunk constraints not compatible with existing read_chunk constraints") from None
    return _completed(_fixed(grid.shape, domain_shape), grid, domain_shape, _as_it_is)


def choose_read_write_grids(layout: LayoutValue, domain_shape: Sequence[int]) -> tuple[Shape, Shape]:
    """Return the shapes of read and write chunks; the first divides the second in each dimension.

    Raises `StoreError` where the required sizes do not divide.
    """
    read = _fixed(layout.read_chunk.shape, domain_shape)
    write = _fixed(layout.write_chunk.shape, domain_shape)
    for dimension in range(len(domain_shape)):
        _reconcile(dimension, read, write, layout)
    known = list(write)
    read_shape = _completed(
        read, layout.read_chunk, domain_shape, lambda d, size: nearest_divisor(known[d], size) if known[d] else size
    )
    write_shape = _completed(
        write, layout.write_chunk, domain_shape, lambda d, size: _nearest_multiple(read_shape[d], size)
    )
    return read_shape, write_shape


def _as_it_is(_dimension: int, size: int) -> int:
    return size


def _fixed(shape: Vector[int], domain_shape: Sequence[int]) -> list[int]:
    """Return the sizes asked for, 0 where none is; -1 is the size of the domain."""
    if shape is None:
        return [0] * len(domain_shape)
    out = []
    for bound, extent in zip(shape, domain_shape, strict=True):
        size = bound[0] if bound is not None else 0
        out.append(max(1, extent) if size == -1 else size)
    return out


def _is_hard(shape: Vector[int], dimension: int) -> bool:
    bound: Bound[int] = shape[dimension] if shape is not None else None
    return bound is not None and bound[1]


def _reconcile(dimension: int, read: list[int], write: list[int], layout: LayoutValue) -> None:
    """Change the softer of the two sizes of a dimension, where both are known, so that one divides the other."""
    r, w = read[dimension], write[dimension]
    if not r or not w or w % r == 0:
        return
    read_hard = _is_hard(layout.read_chunk.shape, dimension)
    write_hard = _is_hard(layout.write_chunk.shape, dimension)
    if read_hard and write_hard:
        raise StoreError(
            f"Incompatible chunk size constraints for dimension {dimension}: read size of {r}, write size of {w}"
        )
    if read_hard:
        write[dimension] = _nearest_multiple(r, w)
    else:
        read[dimension] = nearest_divisor(w, r)


def _nearest_multiple(divisor: int, size: int) -> int:
    """Return the multiple of `divisor` nearest to `size`, the smaller of two, at least `divisor`."""
    below = size // divisor * divisor
    if below == 0:
        return divisor
    return below if size - below <= below + divisor - size else below + divisor


def _completed(fixed: list[int], grid: GridValue, domain_shape: Sequence[int], rounded: Rounding) -> Shape:
    """Return the shape with its free dimensions chosen, each candidate size passed through `rounded`."""
    free = [dimension for dimension, size in enumerate(fixed) if not size]
    if not free:
        return tuple(fixed)
    target = DEFAULT_ELEMENTS if grid.elements is None else grid.elements[0]
    ratios = _ratios(grid.aspect_ratio, free)
    caps = [min(target, max(1, domain_shape[dimension]), _MAX_SIZE) for dimension in free]
    rest = math.prod(size for size in fixed if size)

    def sizes(factor: float) -> list[int]:
        raw = (max(1, int(min(ratio * factor, float(cap)))) for ratio, cap in zip(ratios, caps, strict=True))
        return [rounded(dimension, size) for dimension, size in zip(free, raw, strict=True)]

    def total(factor: float) -> int:
        return min(rest * math.prod(sizes(factor)), _SATURATED)

    chosen = sizes(_scale(total, target, ratios, caps))
    shape = list(fixed)
    for dimension, size in zip(free, chosen, strict=True):
        shape[dimension] = size
    return tuple(shape)


def _ratios(vector: Vector[float], free: list[int]) -> list[float]:
    if vector is None:
        return [1.0] * len(free)
    bounds = [vector[dimension] for dimension in free]
    return [bound[0] if bound is not None else 1.0 for bound in bounds]


def _scale(total: Callable[[float], int], target: int, ratios: list[float], caps: list[int]) -> float:
    """Return the factor whose number of elements comes nearest to the target from below, or meets it."""
    # A finer step than the half that separates two sizes: sizes in several dimensions change closely together.
    step = min(1 / ratio for ratio in ratios) / 4
    low = step
    high = min(max(cap / ratio for cap, ratio in zip(caps, ratios, strict=True)) * 2, _MAX_FACTOR)
    while low + step < high:
        middle = low + (high - low) / 2
        if not low < middle < high:
            break  # extreme ratios: the step is below the precision
        elements = total(middle)
        if elements >= target:
            high = middle
        if elements <= target:
            low = middle
    return high if total(high) == target else low
