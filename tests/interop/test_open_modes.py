"""Every combination of the ways to open an array, where there is one and where there is none, against TensorStore 0.1.86."""

import itertools

import numpy as np
import pytest
import tensorstore

import fsstore

FLAGS = ("open", "create", "delete_existing", "assume_metadata", "assume_cached_metadata")
MODES = [dict(zip(FLAGS, flags, strict=True)) for flags in itertools.product((False, True), repeat=5)]
WAYS = ("members", "keywords", "open_mode", "both")
ACCESS = ({}, {"read": True}, {"write": True}, {"read": True, "write": True}, {"read": False})


def options_of(module, way, mode):
    """Return spec members and keyword arguments that ask for a mode in one of the ways."""
    members = {name: True for name, wanted in mode.items() if wanted}
    if way == "members":
        return members, {}
    if way == "keywords":
        return {}, members
    if way == "open_mode":
        return {}, {"open_mode": module.OpenMode(**members)}
    return {"create": True}, members


def outcome(module, driver, way, mode, *, exists, access):
    """Return what opening does: the error or the array, its mode, what may be done with it, and the files."""
    context = module.Context()
    place = {"driver": driver, "kvstore": {"driver": "memory", "path": "a/"}}
    wanted = {"dtype": "int32", "shape": [4], "fill_value": 3}
    if exists:
        made = module.open(place, create=True, context=context, dtype="int32", shape=[6], fill_value=3).result()
        made.write(np.arange(6, dtype="i4")).result()
        made.kvstore["beside"] = b"x"
        wanted["shape"] = [6]
    members, keywords = options_of(module, way, mode)
    seen = []

    def note(run):
        try:
            seen.append(run())
        except ValueError as error:
            seen.append(str(error).partition(" [")[0])

    def opened():
        store = module.open({**place, **members}, context=context, **keywords, **access, **wanted).result()
        note(lambda: (str(store.domain), store.mode, store.readable, store.writable))
        note(lambda: store.read().result().tolist())
        note(lambda: store[1:3].write([7, 8]).result())
        note(lambda: str(store.resolve().result().domain))
        note(store.spec().to_json)
        return str(store.resize(exclusive_max=[3]).result().domain)

    note(opened)
    kvstore = module.KvStore.open(place["kvstore"], context=context).result()
    note(lambda: sorted(kvstore.list().result()))
    return seen


@pytest.mark.parametrize("driver", ["zarr3", "zarr"])
@pytest.mark.parametrize("way", WAYS)
def test_modes(way, driver):
    """Each mode opens, creates, replaces or refuses as in TensorStore, in the same words, and leaves the same files."""
    wrong = []
    for mode, exists in itertools.product(MODES, (True, False)):
        mine, theirs = (
            outcome(module, driver, way, mode, exists=exists, access={}) for module in (fsstore, tensorstore)
        )
        if mine != theirs:
            wrong.append(([name for name, wanted in mode.items() if wanted], exists, mine, theirs))
    assert not wrong, wrong[:3]


@pytest.mark.parametrize("driver", ["zarr3", "zarr"])
@pytest.mark.parametrize("access", ACCESS, ids=repr)
def test_access(access, driver):
    """Opening for reading or writing alone restricts the store, and what may be created, as in TensorStore."""
    for mode in (
        {"open": True},
        {"create": True},
        {"open": True, "create": True},
        {"create": True, "delete_existing": True},
    ):
        for exists in (True, False):
            mine, theirs = (
                outcome(module, driver, "keywords", mode, exists=exists, access=access)
                for module in (fsstore, tensorstore)
            )
            assert mine == theirs, mode


@pytest.mark.parametrize(
    "flags", [{"open": 1}, {"create": "yes"}, {"open_mode": {"open": True}}, {"read": "r"}], ids=repr
)
def test_flags_are_booleans(flags):
    """Other values than booleans are refused or converted alike."""
    found = []
    for module in (fsstore, tensorstore):
        try:
            module.open("memory://|zarr3:", dtype="int8", shape=[1], **{"create": True, **flags}).result()
            found.append("opened")
        except (TypeError, ValueError) as error:
            found.append(type(error) if isinstance(error, TypeError) else ValueError)
    assert found[0] == found[1]


def test_open_mode_values():
    """`OpenMode` prints, compares, copies and pickles as TensorStore's."""
    for mode in MODES:
        mine, theirs = (module.OpenMode(**mode) for module in (fsstore, tensorstore))
        assert repr(mine) == repr(theirs)
        assert [getattr(mine, name) for name in FLAGS] == [getattr(theirs, name) for name in FLAGS]
        assert mine == fsstore.OpenMode(**mode)
        assert fsstore.Spec({"driver": "zarr3", **{n: v for n, v in mode.items() if v}}).open_mode.create == mine.create


def reopening(module, driver, stored, wanted):
    """Return the units and domain of a stored array opened with constraints, or the message."""
    context = module.Context()
    place = {"driver": driver, "kvstore": {"driver": "memory", "path": "a/"}}
    asked = {**wanted, **({"codec": module.CodecSpec(wanted["codec"])} if "codec" in wanted else {})}
    if "chunk_layout" in wanted:
        asked["chunk_layout"] = module.ChunkLayout(wanted["chunk_layout"])
    try:
        module.open(place, create=True, context=context, dtype="int16", shape=[3, 4], **stored).result()
        array = module.open(place, context=context, **asked).result()
    except ValueError as error:
        return str(error).split(" [tensorstore_spec")[0]
    return str(array.dimension_units), str(array.domain)


@pytest.mark.parametrize(
    "wanted",
    [
        {"dimension_units": ["nm", None]},
        {"dimension_units": ["4nm", "5nm"]},
        {"dimension_units": ["nm", "nm"]},
        {"shape": [3, 5]},
        {"chunk_layout": {"write_chunk": {"shape": [2, 2]}}},
        {"chunk_layout": {"inner_order": [1, 0]}},
    ],
    ids=repr,
)
@pytest.mark.parametrize("driver", ["zarr3", "zarr", "n5"])
def test_constraints_on_what_is_stored(driver, wanted):
    """What contradicts the stored array is refused in the same words; a unit beside no unit does not, in zarr 3."""
    for stored in ({}, {"dimension_units": ["4nm", None]}):
        mine, theirs = (reopening(module, driver, stored, wanted) for module in (fsstore, tensorstore))
        assert mine == theirs
