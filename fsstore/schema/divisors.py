"""Divisors of integers up to 2^63, in bounded time: Miller-Rabin finds primes, Pollard's rho splits the rest.

A search that counts up to the next divisor would never end for a large prime.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from functools import lru_cache
from typing import Final

__all__ = ["divisors", "nearest_divisor"]

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
    """Return the prime factors, repeated ones repeatedly."""
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
