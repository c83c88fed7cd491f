"""Samples by key, over many shards: the first that has it, whatever order keys are in."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import shoal
from shoal.errors import SampleKeyError
from shoal.shard import ShardSource, locate_shards
from shoal.shard._source import KeyFinder

KEYS = st.text(st.sampled_from("ab1é"), min_size=1, max_size=3)


def write(root, shards):
    for number, keys in enumerate(shards):
        with shoal.ShardWriter(f"{root}/part-{number}-%06d.tar") as writer:
            for key in keys:
                writer.write({"__key__": key, "txt": key})
    return shoal.Dataset(f"{root}/*.tar")


@given(st.lists(st.lists(KEYS, min_size=1, max_size=6, unique=True), min_size=1, max_size=4), KEYS)
@example([["a", "b"], ["1", "a"]], "a")
@example([["b", "a"], ["a", "b"]], "a")
@example([["a"], ["b"], ["1"]], "1")
def test_the_first_sample_with_a_key_is_found(tmp_path_factory, shards, wanted):
    dataset = write(tmp_path_factory.mktemp("keys"), shards)
    keys = [key for shard in shards for key in shard]
    for key in [*keys, wanted]:
        if key in keys:
            assert dataset.source.find(key) == keys.index(key)
            assert dataset.get(key)["txt"] == key
        else:
            with pytest.raises(SampleKeyError):
                dataset.get(key)


def test_shards_that_cannot_have_a_key_are_not_opened_again(tmp_path):
    dataset = write(tmp_path, [[f"{shard}{number}" for number in range(5)] for shard in range(4)])
    opened = []

    def shard_at(number):
        opened.append(number)
        return dataset.source.shard(number)

    finder = KeyFinder(shard_at, dataset.source.starts.tolist())
    assert finder.find("99") is None
    opened.clear()
    assert finder.find("22") == 12
    assert set(opened) == {2}


@pytest.mark.parametrize(
    "asked, hint",
    [
        ("42", "did you mean '000042'?"),
        ("0000042", "did you mean '000042'?"),
        ("000042.jpg", "did you mean '000042'?"),
        ("./000042.seg.png", "did you mean '000042'?"),
        ("images/000042.jpg", "did you mean '000042'?"),
        ("000042 ", "did you mean '000042'?"),
        ("00004x", "did you mean '000049'"),
        ("zzz", "keys look like '000000'"),
    ],
)
def test_what_may_have_been_meant_is_told(tmp_path, asked, hint):
    dataset = write(tmp_path, [[f"{number:06d}" for number in range(50)]])
    with pytest.raises(SampleKeyError) as caught:
        dataset.get(asked)
    assert hint in str(caught.value)


def test_keys_with_folders_may_be_meant_too(tmp_path):
    dataset = write(tmp_path, [["cats/a", "dogs/b"]])
    with pytest.raises(SampleKeyError, match="did you mean 'cats/a'"):
        dataset.get("cats/a.jpg")


def test_a_dataset_without_samples_has_no_keys(tmp_path):
    source = ShardSource(locate_shards(write(tmp_path, [["a"]]).shards[0]).shards[:0])
    with pytest.raises(SampleKeyError, match=r"no sample has this key: found 'a'$"):
        source.find("a")
