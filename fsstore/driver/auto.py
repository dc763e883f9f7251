"""`auto`: the driver that detects the format of a store, and opens it.

One step looks at one place: first as a file, by its first and last bytes, then as a directory, by the files in it, each
time with one batch of requests.  An array format is opened and is the result; an adapter (an archive, a database, a
reference set) is opened, and the next step looks inside.  Exactly one format has to fit.

Signatures of formats stand in their own files, as `Detection` values; `kvstore.probe` asks for the bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from fsstore.context.context import Context, parse_resource
from fsstore.context.resource_kinds import KINDS
from fsstore.driver.contract import DriverKind, OpenArray, Opening, PlainKind, Role, usual_resources
from fsstore.driver.hierarchy import arrays_below
from fsstore.driver.probe import FoundFormat, find, no_array
from fsstore.errors import FailedPreconditionError, JsonError, StoreError, UnimplementedError
from fsstore.kvstore.contract.driver import now
from fsstore.kvstore.spec.parse import OpenKv, as_directory, keeps_to_base, open_adapter
from fsstore.kvstore.transaction.transaction import TransactionalDriver
from fsstore.runtime import execution
from fsstore.schema.open_mode import MEMBERS as RECHECK
from fsstore.schema.open_mode import OpenMode, recheck
from fsstore.values import registry
from fsstore.values.detection import Detection
from fsstore.values.json_value import Fields, loads, quote

_DEPTH = 8  # adapters inside each other


@dataclass(frozen=True, slots=True)
class AutoKind(PlainKind):
    """The driver kind.  Members besides the store are for the drivers found: context resources, recheck options."""

    id: str = "auto"
    schemes: tuple[str, ...] = ("auto",)
    role: Role = "store"

    def members(self, fields: Fields) -> dict[str, Any]:
        """Take recheck options and context resources."""
        out: dict[str, Any] = {name: fields.take(name, recheck) for name in RECHECK if name in fields}
        for name, value in fields.rest().items():
            if name not in KINDS:
                fields.problem(f"Invalid context resource identifier: {quote(name)}")
                continue
            try:
                out[name] = parse_resource(name, value)
            except JsonError as error:
                fields.problem(error.within(f"Error parsing object member {quote(name)}").message)
        return out

    async def open(self, opening: Opening) -> OpenArray:
        """Detect the format and open the array."""
        mode = opening.mode.effective()
        if not mode.open:
            raise StoreError(
                'create mode not compatible with format auto-detection; name a format, as in "…|zarr3:"'
            )
        if opening.kvstore is None:
            raise StoreError('Error opening "auto" driver: "kvstore" must be specified')
        mode = replace(mode, create=False) if mode.create else mode
        try:
            return await _open(opening, mode)
        except StoreError as error:
            raise error.within('Error opening "auto" driver') from error


KIND = AutoKind()


async def _open(opening: Opening, mode: OpenMode) -> OpenArray:
    context = opening.context
    own = {name: value for name, value in opening.members.items() if name not in RECHECK}
    if own:
        context = Context(own, context)
    assert opening.kvstore is not None
    kvstore, found = await enter(opening.kvstore, context, transaction=opening.transaction)
    if found.detection is None:
        raise FailedPreconditionError(await _no_array(kvstore, found))
    kind = _array_kind(found.detection, found.title, kvstore)
    path = kind.kvstore_path(found.place(kvstore))
    resources = usual_resources(kind, context)
    at = kvstore._replace(path=path, spec=kvstore.spec.replace(_path=path))
    members = {
        name: value
        for name, value in opening.members.items()
        if name in RECHECK and kind.defaults.get(name, value) != value
    }
    inner = replace(
        opening,
        members=members,
        mode=mode,
        resources=resources,
        context=context,
        kvstore=at,
        documents=found.answers,
    )
    try:
        return await kind.open(inner)
    except StoreError as error:
        raise await _about_group(error, at, found) from error


async def enter(
    kvstore: OpenKv,
    context: Context,
    *,
    transaction: Any = None,
    prefer: str | None = None,
    beside: Sequence[str] = (),
) -> tuple[OpenKv, FoundFormat]:
    """Return the store inside all adapters that detection finds, and the format of the array in it, if there is one.

    An array of several formats is of the one called `prefer`, if that is among them.  Where a group is wanted, its
    documents are read `beside` those of arrays.

    An adapter may lead anywhere, even from local files to a far store: where nothing may wait, raises `MayWait` at one
    that does not keep to its file.
    """
    began = now()
    for _ in range(_DEPTH):
        found = await find(kvstore, began, prefer, beside=beside)
        if found.detection is None or found.detection.role != "store":
            return kvstore, found
        if execution.must_not_wait() and not keeps_to_base(found.detection.name, scans=bool(beside)):
            raise execution.MayWait
        kind = registry.kvstores.get(found.detection.name)
        if kind is None:
            raise UnimplementedError(
                f"{kvstore.prefix.describe()} is {found.title}, which no adapter here reads"
            )
        driver = kvstore.driver
        if isinstance(driver, TransactionalDriver):
            kvstore = kvstore._replace(driver=driver.base)
        place = found.place(kvstore)
        below = kvstore._replace(path=place, spec=kvstore.spec.replace(_path=place))
        kvstore = await open_adapter(kind, below, context)
        if transaction is not None:
            kvstore = kvstore.within(transaction)
    raise FailedPreconditionError(
        f"{kvstore.prefix.describe()} is still an archive or set after {_DEPTH} of them inside each other"
    )


async def enter_group(
    kvstore: OpenKv, context: Context, beside: Sequence[str] = (".zmetadata",)
) -> tuple[OpenKv, FoundFormat]:
    """Return the directory inside all adapters, and its findings; raises at a file, which holds no group.

    Documents that are read `beside` those of arrays are among the findings: one round of requests for all.
    """
    opened, found = await enter(kvstore, context, beside=beside)
    if found.is_file and found.name is not None and registry.scanners.get(found.name) is not None:
        opened, found = await _shown(opened, found, context)  # an image that is a store of arrays as well
    if found.is_file and found.detection is not None:
        _array_kind(found.detection, found.title, opened)
        raise StoreError(f"{opened.prefix.describe()} is {found.title}: a single array without a listing")
    return opened.at(found.place(opened)), found


async def _shown(kvstore: OpenKv, found: FoundFormat, context: Context) -> tuple[OpenKv, FoundFormat]:
    """Return the store that shows a file of arrays, and the findings at its root."""
    kind = registry.kvstores.get(found.name or "")
    assert kind is not None, "a scanner is registered beside its store"
    place = found.place(kvstore)
    below = kvstore._replace(path=place, spec=kvstore.spec.replace(_path=place))
    inside = await open_adapter(kind, below, context)
    return inside, await find(inside)


def _array_kind(detection: Detection, title: str, kvstore: OpenKv) -> DriverKind:
    kind: DriverKind | None = None
    if detection.role == "array":
        kind = registry.drivers.get(detection.name)
    if kind is None:
        what = kvstore.prefix.describe()
        raise UnimplementedError(f"{what} is {title}, which has no driver here; {detection.tool}")
    return kind


async def _no_array(kvstore: OpenKv, found: FoundFormat) -> str:
    """Return the message for a place without an array: the arrays below it, or its contents."""
    directory = kvstore.at(as_directory(kvstore.path))
    listed = "" if found.bare else await _listed(directory, found)
    what = listed or await no_array(kvstore.prefix, bare=found.bare)
    return f"Failed to detect format for {kvstore.prefix.describe()}{';' if listed else ':'} {what}"


async def _about_group(error: StoreError, kvstore: OpenKv, found: FoundFormat) -> StoreError:
    """Return the error of a driver; if it met a group of zarr v3 or N5, with the arrays in it."""
    if not isinstance(error, FailedPreconditionError | JsonError):
        return error
    if found.name == "n5":
        listed = await _listed(kvstore, found)
        return FailedPreconditionError(f"{error.message}; {listed}") if listed else error
    answer = found.answers.get("zarr.json")
    try:
        document = loads(answer.value, lenient=True) if answer is not None else None
    except StoreError:  # no JSON, as the driver has said
        return error
    if not isinstance(document, dict) or document.get("node_type") != "group":
        return error
    listed = await _listed(kvstore, found) or "there are no arrays in it"
    head, colon, _ = error.message.partition(" Error parsing object member")
    where = head if colon else f"{error.message}:"
    return FailedPreconditionError(
        f'{where} Error parsing object member "node_type": Expected "array", but received: "group"; {listed}'
    )


async def _listed(kvstore: OpenKv, found: FoundFormat) -> str:
    """Return which arrays are below a group, as a sentence, or nothing."""
    try:
        names = await arrays_below(kvstore.prefix, limit=50, known=found.answers)
    except StoreError:  # the error that this is added to matters more
        return ""
    if not names:
        return ""
    shown = ", ".join(quote(name) for name in names[:20])
    more = f" and {len(names) - 20} more" if len(names) > 20 else ""
    return f"open one of the arrays below it: {shown}{more}"
