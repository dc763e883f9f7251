"""How many pieces of work make a task: as many as take a few seconds, by how long those before them took.

Neither what a store moves in a second nor what a worker decodes is known beforehand, so nothing is believed of them.
The first tasks are a piece each; workers say how long they took, and from then on a task is as many pieces as fill its
time.  A run ends evenly: no task takes more than its share of what is left.
"""

from __future__ import annotations

from fsstore.task.tuning import PACE_MEMORY, TASK_S

__all__ = ["Pace"]


class Pace:
    """The pace of workers that do `pieces` of about one size."""

    def __init__(self, pieces: int, workers: int) -> None:
        self._left, self._workers = pieces, max(1, workers)
        self._done = self._seconds = 0.0

    def length(self) -> int:
        """Return of how many pieces the next task is made."""
        if not self._done:
            return 1
        fair = -(-self._left // self._workers)
        fills = TASK_S * self._done / self._seconds if self._seconds > 0 else fair
        return max(1, min(fair, int(fills)))

    def taken(self, pieces: int) -> None:
        """Count pieces that were handed out."""
        self._left -= pieces

    def took(self, pieces: int, seconds: float) -> None:
        """Learn how long a task took; what was learnt earlier counts less and less, since a store may change."""
        self._done = PACE_MEMORY * self._done + pieces
        self._seconds = PACE_MEMORY * self._seconds + seconds
