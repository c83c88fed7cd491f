"""What is written comes back, whoever wrote it; what cannot be written is refused."""

from __future__ import annotations

import hashlib
import io
import multiprocessing
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import hypothesis.extra.numpy as arrays
import numpy as np
import plaid.storage
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plaid import Sample
from plaid.storage.common.preprocessor import build_sample_dict, preprocess
from plaid.storage.registry import get_backend
from tests.plaid import physics

import shoal
import shoal.plaid
from shoal.errors import (
    MissingExtraError,
    ObjectExistsError,
    OptionError,
    UnsafeCodecError,
    UnsafeNameError,
    WriteError,
)
from shoal.plaid import generate_datasetdict_to_disk, init_datasetdict_from_disk
from shoal.plaid._layout import field_names
from shoal.plaid._writer import variable_values, write_values

KWARGS = {split: {"shards_ids": [ids]} for split, ids in physics.IDS.items()}
GENERATORS = dict.fromkeys(physics.IDS, physics.generated)
MARK = "SHOAL_PLAID_TEST_MARK"


@pytest.fixture(scope="module")
def schema():
    return preprocess(GENERATORS, KWARGS, verbose=False)[1]


def files(root):
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


def stored(tmp_path, samples):
    """Samples, given by their features, written and read again."""
    paths = dict.fromkeys(path for sample in samples for path in sample)
    write_values(str(tmp_path), field_names(paths), enumerate(samples))
    (tar,) = tmp_path.glob("*.tar")
    return shoal.plaid.WebDatasetWrapper(tar)


names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1).map(lambda name: f"Global/{name}")
values = arrays.arrays(
    st.sampled_from(["f4", "f8", "i4", "i8", "u1", "S1", "U5", "?", "c16", ">f8"]),
    arrays.array_shapes(min_dims=0, min_side=0, max_side=4),
)


@given(st.lists(names, min_size=1, max_size=5, unique=True), st.data())
@settings(max_examples=30)
def test_any_name_and_any_array_comes_back(tmp_path_factory, paths, data):
    samples = [{path: data.draw(st.none() | values) for path in paths} for _ in range(2)]
    found = stored(tmp_path_factory.mktemp("any"), samples)
    assert len(found) == 2
    for number, sample in enumerate(samples):
        physics.same_values(found[number], sample)


def test_large_arrays_come_back(tmp_path):
    large = np.random.default_rng(0).random((3, 1_500_000))
    found = stored(tmp_path, [{"Global/large": large, "Global/small": np.ones(1)}])
    physics.same_values(found[0], {"Global/large": large, "Global/small": np.ones(1)})
    assert not found[0]["Global/large"].flags.writeable


def test_names_that_differ_in_case_dots_and_underscores(tmp_path, leaky_peer):
    sample = {
        path: np.array([at])
        for at, path in enumerate(["G/Ab", "G/aB", "G/a.b", "G/a__b", "G/été 🐟", "G/" + "x" * 300])
    }
    found = stored(tmp_path, [sample])
    physics.same_values(found[0], sample)
    (theirs,) = found.wds_pipeline
    physics.same_values(shoal.plaid.sample_to_var_sample_dict(theirs), sample)


def test_a_sample_without_variable_features_is_still_a_sample(tmp_path):
    physics.saved(tmp_path / "d", lambda _: physics.bare_sample(), {"train": [0, 1, 2]})
    datasets, converters = shoal.plaid.init_datasetdict_from_disk(tmp_path / "d"), None
    assert [len(datasets["train"]), datasets["train"][2]] == [3, {}]
    from plaid.storage import init_from_disk

    datasets, converters = init_from_disk(tmp_path / "d")
    found = converters["train"].to_plaid(datasets["train"], 2)
    physics.same_values(build_sample_dict(found)[0], build_sample_dict(physics.bare_sample())[0])


def test_an_empty_split_comes_back(tmp_path, schema):
    generate_datasetdict_to_disk(tmp_path, GENERATORS, schema, {"train": {"shards_ids": []}, "test": KWARGS["test"]})
    found = init_datasetdict_from_disk(tmp_path)
    assert {name: len(split) for name, split in found.items()} == {"train": 0, "test": 3}
    assert list(found["train"]) == []
    with pytest.raises(IndexError, match="the split is empty"):
        found["train"][0]


def test_several_times_are_kept(tmp_path):
    def timed(number):
        sample = Sample()
        for time in (0.0, 1.0, 2.0):
            one = physics.bare_sample(time)
            one.add_field("speed", np.full(physics.NODES, number + (time > 0), np.float32), time=time)
            sample.add_tree(one.get_tree(time), time)
        return sample

    from plaid.storage import init_from_disk

    datasets, converters = init_from_disk(physics.saved(tmp_path / "d", timed, {"train": [1, 2]}))
    for place, number in enumerate([1, 2]):
        found = build_sample_dict(converters["train"].to_plaid(datasets["train"], place))[0]
        physics.same_values(found, build_sample_dict(timed(number))[0])


@pytest.mark.parametrize("number", [0, 1])
def test_one_time_is_flattened_as_plaid_does(number):
    sample = physics.make_sample(number)
    expected = build_sample_dict(sample)[0]
    physics.same_values(variable_values(sample, [*expected, "Global/none"]), {**expected, "Global/none": None})


def test_the_layout(tmp_path, schema):
    generate_datasetdict_to_disk(tmp_path, GENERATORS, schema, KWARGS)
    assert len([name for name in files(tmp_path) if name.startswith(".shoal/")]) == 1 + 8
    with tarfile.open(tmp_path / "data" / "train" / "shard-000001.tar") as tar:
        members = tar.getnames()
        assert members[0] == "sample_000000001.json"
        assert all(name.startswith("sample_000000001.") and name == name.lower() for name in members)
        assert {name.rpartition(".")[2] for name in members} == {"json", "npy"}
        assert any(name.endswith("_pressure.npy") for name in members)
        for name in members[1:]:  # by NumPy itself, and without pickle
            np.load(io.BytesIO(tar.extractfile(name).read()), allow_pickle=False)


def test_shoal_reads_it_as_any_dataset(tmp_path, schema):
    generate_datasetdict_to_disk(tmp_path, GENERATORS, schema, KWARGS)
    dataset = shoal.load_dataset(str(tmp_path), split="test")
    assert [sample["json"]["number"] for sample in dataset] == [0, 1, 2]
    assert shoal.shard.verify_dataset(str(tmp_path))
    assert all(report.ok for report in shoal.shard.verify_dataset(str(tmp_path)))


def test_a_run_of_many_samples_makes_few_shards(tmp_path):
    ids = list(range(100))
    generators = {"train": lambda shards: (physics.bare_sample() for part in shards for _ in part)}
    generate_datasetdict_to_disk(tmp_path, generators, {}, {"train": {"shards_ids": [ids]}})
    split = init_datasetdict_from_disk(tmp_path)["train"]
    assert (len(list((tmp_path / "data" / "train").iterdir())), split.ids.tolist()) == (25, ids)


def test_a_shard_is_closed_when_it_is_full(tmp_path, monkeypatch):
    monkeypatch.setattr("shoal.plaid._writer._SHARD_BYTES", 20_000)
    samples = [(number, {"Global/x": np.zeros(1000)}) for number in range(5)]
    written = write_values(str(tmp_path), {"Global/x": "0000_x.npy"}, samples)
    assert [record.samples for record in written.shards] == [2, 2, 1]


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_processes_write_the_same_bytes_however_they_start(tmp_path, schema, monkeypatch, method):
    generate_datasetdict_to_disk(tmp_path / "one", GENERATORS, schema, KWARGS)
    monkeypatch.setattr(multiprocessing, "get_context", lambda real=multiprocessing.get_context: real(method))
    generate_datasetdict_to_disk(tmp_path / "two", GENERATORS, schema, KWARGS, num_proc=2)
    assert files(tmp_path / "one") == files(tmp_path / "two")


def test_a_generator_without_ids_writes_what_it_gives(tmp_path, schema):
    generators = {"train": lambda: physics.generated([[1, 2, 3]])}
    generate_datasetdict_to_disk(tmp_path, generators, schema)
    assert init_datasetdict_from_disk(tmp_path)["train"].ids.tolist() == [0, 1, 2]


def test_other_arguments_reach_the_generator(tmp_path, schema):
    def shifted(shards_ids, shift):
        yield from physics.generated([[number + shift for number in ids] for ids in shards_ids])

    generate_datasetdict_to_disk(tmp_path, {"train": shifted}, schema, {"train": {"shards_ids": [[0]], "shift": 7}})
    found = init_datasetdict_from_disk(tmp_path)["train"][0][physics.GLOBAL]
    assert found.tolist() == [7 / 8]


def mark_process():
    os.environ[MARK] = "set"


def marked(shards_ids):
    for ids in shards_ids:
        for number in ids:
            assert os.environ[MARK] == "set"
            yield physics.make_sample(number)


def test_the_initializer_runs_in_each_process(tmp_path, schema):
    generate_datasetdict_to_disk(
        tmp_path, {"train": marked}, schema, KWARGS, num_proc=2, worker_initializer=mark_process
    )
    assert MARK not in os.environ
    assert len(init_datasetdict_from_disk(tmp_path)["train"]) == 5


def test_the_callback_is_told_of_each_sample(tmp_path, schema):
    seen = []
    get_backend("webdataset").generate_to_disk(tmp_path, GENERATORS, schema, KWARGS, sample_callback=seen.append)
    assert [(each.split_name, each.index) for each in seen] == [
        *(("train", at) for at in range(5)),
        *(("test", at) for at in range(3)),
    ]
    assert {each.path for each in seen} == {tmp_path / "data" / "train", tmp_path / "data" / "test"}
    assert seen[1].sample.get_global("Mach") == pytest.approx(1 / 8)


@pytest.mark.parametrize("processes", [1, 2])
def test_progress_is_shown_when_asked_for(tmp_path, schema, capsys, processes):
    generate_datasetdict_to_disk(tmp_path / "quiet", GENERATORS, schema, KWARGS, num_proc=processes)
    assert capsys.readouterr().err == ""
    generate_datasetdict_to_disk(tmp_path / "told", GENERATORS, schema, KWARGS, num_proc=processes, verbose=True)
    shown = capsys.readouterr().err
    assert "Writing train split: 100%" in shown
    assert "3/3" in shown


def test_a_split_that_is_there_is_refused(tmp_path, schema):
    generate_datasetdict_to_disk(tmp_path, {"train": physics.generated}, schema, KWARGS)
    before = files(tmp_path)
    with pytest.raises(ObjectExistsError, match="Split 'train' already exists"):
        generate_datasetdict_to_disk(tmp_path, GENERATORS, schema, KWARGS)
    assert files(tmp_path) == before
    generate_datasetdict_to_disk(tmp_path, {"test": physics.generated}, schema, KWARGS)
    assert list(init_datasetdict_from_disk(tmp_path)) == ["train", "test"]


@pytest.mark.parametrize("name", ["", "..", "a/b", ".hidden"])
def test_a_split_that_is_no_folder_is_refused(tmp_path, name):
    with pytest.raises(UnsafeNameError, match="a split names a folder"):
        generate_datasetdict_to_disk(tmp_path, {name: physics.generated}, {})


def test_processes_need_ids_and_a_generator_they_can_find(tmp_path, schema):
    with pytest.raises(OptionError, match=r"gen_kwargs\['train'\]\['shards_ids'\]"):
        generate_datasetdict_to_disk(tmp_path, GENERATORS, schema, num_proc=2)
    with pytest.raises(OptionError, match="cannot be sent to other processes"):
        generate_datasetdict_to_disk(tmp_path, {"train": lambda ids: iter(())}, schema, KWARGS, num_proc=2)
    with pytest.raises(OptionError, match="variable_schema"):
        get_backend("webdataset").generate_to_disk(tmp_path, GENERATORS)
    assert files(tmp_path) == {}


def too_few(shards_ids):
    yield from list(physics.generated(shards_ids))[1:]


def ending(shards_ids):
    os._exit(3)


@pytest.mark.parametrize("generator, message", [(too_few, "another number of samples"), (ending, "a process ended")])
def test_a_process_that_fails_leaves_nothing(tmp_path, schema, generator, message):
    with pytest.raises(WriteError, match=message):
        generate_datasetdict_to_disk(tmp_path, {"train": generator}, schema, KWARGS, num_proc=2)
    assert files(tmp_path) == {}


def test_a_generator_that_fails_leaves_nothing(tmp_path, schema):
    def failing(shards_ids):
        yield from list(physics.generated(shards_ids))[:3]
        raise RuntimeError("the solver diverged")

    with pytest.raises(RuntimeError, match="diverged"):
        generate_datasetdict_to_disk(tmp_path, {"train": failing}, schema, KWARGS)
    assert files(tmp_path) == {}


def test_python_objects_are_refused(tmp_path):
    with pytest.raises(UnsafeCodecError, match=r"Python objects.*sample_000000000.*0000_x\.npy"):
        stored(tmp_path, [{"Global/x": np.array([{}, None], object)}])
    assert list(tmp_path.iterdir()) == []


def test_without_plaid_the_import_says_what_to_install():
    code = "import sys; sys.modules['plaid'] = None\nimport shoal.plaid"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2]
    )
    assert MissingExtraError.__name__ in done.stderr
    assert "pip install 'shoal[plaid]'" in done.stderr


LARGE = 20_000
"""Numbers in an array that is large enough to be left out of PLAID's first pass."""
IDS = {"train": [0, 1, 2, 3], "test": [10, 11], "one": [20]}


def make_sample(number):
    """Fields of every kind: the same in all samples, in a split, in some of them, in none."""
    rng = np.random.default_rng(number)
    sample = physics.make_sample(number)
    if number == 3:  # several times
        sample.add_global("late", rng.random(LARGE), time=1.0)
    sample.add_global("varies", rng.random(LARGE, np.float32))
    sample.add_global("same", np.arange(LARGE))
    sample.add_global("same in a split", np.full(LARGE, number // 10, np.float32))
    sample.add_global("changes late", np.full(LARGE, number > 1, np.int32))
    sample.add_global("table", rng.random((3, LARGE)))
    sample.add_global("long text", "abc" * LARGE)
    if number % 2:
        sample.add_global("sometimes", np.ones(LARGE))
    if number < 2:
        sample.add_global("grows", np.zeros(1 if number == 0 else LARGE, np.float32))
    return sample


def wide(number):
    """A large field in each sample."""
    sample = physics.bare_sample()
    sample.add_global("varies", np.random.default_rng(number).random(LARGE))
    return sample


def files_of(folder):
    return {
        path.relative_to(folder): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.mark.parametrize("processes", [1, 2])
def test_the_files_are_those_that_plaid_saves(tmp_path, processes):
    pb_defs = {"problem": physics.problem()}
    options = {"infos": physics.infos(), "pb_defs": pb_defs, "num_proc": processes}
    plaid.storage.save_to_disk(tmp_path / "theirs", make_sample, IDS, backend="webdataset", **options)
    shoal.plaid.save_to_disk(tmp_path / "ours", make_sample, IDS, **options)
    assert files_of(tmp_path / "ours") == files_of(tmp_path / "theirs") != {}


def test_an_array_that_is_known_to_vary_is_not_hashed_again(tmp_path, monkeypatch):
    hashed = []
    monkeypatch.setattr("hashlib.sha256", lambda data, made=hashlib.sha256: hashed.append(len(data)) or made(data))
    ids = {"train": range(10)}
    shoal.plaid.save_to_disk(tmp_path / "ours", wide, ids, physics.infos())
    few = sum(size > LARGE for size in hashed)
    plaid.storage.save_to_disk(tmp_path / "theirs", wide, ids, physics.infos(), "webdataset")
    assert few <= 2
    assert sum(size > LARGE for size in hashed) - few >= 10


def test_the_samples_are_whole(tmp_path):
    shoal.plaid.save_to_disk(tmp_path / "saved", make_sample, IDS, physics.infos())
    datasets, converters = plaid.storage.init_from_disk(tmp_path / "saved")
    for place, number in enumerate(IDS["train"][:3]):  # PLAID cannot load the last one, which has no base later
        found = converters["train"].to_plaid(datasets["train"], place)
        expected = make_sample(number)
        for name in ("varies", "same", "changes late", "table"):
            assert np.array_equal(found.get_global(name), expected.get_global(name))


def test_other_backends_are_left_to_plaid(tmp_path):
    shoal.plaid.save_to_disk(tmp_path / "saved", make_sample, {"train": [0, 1]}, physics.infos(), "zarr")
    datasets, converters = plaid.storage.init_from_disk(tmp_path / "saved")
    found = converters["train"].to_plaid(datasets["train"], 1).get_global("varies")
    assert np.array_equal(found, make_sample(1).get_global("varies"))


def test_what_plaid_refuses_is_refused(tmp_path):
    with pytest.raises(TypeError, match="sliceable"):
        shoal.plaid.save_to_disk(tmp_path / "saved", make_sample, {"train": iter([1])})
    with pytest.raises(AssertionError, match="not among available"):
        shoal.plaid.save_to_disk(tmp_path / "saved", make_sample, {"train": [1]}, backend="tape")
