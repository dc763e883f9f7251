"""A chain of codecs as wished for in a spec: partial, mergeable, not yet bound to a type or shape.

Every codec may be a bare name, options may be left open, and the codec that makes bytes may be missing.  Two chains
merge codec by codec: an option that one leaves open takes the other's value, two different values conflict.  A chain
without sharding that meets one with it describes the sub-chunks, so it merges into the innermost shard level.

`chain_resolve` completes a chain for a given type and shape.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

from fsstore.codec.ability import factory_abilities_of
from fsstore.codec.chain.chain import CodecChain, codec_json, find_codec, misplaced, parse_entry
from fsstore.codec.configuration import Members, read_options
from fsstore.codec.contract import CodecFactory, Kind
from fsstore.codec.zarr3.transpose import permutation
from fsstore.errors import FailedPreconditionError, JsonError
from fsstore.values.json_value import Fields, Json, array_of, expected, one_of, quote, show

__all__ = ["SHARDING", "ChainSpec", "CodecOptions", "merge_specs"]

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


def _merge_arrays(
    left: tuple[CodecOptions, ...], right: tuple[CodecOptions, ...]
) -> tuple[CodecOptions, ...]:
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
