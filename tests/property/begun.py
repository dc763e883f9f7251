"""What a worker of the concurrent programs has begun and not looked at: writes, and reads with what they may show."""

from __future__ import annotations

import random

import numpy as np


def possible(found, allowed):
    """Return where a read shows what was there when it was begun, or was written since."""
    return np.any([found == each for each in allowed], axis=0)


class Begun:
    """Writes and reads under way; a read is its future, where it reads, all that may stand there, and what a worker adds.

    `model` is the array as the worker knows it.
    """

    def __init__(self, seed, model):
        self.chance, self.model = random.Random(seed), model
        self.writes, self.reads, self.error = [], [], None

    def look(self):
        """Wait for something that was begun, in any order."""
        pile = self.chance.choice([self.writes, self.reads])
        if not pile:
            return
        one = pile.pop(self.chance.randrange(len(pile)))
        if pile is self.writes:
            one.result(60)
        else:
            self.check(*one)

    def check(self, future, box, allowed, *known):
        """Wait for a read and check what it shows."""
        raise NotImplementedError

    def changed(self, box, value):
        """Note what a write changes in the model; reads under way may show it."""
        self.model[box] = value
        for _, where, allowed, *_ in self.reads:
            allowed.append(self.model[where].copy())

    def steps(self, actions, count):
        """Do what comes, then look at everything."""
        for _ in range(count):
            self.chance.choice(actions)()
        while self.writes or self.reads:
            self.look()
