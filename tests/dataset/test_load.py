"""load_dataset: what a path stands for, and which splits it has."""

import gzip
import shutil
from pathlib import Path

import pytest

import shoal
from shoal import Dataset, DatasetDict, ShardWriter, load_dataset
from shoal.errors import FieldError, FormatError, ObjectNotFoundError, OptionError
from shoal.formats import _registry as registry_module
from shoal.formats import register_format

COUNTS = {"train": 7, "val": 3, "test": 5}


SPLITS = {"train": 7, "validation": 3, "test": 5}


def fill(root, names=COUNTS):
    """One shard a name, its samples called after it."""
    for name, count in names.items():
        with ShardWriter(f"{root}/{name}-%06d.tar", max_samples=4) as writer:
            for number in range(count):
                writer.write({"__key__": f"{name}{number}", "txt": f"{name} {number}", "json": {"width": number}})


@pytest.fixture
def folder(tmp_path):
    fill(tmp_path / "pets")
    return tmp_path / "pets"


@pytest.fixture
def bare(folder):
    """The same without what shoal keeps beside the tars."""
    shutil.rmtree(folder / ".shoal")
    return folder


def put(path, source):
    path.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(source, path)


@pytest.mark.parametrize("shown", [str, Path, "{}/".format, "file://{}".format, "{}/.shoal/manifest.json".format])
def test_a_folder_with_a_manifest(folder, shown):
    splits = load_dataset(shown(folder))
    assert type(splits) is DatasetDict
    assert splits.num_samples == SPLITS
    assert splits.num_shards == {"train": 2, "validation": 1, "test": 2}
    assert splits["test"][0]["txt"] == "test 0"


def test_a_manifest_keeps_what_it_says(tmp_path):
    with ShardWriter(tmp_path / "a-%06d.tar", split="gold", metadata={"name": "pets"}) as writer:
        writer.write({"__key__": "a", "txt": "x"})
    put(tmp_path / "stray-test.tar", tmp_path / "a-000000.tar")
    splits = load_dataset(tmp_path)
    assert list(splits) == ["gold"]
    assert splits["gold"].metadata == {"name": "pets"}
    assert load_dataset(tmp_path, split="gold").metadata == {"name": "pets"}


def test_a_folder_without_a_manifest_is_split_by_names(bare):
    assert load_dataset(bare).num_samples == SPLITS
    assert load_dataset(bare, split="validation").keys() == ["val0", "val1", "val2"]


def test_a_folder_for_each_split(bare, tmp_path):
    put(tmp_path / "by/train/0.tar", bare / "train-000000.tar")
    put(tmp_path / "by/test/deep/0.tar", bare / "test-000000.tar")
    put(tmp_path / "by/dev/0.tar", bare / "val-000000.tar")
    assert load_dataset(tmp_path / "by").num_samples == {"validation": 3, "test": 4, "train": 4}
    assert Dataset(tmp_path / "by", split="test").keys() == load_dataset(tmp_path / "by", split="test").keys()


def test_names_without_a_split_word_are_train_whatever_the_folders_above(bare, tmp_path):
    root = tmp_path / "test_of_validation"
    for number in range(2):
        put(root / f"data-{number:06d}.tar", bare / f"train-{number:06d}.tar")
    pattern = f"{root}/data-{{000000..000001}}.tar"
    for path in (root, pattern, f"{root}/*.tar", [root / "data-000000.tar", root / "data-000001.tar"]):
        assert load_dataset(path).num_samples == {"train": 7}
    assert len(load_dataset(pattern, split="train")) == 7


def test_a_folder_called_after_a_split_counts(bare, tmp_path):
    put(tmp_path / "test/0.tar", bare / "test-000000.tar")
    for path in (tmp_path / "test", tmp_path / "test" / "0.tar", f"{tmp_path}/test/*.tar"):
        assert list(load_dataset(path)) == ["test"]


def test_the_current_folder(bare, tmp_path, monkeypatch):
    monkeypatch.chdir(bare)
    for path in (".", "*.tar", "./*.tar"):
        assert load_dataset(path).num_samples == {"test": 5, "train": 7, "validation": 3}
    assert load_dataset("test-000000.tar").num_samples == {"test": 4}


@pytest.mark.parametrize(
    "pattern, counts",
    [
        ("{}/train-000001.tar", {"train": 3}),
        ("{}/{{val,test}}-*.tar", {"validation": 3, "test": 5}),
        ("{}/t*-000000.tar", {"test": 4, "train": 4}),
        ("{0}/val-000000.tar::{0}/train-000000.tar", {"validation": 3, "train": 4}),
    ],
)
def test_files_and_patterns(bare, pattern, counts):
    assert load_dataset(pattern.format(bare)).num_samples == counts


def test_lists_of_files_patterns_and_folders(bare, tmp_path):
    fill(tmp_path / "more", {"test": 2})
    splits = load_dataset([bare / "val-000000.tar", f"{bare}/test-*.tar", tmp_path / "more"])
    assert splits.num_samples == {"validation": 3, "test": 7}


def test_urls():
    fill("memory://test_load/pets")
    assert load_dataset("memory://test_load/pets").num_samples == SPLITS
    assert len(load_dataset("memory://test_load/pets/test-{000000..000001}.tar", split="test")) == 5


def test_compressed_tars(bare):
    path = bare / "train-000000.tar"
    (bare / "eval.tar.gz").write_bytes(gzip.compress(path.read_bytes()))
    assert load_dataset(bare / "eval.tar.gz").num_samples == {"test": 4}


def test_options_and_types_reach_the_dataset(folder):
    @shoal.packable
    class Note:
        txt: str

    assert load_dataset(folder, split="test", decode=False)[0]["txt"] == b"test 0"
    assert load_dataset(folder, split="test", sample_type=Note)[1] == Note("test 1")
    splits = load_dataset(folder, sample_type=Note)
    assert splits.sample_type is Note
    assert splits["train"].head(1) == [Note("train 0")]
    assert load_dataset(folder).sample_type is None


def test_a_registered_format(tmp_path, monkeypatch):
    monkeypatch.setattr(registry_module, "_FORMATS", dict(registry_module._FORMATS))

    def open_lines(path, options):
        urls = [path] if isinstance(path, str) else list(path)
        raise FormatError("opened", found=" ".join(Path(url).name for url in urls))

    register_format("lines", [".lines"], open_lines)
    for name in ("a-train.lines", "sub/test.lines", ".hidden.lines", "readme.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    for options in ({}, {"format": "lines"}):
        splits = load_dataset(tmp_path, **options)
        assert list(splits) == ["train", "test"]
        with pytest.raises(FormatError, match=r"found test\.lines"):
            len(splits["test"])
    with pytest.raises(ObjectNotFoundError, match="no notes files"):
        load_dataset(tmp_path, format="notes")


@pytest.mark.parametrize("shown", [str, "file://{}".format])
@pytest.mark.parametrize(
    "files, counts",
    [
        ("test-*.tar", {"train": 5}),
        (["test-000000.tar", "val-*.tar"], {"train": 7}),
        ({"gold": "test-{000000..000001}.tar", "dev": ["val-000000.tar"]}, {"gold": 5, "dev": 3}),
        ({"train": "train-000000.tar::train-000001.tar"}, {"train": 7}),
        ({"all of it": "."}, {"all of it": 15}),
    ],
)
def test_data_files(bare, shown, files, counts):
    assert load_dataset(shown(bare), data_files=files).num_samples == counts


def test_data_files_may_be_elsewhere(bare, tmp_path):
    files = {"a": f"{bare}/val-*.tar", "b": f"file://{bare}/test-000000.tar", "c": bare / "train-000000.tar"}
    assert load_dataset(tmp_path / "nowhere", data_files=files).num_samples == {"a": 3, "b": 4, "c": 4}


def test_data_files_have_splits_of_their_own(folder):
    assert len(load_dataset(folder, data_files={"dev": "test-*.tar"}, split="validation")) == 5
    with pytest.raises(FieldError, match="expected gold, found train"):
        load_dataset(folder, data_files={"gold": "test-*.tar"}, split="train")


@pytest.mark.parametrize(
    "path, files, error",
    [
        ("{}", "none-*.tar", ObjectNotFoundError),
        ("{}", {"train": []}, ObjectNotFoundError),
        ("{}", {"train": "none.tar"}, ObjectNotFoundError),
        ("{}", {"train": 3}, OptionError),
        ("{}", {"train": {"a": "b"}}, OptionError),
        (["{}"], "test-*.tar", OptionError),
    ],
)
def test_data_files_that_make_no_sense(folder, path, files, error):
    path = path.format(folder) if isinstance(path, str) else path
    with pytest.raises(error):
        load_dataset(path, data_files=files)


def test_everything_but_the_path_is_by_keyword(folder):
    with pytest.raises(TypeError, match="write sample_type=DictSample"):
        load_dataset(folder, shoal.DictSample)
    with pytest.raises(TypeError, match="write split='train'"):
        load_dataset(folder, "train")


@pytest.mark.parametrize(
    "path, error",
    [
        ("nothing-here.tar", ObjectNotFoundError),
        ("nothing-here", ObjectNotFoundError),
        ("nothing-*.tar", ObjectNotFoundError),
        ([], ObjectNotFoundError),
        (None, OptionError),
        (3, OptionError),
        (b"data.tar", OptionError),
        ([1, 2], OptionError),
    ],
)
def test_a_path_that_leads_nowhere(tmp_path, monkeypatch, path, error):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error):
        load_dataset(path)


def test_options_that_make_no_sense(folder):
    with pytest.raises(OptionError, match="split is a text"):
        load_dataset(folder, split=3)
    with pytest.raises(OptionError, match="sample_type is a class"):
        load_dataset(folder, sample_type="Note")
    with pytest.raises(TypeError, match="streamed"):
        load_dataset(folder, streamed=True)


def opened(path):
    return open(path, "rb")
