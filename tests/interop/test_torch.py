"""Data sets of PyTorch over arrays, with workers of both kinds, ranks, and its own loaders and samplers."""

from __future__ import annotations

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import fsstore as ts
from tests.docs.test_code_blocks import blocks, run

torch = pytest.importorskip("torch", reason="torch is not installed: `make test-training` has it")

from torch.utils.data import DataLoader, RandomSampler  # noqa: E402

from fsstore.interop.torch import BatchedArrays, ChunkSampler, IndexedArrays  # noqa: E402

COUNT = 203
PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "training.md"


@pytest.fixture(scope="module")
def arrays(tmp_path_factory):
    """Images that are full of their number, and labels in other chunks."""
    group = ts.open_group(tmp_path_factory.mktemp("samples"), mode="w").result()
    image = group.create_array("image", shape=[COUNT, 3, 4], dtype="f4", chunks=[10, 3, 2]).result()
    image[:] = np.arange(COUNT, dtype="f4")[:, None, None] * np.ones((3, 4), "f4")
    label = group.create_array("label", shape=[COUNT], dtype="i8").result()
    label[:] = np.arange(COUNT)
    return {"image": image, "label": label}


def labels(loader):
    """Return the labels of a pass, batch by batch, after comparing them with the images."""
    found = []
    for batch in loader:
        image, label = batch["image"], batch["label"]
        assert isinstance(image, torch.Tensor)
        assert (image == label[:, None, None]).all()
        found.append(label.tolist())
    return found


WORKERS = pytest.mark.parametrize(
    "options", [{}, {"num_workers": 2, "multiprocessing_context": "fork"}], ids=["none", "fork"]
)


@WORKERS
def test_every_sample_once_an_epoch(arrays, options):
    """A pass has every sample once in batches of the size; with a seed an epoch is the same again, and others differ."""
    data = BatchedArrays(arrays, 16, shuffle=True, seed=5, memory="4kB")
    loader = DataLoader(data, batch_size=None, **options)
    passes = []
    for epoch in (0, 1, 0):
        data.set_epoch(epoch)
        passes.append(labels(loader))
    assert passes[0] == passes[2] != passes[1]
    for found in passes:
        assert sorted(sum(found, [])) == list(range(COUNT))
        assert sum(len(batch) != 16 for batch in found) <= max(1, options.get("num_workers", 1))
    assert len(sum(labels(DataLoader(BatchedArrays(arrays, 16, drop_last=True), batch_size=None)), [])) == 192


@pytest.mark.parametrize("persistent", [False, True])
def test_each_pass_has_another_order_without_a_seed(arrays, persistent):
    """Orders are drawn from the generator of PyTorch, also where workers live on; manual seeds repeat them."""
    data = BatchedArrays(arrays, 50, shuffle=True)
    loader = DataLoader(
        data, batch_size=None, num_workers=2, persistent_workers=persistent, multiprocessing_context="fork"
    )
    torch.manual_seed(1)
    passes = [labels(loader) for _ in range(3)]
    assert all(sorted(sum(found, [])) == list(range(COUNT)) for found in passes)
    assert len({str(found) for found in passes}) == 3
    torch.manual_seed(1)
    assert labels(DataLoader(data, batch_size=None, num_workers=2, multiprocessing_context="fork")) == passes[0]


def test_persistent_workers_hear_of_the_epoch(arrays):
    """`set_epoch` reaches workers that were begun before."""
    data = BatchedArrays(arrays, 50, shuffle=True, seed=1)
    loader = DataLoader(data, batch_size=None, num_workers=2, persistent_workers=True, multiprocessing_context="fork")
    found = []
    for epoch in (0, 1, 0):
        data.set_epoch(epoch)
        found.append(labels(loader))
    assert found[0] == found[2] != found[1]


@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_share_a_pass(arrays, ranks):
    """All ranks together have every sample once; with `even` each has as many."""
    parts = [labels(BatchedArrays(arrays, 10, shuffle=True, seed=3, rank=rank, ranks=ranks)) for rank in range(ranks)]
    assert sorted(sum(sum(parts, []), [])) == list(range(COUNT))
    even = [
        len(sum(labels(BatchedArrays(arrays, 10, shuffle=True, seed=3, even=True, rank=r, ranks=ranks)), []))
        for r in range(ranks)
    ]
    assert set(even) == {COUNT // ranks}
    with pytest.raises(ValueError, match="Ranks that shuffle together need the same seed"):
        BatchedArrays(arrays, 10, shuffle=True, rank=0, ranks=2)


def test_ranks_are_those_of_a_process_group(arrays, tmp_path):
    """Rank and size are taken from `torch.distributed` where it runs."""
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
    try:
        assert sorted(sum(labels(BatchedArrays(arrays, 64, shuffle=True)), [])) == list(range(COUNT))
    finally:
        torch.distributed.destroy_process_group()


@WORKERS
def test_samples_by_number(arrays, options):
    """Any sampler works, with the memory handed on or copied together; `ChunkSampler` has every sample once."""
    data = IndexedArrays(arrays)
    assert len(data) == COUNT
    assert data[7]["label"] == 7 == data[-196]["image"][2, 3]
    for collate in (data.collate, None):
        for sampler in (RandomSampler(data), ChunkSampler(data, seed=2)):
            loader = DataLoader(data, batch_size=32, sampler=sampler, collate_fn=collate, **options)
            found = labels(loader)
            assert sorted(sum(found, [])) == list(range(COUNT))
            assert [len(batch) for batch in found] == [32] * 6 + [11]
    parts = [list(ChunkSampler(data, seed=2, rank=rank, ranks=2)) for rank in (0, 1)]
    assert [len(part) for part in parts] == [101, 101] == [len(ChunkSampler(data, seed=1, ranks=2, rank=0))] * 2
    assert len({*parts[0], *parts[1]}) == 202


def test_workers_that_are_spawned(arrays):
    """Workers that begin as new processes open the same data."""
    data = BatchedArrays(arrays, 32, shuffle=True, seed=5)
    loader = DataLoader(data, batch_size=None, num_workers=1, multiprocessing_context="spawn")
    assert labels(loader) == labels(data)


@pytest.mark.parametrize(
    ("numpy_dtype", "name"),
    [
        (ml_dtypes.bfloat16, "bfloat16"), (ml_dtypes.float8_e4m3fn, "float8_e4m3fn"), ("u2", "uint16"), (">i4", "int32"),
        ("?", "bool"), ("c8", "complex64"),
    ],
)  # fmt: skip
def test_types(numpy_dtype, name):
    """Types of elements are PyTorch's of the same name; text stays an array."""
    group = ts.open_group("memory://", mode="w").result()
    values = np.arange(6).reshape(3, 2).astype(numpy_dtype)
    array = group.create_array("a", shape=[3, 2], dtype=np.dtype(numpy_dtype)).result()
    array[:] = values
    [batch] = BatchedArrays(array, 3)
    assert batch.dtype == getattr(torch, name)
    assert np.array_equal(batch.to(torch.complex64).numpy(), values.astype("c8"))
    text = group.create_array("text", shape=[3], dtype="ustring").result()
    text[:] = np.array(["a", "b", "c"], object)
    [(numbers, words)] = BatchedArrays((array, text), 3)
    assert (len(numbers), words.tolist()) == (3, ["a", "b", "c"])


@pytest.mark.parametrize(
    ("options", "why"), [({"batch_size": 0}, "at least one"), ({"batch_size": 1, "memory": "x"}, "bytes")]
)
def test_wrong_options(arrays, options, why):
    """Wrong options are named where the data set is made."""
    with pytest.raises(ValueError, match=why):
        BatchedArrays(arrays, **options)


def test_the_page_about_training_runs(tmp_path, monkeypatch):
    """All blocks of the page run one after the other, those too that the other test of pages leaves out, but for JAX."""
    monkeypatch.chdir(tmp_path)
    namespace = {"__name__": "page"}
    for block in blocks(PAGE.read_text(encoding="utf-8")):
        if "JAX" not in (block.reason or ""):
            run(block, PAGE.name, namespace)


def resumed(arrays, state, **options):
    """Return a data set as another process makes it, that goes on where a state says."""
    data = BatchedArrays(arrays, 16, shuffle=True, seed=5, memory="4kB", **options)
    data.load_state_dict(json.loads(json.dumps(state)))
    return data


@WORKERS
@pytest.mark.parametrize("taken", [0, 3, 9])
def test_a_pass_goes_on_where_it_was_ended(arrays, options, taken):
    """With as many workers the same batches follow, and the next pass is whole again."""
    data = BatchedArrays(arrays, 16, shuffle=True, seed=5, memory="4kB")
    whole = labels(DataLoader(data, batch_size=None, **options))
    again = resumed(arrays, data.state_dict(batches=taken, workers=options.get("num_workers", 0)))
    loader = DataLoader(again, batch_size=None, **options)
    assert labels(loader) == whole[taken:]
    assert labels(loader) == whole


@pytest.mark.parametrize(("ranks", "workers"), [(1, 0), (3, 0), (2, 2)])
def test_a_pass_goes_on_with_other_ranks_and_workers(arrays, ranks, workers):
    """What was given out and what follows are every sample, each once; and so once more, from the middle of the rest."""
    parts = [BatchedArrays(arrays, 16, shuffle=True, seed=5, memory="4kB", rank=rank, ranks=2) for rank in (0, 1)]
    seen = [number for part in parts for batch in labels(DataLoader(part, batch_size=None))[:4] for number in batch]
    state = parts[0].state_dict(batches=4)
    fork = {"num_workers": workers, "multiprocessing_context": "fork"} if workers else {}
    rest = [resumed(arrays, state, rank=rank, ranks=ranks) for rank in range(ranks)]
    for part in rest:
        seen += [number for batch in labels(DataLoader(part, batch_size=None, **fork))[:1] for number in batch]
    last = resumed(arrays, rest[0].state_dict(batches=1, workers=workers))
    seen += sum(labels(DataLoader(last, batch_size=None)), [])
    assert sorted(seen) == list(range(COUNT))


def test_each_process_tells_its_own_state(arrays):
    """As torchdata asks for it; those of all ranks together go on with another number."""
    seen, states = [], []
    for rank in (0, 1):
        data = BatchedArrays(arrays, 16, shuffle=True, seed=5, memory="4kB", rank=rank, ranks=2)
        for number, batch in enumerate(data):
            seen += batch["label"].tolist()
            if number == rank:
                states.append(data.state_dict())
                break
    seen += sum(labels(resumed(arrays, states)), [])
    assert sorted(seen) == list(range(COUNT))
    with pytest.raises(ts.errors.StoreError, match="nothing of worker 0 of rank 1"):
        labels(resumed(arrays, states[0]))
    with pytest.raises(ValueError, match="give seed="):
        BatchedArrays(arrays, 16, shuffle=True).state_dict()


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")
@pytest.mark.parametrize("workers", [0, 2])
def test_loaders_of_torchdata_keep_the_state(arrays, workers):
    """A pass is saved in its middle by the loader, and goes on in another one."""
    stateful = pytest.importorskip("torchdata.stateful_dataloader")
    fork = {"num_workers": workers, "multiprocessing_context": "fork"} if workers else {}

    def loader():
        data = BatchedArrays(arrays, 16, shuffle=True, seed=5, memory="4kB")
        return stateful.StatefulDataLoader(data, batch_size=None, **fork)

    whole = labels(loader())
    first = loader()
    for number, _ in enumerate(first):
        if number == 4:
            state = first.state_dict()
            break
    again = loader()
    again.load_state_dict(state)
    assert labels(again) == whole[5:]
