"""One that reads, writes, resizes and resolves an array beside others, and checks what it sees.  Run by
test_resizing_programs, as a thread or as a process.

Each worker has columns of its own, which share chunks with those of the others, and every value it writes is a number
of its own.  The first rows are in every shape: of them a worker knows what a read of its columns may show, as if there
were no resizes.  The other rows come and go.  There a read shows what somebody wrote at that place, or nothing; and
where no resize was under way since, what the worker wrote last.  What was stored before a resize that took its chunk
away does not come back, unless it was written while another resize was under way.
"""

from __future__ import annotations

import sys

import numpy as np

import fsstore
from tests.property.begun import Begun, possible

ALWAYS, ROWS, COLUMNS = 140, 300, 480
CHUNK = (64, 96)


class Counts:
    """How many resizes each worker has begun and ended, in a file that all of them see."""

    def __init__(self, path, workers):
        self.counts = np.memmap(path, np.int64, "r+", shape=(workers, 2))

    def ended(self):
        """Return how many have ended."""
        return int(self.counts[:, 1].sum())

    def quiet(self):
        """Return how many there were if none is under way, else None."""
        ended = self.ended()
        return ended if ended == int(self.counts[:, 0].sum()) else None


class Worker(Begun):
    """One worker; `sizes` are the extents of the resizes if they are made one after the other, under `turn`."""

    def __init__(self, store, number, counts, seed, *, turn=None, sizes=None):
        super().__init__(f"{seed}/{number}", np.zeros((ROWS, COLUMNS), np.uint32))
        self.store, self.number, self.counts, self.turn, self.sizes = store, number, counts, turn, sizes
        share = COLUMNS // len(counts.counts)
        self.columns = range(number * share, (number + 1) * share)
        self.known, self.known_at = np.zeros((ROWS, COLUMNS), bool), None
        self.log = {}

    def box(self, first, last):
        """Return a selection of rows from a range, and of own columns."""
        box = []
        for low, high in ((first, last), (self.columns.start, self.columns.stop)):
            begin, end = sorted(self.chance.sample(range(low, high + 1), 2))
            whole = self.chance.random() < 0.2
            box.append(slice(low if whole else begin, high if whole else end))
        return tuple(box)

    def begun(self, box):
        """Note a new value for a place; return it."""
        value = 1000 * (len(self.log) + 1) + self.number
        self.log[value] = [box, None]
        return value

    def write(self):
        """Begin to write rows that are in every shape."""
        box = self.box(0, ALWAYS)
        value = self.begun(box)
        self.changed(box, value)
        self.writes.append(self.store[box].write(np.full(self.model[box].shape, value, np.uint32)))

    def write_where_it_may_end(self):
        """Write rows that may not be there."""
        before, box = self.counts.quiet(), self.box(self.chance.choice([0, ALWAYS]), ROWS)
        value = self.begun(box)
        try:
            self.store[box].write(value).result(60)
        except fsstore.errors.OutOfRangeError:
            assert box[0].stop > ALWAYS
            return
        is_known = before is not None and self.counts.quiet() == before
        self.log[value][1] = before if is_known else None
        self.changed(box, value)
        if before != self.known_at:
            self.known[ALWAYS:], self.known_at = False, before
        self.known[box] = is_known

    def read(self):
        """Begin to read own columns."""
        box = self.box(0, self.chance.choice([ALWAYS, ROWS]))
        quiet, ended = self.counts.quiet(), self.counts.ended()
        known = self.known[box].copy() if quiet is not None and quiet == self.known_at else None
        self.reads.append((self.store[box].read(), box, [self.model[box].copy()], quiet, ended, known))

    def check(self, future, box, allowed, quiet, ended, known):
        """Wait for a read and check what it shows."""
        try:
            found = future.result(60)
        except fsstore.errors.OutOfRangeError:
            assert box[0].stop > ALWAYS
            return
        wrong = ~possible(found, allowed)
        always = max(0, ALWAYS - box[0].start)
        assert not wrong[:always].any(), (box, found[:always][wrong[:always]][:5])
        if known is not None and self.counts.quiet() == quiet:
            assert not wrong[known].any(), (box, found[known & wrong][:5], quiet)
        self.check_log(found, box, ended)

    def check_log(self, found, box, ended):
        """Check that every number stands where it was written, and none comes back."""
        for value in set(np.unique(found).tolist()) - {0}:
            where, done = self.log[value]
            allowed = np.zeros(self.model.shape, bool)
            allowed[where] = True
            if self.sizes is not None and done is not None and self.sizes[done:ended]:
                allowed[-(-min(self.sizes[done:ended]) // CHUNK[0]) * CHUNK[0] :] = False
            assert allowed[box][found == value].all(), (value, where, box, done, ended)

    def resize(self):
        """Resize, and see that it is so unless others resize."""
        rows = self.chance.randint(ALWAYS, ROWS)
        if self.turn is None:
            self.resize_to(rows)
            return
        with self.turn:
            self.sizes.append(rows)
            self.resize_to(rows)

    def resize_to(self, rows):
        """Resize to so many rows."""
        own, before = self.counts.counts[self.number], self.counts.quiet()
        own[0] += 1
        self.store.resize(exclusive_max=[rows, None]).result(60)
        own[1] += 1
        shape = self.store.resolve().result(60).shape
        assert ALWAYS <= shape[0] <= ROWS
        if before is not None and self.counts.quiet() == before + 1:
            assert shape[0] == rows

    def run(self, steps):
        """Do what comes, then look at everything."""
        actions = [self.write] * 3 + [self.write_where_it_may_end] * 3 + [self.read] * 4 + [self.look] * 6
        actions += [self.resize]
        try:
            self.steps(actions, steps)
        except BaseException as error:  # noqa: BLE001  # the test raises it
            error.add_note(f"worker {self.number}")
            self.error = error
        if self.counts.quiet() != self.known_at:
            self.known[ALWAYS:] = False


def main(url, counts, number, workers, seed, steps):
    """Be one of several processes; keep what must be stored at the end."""
    store = fsstore.open(url, recheck_cached_metadata=True).result()
    worker = Worker(store, int(number), Counts(counts, int(workers)), seed)
    worker.run(int(steps))
    if worker.error is not None:
        raise worker.error
    np.savez(f"{counts}.{number}.npz", model=worker.model, known=worker.known, at=worker.known_at or -1)


if __name__ == "__main__":
    main(*sys.argv[1:])
