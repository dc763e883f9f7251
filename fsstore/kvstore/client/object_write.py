"""Writes of an object store through obstore: objects with marks, under conditions, and deletions.

An object carries the mark of its write, so that a lost answer can be found out (`lost_answer`).
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any

from fsstore.errors import OutcomeUnknownError, UnavailableError
from fsstore.kvstore.client.range_answer import NO_TAG, entity_tag
from fsstore.kvstore.contract.driver import NO_VALUE, UNKNOWN, Features, Stamp, Write, now
from fsstore.kvstore.engine.contract import check_condition, located, offload_whole
from fsstore.kvstore.engine.fault import is_missing, status_of
from fsstore.kvstore.engine.lost_answer import MARK, Standing, TrackedWrite, outcome_unknown
from fsstore.kvstore.engine.retry import Attempts, Retry, persist_blocking
from fsstore.kvstore.engine.turns import Turns, each_by_threads
from fsstore.kvstore.tuning import DELETED_AT_ONCE
from fsstore.redaction import without_user
from fsstore.values.json_value import quote

__all__ = ["WritesObjects", "generation_of"]

_NO_VERSION = "1"  # of no object, as `NO_TAG`; Google's cloud compares versions, the others ignore them


class WritesObjects:
    """The part of an engine over obstore that writes."""

    __slots__ = ()
    retry: Retry
    shown: str
    features: Features
    turns: Turns
    _writer: Any
    _head: Any

    async def write_many(self, writes: Sequence[Write]) -> list[Stamp]:
        """Apply the writes; plain deletions go a thousand a request where the storage can."""
        for write in writes:
            check_condition(write, self.features)
        gone = [write.key for write in writes if write.value is None]
        if 1 < len(gone) == len(writes) and await offload_whole(self._delete_all, gone):
            return [Stamp(NO_VALUE, now())] * len(writes)
        return await each_by_threads(self._write, writes, self.turns, offload=offload_whole)

    def _delete_all(self, paths: list[str]) -> bool:
        return all(
            self._delete(paths[start : start + DELETED_AT_ONCE])
            for start in range(0, len(paths), DELETED_AT_ONCE)
        )

    def _delete(self, paths: list[str]) -> bool:
        """Delete objects; return False if one is missing, where Google's cloud and Azure leave those that follow."""
        import obstore

        def delete() -> bool:
            try:
                obstore.delete(self._writer(0), paths)
            except Exception as error:  # noqa: BLE001  # the boundary: every foreign error is translated here
                if is_missing(error):
                    return False
                failure = located(error, "deleting", self.shown + paths[0])
            else:
                return True
            raise failure

        return persist_blocking(self.retry, delete)

    def _write(self, write: Write) -> Stamp:
        place = quote(without_user(self.shown + write.key))
        with TrackedWrite(write, place) as tracked:
            return self._persistently(write, tracked, place)

    def _persistently(self, write: Write, tracked: TrackedWrite, place: str) -> Stamp:
        attempts, conditional = Attempts(self.retry, self.turns.failed), write.if_equal != UNKNOWN
        verb = "deleting" if write.value is None else "writing"
        while True:
            try:
                return self._try(write, tracked, lost=attempts.ambiguous)
            except OutcomeUnknownError:
                raise
            except Exception as error:  # noqa: BLE001  # the boundary: every foreign error is translated here
                if conditional and _is_conflict(error):
                    return (
                        self._settle(write, tracked, place) if attempts.ambiguous else Stamp(UNKNOWN, now())
                    )
                known = located(error, verb, self.shown + write.key)
            if not isinstance(known, UnavailableError):
                raise known
            try:
                pause = attempts.pause_after(known)
            except UnavailableError:
                if attempts.ambiguous and conditional:
                    return self._settle(write, tracked, place)
                raise
            time.sleep(pause)

    def _try(self, write: Write, tracked: TrackedWrite, *, lost: bool) -> Stamp:
        """Send a write; if an earlier answer was lost, look first whether there is anything left to do."""
        stamp = tracked.after_loss(self._found(write.key)) if lost else None
        return self._put(write, tracked.mark) if stamp is None else stamp

    def _put(self, write: Write, mark: str) -> Stamp:
        """Send a write once."""
        import obstore

        if write.value is None:
            try:
                obstore.delete(self._writer(0), [write.key])
            except Exception as error:  # judged here, or passed on
                if not is_missing(error):
                    raise
            return Stamp(NO_VALUE, now())
        value = write.value if isinstance(write.value, bytes) else bytes(write.value)
        mode: Any = "overwrite"
        if write.if_equal != UNKNOWN:
            mode = "create" if write.if_equal == NO_VALUE else _version(write.if_equal)
        result = obstore.put(
            self._writer(len(value)),
            write.key,
            value,
            use_multipart=False,
            mode=mode,
            attributes={MARK: mark},
        )
        # after a condition that held, an unknown generation would read as one that did not
        unknown = UNKNOWN if write.if_equal == UNKNOWN else b"\1" + os.urandom(8)
        return Stamp(generation_of(result) or unknown, now())

    def _found(self, path: str) -> Standing | None:
        head = self._head(path)
        if head is None:
            return None
        return Standing(
            generation_of(head.meta), head.attributes.get(MARK), head.meta["last_modified"].timestamp()
        )

    def _settle(self, write: Write, tracked: TrackedWrite, place: str) -> Stamp:
        """Return the stamp of a write under a condition that is not sent again, or raise that nobody knows it."""

        def look() -> Standing | None:
            try:
                return self._found(write.key)
            except Exception as error:  # noqa: BLE001  # the boundary: every foreign error is translated here
                failure = located(error, "reading", self.shown + write.key)
            raise failure

        try:
            found = persist_blocking(self.retry, look)
        except UnavailableError as error:
            raise outcome_unknown(place, error) from error
        return tracked.settled(found)


def generation_of(meta: Any) -> bytes:
    """Return the generation of an object, of its entity tag and version."""
    tag, version = meta.get("e_tag") or "", meta.get("version") or ""
    return f"{tag}\n{version}".encode() if version else tag.encode()


def _version(generation: bytes) -> dict[str, str]:
    tag, _, version = generation.partition(b"\n")
    return {"e_tag": entity_tag(tag) or NO_TAG, "version": entity_tag(version) or _NO_VERSION}


def _is_conflict(error: BaseException) -> bool:
    return type(error).__name__ in {"AlreadyExistsError", "PreconditionError"} or status_of(error) == 412
