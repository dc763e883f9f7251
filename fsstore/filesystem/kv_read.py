"""Reading and listing of a filesystem over a store.  Reads of many keys are one batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fsstore.errors import OutOfRangeError
from fsstore.filesystem.kv_place import KvPlace, SplitPath
from fsstore.filesystem.listing import Listing, children
from fsstore.filesystem.read_batcher import ReadBatcher
from fsstore.kvstore.contract.driver import Read, ReadResult
from fsstore.runtime import execution

__all__ = ["KvReading", "found_value"]


class KvReading(KvPlace):
    """The verbs that do not change the store."""

    def __init__(self, *args: Any, **storage_options: Any) -> None:
        super().__init__(*args, **storage_options)
        self._batcher = ReadBatcher(self._ask_at_once)

    async def _ask_at_once(
        self, paths: list[str], starts: list[int | None], ends: list[int | None]
    ) -> list[bytes | Exception]:
        """Return the values of reads begun together."""
        return await self._run(self._ranges(paths, starts, ends))

    # --- reading

    async def _cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
        if self._is_packed:
            return await self._batcher.ask(path, start, end)
        return await self._run(self._value(path, start, end))

    async def _value(self, path: str, start: int | None, end: int | None) -> bytes:
        place = await self._locate(path)
        if not (place.key or Listing(place.store).may_be_file):
            raise FileNotFoundError(path)
        low, high = start or 0, end
        if (low < 0 and high is not None) or (high is not None and high < 0):
            return found_value(await place.store.read(place.key), path)[start:end]
        if high is not None and high <= low:
            found_value(await place.store.read(place.key, 0, 0), path)
            return b""
        try:
            return found_value(await place.store.read(place.key, low, high), path)
        except OutOfRangeError:  # filesystems answer with what there is
            return found_value(await place.store.read(place.key), path)[low:high]

    async def _cat(
        self,
        path: Any,
        recursive: bool = False,
        on_error: str = "raise",
        batch_size: int | None = None,
        **_: Any,
    ) -> Any:
        paths = await self._expand_path(path, recursive=recursive)
        whole: list[int | None] = [None] * len(paths)
        outcomes = await self._run(self._ranges(paths, whole, whole))
        if (
            len(paths) == 1
            and isinstance(path, str)
            and paths[0] == self._strip_protocol(path)
            and not recursive
        ):
            return _checked(outcomes[0], on_error)
        found = {each: _checked(outcome, on_error) for each, outcome in zip(paths, outcomes, strict=True)}
        return {
            each: value
            for each, value in found.items()
            if not (on_error == "omit" and isinstance(value, Exception))
        }

    async def _cat_ranges(
        self,
        paths: Any,
        starts: Any,
        ends: Any,
        max_gap: int | None = None,
        on_error: str = "return",
        **_: Any,
    ) -> list[Any]:
        count = len(paths)
        first = list(starts) if isinstance(starts, list | tuple) else [starts] * count
        last = list(ends) if isinstance(ends, list | tuple) else [ends] * count
        outcomes = await self._run(self._ranges(list(paths), first, last))
        return [_checked(outcome, on_error) for outcome in outcomes]

    async def _ranges(
        self, paths: list[str], starts: list[int | None], ends: list[int | None]
    ) -> list[bytes | Exception]:
        spans = [(start or 0, end) for start, end in zip(starts, ends, strict=True)]
        if all(low >= 0 and (high is None or high > low) for low, high in spans):
            try:
                places = {path: await self._locate(path) for path in dict.fromkeys(paths)}
                answers = await _read_places([places[path] for path in paths], spans)
                return [_outcome(answer, path) for answer, path in zip(answers, paths, strict=True)]
            except Exception:  # noqa: BLE001, S110  # one by one it is seen which of them it is
                pass
        return await execution.gather(
            self._attempt(path, start, end) for path, start, end in zip(paths, starts, ends, strict=True)
        )

    async def _attempt(self, path: str, start: int | None, end: int | None) -> bytes | Exception:
        try:
            return await self._value(path, start, end)
        except Exception as error:  # noqa: BLE001  # the caller chooses what becomes of it
            return error

    # --- what there is

    async def _info(self, path: str, **_: Any) -> dict[str, Any]:
        return await self._run(self._about(path))

    async def _about(self, path: str) -> dict[str, Any]:
        place = await self._locate(path)
        found = await Listing(place.store).info(place.key)
        if found is None:
            raise FileNotFoundError(path)
        return {**found, "name": place.lead + found["name"]}

    async def _exists(self, path: str, **_: Any) -> bool:
        try:
            await self._info(path)
        except FileNotFoundError:
            return False
        return True

    async def _ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        found = await self._run(self._listed(path, sized=detail))
        return found if detail else [entry["name"] for entry in found]

    async def _listed(self, path: str, *, sized: bool) -> list[dict[str, Any]]:
        place = await self._locate(path)
        listing = Listing(place.store)
        found = await children(listing, place.key)
        if not found:
            alone = await listing.info(place.key)
            if alone is None:
                raise FileNotFoundError(path)
            found = [alone] if alone["type"] == "file" else []
        if sized:
            found = await listing.sized(found)
        # zarr-python asks a store without a path for "/a", and cuts "/a/" off the names it gets
        lead = place.lead or ("/" if path.startswith("/") else "")
        return [{**entry, "name": lead + entry["name"]} for entry in found]

    async def _find(
        self, path: str, maxdepth: int | None = None, withdirs: bool = False, **kwargs: Any
    ) -> Any:
        if maxdepth is not None or withdirs:
            return await super()._find(path, maxdepth=maxdepth, withdirs=withdirs, **kwargs)
        detail = bool(kwargs.get("detail"))
        found = await self._run(self._all(path, sized=detail))
        return found if detail else list(found)

    async def _all(self, path: str, *, sized: bool) -> dict[str, dict[str, Any]]:
        place = await self._locate(path)
        listing = Listing(place.store)
        entries = await listing.below(place.key)
        if sized:
            entries = await listing.sized(entries)
        if place.lead:
            entries = [{**entry, "name": place.lead + entry["name"]} for entry in entries]
        return {entry["name"]: entry for entry in entries}


async def _read_places(
    places: Sequence[SplitPath], spans: Sequence[tuple[int, int | None]]
) -> list[ReadResult]:
    """Return the values at places, one batch a store."""
    by_store: dict[int, list[int]] = {}
    for number, place in enumerate(places):
        by_store.setdefault(id(place.store.driver), []).append(number)
    answers: list[Any] = [None] * len(places)
    for numbers in by_store.values():
        reads = [Read(places[number].store.path + places[number].key, *spans[number]) for number in numbers]
        found = await places[numbers[0]].store.driver.read_many(reads)
        for number, answer in zip(numbers, found, strict=True):
            answers[number] = answer
    return answers


def found_value(answer: ReadResult, path: str) -> bytes:
    """Return the value of an answer, or raise `FileNotFoundError`."""
    if answer.state == "missing":
        raise FileNotFoundError(path)
    return bytes(answer.value)


def _outcome(answer: ReadResult, path: str) -> bytes | Exception:
    return FileNotFoundError(path) if answer.state == "missing" else bytes(answer.value)


def _checked(outcome: bytes | Exception, on_error: str) -> bytes | Exception:
    if isinstance(outcome, Exception) and on_error == "raise":
        raise outcome
    return outcome
