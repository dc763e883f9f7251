"""URL pipelines of zarr-python that end with a segment of fsstore: `zarr.open_group("s3://bucket/a.zip|zip:|fsstore:")`.

zarr-python gives a segment with all that stands left of it to the adapter that is registered for its scheme.  Ours
takes the whole for a pipeline of fsstore, so whatever fsstore opens, zarr-python opens: an archive, a database, a
reference set, an N5 hierarchy seen as zarr (`…/|zarr3:|fsstore:`).

`fsstore` only says that, and `ocdbt` is a place itself.  Releases of zarr-python that know URL pipelines find the
adapters by the entry points of the group `zarr.url_adapters`; the others never import this module.
"""

from __future__ import annotations

from zarr.abc.url_pipeline import AdapterResolution, PipelineContext, PipelineSegment, URLPipelineAdapter
from zarr.errors import URLPipelineError

from fsstore.interop.zarr import ZarrStore
from fsstore.runtime import execution
from fsstore.values.json_value import quote

_CHANGES = ("w", "w-", "r+")  # modes of somebody who wants to write


class PlaceAdapter(URLPipelineAdapter):  # type: ignore[misc]  # zarr is not followed by the type checker
    """A segment that is one of fsstore's own."""

    @classmethod
    async def open_pipeline_segment(cls, segment: PipelineSegment, context: PipelineContext) -> AdapterResolution:
        """Return the store that the pipeline names, this segment included."""
        if not context.preceding and segment.body.startswith(":"):
            place = segment.raw  # ocdbt::file://…, a chain of fsspec
        else:
            place = f"{_before(segment, context)}|{segment.raw}"
        return AdapterResolution(await _opened(place, context))


class WholeAdapter(URLPipelineAdapter):  # type: ignore[misc]  # see above
    """The segment `fsstore:`, with or without a path in the store that stands left of it."""

    @classmethod
    async def open_pipeline_segment(cls, segment: PipelineSegment, context: PipelineContext) -> AdapterResolution:
        """Return the store that stands left of this segment, and the path."""
        store = await _opened(_before(segment, context), context)
        if not context.preceding:
            return AdapterResolution(store)
        if segment.query is not None:
            raise URLPipelineError(f"A segment fsstore: has no query, got {quote(segment.raw)}")
        return AdapterResolution(store, path=segment.body.strip("/"))


def _before(segment: PipelineSegment, context: PipelineContext) -> str:
    """Return what stands left of a segment; a segment without is a URL of our filesystems, which zarr knows anyway."""
    if context.preceding:
        return str(context.preceding_url)
    if segment.raw.startswith("fsstore://"):
        return str(segment.raw.removeprefix("fsstore://"))
    raise URLPipelineError(
        f"A URL cannot begin with {quote(segment.scheme + ':')}: a place has to stand left of it, as in"
        f" file:///data/|{segment.scheme}:"
    )


async def _opened(place: str, context: PipelineContext) -> ZarrStore:
    options = context.storage_options
    store: ZarrStore = await ZarrStore.open(place, read_only=context.read_only, storage_options=options)
    if store.read_only or await execution.start(execution.offload(lambda: store.supports_writes)):
        return store
    if context.mode in _CHANGES:
        raise URLPipelineError(f"Cannot write to {store}: it is for reading only; open it with mode r")
    return store.with_read_only(read_only=True)
