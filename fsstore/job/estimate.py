"""The cost of a plan: requests, bytes, hours and money, each from a number that a reader can see and replace.

Nothing is measured here.  The defaults are list prices of Amazon S3 Standard in us-east-1, a small machine, and what a
worker of the simulation moves (`benchmarks/simulate_jobs.py`); your own numbers make it better.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from fsstore.task.runner import bytes_text


@dataclass(frozen=True, slots=True)
class Rates:
    """The assumptions of an estimate.

    Money is of one `currency`; a gigabyte has 10^9 bytes.
    """

    worker_bytes_per_s: float = 70e6
    """Decoded bytes that a worker moves in a second, which are read and written."""
    reads_per_s: float = 5500
    """Requests that a prefix of the store answers in a second, whatever workers there are."""
    writes_per_s: float = 3500
    per_1000_reads: float = 0.0004
    per_1000_writes: float = 0.005
    per_gigabyte: float = 0.0
    """For each gigabyte that is read: nothing within a region, and more where the source is elsewhere."""
    per_worker_hour: float = 0.05
    currency: str = "USD"

    @classmethod
    def of(cls, given: Rates | Mapping[str, Any] | None) -> Rates:
        """Return the defaults with what was given instead; raises `ValueError` for names that there are not."""
        if given is None or isinstance(given, Rates):
            return given or cls()
        known = {field.name for field in fields(cls)}
        for name, value in given.items():
            if name not in known:
                raise ValueError(f"An estimate has no rate {name!r}; there are {', '.join(sorted(known))}")
            if name != "currency" and not (isinstance(value, int | float) and 0 <= value < float("inf")):
                raise ValueError(f"The rate {name!r} is a number that is not negative, not {value!r}")
            if name.endswith("_per_s") and not value:
                raise ValueError(f"The rate {name!r} is above zero: nothing would ever end")
        return replace(cls(), **given)


@dataclass(frozen=True, slots=True)
class Estimate:
    """An estimate of what a plan costs; print it to see what it assumes.

    Requests and bytes are those of the plan, at most.  `hours` are until the end, and `worker_hours` of all workers.
    """

    reads: int
    writes: int
    bytes_read: int
    bytes_written: int
    workers: int
    rates: Rates

    def __post_init__(self) -> None:
        """Check how many workers there are."""
        if self.workers < 1:
            raise ValueError(f"An estimate is of one worker or more, not {self.workers}")

    @property
    def hours(self) -> float:
        """Hours until the end: of the workers, or of the store where its limit of requests takes longer."""
        rates = self.rates
        working = max(self.bytes_read, self.bytes_written) / rates.worker_bytes_per_s / self.workers
        return max(working, self.reads / rates.reads_per_s, self.writes / rates.writes_per_s) / 3600

    @property
    def worker_hours(self) -> float:
        """Hours of all workers together."""
        return self.hours * self.workers

    @property
    def money(self) -> float:
        """Money for requests, traffic and workers."""
        rates = self.rates
        requests = (self.reads * rates.per_1000_reads + self.writes * rates.per_1000_writes) / 1000
        return requests + self.bytes_read / 1e9 * rates.per_gigabyte + self.worker_hours * rates.per_worker_hour

    def scaled(self, share: float) -> Estimate:
        """Return the estimate of a share of the work."""
        reads, writes, *nbytes = (
            round(each * share) for each in (self.reads, self.writes, self.bytes_read, self.bytes_written)
        )
        return replace(self, reads=reads, writes=writes, bytes_read=nbytes[0], bytes_written=nbytes[1])

    def to_json(self) -> dict[str, Any]:
        """Return the estimate with its rates."""
        named = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "rates"}
        rates = {field.name: getattr(self.rates, field.name) for field in fields(self.rates)}
        return {**named, "hours": self.hours, "worker_hours": self.worker_hours, "money": self.money, "rates": rates}

    def __str__(self) -> str:
        """Return one line with the figures, and one with what they assume."""
        rates, moved = self.rates, bytes_text(int(self.rates.worker_bytes_per_s))
        workers = _count(self.workers, "worker")
        traffic = f"{bytes_text(self.bytes_read)} read, {bytes_text(self.bytes_written)} written"
        requests = f"{_count(self.reads, 'read')}, {_count(self.writes, 'write')}"
        return (
            f"{requests}, {traffic}, {_hours(self.hours)} of {workers}, {self.money:.2f} {rates.currency}, if a worker"
            f" moves {moved}/s, the store answers {rates.reads_per_s:g} reads and {rates.writes_per_s:g} writes a"
            f" second, 1000 of these cost {rates.per_1000_reads:g} and {rates.per_1000_writes:g}, a GB that is read"
            f" {rates.per_gigabyte:g}, and an hour of a worker {rates.per_worker_hour:g}"
        )

    __repr__ = __str__


def _count(number: int, thing: str) -> str:
    return f"{number:,} {thing}{'s' if number != 1 else ''}"


def _hours(hours: float) -> str:
    seconds = hours * 3600
    return (
        f"{hours:.1f} hours" if hours >= 1 else f"{seconds / 60:.1f} minutes" if seconds >= 60 else f"{seconds:.1f} s"
    )
