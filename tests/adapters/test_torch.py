"""PyTorch: tensors without copies, one order for any number of workers, exact resuming, equal ranks."""

from __future__ import annotations

import copy
import json
import multiprocessing
import os
import pickle
import subprocess
import sys
import threading

import numpy as np
import pytest
import simplejpeg
import torch
from torch.utils.data import DataLoader as TorchLoader
from torchdata.stateful_dataloader import StatefulDataLoader

import shoal
from shoal.errors import LoaderStateError, OptionError, ShoalWarning
from shoal.torch import DataLoader, TorchIterableDataset, TorchMapDataset, as_tensors, decode_jpegs

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*multi-threaded.*fork:DeprecationWarning",  # PyTorch's default on Linux is to fork
    "ignore:'set_vital' is deprecated:UserWarning",  # torchdata calls it
    "ignore:This DataLoader will create 3 worker processes:UserWarning",  # on a machine with two cores
)
COUNT = 50


def loader_of(shards: str, **options) -> shoal.DataLoader:
    chosen = {"batch_size": 4, "shuffle": True, "seed": 5, **options}
    return shoal.DataLoader(shoal.Dataset(shards), **chosen)


def labels(batches) -> list[list[int]]:
    return [batch["cls"].tolist() for batch in batches]


@pytest.mark.parametrize("kind", ["uint8", "int16", "uint32", "int64", "float16", "float64", "complex64", "bool"])
def test_an_array_that_may_be_written_to_is_shared(kind):
    array = np.ones((2, 3), kind)
    tensor = as_tensors(array)
    array[0, 0] = 0
    assert tensor[0, 0].item() == 0
    assert str(tensor.dtype).removeprefix("torch.") == kind


@pytest.mark.parametrize(
    "array",
    [
        np.frombuffer(b"\1\2\3\4", np.uint8),
        np.arange(4, dtype=">i4"),
        np.arange(4)[::-1],
        np.arange(12).reshape(3, 4)[:, ::2],
        np.array(3.5),
    ],
    ids=["read-only", "big-endian", "reversed", "strided", "scalar"],
)
def test_any_array_of_numbers_becomes_a_tensor_of_the_same(array):
    tensor = as_tensors(array)
    assert tensor.shape == array.shape
    assert tensor.tolist() == array.tolist()


def test_a_read_only_array_is_not_written_to_through_its_tensor():
    data = b"\1\2\3\4"
    as_tensors(np.frombuffer(data, np.uint8)).zero_()
    assert data == b"\1\2\3\4"


def test_batches_of_bfloat16():
    import ml_dtypes

    tensor = as_tensors(np.array([1.5, -2.0], ml_dtypes.bfloat16))
    assert tensor.dtype == torch.bfloat16
    assert tensor.tolist() == [1.5, -2.0]


def test_our_loader_gives_the_plain_loaders_batches_as_tensors_without_a_copy(shards):
    seen = []

    def keep(batch):
        seen.append(batch["x.npy"])
        return batch

    loader = DataLoader(shoal.Dataset(shards), batch_size=4, shuffle=True, seed=5, num_workers=0).map(keep)
    batches = list(loader)
    assert labels(batches) == [batch["cls"] for batch in loader_of(shards)]
    assert all(batch["x.npy"].data_ptr() == array.ctypes.data for batch, array in zip(batches, seen, strict=False))
    assert batches[0]["x.npy"][:, 0, 0].tolist() == batches[0]["cls"].tolist()
    assert isinstance(batches[0]["txt"][0], str)


def test_verbs_keep_the_kind_and_end_in_tensors():
    loader = DataLoader(range(8), batch_size=None, device="meta").map(lambda number: np.full(2, number)).batch(4)
    assert isinstance(loader, DataLoader)
    assert [(batch.device.type, tuple(batch.shape)) for batch in loader] == [("meta", (4, 2))] * 2


def test_our_loader_resumes_in_the_middle_of_an_epoch_and_on_plain_loaders(shards):
    dataset = shoal.Dataset(shards)
    options = {"batch_size": 4, "shuffle": True, "seed": 5}
    loader = DataLoader(dataset, **options)
    batches = iter(loader)
    for _ in range(3):
        next(batches)
    state = json.loads(json.dumps(loader.state_dict()))
    rest = labels(batches)
    again, plain = DataLoader(dataset, **options), shoal.DataLoader(dataset, **options)
    again.load_state_dict(state)
    plain.load_state_dict(state)
    assert labels(again) == rest == [batch["cls"] for batch in plain]


def test_a_copy_goes_on_where_the_loader_is(shards):
    loader = DataLoader(shoal.Dataset(shards), batch_size=4, device="meta", pin_memory=False)
    batches = iter(loader)
    next(batches)
    again = pickle.loads(pickle.dumps(loader))
    rest = list(again)
    assert len(rest) == len(list(batches)) == 12
    assert rest[0]["x.npy"].device.type == "meta"


def test_the_generator_gives_the_seed_unless_a_seed_is_given():
    def order(**options):
        return [batch.tolist() for batch in DataLoader(range(20), shuffle=True, **options)]

    one = torch.Generator().manual_seed(1)
    assert order(generator=one) == order(seed=1) != order(generator=torch.Generator().manual_seed(2))
    assert order(generator=one, seed=2) == order(seed=2)


@pytest.mark.parametrize("data", [range(64), None], ids=["numbered", "stream"])
def test_worker_init_fn_is_called_once_in_each_thread_before_it_works(data):
    local, numbers = threading.local(), []

    def begin(number):
        numbers.append(number)
        local.ready = True

    def check(value):
        return value if local.ready else None

    source = data if data is not None else (value for value in range(64))
    loader = DataLoader(source, batch_size=None, num_workers=3, prefetch=8, worker_init_fn=begin).map(check)
    assert sorted(int(value) for value in loader) == list(range(64))
    assert sorted(numbers) == list(range(len(numbers)))
    assert 1 <= len(numbers) <= 3


def test_worker_init_fn_is_not_for_the_callers_thread():
    numbers = []
    list(DataLoader(range(8), num_workers=0, worker_init_fn=numbers.append))
    assert numbers == []
    with pytest.raises(OptionError, match="worker_init_fn"):
        DataLoader(range(8), worker_init_fn=3)


def test_pinning_without_a_device_to_pin_for_is_said():
    if torch.cuda.is_available():
        assert next(iter(DataLoader(range(4), pin_memory=True))).is_pinned()
    else:
        with pytest.warns(ShoalWarning, match="no CUDA device"):
            assert next(iter(DataLoader(range(4), pin_memory=True, num_workers=0))).tolist() == [0, 1, 2, 3]


def test_a_loader_that_was_let_go_of_leaves_no_thread():
    before = set(threading.enumerate())
    loader = DataLoader(range(64), batch_size=4, num_workers=2)
    assert len(list(loader)) == 16
    del loader
    for thread in set(threading.enumerate()) - before:
        thread.join(10)
    assert set(threading.enumerate()) == before


def test_a_map_dataset_under_torchs_loader(shards):
    dataset = TorchMapDataset(shoal.Dataset(shards))
    assert len(dataset) == COUNT
    assert dataset[-1]["x.npy"].tolist() == [[49.0, 49.0]] * 3
    batches = list(TorchLoader(dataset, batch_size=8, num_workers=2, sampler=[*range(40, 48), *range(3)]))
    assert labels(batches) == [list(range(40, 48)), [0, 1, 2]]
    assert batches[1]["txt"] == ["text 0", "text 1", "text 2"]


def test_a_mapped_dataset_is_mapped_in_batches_too(shards):
    dataset = TorchMapDataset(shoal.Dataset(shards).map(lambda sample: {"cls": -sample["cls"]}))
    assert [sample["cls"] for sample in dataset.__getitems__([3, -1])] == [-3, -49]
    assert dataset[3]["cls"] == -3


def test_a_map_dataset_without_a_length_is_refused(shards):
    with pytest.raises(OptionError, match="length"):
        TorchMapDataset(shoal.Dataset(shards).filter(lambda sample: True))
    with pytest.raises(OptionError, match="length"):
        TorchMapDataset(iter(range(3)))


@pytest.mark.parametrize("workers", [0, 1, 2, 3])
def test_batches_and_their_order_do_not_depend_on_the_workers(shards, workers):
    dataset = TorchIterableDataset(loader_of(shards))
    torchs = TorchLoader(dataset, batch_size=None, num_workers=workers)
    plain = loader_of(shards)
    for _ in range(3):  # each iteration is the next epoch, as with the loader itself
        assert labels(torchs) == [batch["cls"] for batch in plain]
    assert len(torchs) == 13


def test_workers_that_persist_go_on_to_the_next_epoch(shards):
    torchs = TorchLoader(
        TorchIterableDataset(loader_of(shards)), batch_size=None, num_workers=2, persistent_workers=True
    )
    plain = loader_of(shards)
    for _ in range(3):
        assert labels(torchs) == [batch["cls"] for batch in plain]


@pytest.mark.parametrize("context, epochs", [("spawn", 1), ("forkserver", 2)])
def test_workers_that_are_not_forked(shards, context, epochs):
    multiprocessing.set_forkserver_preload(["shoal.torch"])
    dataset = TorchIterableDataset(loader_of(shards))
    torchs = TorchLoader(dataset, batch_size=None, num_workers=2, multiprocessing_context=context)
    plain = loader_of(shards)
    for _ in range(epochs):
        assert labels(torchs) == [batch["cls"] for batch in plain]


def test_epochs_that_are_left_early_and_epochs_that_are_set(shards):
    dataset = TorchIterableDataset(loader_of(shards))
    torchs = TorchLoader(dataset, batch_size=None, num_workers=2)
    plain = loader_of(shards)
    epochs = [[batch["cls"] for batch in plain] for _ in range(4)]
    for batch in torchs:
        assert batch["cls"].tolist() == epochs[0][0]
        break
    assert labels(torchs) == epochs[1]
    dataset.set_epoch(3)
    assert labels(torchs) == epochs[3]
    dataset.set_epoch(0)
    assert labels(torchs) == epochs[0]
    assert labels(torchs) == epochs[1]


def test_two_iterations_at_once_each_have_their_epoch(shards):
    torchs = TorchLoader(TorchIterableDataset(loader_of(shards)), batch_size=None, num_workers=2)
    plain = loader_of(shards)
    epochs = [[batch["cls"] for batch in plain] for _ in range(2)]
    first = iter(torchs)
    begun = [next(first)]
    second = list(torchs)
    assert [labels([*begun, *first]), labels(second)] == epochs


def test_a_loaded_state_is_gone_on_from_by_all_workers(shards):
    loader = loader_of(shards)
    batches = iter(loader)
    for _ in range(5):
        next(batches)
    state = loader.state_dict()
    rest = [batch["cls"] for batch in batches]
    second = [batch["cls"] for batch in loader]
    again = loader_of(shards)
    again.load_state_dict(state)
    torchs = TorchLoader(TorchIterableDataset(again), batch_size=None, num_workers=2)
    assert labels(torchs) == rest
    assert labels(torchs) == second


def test_a_filter_loses_nothing_and_doubles_nothing(shards):
    loader = shoal.DataLoader(shoal.Dataset(shards), batch_size=None).filter(_is_even).batch(3)
    expected = [batch["cls"] for batch in loader]
    assert labels(TorchLoader(TorchIterableDataset(loader), batch_size=None, num_workers=2)) == expected


def _is_even(sample) -> bool:
    return sample["cls"] % 2 == 0


def test_what_is_no_loader_is_refused(shards):
    with pytest.raises(OptionError, match="no loader"):
        TorchIterableDataset(shoal.Dataset(shards))


def test_the_dataset_may_be_copied(shards):
    dataset = TorchIterableDataset(loader_of(shards))
    for again in (copy.deepcopy(dataset), pickle.loads(pickle.dumps(dataset))):
        assert labels(again) == [batch["cls"] for batch in loader_of(shards)]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("taken", [1, 6, 13])
def test_torchdatas_stateful_loader_resumes_exactly(shards, workers, taken):
    def stateful() -> StatefulDataLoader:
        return StatefulDataLoader(TorchIterableDataset(loader_of(shards)), batch_size=None, num_workers=workers)

    plain = loader_of(shards)
    epochs = [[batch["cls"] for batch in plain] for _ in range(4)]
    first = stateful()
    assert labels(first) == epochs[0]
    batches = iter(first)
    begun = [next(batches) for _ in range(taken)]
    state = first.state_dict()
    del batches
    again = stateful()
    again.load_state_dict(pickle.loads(pickle.dumps(state)))
    assert labels(begun) == epochs[1][:taken]
    # At an epoch's very end what follows is nothing, or the next epoch at once.
    following = [given for given in (labels(again), labels(again)) if given]
    assert following == [rest for rest in (epochs[1][taken:], *epochs[2:]) if rest][: len(following)]


def test_a_state_of_one_worker_is_not_for_the_whole(shards):
    dataset = TorchIterableDataset(loader_of(shards))
    state = dataset.state_dict()
    dataset.load_state_dict(state)
    with pytest.raises(LoaderStateError, match="one of several workers"):
        dataset.load_state_dict({**state, "given": 2, "share": [1, 2]})


RANK = """
import json, sys, torch, shoal
from shoal.torch import DataLoader, TorchIterableDataset
shards, meeting, rank = sys.argv[1], sys.argv[2], int(sys.argv[3])
dataset = shoal.Dataset(shards)
plain = shoal.DataLoader(dataset, batch_size=4, shuffle=True, seed=5)
torch.distributed.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(6, 1))
seen = []
for loader in (
    DataLoader(dataset, batch_size=4, shuffle=True, seed=5),
    torch.utils.data.DataLoader(TorchIterableDataset(plain), batch_size=None, num_workers=2),
):
    seen.append([])
    for batch in loader:
        model(batch["x.npy"].flatten(1)).sum().backward()  # all ranks meet here: one batch more on one would hang
        seen[-1].append(batch["cls"].tolist())
torch.distributed.destroy_process_group()
print(json.dumps(seen))
"""


def test_two_ranks_that_only_torch_distributed_knows_of(shards, tmp_path):
    """Fifty samples, batches of four, two ranks: 7 steps on each, which hang if they are not as many."""
    env = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", RANK, shards, str(tmp_path / "meeting"), str(rank)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**env, "OMP_NUM_THREADS": "1"},
        )
        for rank in range(2)
    ]
    said = [rank.communicate(timeout=120) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], said
    seen = [json.loads(out) for out, _ in said]
    for ours_or_theirs in zip(*seen, strict=True):
        assert [len(batches) for batches in ours_or_theirs] == [7, 7]
        assert sorted(number for batches in ours_or_theirs for batch in batches for number in batch) == list(range(50))
    assert seen[0][0] == seen[0][1]


def _jpegs(count: int) -> list[bytes]:
    rng = np.random.default_rng(3)
    sizes = [(24, 32), (40, 20), (24, 32), (16, 16)]
    return [
        simplejpeg.encode_jpeg(rng.integers(0, 256, (*sizes[at % 4], 3), np.uint8), quality=95) for at in range(count)
    ]


def test_jpegs_of_many_sizes_come_as_one_tensor_in_their_order():
    pictures = _jpegs(9)
    together = decode_jpegs(pictures, (16, 18))
    assert (together.shape, together.dtype) == ((9, 3, 16, 18), torch.uint8)
    for at, picture in enumerate(pictures):
        assert torch.equal(together[at], decode_jpegs([picture], (16, 18))[0])


def test_jpegs_without_a_size_are_as_large_as_they_are():
    apart, together = decode_jpegs(_jpegs(2)), decode_jpegs(_jpegs(3)[::2])
    assert [image.shape for image in apart] == [(3, 24, 32), (3, 40, 20)]
    assert together.shape == (2, 3, 24, 32)
    assert decode_jpegs([], 8).shape == (0, 3, 8, 8)


def test_a_size_that_is_none_is_refused():
    with pytest.raises(OptionError, match="size"):
        decode_jpegs(_jpegs(1), (0, 8))


def test_a_loader_decodes_named_fields_at_the_end(tmp_path):
    pictures = _jpegs(10)
    with shoal.ShardWriter(str(tmp_path / "a-%06d.tar")) as writer:
        for number, picture in enumerate(pictures):
            writer.write({"jpg": picture, "cls": number})
    dataset = shoal.Dataset(str(tmp_path), decode={"jpg": False, "cls": True})
    loader = DataLoader(dataset, batch_size=4, shuffle=True, decode_jpeg={"jpg": 16}, num_workers=2)
    again = pickle.loads(pickle.dumps(loader))
    for batch, same in zip(loader, again, strict=True):
        assert torch.equal(batch["jpg"], same["jpg"])
        expected = decode_jpegs([pictures[number] for number in batch["cls"].tolist()], 16)
        assert torch.equal(batch["jpg"], expected)


def test_a_field_that_is_not_there_is_named(tmp_path):
    with pytest.raises(OptionError, match=r"decode_jpeg names a field that batches do not have.*png.*jpg"):
        next(iter(DataLoader([{"jpg": b""}], decode_jpeg={"png": None})))


def test_tensors_that_a_map_makes_are_stacked(shards):
    def prepare(sample):
        return {"x": torch.full((3, 4), 2.0), "size": torch.zeros(len(sample["__key__"]) % 3 + 1), "label": 1}

    dataset = shoal.Dataset(shards).map(prepare)
    for kind in (DataLoader, shoal.DataLoader):
        batch = next(iter(kind(dataset, batch_size=8)))
        assert batch["x"].shape == (8, 3, 4)
        assert batch["x"].dtype == torch.float32
    pairs = next(iter(DataLoader(range(8), batch_size=None).map(lambda n: (torch.tensor([n]), n)).batch(4)))
    assert pairs[0].tolist() == [[0], [1], [2], [3]]
    bare = next(iter(shoal.DataLoader(range(6)).map(torch.tensor).batch(6)))
    assert bare.tolist() == [0, 1, 2, 3, 4, 5]


def test_tensors_of_different_shapes_are_as_ragged_says():
    line = shoal.DataLoader(range(1, 4)).map(torch.ones)
    (listed,) = line.batch(3)
    assert [len(tensor) for tensor in listed] == [1, 2, 3]
    (padded,) = line.padded_batch(3)
    assert isinstance(padded, torch.Tensor)
    assert padded.tolist() == [[1, 0, 0], [1, 1, 0], [1, 1, 1]]
    with pytest.raises(shoal.errors.DecodeError, match="do not stack"):
        list(line.batch(3, ragged="error"))
