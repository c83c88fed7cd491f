"""Each rule about other readers: a tar that breaks it, that verify says so, and what the reader really does with it."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterable
from pathlib import Path

import pytest

import shoal
from shoal.build import READERS, verify


def tar(path: Path, names: Iterable[str], data: bytes = b"7", **options) -> Path:
    """A tar with members of these names, as GNU tar would write it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w", **({"format": tarfile.USTAR_FORMAT} | options)) as archive:
        for name in names:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path


def broken(path: Path) -> set[str]:
    return {each.rule for each in verify(path).findings if each.rule not in ("no-index", "note")}


def by_webdataset(path: Path) -> list[dict]:
    import webdataset

    return [
        {name: value for name, value in sample.items() if name not in ("__url__", "__local_path__")}
        for sample in webdataset.WebDataset(str(path), shardshuffle=False, empty_check=False)
    ]


def by_huggingface(path: Path, tmp_path: Path) -> list[dict]:
    import datasets

    found = datasets.load_dataset(
        "webdataset", data_files={"train": str(path)}, split="train", cache_dir=str(tmp_path / "hf")
    )
    return [
        {name: value for name, value in sample.items() if name != "__url__" and value is not None} for sample in found
    ]


def keys(samples: list[dict]) -> list[str]:
    return [sample["__key__"] for sample in samples]


def test_a_plain_tar_breaks_no_rule_and_is_read_alike_by_all(tmp_path, leaky_peer):
    path = tar(tmp_path / "a.tar", ["a.cls", "a.txt", "b.cls", "b.txt"])
    assert broken(path) == set()
    assert keys(by_webdataset(path)) == keys(by_huggingface(path, tmp_path)) == ["a", "b"]


def test_names_without_a_field_are_dropped_by_all(tmp_path, leaky_peer):
    path = tar(tmp_path / "a.tar", ["a.txt", "README", "b.txt"])
    assert broken(path) == {"dropped-name"}
    assert keys(by_webdataset(path)) == keys(by_huggingface(path, tmp_path)) == ["a", "b"]


def test_what_macos_leaves_in_a_tar(tmp_path, leaky_peer):
    path = tar(tmp_path / "a.tar", ["d/._a.txt", "d/a.txt"])
    assert broken(path) >= {"dotfile"}
    assert keys(by_webdataset(path)) == ["d/", "d/a"]  # a sample that nobody wrote
    assert keys(by_huggingface(path, tmp_path)) == ["d/a"]


def test_names_with_two_underscores(tmp_path, leaky_peer):
    path = tar(tmp_path / "a.tar", ["__a.txt", "b.txt"])
    assert broken(path) == {"dunder-name"}
    assert keys(by_webdataset(path)) == ["__a", "b"]
    assert keys(by_huggingface(path, tmp_path)) == ["b"]
    reserved = tar(tmp_path / "b.tar", ["__meta__/x.txt", "b.txt"])
    assert broken(reserved) == set()
    assert keys(by_webdataset(reserved)) == ["b"]


def test_extensions_in_capitals(tmp_path, leaky_peer):
    path = tar(tmp_path / "a.tar", ["a.TXT", "b.TXT"])
    assert broken(path) == {"case"}
    assert "txt" in by_webdataset(path)[0]
    assert "TXT" in by_huggingface(path, tmp_path)[0]


def test_a_key_that_comes_back(tmp_path, leaky_peer):
    path = tar(tmp_path / "a.tar", ["a.txt", "b.txt", "a.cls"])
    assert broken(path) >= {"key-comes-back"}
    assert keys(by_webdataset(path)) == ["a", "b", "a"]


def test_a_sample_in_two_shards(tmp_path, leaky_peer):
    tar(tmp_path / "d" / "a.tar", ["a.txt", "b.txt"])
    tar(tmp_path / "d" / "b.tar", ["b.cls", "c.cls"])
    assert broken(tmp_path / "d") >= {"split-sample", "key-twice", "mixed-fields"}
    both = [*by_webdataset(tmp_path / "d" / "a.tar"), *by_webdataset(tmp_path / "d" / "b.tar")]
    assert keys(both) == ["a", "b", "b", "c"]


def test_huggingface_fails_when_its_first_samples_differ(tmp_path, leaky_peer):
    from datasets.exceptions import DatasetGenerationError

    path = tar(tmp_path / "a.tar", ["a.txt", "b.txt", "b.cls", "c.txt"])
    assert broken(path) == {"mixed-fields", "hf-first-samples"}
    with pytest.raises((ValueError, DatasetGenerationError)):
        by_huggingface(path, tmp_path)


def test_huggingface_drops_a_field_that_comes_late(tmp_path, leaky_peer):
    names = [f"{number}.txt" for number in range(6)]
    path = tar(tmp_path / "a.tar", [*names, "6.cls", "6.txt"])
    assert broken(path) == {"mixed-fields", "hf-late-field"}
    assert by_webdataset(path)[-1].keys() == {"__key__", "cls", "txt"}
    assert by_huggingface(path, tmp_path)[-1].keys() == {"__key__", "txt"}


def test_huggingface_takes_a_field_that_is_missing_later(tmp_path, leaky_peer):
    names = [f"{number}.{end}" for number in range(6) for end in ("cls", "txt")]
    path = tar(tmp_path / "a.tar", [*names, "6.txt"])
    assert broken(path) == {"mixed-fields"}
    assert len(by_huggingface(path, tmp_path)) == 7


def test_keys_with_dots_make_fields(tmp_path, leaky_peer):
    path = tar(tmp_path / "a.tar", [f"v1.{number:03d}.txt" for number in range(60)])
    assert broken(path) >= {"fields-like-keys"}
    assert keys(by_webdataset(path)) == ["v1"]


def test_zstd_is_not_read_by_webdataset(tmp_path, leaky_peer):
    with shoal.ShardWriter(tmp_path / "d" / "a.tar", compression="zstd") as writer:
        writer.write({"__key__": "a", "txt": "x"})
    assert broken(tmp_path / "d") == {"zstd"}
    with pytest.raises(tarfile.ReadError):
        by_webdataset(tmp_path / "d" / "a.tar")


def test_pickles_are_run_by_webdataset_and_not_by_huggingface(tmp_path, leaky_peer):
    import pickle

    import webdataset

    path = tar(tmp_path / "a.tar", ["a.pyd"], pickle.dumps({"x": 1}))
    assert broken(path) == {"pickle"}
    assert next(iter(webdataset.WebDataset(str(path), shardshuffle=False).decode()))["pyd"] == {"x": 1}
    assert by_huggingface(path, tmp_path)[0]["pyd"] == pickle.dumps({"x": 1})


def test_headers_of_their_own(tmp_path, leaky_peer):
    import webdataset

    with webdataset.TarWriter(str(tmp_path / "a.tar")) as writer:
        writer.write({"__key__": "a", "txt": "x"})
    assert broken(tmp_path / "a.tar") == {"extended-header"}
    with webdataset.TarWriter(str(tmp_path / "b.tar"), mtime=0) as writer:
        writer.write({"__key__": "a", "txt": "x"})
    assert broken(tmp_path / "b.tar") == set()


def test_files_beside_the_tars_change_what_huggingface_sees(tmp_path, leaky_peer):
    from datasets.data_files import DataFilesDict, get_data_patterns
    from datasets.load import infer_module_for_data_files

    def taken_for(folder: Path) -> str | None:
        patterns = get_data_patterns(str(folder))
        files = DataFilesDict.from_patterns(patterns, base_path=str(folder))
        return infer_module_for_data_files(files)[0]

    folder = tmp_path / "d"
    tar(folder / "train-0.tar", ["a.txt"])
    assert broken(folder) == set()
    assert taken_for(folder) == "webdataset"
    (folder / "train-0.json").write_text("{}")
    assert broken(folder) == {"hf-neighbours"}
    assert taken_for(folder) == "json"
    (folder / "train-0.json").rename(folder / ".train-0.json")
    assert broken(folder) == set()
    assert taken_for(folder) == "webdataset"
    (folder / "train-0.tar.idx").write_text("v1.2 0")
    assert broken(folder) == {"hf-neighbours"}


def test_what_dali_cannot_index(tmp_path):
    path = tar(tmp_path / "a.tar", ["a b.txt"])
    assert broken(path) == {"space-in-name"}
    from shoal.errors import WriteError
    from shoal.shard import export_dali_idx, index_shard
    from shoal.store import store_for

    reader = store_for(str(path)).open(str(path))
    with pytest.raises(WriteError):
        export_dali_idx(index_shard(reader), str(tmp_path / "a.idx"))
    reader.close()


def test_an_empty_shard(tmp_path):
    tar(tmp_path / "d" / "a.tar", ["a.txt"])
    tar(tmp_path / "d" / "b.tar", [])
    assert broken(tmp_path / "d") == {"empty-shard"}


def test_names_that_start_with_a_dot_and_a_slash(tmp_path, leaky_peer):
    path = tar(tmp_path / "a.tar", ["./a.txt", "./b.txt"])
    assert broken(path) == {"dot-folder"}
    assert keys(by_webdataset(path)) == ["./a", "./b"]


def test_what_shoal_writes_breaks_no_rule_of_any_reader(tmp_path):
    with shoal.ShardWriter(tmp_path / "train-%06d.tar", max_samples=10) as writer:
        for number in range(35):
            writer.write({"__key__": f"folder/{number:05d}", "jpg": b"x", "seg.png": b"y", "json": {"a": 1}})
    assert verify(tmp_path, readers=READERS).findings == ()
