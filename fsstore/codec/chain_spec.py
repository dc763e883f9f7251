"""A chain of codecs as a spec asks for it: partial, mergeable, and completed for one type and shape at creation.

Completion takes three steps.  If sub-chunks are smaller than chunks and the spec has no sharding, the chain is wrapped
in it.  If elements shall lie in another order than the transposes give, one more transpose goes in front of the
innermost codec that makes bytes.  Then every codec chooses the options left open, given the output of the codecs before
it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np

from fsstore.codec.chain import CodecChain, codec_json, find_codec, misplaced, parse_entry
from fsstore.codec.contract import (
    ByteSpec,
    ChunkSpec,
    Codec,
    CodecFactory,
    Kind,
    Members,
    factory_abilities_of,
    read_options,
)
from fsstore.codec.sharding import ShardingCodec, sub_chunk_grid
from fsstore.codec.zarr3 import TransposeCodec, permutation
from fsstore.errors import FailedPreconditionError, JsonError, StoreError
from fsstore.schema.constraint import braced
from fsstore.values.json_value import Fields, Json, array_of, expected, one_of, quote, show

SHARDING = "sharding_indexed"


@dataclass(frozen=True, slots=True)
class CodecOptions:
    """One codec of a wish: its name, and the options that are not left open."""

    name: str
    kind: Kind
    options: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Json]:
        """Return the codec as an element of a chain."""
        return codec_json(self.name, {name: _option_json(value) for name, value in self.options.items()})

    def inner(self) -> ChainSpec:
        """Return the chain of the sub-chunks of a sharding codec."""
        return self.options.get("codecs") or ChainSpec()

    def merge_inner(self, chain: ChainSpec, *, first: bool) -> CodecOptions:
        """Return the sharding codec whose sub-chunks grant `chain` too; `first` names it first in conflicts."""
        inner: ChainSpec | None = self.options.get("codecs")
        if inner is not None:
            chain = chain.merge(inner) if first else inner.merge(chain)
        return replace(self, options={**self.options, "codecs": chain})

    def merge(self, other: CodecOptions) -> CodecOptions:
        """Return the codec with the options of both, or raise `FailedPreconditionError` where they differ."""
        where = f"Cannot merge zarr codec constraints {show(self.to_json())} and {show(other.to_json())}"
        if self.name != other.name:
            raise FailedPreconditionError(where)
        merged = dict(self.options)
        for name, value in other.options.items():
            if name not in merged:
                merged[name] = value
                continue
            try:
                merged[name] = _merge_option(name, merged[name], value)
            except FailedPreconditionError as error:
                raise error.within(where) from None
        return replace(self, options=_normal(find_codec(self.name), merged))


def _option_json(value: Any) -> Json:
    if isinstance(value, ChainSpec | CodecChain):
        return value.to_json()
    return list(value) if isinstance(value, tuple) else value


def _merge_option(name: str, left: Any, right: Any) -> Any:
    if isinstance(left, ChainSpec):
        return left.merge(right)
    if left == right:
        return left
    if name == "order" and _spells(left, right):
        return right
    if name == "order" and _spells(right, left):
        return left
    raise FailedPreconditionError(
        f"Incompatible {quote(name)}: {show(_option_json(left))} vs {show(_option_json(right))}"
    )


def _spells(text: Any, order: Any) -> bool:
    """Return whether `order` is the list that `text`, "C" or "F", stands for."""
    return isinstance(text, str) and isinstance(order, tuple) and order == permutation(text, len(order))


def _normal(factory: CodecFactory, options: dict[str, Any]) -> dict[str, Any]:
    """Return the options without those that others make void."""
    normalize = factory_abilities_of(factory).normalize
    return options if normalize is None else normalize(options)


def _partial_sharding(members: Members) -> dict[str, Any]:
    """Return the members of the sharding codec with chains that may be partial."""
    chains = {name: replace(members[name], parse=ChainSpec.from_json) for name in ("codecs", "index_codecs")}
    return {**members, **chains}


def _parse_partial(value: Any) -> CodecOptions:
    factory, configuration = parse_entry({"name": value} if isinstance(value, str) else value)
    able = factory_abilities_of(factory)
    if able.members is None:
        return CodecOptions(factory.name, factory.kind, configuration)
    members = _partial_sharding(able.members) if factory.name == SHARDING else able.members
    # what a codec cannot do without even in a spec, such as the order of a transpose
    members = {name: replace(member, stored=name in able.always) for name, member in members.items()}
    try:
        options = read_options(members, configuration)
    except JsonError as error:
        raise error.within('Error parsing object member "configuration"') from None
    return CodecOptions(factory.name, factory.kind, _normal(factory, options))


@dataclass(frozen=True, slots=True)
class ChainSpec:
    """A partial chain, its codecs in order.  The empty chain wishes for no bytes codecs at all."""

    codecs: tuple[CodecOptions, ...] = ()

    @classmethod
    def from_json(cls, value: Any) -> Self:
        """Return the chain that a spec describes.  Raises `JsonError` with every problem."""
        try:
            codecs = array_of(_parse_partial)(value)
        except RecursionError:
            raise JsonError("Codecs are nested too deeply") from None
        wrong = misplaced(codec.kind for codec in codecs)
        if wrong is not None:
            raise expected("bytes -> bytes codec", codecs[wrong].to_json())
        return cls(tuple(codecs))

    def to_json(self) -> list[Json]:
        """Return the chain as JSON, each codec as an object."""
        return [codec.to_json() for codec in self.codecs]

    def _of(self, kind: Kind) -> tuple[CodecOptions, ...]:
        return tuple(codec for codec in self.codecs if codec.kind == kind)

    @property
    def arrays(self) -> tuple[CodecOptions, ...]:
        """The array-to-array codecs."""
        return self._of("array_to_array")

    @property
    def pack(self) -> CodecOptions | None:
        """The array-to-bytes codec, if one is wished for."""
        return next(iter(self._of("array_to_bytes")), None)

    @property
    def stages(self) -> tuple[CodecOptions, ...]:
        """The bytes-to-bytes codecs."""
        return self._of("bytes_to_bytes")

    @property
    def shard_levels(self) -> int:
        """How many sharding codecs are nested in the chain."""
        pack = self.pack
        return 1 + pack.inner().shard_levels if pack is not None and pack.name == SHARDING else 0

    @property
    def innermost(self) -> ChainSpec:
        """The chain of the sub-chunks of the innermost shard level; the chain itself without sharding."""
        pack = self.pack
        return pack.inner().innermost if pack is not None and pack.name == SHARDING else self

    def merge(self, other: ChainSpec) -> ChainSpec:
        """Return the chain that grants both wishes, or raise `FailedPreconditionError`."""
        mine, theirs = self.shard_levels, other.shard_levels
        if mine > theirs and len(self.codecs) == 1:
            return ChainSpec((self.codecs[0].merge_inner(other, first=False),))
        if mine < theirs and len(other.codecs) == 1:
            return ChainSpec((other.codecs[0].merge_inner(self, first=True),))
        pack = self.pack if other.pack is None else other.pack
        if self.pack is not None and other.pack is not None:
            pack = self.pack.merge(other.pack)
        arrays = _merge_arrays(self.arrays, other.arrays)
        stages = _merge_lists("bytes -> bytes", self.stages, other.stages)
        return ChainSpec((*arrays, *((pack,) if pack is not None else ()), *stages))


def _merge_arrays(left: tuple[CodecOptions, ...], right: tuple[CodecOptions, ...]) -> tuple[CodecOptions, ...]:
    """Merge array codecs; one side may end in a transpose more, which a wish for an inner order adds."""
    longer = max(left, right, key=len)
    shared = min(len(left), len(right))
    if len(longer) == shared + 1 and longer[shared].name == "transpose":
        return (*_merge_lists("array -> array", left[:shared], right[:shared]), longer[shared])
    return _merge_lists("array -> array", left, right)


def _merge_lists(
    arrow: str, left: tuple[CodecOptions, ...], right: tuple[CodecOptions, ...]
) -> tuple[CodecOptions, ...]:
    if len(left) != len(right):
        lists = " and ".join(show([codec.to_json() for codec in side]) for side in (left, right))
        raise FailedPreconditionError(
            f"Cannot merge zarr codec constraints {lists}: "
            f"Mismatch in number of {arrow} codecs ({len(left)} vs {len(right)})"
        )
    return tuple(a.merge(b) for a, b in zip(left, right, strict=True))


def _read_spec(value: Any) -> ChainSpec | None:
    fields = Fields(value)
    fields.require("driver", one_of("zarr3"))
    chain: ChainSpec | None = fields.take("codecs", ChainSpec.from_json)
    fields.finish()
    return chain


def merge_specs(left: Json, right: Json) -> dict[str, Json]:
    """Return the JSON of the `CodecSpec` that grants two of driver `zarr3`.

    Either may leave `codecs` out.  Raises `JsonError` for malformed JSON, `FailedPreconditionError` for a conflict.
    """
    a, b = _read_spec(left), _read_spec(right)
    merged = b if a is None else a
    if a is not None and b is not None:
        try:
            merged = a.merge(b)
        except FailedPreconditionError as error:
            specs = (show({"driver": "zarr3", "codecs": chain.to_json()}) for chain in (a, b))
            raise error.within("Cannot merge codec spec {} with {}".format(*specs)) from None
    return {"driver": "zarr3"} if merged is None else {"driver": "zarr3", "codecs": merged.to_json()}


_INDEX = ChainSpec(
    (CodecOptions("bytes", "array_to_bytes", {"endian": "little"}), CodecOptions("crc32c", "bytes_to_bytes"))
)


@dataclass(frozen=True, slots=True)
class _Wish:
    """Wishes that are still to be granted at one level: shapes and orders in the dimensions of that level."""

    read_shape: tuple[int, ...]
    inner_order: tuple[int, ...] | None
    given: bool

    def through(self, order: Sequence[int]) -> _Wish:
        """Return the wish as seen after a transpose."""
        read = tuple(self.read_shape[axis] for axis in order)
        place = {axis: position for position, axis in enumerate(order)}
        inner = None if self.inner_order is None else tuple(place[axis] for axis in self.inner_order)
        return _Wish(read, inner, self.given)


def resolve(
    chain: ChainSpec | None,
    chunk: ChunkSpec,
    *,
    read_shape: Sequence[int] | None = None,
    inner_order: Sequence[int] | None = None,
    complete: bool = False,
) -> CodecChain:
    """Return the chain to store for chunks like `chunk`, which has the write shape.

    `read_shape` is the shape of the sub-chunks, in the dimensions of the array; `inner_order` the order of dimensions
    in memory, outermost first.  `complete` says that the chain stands in the metadata and may not be wrapped or
    lengthened.  Raises `StoreError` or `FailedPreconditionError` that says what cannot be granted.
    """
    read = chunk.shape if read_shape is None else tuple(read_shape)
    wish = _Wish(read, None if inner_order is None else tuple(inner_order), complete and chain is not None)
    spec = chain or ChainSpec()
    if not spec.shard_levels and read != chunk.shape:
        if wish.given:
            raise _other_read_shape(chunk.shape, read)
        spec = ChainSpec((CodecOptions(SHARDING, "array_to_bytes", {"chunk_shape": read, "codecs": spec}),))
    found = wished_read_shape(spec, len(chunk.shape))
    if found is not None and read_shape is not None and found != read:
        raise _other_read_shape(found, read)
    return _resolve_level(spec, chunk, wish)


def _other_read_shape(found: tuple[int, ...], wanted: tuple[int, ...]) -> StoreError:
    return StoreError(
        f"Error setting read_chunk shape: New hard constraint {braced(found)} "
        f"does not match existing hard constraint {braced(wanted)}"
    )


def _resolve_level(chain: ChainSpec, chunk: ChunkSpec, wish: _Wish) -> CodecChain:
    pack = chain.pack or CodecOptions(*_default_pack(chunk))
    codecs: list[Codec] = []
    seen: ChunkSpec | ByteSpec = chunk
    for options in chain.arrays:
        codec, seen = _completed(options, seen)
        codecs.append(codec)
        if isinstance(codec, TransposeCodec):
            wish = wish.through(permutation(codec.order, len(chunk.shape)))
    if pack.name == SHARDING:
        assert isinstance(seen, ChunkSpec)
        _refuse_stages(pack, chain.stages)
        return CodecChain((*codecs, _resolve_sharding(pack, seen, wish)))
    for options in (*_ordering(chain, wish), pack, *chain.stages):
        codec, seen = _completed(options, seen)
        codecs.append(codec)
    return CodecChain(tuple(codecs))


def _default_pack(chunk: ChunkSpec) -> tuple[Any, ...]:
    if chunk.dtype.hasobject:
        name = "vlen-bytes" if isinstance(chunk.fill_value, bytes) else "vlen-utf8"
        return name, "array_to_bytes"
    return "bytes", "array_to_bytes"


def _ordering(chain: ChainSpec, wish: _Wish) -> list[CodecOptions]:
    """Return the transpose that is missing for the wished order, if one is."""
    order = wish.inner_order
    if order is None or order == tuple(range(len(order))):
        return []
    extra = CodecOptions("transpose", "array_to_array", {"order": order})
    if wish.given:
        before = [codec.to_json() for codec in chain.arrays]
        raise FailedPreconditionError(
            f'Mismatch in "codecs": Cannot merge zarr codec constraints {show([*before, extra.to_json()])} '
            f"and {show(before)}: Mismatch in number of array -> array codecs ({len(before) + 1} vs {len(before)})"
        )
    return [extra]


def _refuse_stages(pack: CodecOptions, stages: Sequence[CodecOptions]) -> None:
    if stages:
        raise StoreError(
            f"Sharding codec {show(pack.to_json())} is not compatible with subsequent bytes -> bytes codecs "
            f"{show([codec.to_json() for codec in stages])} that apply to the entire shard.  Instead, "
            "bytes -> bytes codecs may be specified as inner codecs that apply to each sub-chunk individually."
        )


def _completed(options: CodecOptions, seen: ChunkSpec | ByteSpec) -> tuple[Codec, ChunkSpec | ByteSpec]:
    """Return the codec with its open options chosen, and what it gives."""
    factory = find_codec(options.name)
    complete = factory_abilities_of(factory).complete
    try:
        codec = factory.from_json(dict(options.options)) if complete is None else complete(options.options, seen)
        return codec, codec.bind(seen).encoded
    except StoreError as error:
        raise error.within(f"Error resolving codec spec through codec {show(options.to_json())}") from None


def _resolve_sharding(pack: CodecOptions, chunk: ChunkSpec, wish: _Wish) -> ShardingCodec:
    shape: tuple[int, ...] = pack.options.get("chunk_shape", wish.read_shape)
    grid = _shard_grid(pack, chunk, shape)
    given = wish.given and "codecs" in pack.options
    sub = ChunkSpec(chunk.dtype, shape, chunk.fill_value)
    inner = _resolve_level(pack.inner(), sub, _Wish(wish.read_shape, wish.inner_order, given))
    index_chunk = ChunkSpec(np.dtype(np.uint64), (*grid, 2))
    wanted = pack.options.get("index_codecs", _INDEX)
    index = _resolve_level(wanted, index_chunk, _Wish(index_chunk.shape, None, given=False))
    codec = ShardingCodec(shape, inner, index, pack.options.get("index_location", "end"))
    codec.bind(chunk)
    return codec


def _shard_grid(pack: CodecOptions, chunk: ChunkSpec, shape: tuple[int, ...]) -> tuple[int, ...]:
    try:
        return sub_chunk_grid(chunk.shape, shape)
    except StoreError as error:
        raise error.within(f"Error resolving codec spec through codec {show(pack.to_json())}") from None


def wished_order(chain: ChainSpec, rank: int) -> tuple[int, ...]:
    """Return the order of dimensions in memory that the transposes of all levels of a chain amount to."""
    order = tuple(range(rank))
    for codec in chain.arrays:
        if codec.name == "transpose":
            order = tuple(order[axis] for axis in permutation(codec.options["order"], rank))
    pack = chain.pack
    if pack is not None and pack.name == SHARDING:
        order = tuple(order[axis] for axis in wished_order(pack.inner(), rank))
    return order


def wished_read_shape(chain: ChainSpec, rank: int) -> tuple[int, ...] | None:
    """Return the sub-chunk shape of the innermost shard level in dimensions of the array, if one is given."""
    pack = chain.pack
    if pack is None or pack.name != SHARDING:
        return None
    inner = pack.inner()
    shape = wished_read_shape(inner, rank) if inner.shard_levels else pack.options.get("chunk_shape")
    if shape is None or len(shape) != rank:
        return None
    order = wished_order(ChainSpec(chain.arrays), rank)
    out = [0] * rank
    for size, axis in zip(shape, order, strict=True):
        out[axis] = size
    return tuple(out)
