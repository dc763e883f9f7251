"""`view`, the page for an array, a group or a place, for programs and notebooks."""

from __future__ import annotations

import hmac
import json
import math
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from html import escape
from importlib.resources import files
from typing import Any, ClassVar
from urllib.parse import parse_qs, unquote

import numpy as np

from fsstore.arrays.store import TensorStore
from fsstore.context.context import Context
from fsstore.dataset.group import Group
from fsstore.errors import NotFoundError, StoreError, UnimplementedError
from fsstore.job.ends import opened_source
from fsstore.runtime import execution
from fsstore.runtime.pool import begin_thread
from fsstore.serve.listener import Answer, HttpRequest, Listener, said
from fsstore.viewer.subject import (
    MAPPED_CHUNKS,
    POINTS,
    READS_AT_ONCE,
    Level,
    PictureLimits,
    Sampling,
    Shown,
    Subject,
    decoded,
    is_number,
    numbers,
    sample,
    sampled,
    text_of,
)

# The description of an array: strict JSON, without secrets.

_ROWS = ("y", "lat", "latitude", "row", "rows", "northing", "projection_y_coordinate")
_COLUMNS = ("x", "lon", "longitude", "col", "column", "columns", "easting", "projection_x_coordinate")
_DEEPEST = 40


def describe(shown: Shown) -> dict[str, Any]:
    """Return the description of an array for the page, with its first view."""
    store, zeroed = shown.store, shown.zeroed
    try:
        spec = store.spec().to_json()
    except StoreError:  # arrays of live objects have no spec
        spec = {}
    dtype = store.dtype.numpy_dtype
    chunks = list(store.chunk_layout.read_chunk.shape or (None,) * store.rank)
    written = list(store.chunk_layout.write_chunk.shape or (None,) * store.rank)
    rows, columns, colours = _first_view(shown)
    found: dict[str, Any] = plain_json({
        "path": shown.path, "driver": spec.get("driver", store._driver.kind.id), "url": _url(store),
        "shape": list(store.shape), "origin": list(store.origin), "names": list(shown.names), "dtype": store.dtype.name,
        "units": shown.attributes.get("units", ""), "long_name": shown.attributes.get("long_name", ""),
        "itemsize": dtype.itemsize, "bytes": store.size * dtype.itemsize, "drawable": is_number(dtype),
        "is_time": dtype.kind == "M", "chunks": chunks, "shards": written if written != chunks else None,
        "codec": codec_names(spec), "fill_value": None if store.fill_value is None else str(store.fill_value),
        "attributes": dict(shown.attributes), "axes": list(shown.axes),
        "levels": [{"shape": list(each.store.shape), "factors": list(each.factors)} for each in shown.levels],
        "rows": rows, "columns": columns, "colours": colours, "at": _first_place(shown, rows, columns),
        "rank": zeroed.rank,
    })  # fmt: skip
    return found


def _url(store: Any) -> str:
    try:
        return str(store.url)
    except StoreError:
        return ""


def _first_view(shown: Shown) -> tuple[int | None, int | None, int | None]:
    """Return the vertical and the horizontal dimension of the first picture, and the colour dimension, if any."""
    store, rank = shown.store, shown.store.rank
    if rank < 2:
        return None, (0 if rank else None), None
    names = [name.lower() for name in shown.names]
    rows = next((number for number, name in enumerate(names) if name in _ROWS), None)
    columns = next((number for number, name in enumerate(names) if name in _COLUMNS), None)
    for number, each in enumerate(shown.axes):
        if rows is None and each is not None and each["up"]:
            rows = number
    is_colour = store.dtype.name == "uint8" and rank > 2
    if rows is None or columns is None or rows == columns:
        last = rank - 1 if is_colour and store.shape[-1] in (3, 4) else rank
        rows, columns = last - 2, last - 1
    others = [number for number in range(rank) if number not in (rows, columns)]
    colours = next(
        (number for number in others if is_colour and store.shape[number] in (3, 4) and number == rank - 1), None
    )
    return rows, columns, colours


def _first_place(shown: Shown, *drawn: int | None) -> list[int]:
    """Return the first index of each dimension: the middle of a depth, otherwise zero."""
    return [
        size // 2 if name.lower() in ("z", "depth") and len(shown.levels) > 1 and number not in drawn else 0
        for number, (name, size) in enumerate(zip(shown.names, shown.store.shape, strict=True))
    ]


def codec_names(spec: Mapping[str, Any]) -> list[Any] | None:
    """Return the names of the codecs in a spec."""
    metadata = spec.get("metadata", {})
    for name in ("codecs", "compressor", "compression"):
        if name in metadata:
            codecs = metadata[name] if isinstance(metadata[name], list) else [metadata[name]]
            names = [
                each.get("name", each.get("id", each.get("type"))) if isinstance(each, dict) else each
                for each in codecs
            ]
            return [name for name in names if name is not None]
    return None


def described_members(subject: Subject) -> dict[str, Any]:
    """Return the tree: arrays and groups by path, and the errors of damaged members."""
    members, damaged = subject.members()
    listed = [
        {"path": path}
        if entry is None
        else {
            "path": path, "dtype": entry.dtype, "shape": list(entry.shape),
            "about": entry.attributes.get("long_name") or entry.attributes.get("standard_name") or "",
        }
        for path, entry in members.items()
    ]  # fmt: skip
    tree: dict[str, Any] = plain_json({
        "group": subject.is_group, "members": listed, "damaged": damaged,
        "root_is_image": subject.is_group and "" in subject.images(),
        "images": sorted(subject.images()) if subject.is_group else [],
    })  # fmt: skip
    return tree


def plain_json(value: Any, depth: int = 0) -> Any:
    """Return a value as strict JSON: non-finite numbers and unknown types become text."""
    if depth > _DEEPEST:
        return "\u2026"
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, Mapping):
        return {str(name): plain_json(each, depth + 1) for name, each in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, bytes):
        return [plain_json(each, depth + 1) for each in value]
    return plain_json(value.tolist(), depth + 1) if hasattr(value, "tolist") else str(value)


# Requests of the page are GET requests with a query; answers are JSON, or the bytes of numbers with a description in a
# header.  This part knows nothing of sockets and tokens.

_MOST_ROWS, _MOST_COLUMNS = 64, 32  # of a table of texts

DESCRIPTION = "Fsstore-Description"
"""The header that describes the numbers in the body."""

_TYPES = {
    "html": "text/html; charset=utf-8", "css": "text/css; charset=utf-8", "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}  # fmt: skip
_MOST_QUERY = 8192


@dataclass(frozen=True, slots=True)
class _Question:
    """A request of the page about a subject, and the limits of its answer."""

    subject: Subject
    query: Mapping[str, str]
    limits: PictureLimits

    @property
    def path(self) -> str:
        """The path of the array or group."""
        return self.query["path"]

    @property
    def shown(self) -> Shown:
        """The array at `path`, opened."""
        return self.subject.array(self.path)

    def integers(self, name: str) -> list[int]:
        """Return a list of integers from a parameter with commas."""
        text = self.query.get(name, "")
        return [int(each) for each in text.split(",")] if text else []


def page_file(name: str) -> Answer | None:
    """Return a file of the page, or None if there is no such file."""
    stem, dot, kind = name.partition(".")
    if not stem.isidentifier() or not dot or kind not in _TYPES:
        return None
    found = files("fsstore.viewer") / "page" / name
    return Answer(200, {"Content-Type": _TYPES[kind]}, found.read_bytes()) if found.is_file() else None


def routed(subject: Subject, route: str, query: str, limits: PictureLimits) -> Answer:
    """Return the answer to a request; errors are reported as JSON."""
    try:
        given = parse_qs(query[:_MOST_QUERY], keep_blank_values=True)
        work = _ROUTES.get(route)
        if work is None:
            return _refused(404, "There is no such question")
        return work(_Question(subject, {name: values[0] for name, values in given.items()}, limits))
    except StoreError as error:
        return _refused(404 if isinstance(error, NotFoundError) else 502, str(error))
    except (ValueError, TypeError, IndexError, KeyError, OverflowError) as error:
        return _refused(400, f"The question makes no sense: {error}")
    except MemoryError:
        return _refused(507, "There is not enough memory for this picture")


def _refused(status: int, text: str) -> Answer:
    return _json({"error": text}, status)


def _json(value: Any, status: int = 200) -> Answer:
    text = json.dumps(plain_json(value), allow_nan=False, separators=(",", ":"))
    return Answer(status, {"Content-Type": "application/json"}, text.encode("utf-8", "replace"))


def _numbers(values: Any, description: dict[str, Any]) -> Answer:
    about = {**description, "dtype": values.dtype.str[1:], "shape": list(values.shape)}
    headers = {"Content-Type": "application/octet-stream", DESCRIPTION: json.dumps(plain_json(about))}
    return Answer(200, headers, values.tobytes())


def _tree(question: _Question) -> Answer:
    return _json(described_members(question.subject))


def _group(question: _Question) -> Answer:
    return _json({"path": question.path, "attributes": question.subject.attributes(question.path)})


def _array(question: _Question) -> Answer:
    return _json(describe(question.shown))


def _place(shown: Shown, question: _Question) -> list[int]:
    """Return the indices of the dimensions that are not drawn, clipped to the array."""
    at, shape = question.integers("at"), shown.zeroed.shape
    if len(at) != len(shape) or 0 in shape:
        raise ValueError("`at` has one index for each dimension, and no dimension is empty")
    return [max(0, min(each, size - 1)) for each, size in zip(at, shape, strict=True)]


def _along(shown: Shown, question: _Question, counts: tuple[int, ...]) -> list[int]:
    along = question.integers("along")
    if len(along) not in counts or len(set(along)) != len(along) or not set(along) <= set(range(shown.zeroed.rank)):
        raise ValueError("`along` names different dimensions")
    return along


def _window(question: _Question, count: int) -> list[tuple[int, int]]:
    bounds = question.integers("window")
    if len(bounds) != 2 * count:
        raise ValueError("`window` has two bounds for each dimension")
    return list(zip(bounds[::2], bounds[1::2], strict=True))


def _sampled_level(
    level: Level, along: list[int], window: list[tuple[int, int]], pixels: list[int], limits: PictureLimits
) -> list[Sampling]:
    """Return the samples of a window in a level; the window counts elements of the finest level."""
    store = level.store
    scaled = [
        (int(low / level.factors[number]), max(1, -int(-high // level.factors[number])))
        for number, (low, high) in zip(along, window, strict=True)
    ]
    sides = store.chunk_layout.read_chunk.shape or (None,) * store.rank
    nbytes = store.dtype.numpy_dtype.itemsize
    for side in sides:
        nbytes *= side or 1
    return sampled(
        scaled, pixels, shape=[store.shape[number] for number in along],
        chunks=[sides[number] or 1 for number in along], chunk_bytes=nbytes, limits=limits,
    )  # fmt: skip


def _chosen(
    shown: Shown, along: list[int], window: list[tuple[int, int]], pixels: list[int], limits: PictureLimits
) -> tuple[Level, list[Sampling]]:
    """Return the coarsest level with a value for every pixel, or a coarser one if that costs too much."""
    wanted = [max(1.0, (high - low) / pixel) for (low, high), pixel in zip(window, pixels, strict=True)]
    fine = [
        level
        for level in shown.levels
        if all(level.factors[number] <= step * 1.01 for number, step in zip(along, wanted, strict=True))
    ]
    start = max(0, len(fine) - 1)
    for level in shown.levels[start:]:
        samplings = _sampled_level(level, along, window, pixels, limits)
        plain = _sampled_level(level, along, window, pixels, PictureLimits(1 << 30, 1 << 60))
        if samplings == plain:
            return level, samplings
    level = shown.levels[-1]
    return level, _sampled_level(level, along, window, pixels, limits)


def _read(shown: Shown, level: Level, at: list[int], along: list[int], samplings: list[Sampling]) -> Any:
    place = [
        min(int(each / factor), size - 1)
        for each, factor, size in zip(at, level.factors, level.store.shape, strict=True)
    ]
    return numbers(sample(level.store, place, along, samplings), shown.attributes)


def _picture(question: _Question) -> Answer:
    shown = question.shown
    along, at = _along(shown, question, (2, 3)), _place(shown, question)
    window, pixels = (_window(question, 2), [max(1, min(each, POINTS // 2)) for each in question.integers("pixels")])
    began, colours = time.perf_counter(), along[2:]
    for number in colours:  # all colours, whole
        window.append((0, min(4, shown.zeroed.shape[number])))
        pixels.append(4)
    level, samplings = _chosen(shown, along, window, pixels, question.limits)
    values = _read(shown, level, at, along, samplings)
    factors = [level.factors[number] for number in along[:2]]
    return _numbers(values, {
        "start": [each.start * factor for each, factor in zip(samplings, factors, strict=False)],
        "step": [each.step * factor for each, factor in zip(samplings, factors, strict=False)],
        "level": shown.levels.index(level), "seconds": time.perf_counter() - began,
        "coarse": [each.step for each in samplings[:2]], "pixels": pixels[:2],
    })  # fmt: skip


def _series(question: _Question) -> Answer:
    shown = question.shown
    along, at = _along(shown, question, (1,)), _place(shown, question)
    window = _window(question, 1)
    level, samplings = _chosen(shown, along, window, [POINTS], question.limits)
    values = _read(shown, level, at, along, samplings)
    factor, (only,) = level.factors[along[0]], samplings
    return _numbers(values, {"start": only.selection.start * factor, "step": only.step * factor})


def _chunks(question: _Question) -> Answer:
    shown = question.shown
    along = _along(shown, question, (1, 2))
    window = _window(question, len(along))
    found = chunk_map(shown.zeroed, _place(shown, question), along, window)
    return _numbers(found, {"most": MAPPED_CHUNKS})


def _value(question: _Question) -> Answer:
    shown = question.shown
    at = _place(shown, question)
    _sampled_level(
        shown.levels[0], list(range(len(at))), [(each, each + 1) for each in at], [1] * len(at), question.limits
    )
    stored = shown.zeroed[tuple(at)].read().result()
    if not is_number(shown.zeroed.dtype.numpy_dtype):
        return _json({"at": at, "value": text_of(stored)})
    value = decoded(np.asarray(stored), shown.attributes)
    return _json({"at": at, "value": text_of(value), "stored": text_of(stored)})


def _table(question: _Question) -> Answer:
    """Answer texts of a small part, for arrays that cannot be drawn."""
    shown = question.shown
    store = shown.zeroed
    if not store.rank:
        return _json({"rows": [[text_of(store.read().result())]], "start": []})
    along, at = _along(shown, question, (1, 2)), _place(shown, question)
    most = (_MOST_ROWS, _MOST_COLUMNS)
    window = [
        (low, min(high, low + limit)) for (low, high), limit in zip(_window(question, len(along)), most, strict=False)
    ]
    samplings = _sampled_level(shown.levels[0], along, window, list(most[: len(along)]), question.limits)
    values = np.atleast_1d(sample(store, at, along, samplings))
    rows = values.reshape(-1, 1) if values.ndim == 1 else values
    return _json(
        {"rows": [[text_of(each) for each in row] for row in rows], "start": [each.start for each in samplings]}
    )


_ROUTES: dict[str, Callable[[_Question], Answer]] = {
    "tree": _tree, "group": _group, "array": _array, "picture": _picture, "series": _series, "chunks": _chunks,
    "value": _value, "table": _table,
}  # fmt: skip

MISSING, STORED, UNKNOWN = 0, 1, 2


def chunk_map(store: Any, at: Sequence[int], along: Sequence[int], window: Sequence[tuple[int, int]]) -> Any:
    """Return one byte for each chunk of a window (in numbers of chunks): missing, stored, or unknown.

    Each chunk is asked for on its own, all of them at once.  Raises `ValueError` if the window has too many.
    """
    sides = store.chunk_layout.read_chunk.shape or (None,) * store.rank
    counts = [high - low for low, high in window]
    if min(counts, default=0) < 0 or int(np.prod(counts)) > MAPPED_CHUNKS:
        raise ValueError(f"A map has at most {MAPPED_CHUNKS} chunks")
    found = np.full(counts, UNKNOWN, "u1")
    asked = []
    for place in np.ndindex(*counts):
        key: list[Any] = [slice(each, each + 1) for each in at]
        for dimension, (low, _), number in zip(along, window, place, strict=True):
            side = sides[dimension] or store.shape[dimension]
            first = min((low + number) * side, store.shape[dimension] - 1)
            key[dimension] = slice(first, first + 1)
        try:
            asked.append((place, store[tuple(key)].storage_statistics(query_not_stored=True)))
        except UnimplementedError:
            return found
    for place, future in asked:
        try:
            found[place] = MISSING if future.result().not_stored else STORED
        except StoreError:  # a store without an answer: the chunk stays unknown
            continue
    return found


# The server of one page, and its access control.  It listens on this machine only.  All paths begin with a random
# token, so no other page can name them.  A request must name the host by an address or as `localhost`; a page under a
# domain of its own cannot.  A data request must come from the page itself: with its origin or none, and with a header
# that pages of other sites may not send.  The page runs its own scripts only, loads nothing from elsewhere, and sends
# its address to no other site.

MARK = "Fsstore-View"
"""The header of every data request of the page; other sites would need permission to send it."""

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; connect-src 'self';"
    " base-uri 'none'; form-action 'none'; frame-ancestors {frames}"
)


class PageServer(Listener):
    """The server of a page about one subject.  `framed` lets notebooks embed the page."""

    shared_headers: ClassVar[Mapping[str, str]] = {
        **Listener.shared_headers,
        "Cache-Control": "no-store",
        "Referrer-Policy": "no-referrer",
        "Cross-Origin-Resource-Policy": "same-origin",
        "Cross-Origin-Opener-Policy": "same-origin",
    }

    def __init__(
        self,
        subject: Subject,
        *,
        title: str = "",
        port: int = 0,
        framed: bool = False,
        limits: PictureLimits | None = None,
    ) -> None:
        self.subject, self.title, self.limits = subject, title, limits or PictureLimits()
        self.token = secrets.token_urlsafe(24)
        self.policy = _POLICY.format(frames="*" if framed else "'none'")
        super().__init__("127.0.0.1", port)

    @property
    def url(self) -> str:
        """The URL of the page."""
        return f"{self.origin}/{self.token}/"

    async def answered(self, request: HttpRequest) -> Answer:
        """Return the answer to a request for the page, one of its files or data."""
        path, _, query = request.target.partition("?")
        token, slash, name = path[1:].partition("/")
        if not self.is_named(request.headers.get("Host", "")):
            return said(421, "This server is not reached by that name")
        if not hmac.compare_digest(unquote(token).encode("utf-8", "replace"), self.token.encode()):
            return said(403, "This page has an address of its own; the command that serves it prints it")
        if request.method == "OPTIONS":  # the preflight of another site
            return said(405, "Only the page itself may ask", {"Allow": "GET, HEAD"})
        if not slash:
            return Answer(301, {"Location": f"/{self.token}/"})
        if _is_from_elsewhere(request.headers):
            return said(403, "Only the page itself may ask")
        if name.startswith("api/"):
            return await self._question(name.removeprefix("api/"), query, request.headers)
        found = page_file(unquote(name) or "index.html")
        if found is None:
            return said(404, "There is no such file")
        return Answer(200, {**found.headers, "Content-Security-Policy": self.policy}, found.body)

    async def _question(self, route: str, query: str, headers: Mapping[str, str]) -> Answer:
        if MARK not in headers:
            return said(403, "Only the page itself may ask")
        if route == "title":
            kind = {"Content-Type": "text/plain; charset=utf-8"}
            return Answer(200, kind, self.title.encode("utf-8", "replace"))
        return await execution.offload(
            routed, self.subject, route, query, self.limits, kind="request", limit=READS_AT_ONCE
        )


def _is_from_elsewhere(headers: Mapping[str, str]) -> bool:
    """Return whether the headers say that another site makes the request."""
    origin = headers.get("Origin")
    if origin is not None and origin != f"http://{headers.get('Host')}":
        return True
    site, mode = headers.get("Sec-Fetch-Site", "none"), headers.get("Sec-Fetch-Mode", "navigate")
    return site not in ("none", "same-origin") and mode != "navigate"


_CACHE = {"cache_pool": {"total_bytes_limit": 256_000_000}}  # bytes; so a second look needs no second read


class View:
    """A page that is served until it is closed or the process ends.  Notebooks show it; `url` is its address."""

    __slots__ = ("_server", "height")

    def __init__(self, server: PageServer, height: int) -> None:
        self._server, self.height = server, height

    @property
    def url(self) -> str:
        """The URL of the page; only browsers on this machine reach it."""
        return self._server.url

    def close(self) -> None:
        """Stop serving the page."""
        self._server.server_close()

    def __repr__(self) -> str:
        return f"<View at {self.url}>"

    def _repr_html_(self) -> str:
        style = "border:1px solid rgba(128,128,128,.35);border-radius:8px"
        return (
            f"<iframe src='{escape(self.url, quote=True)}' width='100%' height='{self.height}' style='{style}'"
            f" title='fsstore'></iframe>"
        )


def page_server(place: Any, *, context: Context | None = None, port: int = 0, framed: bool = False) -> PageServer:
    """Return the server of the page for an array, a group or a place; `serve_forever` runs it."""
    chosen = context or Context(_CACHE)
    opened = execution.call(opened_source(place, chosen))
    return PageServer(Subject(opened, chosen), title=_title(opened), port=port, framed=framed)


def _title(opened: TensorStore | Group) -> str:
    try:
        return str(opened.kvstore.url if isinstance(opened, Group) else opened.url)
    except StoreError:  # arrays of live objects have no URL
        return "array"


def view(place: Any, *, port: int = 0, height: int = 720) -> View:
    """Serve the page for an array, a group or a place from a thread, and return its `View`."""
    server = page_server(place, port=port, framed=True)
    begin_thread(partial(server.serve_forever, 0.1), "fsstore-view")
    return View(server, height)
