"""Samples by number and feature: only what is asked for, checked, from any tar that holds PLAID samples."""

from __future__ import annotations

import multiprocessing
import pickle
import shutil
import tarfile
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import psutil
import pytest
from plaid.storage import init_from_disk
from tests.plaid import physics
from tests.plaid.physics import FIELD, GLOBAL, SPEED

import shoal
from shoal.errors import (
    ChecksumError,
    DecodeError,
    FieldError,
    FormatError,
    ManifestError,
    ObjectNotFoundError,
    OptionError,
    PositionError,
    ShoalError,
    StaleIndexError,
    TarError,
)
from shoal.plaid import (
    WebDatasetDict,
    WebDatasetWrapper,
    init_datasetdict_from_disk,
    sample_to_var_sample_dict,
    to_var_sample_dict,
)
from shoal.plaid._arrays import read_indexed
from shoal.plaid._layout import encode_record


@pytest.fixture
def splits(dataset_folder):
    return init_datasetdict_from_disk(dataset_folder)


@pytest.fixture
def copied(dataset_folder, tmp_path):
    """The dataset where it may be damaged."""
    return shutil.copytree(dataset_folder, tmp_path / "copy")


def tar_of(path, samples, key="sample_{:09d}"):
    """One tar of samples, given as mappings from field to value."""
    with shoal.ShardWriter(path.parent / f"{path.stem}-%06d.tar", append=True) as writer:
        for number, sample in enumerate(samples):
            writer.write({"__key__": key.format(number), **sample})
    path.parent.mkdir(exist_ok=True)
    (path.parent / f"{path.stem}-000000.tar").rename(path)
    return path


def test_samples_by_number_and_in_order(splits):
    train = splits["train"]
    assert isinstance(train.ids, np.ndarray)
    assert (len(train), train.ids.tolist()) == (5, [0, 1, 2, 3, 4])
    assert [sample[GLOBAL][0] * 8 for sample in train] == [0, 1, 2, 3, 4]
    assert train[np.int64(3)][GLOBAL] * 8 == 3
    assert repr(train) == f"<WebDatasetWrapper {train.path}: 5 shards>"
    for wrong in (5, -1):
        with pytest.raises(PositionError, match=f"no sample has this number: expected 5 of 0 to 4, found {wrong}"):
            train[wrong]
    with pytest.raises(TypeError):
        train["0"]


def test_a_missing_split_is_named(splits, tmp_path):
    with pytest.raises(FieldError, match="no such split: expected train or test, found validation"):
        splits["validation"]
    with pytest.raises(ObjectNotFoundError, match="no PLAID dataset of tars"):
        init_datasetdict_from_disk(tmp_path)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = splits.nothing
    with pytest.raises(AttributeError, match="cannot be changed"):
        splits.path = "elsewhere"
    assert repr(WebDatasetDict("x", {})) == "<WebDatasetDict x: no splits>"


def test_a_cached_split_no_longer_needs_its_files(copied):
    tars = sorted((copied / "data" / "train").iterdir())
    cached, plain = WebDatasetWrapper(tars, cache=True), list(init_datasetdict_from_disk(copied)["train"])
    shutil.rmtree(copied)
    for found, sample in zip(cached, plain, strict=True):
        physics.same_values(found, sample)
    physics.same_values(cached.read(1, [SPEED], {SPEED: [0]}), {SPEED: plain[1][SPEED][:1]})


def test_a_split_can_be_sent_to_another_process(splits):
    sent = pickle.loads(pickle.dumps(splits["train"]))
    for found, sample in zip(sent, splits["train"], strict=True):
        physics.same_values(found, sample)
    assert repr(sent) == repr(splits["train"])


def test_threads_share_a_split(dataset_folder, splits):
    shared = init_datasetdict_from_disk(dataset_folder)["train"]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(shared.__getitem__, [0, 1, 2, 3, 4] * 20))
    for number, sample in enumerate(found):
        physics.same_values(sample, splits["train"][number % 5])


def test_files_close_with_their_split(dataset_folder):
    before = psutil.Process().num_fds()
    splits = init_datasetdict_from_disk(dataset_folder)
    samples = list(splits["train"])
    del splits
    assert psutil.Process().num_fds() == before
    assert len(samples) == 5


def test_only_the_bytes_that_are_asked_for_are_looked_at(copied):
    split = init_datasetdict_from_disk(copied)["train"]
    damage(copied, split, 1, SPEED)
    split = init_datasetdict_from_disk(copied)["train"]
    assert list(split.read(1, [FIELD, GLOBAL])) == [FIELD, GLOBAL]
    with pytest.raises(ChecksumError, match=r"sample_000000001.*VertexFields/speed"):
        split.read(1, [SPEED])


@pytest.mark.parametrize("indexer", [slice(2, 9, 3), [4, 0, -1, 4], np.array([1]), slice(None), [], None])
def test_an_indexer_picks_along_the_last_axis(splits, indexer):
    whole = splits["train"][1][SPEED]
    found = to_var_sample_dict(splits["train"], 1, [SPEED], {SPEED: indexer})
    expected = whole if indexer is None else whole[indexer if isinstance(indexer, slice) else np.array(indexer, int)]
    physics.same_values(found, {SPEED: expected})
    physics.same_values(to_var_sample_dict({SPEED: whole}, 1, [SPEED], {SPEED: indexer}), {SPEED: expected})
    assert to_var_sample_dict(splits["train"], 0, [FIELD], {FIELD: indexer}) == {FIELD: None}


def test_an_indexer_that_does_not_fit_is_refused(splits):
    train = splits["train"]
    with pytest.raises(PositionError, match="out of bounds: expected -17 to 16, found 0 to 17"):
        train.read(1, [SPEED], {SPEED: [0, 17]})
    with pytest.raises(OptionError, match="a slice or a list of positions"):
        train.read(1, [SPEED], {SPEED: [[0]]})
    with pytest.raises(OptionError, match="nothing to pick from"):
        to_var_sample_dict({"x": np.array(3)}, 0, None, {"x": [0]})
    with pytest.raises(FieldError, match="no such variable feature"):
        to_var_sample_dict({"x": np.array(3)}, 0, ["y"])


@pytest.mark.parametrize("shape", [(100_000,), (3, 50_000), (2, 2, 20_000), (100, 5000)])
@pytest.mark.parametrize("order", ["C", "F"])
def test_parts_of_a_far_array_are_those_of_a_near_one(shape, order):
    array = np.asarray(np.random.default_rng(0).random(shape), order=order)
    data = shoal.codec.encode_npy(array)
    for indexer in (slice(100, 200), [0, 17, shape[-1] - 1, 17, -2], slice(None, None, 997), []):
        reads = []

        def read(start, stop, reads=reads):
            reads.append(min(stop, len(data)) - start)
            return data[start:stop]

        found = read_indexed(read, len(data), indexer, "x")
        np.testing.assert_array_equal(
            found, array[..., indexer if isinstance(indexer, slice) else np.array(indexer, int)]
        )
        if order == "C" and isinstance(indexer, slice) and indexer.step is None and array.shape[0] != 100:
            assert sum(reads) < 0.1 * len(data)


def test_a_far_array_that_is_none_is_said_to_be_damaged():
    with pytest.raises(DecodeError, match="header is damaged"):
        read_indexed(lambda start, stop: bytes(stop - start), 10_000, [0], "x")
    objects = (
        b"\x93NUMPY\x01\x00\x76\x00" + b"{'descr': '|O', 'fortran_order': False, 'shape': (9,), }".ljust(117) + b"\n"
    )
    with pytest.raises(DecodeError, match="Python objects"):
        read_indexed(lambda start, stop: objects[start:stop], 10_000, [0], "x")


def test_one_tar_a_split_without_any_index(dataset_folder, tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    for split in ("train", "test"):
        with tarfile.open(data / f"{split}.tar", "w") as joined:
            for shard in sorted((dataset_folder / "data" / split).iterdir()):
                with tarfile.open(shard) as tar:
                    for member in tar:
                        joined.addfile(member, tar.extractfile(member))
    found, expected = init_datasetdict_from_disk(tmp_path), init_datasetdict_from_disk(dataset_folder)
    assert sorted(found) == ["test", "train"]
    for name, split in expected.items():
        assert found[name].features == split.features
        for ours, theirs in zip(found[name], split, strict=True):
            physics.same_values(ours, theirs)


def test_plaid_loads_a_dataset_whose_manifest_is_lost(copied):
    shutil.rmtree(copied / ".shoal")
    datasets, converters = init_from_disk(copied)
    assert converters["test"].to_plaid(datasets["test"], 1).get_global("Mach") == pytest.approx(11 / 8)


def test_features_named_by_their_members(tmp_path):
    with tarfile.open(tmp_path / "old.tar", "w") as tar:
        for number in (3, 5):
            np.save(tmp_path / "x.npy", np.array([number]))
            tar.add(tmp_path / "x.npy", f"sample_{number:09d}.Global__Mach.npy")
    split = WebDatasetWrapper(tmp_path / "old.tar")
    assert split.ids.tolist() == [3, 5]
    physics.same_values(split[5], {"Global/Mach": np.array([5])})
    assert split.path == tmp_path / "old.tar"


def test_a_sample_as_webdataset_gives_it(splits, leaky_peer):
    import webdataset

    urls = [str(path) for path in splits.split_tar_paths["train"]]
    for pipeline in (
        webdataset.WebDataset(urls, shardshuffle=False),
        webdataset.WebDataset(urls, shardshuffle=False).decode(),
    ):
        for raw, expected in zip(pipeline, splits["train"], strict=True):
            physics.same_values(sample_to_var_sample_dict(raw), expected)
    named = {"__key__": "a", "Global__x.npy": shoal.codec.encode_npy(np.ones(2))}
    physics.same_values(sample_to_var_sample_dict(named), {"Global/x": np.ones(2)})


def test_a_pipeline_reads_local_files_only():
    with pytest.raises(OptionError, match="iterate over the split"):
        _ = WebDatasetWrapper("memory://plaid/x.tar").wds_pipeline


def test_huggingface_datasets_reads_the_tars(splits, tmp_path, leaky_peer):
    import datasets

    files = [str(path) for path in splits.split_tar_paths["train"]]
    theirs = datasets.load_dataset(
        "webdataset", data_files=files, split="train", streaming=True, cache_dir=str(tmp_path)
    )
    for raw, expected in zip(theirs, splits["train"], strict=True):
        record = dict(raw["json"]["features"])
        field = next(field for field, path in record.items() if path == SPEED)
        np.testing.assert_array_equal(np.asarray(raw[field], np.float32), expected[SPEED])


def damage(folder, split, number, path):
    """Change one byte of an array, and nothing else."""
    tar = folder / "data" / "train" / f"shard-{number:06d}.tar"
    data = bytearray(tar.read_bytes())
    at = data.index(split[number][path].tobytes())
    data[at + 1] ^= 0xFF
    del split
    tar.write_bytes(data)


def test_a_changed_byte_is_found(copied):
    damage(copied, init_datasetdict_from_disk(copied)["train"], 2, GLOBAL)
    with pytest.raises(ChecksumError, match=r"changed after they were written.*sample_000000002.*Global/Mach"):
        list(init_datasetdict_from_disk(copied)["train"])


def test_a_file_that_is_no_tar_is_refused(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "train.tar").write_bytes(b"this is no tar at all. " * 100)
    split = init_datasetdict_from_disk(tmp_path)["train"]
    with pytest.raises(TarError, match=r"train\.tar"):
        len(split)


def test_a_tar_that_was_cut_is_refused(copied):
    tar = copied / "data" / "train" / "shard-000000.tar"
    tar.write_bytes(tar.read_bytes()[:2000])
    with pytest.raises(StaleIndexError, match="changed after it was indexed"):
        init_datasetdict_from_disk(copied)["train"][0]
    shutil.rmtree(copied / ".shoal")
    with pytest.raises(TarError, match=r"shard-000000\.tar"):
        init_datasetdict_from_disk(copied)["train"][0]


def test_a_tar_that_is_gone_is_named(copied):
    (copied / "data" / "train" / "shard-000003.tar").unlink()
    split = init_datasetdict_from_disk(copied)["train"]
    assert split[2] is not None
    with pytest.raises(ObjectNotFoundError, match=r"shard-000003\.tar"):
        split[3]


def test_a_manifest_of_something_else_is_refused(copied):
    manifest = copied / ".shoal" / "manifest.json"
    manifest.write_text(
        manifest.read_text().replace('"samples": 5,\n    "features"', '"samples": "five",\n    "features"')
    )
    with pytest.raises(ManifestError, match="not the manifest of a PLAID dataset"):
        init_datasetdict_from_disk(copied)


def record(number, none=()):
    return encode_record(number, {"Global/a": "0000_a.npy", "Global/b": "0001_b.npy"}, none)


@pytest.mark.parametrize(
    "sample, kind, message",
    [
        ({"json": record(0, ["Global/b"])}, TarError, "a member is missing.*0000_a.npy.*sample_000000000.*Global/a"),
        ({"json": b"{}", "0000_a.npy": np.ones(1)}, DecodeError, "not the record of a PLAID sample"),
        (
            {"json": record(0), "0000_a.npy": b"not an array", "0001_b.npy": np.ones(1)},
            DecodeError,
            "npy header is too long",
        ),
        ({"json": record(0, ["Global/a"]), "0001_b.npy": b""}, DecodeError, "too few"),
    ],
)
def test_a_sample_that_does_not_fit_its_record_is_refused(tmp_path, sample, kind, message, leaky_peer):
    tar = tar_of(tmp_path / "x.tar", [sample])
    with pytest.raises(kind, match=message):
        WebDatasetWrapper(tar)[0]
    with pytest.raises(kind, match=message.partition(".*")[0]):
        list(WebDatasetWrapper(tar).wds_pipeline)


def test_a_decoded_sample_that_has_no_record_is_refused():
    with pytest.raises(DecodeError, match="not the record of a PLAID sample"):
        sample_to_var_sample_dict({"__key__": "a", "json": [1]})


def test_keys_that_are_no_numbers_are_refused(tmp_path):
    with pytest.raises(FormatError, match="keys like sample_000000000, found cat-0"):
        len(WebDatasetWrapper(tar_of(tmp_path / "x.tar", [{"a.npy": np.ones(1)}], "cat-{}")))


def test_a_number_that_comes_twice_is_refused(tmp_path):
    tars = [tar_of(tmp_path / f"{name}.tar", [{"a.npy": np.ones(1)}]) for name in "xy"]
    with pytest.raises(FormatError, match="two samples have the same number: found 0"):
        len(WebDatasetWrapper(tars))


def test_a_sample_without_a_record_among_others_is_refused(tmp_path):
    samples = [{"json": record(0, ["Global/b"]), "0000_a.npy": np.ones(1)}, {"0000_a.npy": np.ones(1)}]
    with pytest.raises(ShoalError, match=r"a sample has no record.*sample_000000001"):
        WebDatasetWrapper(tar_of(tmp_path / "x.tar", samples))[1]


def test_a_split_elsewhere_gives_the_same(dataset_folder, splits):
    for path in sorted(dataset_folder.rglob("*")):
        if path.is_file():
            url = f"memory://plaid-elsewhere/{path.relative_to(dataset_folder)}"
            shoal.store.store_for(url).write_all(url, path.read_bytes())
    from shoal.plaid._reader import splits_at

    found = splits_at("memory://plaid-elsewhere")
    for name, split in splits.items():
        far = found[name].opened()
        for number, (ours, theirs) in enumerate(zip(far, split, strict=True)):
            physics.same_values(ours, theirs)
            physics.same_values(far.read(number, [SPEED], {SPEED: [1, 0]}), {SPEED: theirs[SPEED][[1, 0]]})
            assert (far.read(number, [FIELD], {FIELD: [0]})[FIELD] is None) == (theirs[FIELD] is None)


@pytest.fixture
def split(dataset_folder):
    return init_datasetdict_from_disk(dataset_folder)["train"]


def in_child(split, numbers, found):
    found.put([float(np.sum(split[number][SPEED])) for number in numbers])


def test_a_forked_process_goes_on_by_itself(split):
    split[0], split[1]
    context = multiprocessing.get_context("fork")
    found = context.SimpleQueue()
    child = context.Process(target=in_child, args=(split, [2, 3, 4], found))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # that a process with threads forks is the point
        child.start()
    child.join(60)
    assert child.exitcode == 0
    assert found.get() == [float(np.sum(split[number][SPEED])) for number in (2, 3, 4)]
