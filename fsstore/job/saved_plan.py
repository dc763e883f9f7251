"""A plan that was read from its file: its members, its phases, and the share of a part in them.

A member is an array.  The first passes over all members that are made of what is there are one phase, second passes the
next, and members that are made of others follow in phases of their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from fsstore.arrays.layers import downsample
from fsstore.context.context import Context
from fsstore.dataset.group import Group
from fsstore.errors import FailedPreconditionError
from fsstore.format.attributes import NodeWords, words_of
from fsstore.job.array_copy import sharing
from fsstore.job.copy import CopyOptions, array_copy, copy_options, copy_source, copy_target
from fsstore.job.ends import check_apart, where
from fsstore.job.estimate import Estimate, Rates
from fsstore.job.plan import share_of
from fsstore.job.plan_file import plan_place, read_plan
from fsstore.job.planned import PlannedArray
from fsstore.job.pyramid import Levels
from fsstore.job.scratch import Scratch
from fsstore.kvstore.spec_parse import OpenKv
from fsstore.redaction import without_secrets
from fsstore.runtime import execution


@dataclass(frozen=True, slots=True)
class PlanStep:
    """A pass over a member, and where its pieces begin among those of a phase."""

    member: int
    kind: str
    begin: int
    pieces: int


@dataclass(frozen=True, slots=True)
class PlanRoot:
    """The group of a plan with several members."""

    store: OpenKv
    words: NodeWords
    documents: Mapping[str, str]
    consolidates: bool
    levels: Levels | None = None
    """The levels of a pyramid, which the attributes of the group name in the end."""

    @property
    def scratch(self) -> Scratch:
        """Where the plan keeps its claim of the group."""
        return Scratch.of(self.store)


@dataclass(frozen=True, slots=True)
class SavedPlan:
    """A plan that was read; its members are opened when they are needed."""

    what: str
    """The plan as a part of a sentence."""
    id: str
    options: CopyOptions
    members: Sequence[Mapping[str, Any]]
    root: PlanRoot | None
    cost: Estimate

    @property
    def phases(self) -> dict[str, list[PlanStep]]:
        """The phases by name, in order: first passes over members, then second ones, then those made of them."""
        found: dict[str, list[PlanStep]] = {}
        depths = sorted({_depth(self.members, number) for number in range(len(self.members))})
        for depth, second in product(depths, (False, True)):
            for number, member in enumerate(self.members):
                if _depth(self.members, number) != depth:
                    continue
                for kind, pieces in list(member["passes"].items())[int(second) :][:1]:
                    named = member["phase"] and member["phase"] + (", second pass" if second else "")
                    steps = found.setdefault(named or kind, [])
                    begin = steps[-1].begin + steps[-1].pieces if steps else 0
                    steps.append(PlanStep(number, kind, begin, pieces))
        return found

    @property
    def sizes(self) -> dict[str, int]:
        """How many tasks there are by phase."""
        return {name: sum(step.pieces for step in steps) for name, steps in self.phases.items()}

    async def opened(self, number: int) -> PlannedArray:
        """Return a member; raises if its places are not what they were."""
        said, options = self.members[number], self.options
        if "above" in said:
            above = (await self.opened(said["above"])).job
            view = downsample(await above.described(), *said["coarser"])
            source: Any = await view.resolve(fix_resizable_bounds=True)
        else:
            source = await copy_source(said["source"], options)
        store, _ = await copy_target(said["target"], options.context)
        if isinstance(source, Group):
            raise FailedPreconditionError(f"The source of {self.what} is a group now; plan the copy again")
        await check_apart(source, store)
        job = await execution.offload(array_copy, source, store, said["driver"], options, said["path"])
        job = replace(job, made_of=said["of"])
        boxes = job.boxes(await job.described(), sharing(None)).as_stored(said["boxes"])
        if boxes is None or await job.name(untouched=said["untouched"]) != said["name"]:
            raise FailedPreconditionError(
                f"{self.what[0].upper()}{self.what[1:]} is of another source or target than"
                f" {without_secrets(where(job.source))} and {job.place.describe()} are now; plan the copy again"
            )
        return PlannedArray(job, f"{said['name']}-{self.id[:8]}", self.id, self.what, boxes, said["untouched"])

    async def all_opened(self) -> list[PlannedArray]:
        """Return all members."""
        return [await self.opened(number) for number in range(len(self.members))]

    def shares(self, steps: Sequence[PlanStep], part: tuple[int, int]) -> Iterator[tuple[PlanStep, range]]:
        """Yield the pieces of a part, by step of a phase."""
        share = share_of(steps[-1].begin + steps[-1].pieces, *part)
        for step in steps:
            low, high = max(share.start, step.begin), min(share.stop, step.begin + step.pieces)
            if low < high:
                yield step, range(low - step.begin, high - step.begin)


async def opened_plan(place: Any, context: Context) -> SavedPlan:
    """Return a plan by its place; raises if it is not one, or not one of this version."""
    at = await plan_place(place, context)
    document = await read_plan(at)
    options = replace(
        copy_options(document["schema"], None, document["memory"], "raise", context), casting=document["casting"]
    )
    what = f"the plan {at.describe()} of {document['what']}"
    root = None
    if (said := document["root"]) is not None:
        store, _ = await copy_target(said["target"], context)
        words = words_of(said["driver"])
        assert words is not None
        levels = None if said.get("levels") is None else Levels.of_json(said["levels"])
        root = PlanRoot(store, words, said["documents"], said["consolidates"], levels)
    reads, writes, nbytes_read, nbytes_written = document["cost"]
    cost = Estimate(reads, writes, nbytes_read, nbytes_written, 1, Rates())
    return SavedPlan(what, str(document["digest"]), options, document["members"], root, cost)


def _depth(members: Sequence[Mapping[str, Any]], number: int) -> int:
    """Return of how many members, one made of the other, a member is made."""
    above = members[number].get("above")
    return 0 if above is None else 1 + _depth(members, above)
