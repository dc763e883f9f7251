"""The commands that only read: list, describe, print, plot and compare what stands at a place."""

from __future__ import annotations

import sys
import time
from argparse import Namespace
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from fsstore.command.terminal import (
    UsageError,
    array_of,
    columns,
    context_of,
    place_of,
    put,
    put_json,
    read_place_of,
    selection,
    source_of,
)
from fsstore.errors import StoreError
from fsstore.redaction import plain
from fsstore.values.json_value import one_line

# Commands that show pages and times: view, bench.


def view(arguments: Namespace) -> int:
    """Serve the page of a place until it is interrupted."""
    from fsstore.viewer.door import page_server

    context = context_of(arguments) if arguments.context else None
    server = page_server(read_place_of(arguments), context=context, port=arguments.port)
    put(server.url)
    sys.stdout.flush()
    if sys.stdout.isatty() and not arguments.no_browser:
        import webbrowser

        webbrowser.open(server.url)
    with server:
        server.serve_forever()
    return 0


def bench(arguments: Namespace) -> int:
    """Time the reading of a selection: the first time alone, then the best of the others."""
    from fsstore.context.context import bytes_text
    from fsstore.observation import trace

    if arguments.repeat < 1:
        raise UsageError("--repeat is how often the selection is read, at least once")
    view = array_of(arguments)[selection(arguments.selection)]
    times: list[float] = []
    with trace() as first:
        _timed(view, times)
    for _ in range(arguments.repeat - 1):
        _timed(view, times)
    nbytes = view.size * view.dtype.numpy_dtype.itemsize
    reads = [each for each in first.observations if each.what == "read"]
    decodes = [each for each in first.observations if each.what == "decode"]
    facts: dict[str, Any] = {
        "elements": view.size, "bytes": nbytes, "first_s": times[0], "best_s": min(times), "times_s": times,
        "bytes_per_s": nbytes / min(times), "requests": len(reads), "bytes_read": sum(each.nbytes for each in reads),
        "decoding_s": sum(each.end_ns - each.begin_ns for each in decodes) / 1e9,
    }  # fmt: skip
    if arguments.json:
        put_json(facts)
        return 0
    put(columns([
        ("elements", f"{facts['elements']:,}, {bytes_text(nbytes)}"),
        ("first", f"{times[0] * 1e3:.2f} ms, {facts['requests']:,} requests, {bytes_text(facts['bytes_read'])} read"),
        ("best", f"{min(times) * 1e3:.2f} ms of {len(times)}, {bytes_text(facts['bytes_per_s'])} a second"),
        ("decoding", f"{facts['decoding_s'] * 1e3:.2f} ms"),
    ]))  # fmt: skip
    put(f"\n{first}")
    return 0


def _timed(view: Any, times: list[float]) -> None:
    began = time.perf_counter()
    view.read().result()
    times.append(time.perf_counter() - began)


# Numbers as characters: an image in shades for two dimensions, a line for one, bars for a histogram.

_SHADES = " .:-=+*#%@"
_LEVELS = "\u2581\u2582\u2583\u2584\u2585\u2586\u2587\u2588"
_WIDTH, _HEIGHT = 72, 24


def plotted(values: Any) -> str:
    """Return a picture of one or two dimensions; others must have size one."""
    flat = np.squeeze(values)
    if flat.ndim > 2 or flat.ndim < 1:
        raise ValueError(f"A picture has one or two dimensions; the selection has shape {values.shape}")
    numbers = flat.astype("f8")
    finite = numbers[np.isfinite(numbers)]
    if not finite.size:
        return "nothing but NaN"
    low, high = float(finite.min()), float(finite.max())
    thin = numbers[:: -(-flat.shape[0] // (_WIDTH if flat.ndim == 1 else _HEIGHT))]
    if flat.ndim == 2:
        thin = thin[:, :: -(-flat.shape[1] // _WIDTH)]
    ramp = _LEVELS if flat.ndim == 1 else _SHADES
    share = np.nan_to_num((thin - low) / ((high - low) or 1), nan=-1)
    places = np.clip(share * len(ramp), 0, len(ramp) - 1).astype(int)
    lines = [
        "".join("?" if part < 0 else ramp[place] for place, part in zip(row, parts, strict=True))
        for row, parts in zip(np.atleast_2d(places).tolist(), np.atleast_2d(share).tolist(), strict=True)
    ]
    return "\n".join([*lines, f"{ramp[0]!r} is {low:g}, {ramp[-1]!r} is {high:g}"])


def bars(edges: Sequence[float], counts: Sequence[int]) -> str:
    """Return a histogram, one line a bin."""
    most = max(counts) or 1
    lines = []
    for low, count in zip(edges, counts, strict=False):
        lines.append(f"{low:>12.5g}  {'#' * round(40 * count / most):<40}  {count}")
    return "\n".join(lines)


_SETS = ("reference", "mosaic")
_MOST_TOLD = 20  # requests
SAMPLED_ELEMENTS = 16_000_000  # elements that `stats` reads unless it is told to read all
_MOST_PAGES = 5  # of Neuroglancer
_MOST_PRINTED = 1_000_000  # elements as text


def info(arguments: Namespace) -> int:
    """Describe an array or a group."""
    from fsstore.dataset.group import Group

    found = source_of(arguments)
    _put_facts(_of_group(found) if isinstance(found, Group) else _of_array(found, sizes=arguments.sizes), arguments)
    return 0


def _put_facts(facts: dict[str, Any], arguments: Namespace) -> None:
    if arguments.json:
        put_json(facts)
    else:
        put(columns([(name, _told(value)) for name, value in facts.items() if value not in (None, "", {}, [])]))


def _told(value: Any) -> str:
    if isinstance(value, dict):
        return "\n".join(f"{name}: {inner}" for name, inner in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _of_group(group: Any) -> dict[str, Any]:
    from fsstore.dataset.image import role_of

    members = group.keys()
    return {
        "kind": "group", "place": group.kvstore.url, "is": role_of(group.attrs),
        "format": f"zarr {group.zarr_format}" if group.zarr_format else "n5",
        "members": members, "left_out": dict(group._listed().left_out), "points_to": _pointed(group),
        "attributes": dict(group.attrs),
    }  # fmt: skip


def _pointed(found: Any) -> dict[str, str]:
    """Return the places that a reference set points to, with what is read there; none of what is no set."""
    from fsstore import references
    from fsstore.context.context import bytes_text

    places = {}
    for each in found.kvstore.spec().walk() if found.kvstore is not None else ():
        if each.kind.id in _SETS:
            for place, touched in references.inspect(each.base).places.items():
                count = "1 reference" if touched.references == 1 else f"{touched.references:,} references"
                places[place] = f"{count}, {bytes_text(touched.nbytes)}"
    return places


def _of_array(store: Any, *, sizes: bool) -> dict[str, Any]:
    from fsstore.errors import UnimplementedError
    from fsstore.viewer.door import codec_names

    json = store.spec().to_json()
    layout = store.chunk_layout
    try:
        attributes = dict(store.attrs)
    except UnimplementedError:
        attributes = {}
    itemsize = store.dtype.numpy_dtype.itemsize
    facts: dict[str, Any] = {
        "kind": "array", "driver": json["driver"], "place": _url(store), "shape": list(store.shape),
        "dtype": store.dtype.name, "dimensions": [label for label in store.domain.labels if label],
        "chunks": list(layout.read_chunk.shape or ()), "shards": None, "codec": codec_names(json),
        "fill_value": None if store.fill_value is None else store.fill_value.tolist(), "bytes": store.size * itemsize,
        "points_to": _pointed(store), "attributes": attributes,
    }  # fmt: skip
    if layout.write_chunk.shape != layout.read_chunk.shape:
        facts["shards"] = list(layout.write_chunk.shape or ())
    if sizes:
        facts |= _stored(store)
    return facts


def _url(store: Any) -> str:
    from fsstore.errors import UnimplementedError

    try:
        return str(store.url)
    except UnimplementedError:
        return ""


def _stored(store: Any) -> dict[str, Any]:
    from fsstore.arrays.protocols import count_parts

    found = store.info_complete()
    total = count_parts(store, found.shards or found.chunks or store.shape)
    ratio = None if found.ratio is None else round(found.ratio, 2)
    return {"stored_chunks": f"{found.stored_chunks} of {total}", "stored_bytes": found.stored_bytes, "ratio": ratio}


def ls(arguments: Namespace) -> int:
    """List what is directly below a place, or its keys."""
    if arguments.keys:
        _put_names(_keys(arguments), arguments)
        return 0
    from fsstore.dataset.group import Group

    try:
        found = source_of(arguments)
    except StoreError:  # no array is there, and no group; but perhaps files
        with suppress(StoreError):
            if names := _directory(arguments):
                _put_names(names, arguments)
                return 0
        raise
    if not isinstance(found, Group):
        raise UsageError(
            f"{arguments.place} is an array; `fsstore ls --keys` lists its keys, and `fsstore info` describes it"
        )
    _put_names(found.keys() if found.is_written else _directory(arguments), arguments)
    if not arguments.json:
        left_out = found._listed().left_out if found.is_written else {}
        _put_names((f"{name} is left out: {why}" for name, why in left_out.items() if "/" not in name), arguments)
    return 0


def _put_names(names: Iterable[str], arguments: Namespace) -> None:
    if arguments.json:
        put_json(list(names))
    else:
        for name in names:
            put(one_line(name))


def _keys(arguments: Namespace, *, of_directory: bool = False) -> list[str]:
    from fsstore.kvstore.kv_store import KvStore

    store = KvStore.open(read_place_of(arguments), context=context_of(arguments)).result()
    if of_directory:
        store = KvStore.of(store._open.as_directory())
    return sorted(key.decode("utf-8", "backslashreplace") for key in store.list().result())


def _directory(arguments: Namespace) -> list[str]:
    """Return what is directly in a directory that is no group: arrays, groups and files of any kind."""
    return list(dict.fromkeys(key.partition("/")[0] for key in _keys(arguments, of_directory=True)))


def tree(arguments: Namespace) -> int:
    """Show groups and arrays below a place as a tree."""
    from fsstore.dataset.group import Group

    found = source_of(arguments)
    if not isinstance(found, Group):
        _put_facts(_of_array(found, sizes=False), arguments)
        return 0
    if arguments.json:
        from fsstore.dataset.listing import described

        groups, entries, left_out = described(found._listed())
        arrays = {
            path: {"shape": list(each.shape), "dtype": each.dtype, "chunks": list(each.chunks or ())}
            for path, each in entries.items()
        }
        put_json({"groups": list(groups), "arrays": arrays, "left_out": dict(left_out)})
    else:
        put(found.tree())
    return 0


def cat(arguments: Namespace) -> int:
    """Print the values of a selection."""
    import numpy as np

    store = array_of(arguments)
    view = store[selection(arguments.selection)]
    if arguments.format in ("text", "csv", "json") and view.size > _MOST_PRINTED and not arguments.json:
        raise UsageError(
            f"The selection has {view.size:,} elements; take fewer, or write them with --format npy or raw"
        )
    values = view.read().result()
    if arguments.plot:
        put(plotted(np.asarray(values)))
    elif arguments.format == "npy":
        np.save(sys.stdout.buffer, values, allow_pickle=False)
    elif arguments.format == "raw":
        sys.stdout.buffer.write(np.ascontiguousarray(values).tobytes())
    elif arguments.format == "json" or arguments.json:
        put_json(values.tolist() if hasattr(values, "tolist") else values)
    elif arguments.format == "csv":
        _csv(np.asarray(values))
    else:
        with np.printoptions(threshold=_MOST_PRINTED, linewidth=arguments.width):
            put(np.array2string(np.asarray(values), separator=" "))
    return 0


def _csv(values: Any) -> None:
    import csv

    writer = csv.writer(sys.stdout, lineterminator="\n")
    rows = values.reshape(-1, values.shape[-1]) if values.ndim > 1 else values.reshape(-1, 1)
    writer.writerows([plain(each) if isinstance(each, str) else each for each in row] for row in rows.tolist())


def stats(arguments: Namespace) -> int:
    """Compute the least, the greatest and the mean value, and a histogram."""
    import numpy as np

    store = array_of(arguments)
    if store.dtype.numpy_dtype.kind not in "iufb":
        raise UsageError(f"Statistics are of numbers; the array holds {store.dtype.name}")
    view = store if arguments.all else _thinned(store)
    values = np.asarray(view.read().result()).ravel()
    finite = values[np.isfinite(values)] if values.dtype.kind == "f" else values
    facts: dict[str, Any] = {"elements": int(values.size), "of": int(store.size), "nan_share": 0.0}
    if values.size:
        facts["nan_share"] = float(1 - finite.size / values.size)
    if finite.size:
        counts, edges = np.histogram(finite.astype("f8"), bins=10)
        facts |= {
            "min": finite.min().item(), "max": finite.max().item(), "mean": float(finite.mean(dtype="f8")),
            "std": float(finite.std(dtype="f8")),
            "histogram": {"edges": edges.tolist(), "counts": counts.tolist()},
        }  # fmt: skip
    if arguments.json:
        put_json(facts)
        return 0
    histogram = facts.pop("histogram", None)
    put(columns([(name, value) for name, value in facts.items()]))
    if histogram:
        put(bars(histogram["edges"], histogram["counts"]))
    return 0


def _thinned(store: Any) -> Any:
    """Return every n-th step along the first dimensions, so that a bounded number of elements is read."""
    key: list[slice] = []
    left = store.size
    for size in store.shape:
        step = min(size or 1, max(1, -(-left // SAMPLED_ELEMENTS)))
        key.append(slice(None, None, step))
        left = left // step
    return store[tuple(key)] if store.rank else store


def spec(arguments: Namespace) -> int:
    """Print the spec that a place means, without secrets."""
    from fsstore.arrays.spec import Spec
    from fsstore.dataset.place import store_spec

    place = place_of(arguments)
    if arguments.open:
        found = array_of(arguments)
        put_json(found.spec().to_json())
        return 0
    put_json(Spec(place).to_json() if isinstance(place, str) and "|" in place else store_spec(place).to_json())
    return 0


def detect(arguments: Namespace) -> int:
    """Say which formats stand at a place, one inside the other, and what was asked to find out."""
    from fsstore.context.context import bytes_text
    from fsstore.driver.probe import looked_for
    from fsstore.errors import FailedPreconditionError
    from fsstore.observation import trace
    from fsstore.runtime import execution

    with trace() as asked:
        try:
            steps, lack = execution.call(_found_at(read_place_of(arguments), context_of(arguments)))
        except FailedPreconditionError as error:  # a file that begins like nothing that is known
            steps, lack = ["unknown"], error.message
    requests = [{"what": each.what, "place": each.place, "bytes": each.nbytes} for each in asked.observations]
    if arguments.json:
        put_json({"steps": steps, "detected": not lack, "requests": requests})
        return 1 if lack else 0
    put(" | ".join(steps))
    if lack:
        put(f"{lack}\nlooked for: {looked_for()}")
    put(f"\n{len(requests)} requests")
    for each in asked.observations[:_MOST_TOLD]:
        put(f"  {each.what} {each.place}: {bytes_text(each.nbytes)}")
    return 1 if lack else 0


async def _found_at(place: Any, context: Any) -> tuple[list[str], str]:
    """Return the steps to what stands at a place, and why there is no array and no group; empty if there is one."""
    from fsstore.dataset.place import look, store_spec
    from fsstore.driver.auto import enter
    from fsstore.driver.probe import no_array
    from fsstore.kvstore.spec_parse import OpenKv, open_kv

    opened = await open_kv(store_spec(place), context)
    inside, found = await enter(opened, context)
    steps: list[str] = []
    at: OpenKv | None = inside
    while at is not None:
        steps.append(at.driver.id)
        at = at.base
    group = None if found.is_file else await look(inside.as_directory().prefix)
    if group is not None and group.kind == "group":
        return [*reversed(steps), f"{group.words.driver} group"], ""
    if found.name is not None:
        return [*reversed(steps), found.name], ""
    return [*reversed(steps), "unknown"], await no_array(inside.prefix, bare=found.bare)


def serve(arguments: Namespace) -> int:
    """Serve places as zarr over HTTP until it is interrupted."""
    from pathlib import PurePosixPath

    from fsstore.serve.server import serve as served

    places: Any = read_place_of(arguments, arguments.places[0])
    if len(arguments.places) > 1:
        names = [PurePosixPath(each.partition("|")[0].rstrip("/")).stem for each in arguments.places]
        if len(set(names)) < len(names):
            raise UsageError("Places that are served together need different names; serve a directory around them")
        places = {name: read_place_of(arguments, each) for name, each in zip(names, arguments.places, strict=True)}
    server = served(
        places, host=arguments.host, port=arguments.port, zarr_format=arguments.zarr_format, token=arguments.token,
        origins=arguments.origin, public=arguments.public, links=arguments.links, context=context_of(arguments),
    )  # fmt: skip
    put(server.url)
    sys.stdout.flush()
    _put_pages(server.neuroglancer_pages())
    sys.stdout.flush()
    with server:
        server.serve_forever()
    return 0


def _put_pages(pages: dict[str, str]) -> None:
    """Print where Neuroglancer shows what is served."""
    for path, page in list(pages.items())[:_MOST_PAGES]:
        put(f"{path or 'this'} in Neuroglancer: {page}")
    if len(pages) > _MOST_PAGES:
        put(f"and {len(pages) - _MOST_PAGES} more arrays that Neuroglancer shows")
