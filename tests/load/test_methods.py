"""Every pipeline method, and any chain of them, equals the same in plain Python, and tf.data."""

from __future__ import annotations

import itertools
import json
import pickle
import random
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.errors import OptionError, ShoalWarning
from shoal.load import DataLoader, LoaderOptions
from shoal.order import State

pytestmark = pytest.mark.filterwarnings("ignore:this pipeline goes on by replaying")

Apply = Callable[[DataLoader], DataLoader]
Plain = Callable[[list[Any]], list[Any]]


def value_of(element: Any) -> int:
    """Some number that a function can use, whatever the element is by now."""
    if isinstance(element, (list, tuple)):
        return sum(value_of(one) for one in element) + len(element)
    return int(element)


def cut(values: list[Any], size: int, drop: bool) -> list[list[Any]]:
    made = [values[at : at + size] for at in range(0, len(values), size)]
    return [one for one in made if len(one) == size or not drop]


def windows(values: list[Any], size: int, shift: int, drop: bool) -> list[list[Any]]:
    made = [values[at : at + size] for at in range(0, len(values), shift)]
    return [one for one in made if len(one) == size or not drop]


def in_turns(lines: list[list[Any]], cycle: int, block: int) -> list[Any]:
    """As tf.data has it."""
    waiting, opened, found = list(lines), [], []
    while waiting or opened:
        while len(opened) < cycle and waiting:
            opened.append(list(waiting.pop(0)))
        line = opened.pop(0)
        found += line[:block]
        if len(line) >= block:
            opened.append(line[block:])
    return found


def in_buckets(values: list[Any], boundaries: list[int], sizes: list[int], drop: bool) -> list[list[Any]]:
    held: list[list[Any]] = [[] for _ in sizes]
    found = []
    for value in values:
        at = sum(bound <= value_of(value) % 9 for bound in boundaries)
        held[at].append(value)
        if len(held[at]) == sizes[at]:
            found.append(held[at])
            held[at] = []
    return found + ([] if drop else [rest for rest in held if rest])


def listed(batch: Any) -> list[Any]:
    """A batch of tuples is a tuple of columns; here all batches are lists."""
    return list(batch)


sizes, flags, small = st.integers(1, 5), st.booleans(), st.integers(0, 7)


@st.composite
def verbs(draw: st.DrawFn) -> tuple[str, Apply, Plain]:
    name = draw(st.sampled_from(sorted(VERBS)))
    arguments = [draw(strategy) for strategy in VERBS[name][0]]
    apply, plain = VERBS[name][1](*arguments)
    return f"{name}{tuple(arguments)}", apply, plain


def as_list(samples: list[Any]) -> list[Any]:
    return samples


VERBS: dict[str, tuple[list[st.SearchStrategy[Any]], Callable[..., tuple[Apply, Plain]]]] = {
    "map": ([], lambda: (lambda line: line.map(lambda v: (v, 1)), lambda vs: [(v, 1) for v in vs])),
    "filter": (
        [st.integers(1, 4)],
        lambda n: (
            lambda line: line.filter(lambda v: value_of(v) % n != 1),
            lambda vs: [v for v in vs if value_of(v) % n != 1],
        ),
    ),
    "flat_map": (
        [st.integers(1, 4)],
        lambda n: (
            lambda line: line.flat_map(lambda v: [v] * (value_of(v) % n)),
            lambda vs: [v for v in vs for _ in range(value_of(v) % n)],
        ),
    ),
    "batch": (
        [sizes, flags],
        lambda n, drop: (lambda line: line.batch(n, drop, collate_fn=as_list), lambda vs: cut(vs, n, drop)),
    ),
    "unbatch": (
        [sizes],
        lambda n: (lambda line: line.batch(n, collate_fn=as_list).unbatch(), list),
    ),
    "window": (
        [sizes, sizes, flags],
        lambda n, by, drop: (lambda line: line.window(n, by, drop_last=drop), lambda vs: windows(vs, n, by, drop)),
    ),
    "take": ([small], lambda n: (lambda line: line.take(n), lambda vs: vs[:n])),
    "skip": ([small], lambda n: (lambda line: line.skip(n), lambda vs: vs[n:])),
    "take_while": (
        [st.integers(2, 60)],
        lambda n: (
            lambda line: line.take_while(lambda v: value_of(v) < n),
            lambda vs: list(itertools.takewhile(lambda v: value_of(v) < n, vs)),
        ),
    ),
    "enumerate": ([small], lambda n: (lambda line: line.enumerate(n), lambda vs: list(enumerate(vs, n)))),
    "interleave": (
        [sizes, sizes],
        lambda cycle, block: (
            lambda line: line.interleave(lambda v: [v] * (value_of(v) % 4), cycle, block),
            lambda vs: in_turns([[v] * (value_of(v) % 4) for v in vs], cycle, block),
        ),
    ),
    "bucket": (
        [st.lists(st.integers(1, 8), min_size=1, max_size=3, unique=True).map(sorted), sizes, flags],
        lambda bounds, n, drop: (
            lambda line: line.bucket(
                bounds, n, lambda v: value_of(v) % 9, drop_last=drop, ragged="list", collate_fn=as_list
            ),
            lambda vs: in_buckets(vs, bounds, [n] * (len(bounds) + 1), drop),
        ),
    ),
    "prefetch": ([small], lambda n: (lambda line: line.prefetch(n), list)),
}


class Anew:
    """An iterable that is no sequence."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.count))


SOURCES: dict[str, Callable[[int], Any]] = {
    "range": range,
    "list": lambda count: list(range(count)),
    "iterable": Anew,
    "function": lambda count: lambda: (value for value in range(count)),
}


def seen(elements: Any) -> list[Any]:
    return [same(element) for element in elements]


def same(element: Any) -> Any:
    if isinstance(element, np.ndarray):
        return element.tolist()
    return [same(one) for one in element] if isinstance(element, (list, tuple)) else element


@settings(max_examples=120, deadline=None)
@given(
    st.integers(0, 40), st.lists(verbs(), max_size=4), st.sampled_from(sorted(SOURCES)), st.sampled_from([0, 0, 0, 2])
)
def test_any_chain_of_verbs_is_what_plain_python_gives(
    count: int, chain: list[tuple[str, Apply, Plain]], source: str, workers: int
) -> None:
    loader = DataLoader(SOURCES[source](count), batch_size=None, num_workers=workers, prefetch=3)
    expected: list[Any] = list(range(count))
    for _, apply, plain in chain:
        loader, expected = apply(loader), plain(expected)
    for _ in range(2):
        assert seen(loader) == seen(expected)
    loader.close()


@settings(max_examples=80, deadline=None)
@given(
    st.integers(0, 40),
    st.lists(verbs(), min_size=1, max_size=3),
    st.sampled_from(sorted(SOURCES)),
    st.lists(st.integers(1, 9), min_size=1, max_size=3),
)
def test_any_chain_of_verbs_goes_on_where_it_was_left(
    count: int, chain: list[tuple[str, Apply, Plain]], source: str, turns: list[int]
) -> None:
    def made() -> DataLoader:
        loader = DataLoader(SOURCES[source](count), batch_size=None, num_workers=0, shuffle=source == "list", seed=1)
        for _, apply, _ in chain:
            loader = apply(loader)
        return loader

    whole = made()
    expected = seen(whole) + seen(whole)
    found: list[Any] = []
    state = made().state_dict()
    for steps in itertools.islice(itertools.cycle(turns), 2 * len(expected) + 8):
        loader = made()
        loader.load_state_dict(json.loads(json.dumps(state)))
        found += seen(itertools.islice(loader, steps))
        state = loader.state_dict()
        if len(found) >= len(expected):
            break
    assert found[: len(expected)] == expected


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 60), st.integers(1, 20), st.integers(0, 3), st.sampled_from(["range", "iterable", "batches"]))
def test_a_shuffle_loses_nothing_and_is_fixed_by_its_seed(count: int, buffer: int, seed: int, source: str) -> None:
    def made(seed: int) -> DataLoader:
        line = DataLoader(
            range(count) if source == "batches" else SOURCES[source](count), batch_size=None, num_workers=0
        )
        return (line.batch(1).unbatch() if source == "batches" else line).shuffle(buffer, seed)

    loader = made(seed)
    first, second = list(loader), list(loader)
    assert sorted(first) == sorted(second) == list(range(count))
    assert list(made(seed)) == first
    if buffer >= 20 and count >= 40:
        assert first != list(range(count))
        assert first != second
        assert list(made(seed + 1)) != first


@pytest.mark.parametrize("source", ["iterable", "batches", "flat_map", "sampler"])
def test_a_buffer_mixes_about_as_far_as_it_is_large(source: str) -> None:
    count, buffer = 2000, 200
    data = SOURCES["iterable"](count) if source == "iterable" else range(count)
    line = DataLoader(data, batch_size=None, num_workers=0, sampler=range(count) if source == "sampler" else None)
    if source == "batches":
        line = line.batch(10).unbatch()
    if source == "flat_map":
        line = line.flat_map(lambda value: [value])
    found = list(line.shuffle(buffer, seed=1))
    moved = np.abs(np.argsort(found) - np.arange(count)).mean()
    chance = random.Random(1)
    held: list[int] = []
    plain: list[int] = []
    for value in range(count):  # the buffer shuffle of everybody
        if len(held) < buffer:
            held.append(value)
        else:
            at = chance.randrange(buffer)
            plain.append(held[at])
            held[at] = value
    chance.shuffle(held)
    assert 0.7 < moved / np.abs(np.argsort(plain + held) - np.arange(count)).mean() < 1.4


@settings(max_examples=40, deadline=None)
@given(st.lists(st.lists(st.integers(1, 9), max_size=6), max_size=12), st.integers(1, 4), st.booleans())
def test_padded_batches_are_padded_to_their_longest(rows: list[list[int]], size: int, drop: bool) -> None:
    loader = DataLoader([np.array(row, np.int64) for row in rows], batch_size=None, num_workers=0)
    found = list(loader.padded_batch(size, drop))
    expected = []
    for group in cut(rows, size, drop):
        most = max(map(len, group))
        expected.append([row + [0] * (most - len(row)) for row in group])
    assert [batch.tolist() for batch in found] == expected


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 8), max_size=25), st.integers(1, 4), st.sampled_from(["first_fit", "concat"]))
def test_packing_loses_no_token_and_keeps_their_order(lengths: list[int], rows: int, how: str) -> None:
    data = [{"tokens": np.arange(1, length + 1) + 100 * at} for at, length in enumerate(lengths)]
    loader = DataLoader(data, batch_size=None, num_workers=0).pack(8, "tokens", how, open_rows=rows, pad=-1)
    found = list(loader)
    assert all(len(row["tokens"]) == 8 for row in found)
    taken = [row["tokens"][row["segment_ids"] > 0].tolist() for row in found]
    assert all((row["tokens"][row["segment_ids"] == 0] == -1).all() for row in found)
    everything = [token for sample in data for token in sample["tokens"].tolist()]
    if how == "concat":
        assert [token for row in taken for token in row] == everything
        assert all(len(row) == 8 for row in taken[:-1])
    else:
        assert sorted(token for row in taken for token in row) == sorted(everything)
        for row in found:  # samples are whole: each counts its tokens from 0
            for segment in range(1, int(row["segment_ids"].max()) + 1):
                tokens = row["tokens"][row["segment_ids"] == segment]
                assert tokens.tolist() == data[int(tokens[0]) // 100]["tokens"].tolist()
                assert row["position_ids"][row["segment_ids"] == segment].tolist() == list(range(len(tokens)))


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(sorted(SOURCES)), st.integers(0, 12), flags), min_size=2, max_size=3),
    st.sampled_from([0, 0, 1]),
)
def test_zip_ends_with_the_shortest(parts: list[tuple[str, int, bool]], workers: int) -> None:
    made = [
        DataLoader(SOURCES[source](count), batch_size=None, num_workers=workers).filter(lambda v: v % 3)
        if filtered
        else DataLoader(SOURCES[source](count), batch_size=None, num_workers=workers)
        for source, count, filtered in parts
    ]
    lines = [[v for v in range(count) if v % 3 or not filtered] for _, count, filtered in parts]
    loader = made[0].zip(*made[1:])
    for _ in range(2):
        assert [tuple(row) for row in loader] == list(zip(*lines, strict=False))
    loader.close()


def test_zip_of_batches_and_of_plain_data() -> None:
    loader = DataLoader(range(7), batch_size=3, num_workers=0)
    assert list(loader.zip(["a", "b", "c", "d"])) == [([0, 1, 2], "a"), ([3, 4, 5], "b"), ([6], "c")]
    numbered = DataLoader(range(4), batch_size=None, num_workers=0).zip("abcd"[:3].split() or [], range(9))
    assert list(numbered) == [(0, "abc", 0)]
    repeated = DataLoader(range(2), batch_size=None, num_workers=0).repeat().zip(range(5))
    assert list(repeated) == [(0, 0), (1, 1), (0, 2), (1, 3), (0, 4)]


def test_what_is_zipped_is_shared_out_among_ranks_once() -> None:
    def made(rank: int) -> DataLoader:
        options: Any = {"rank": rank, "world_size": 2, "tail": "uneven", "shuffle": True, "num_workers": 0}
        return DataLoader(range(24), batch_size=None, **options).zip(DataLoader(range(24), batch_size=None, **options))

    found = [pair for rank in (0, 1) for pair in made(rank)]
    assert sorted(found) == [(number, number) for number in range(24)]


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 20), st.integers(1, 6), st.integers(1, 4), st.booleans(), st.integers(0, 50))
def test_repeat_is_epoch_after_epoch_and_resumes(count: int, batch: int, times: int, shuffle: bool, left: int) -> None:
    def made() -> DataLoader:
        return DataLoader(range(count), batch_size=batch, shuffle=shuffle, num_workers=0)

    once = made()
    expected = [same(element) for _ in range(times) for element in once]
    loader = made().repeat(times)
    assert len(loader) == len(expected)
    left = left % len(expected)
    iterator = iter(loader)
    found = seen(itertools.islice(iterator, left))
    again = made().repeat(times)
    again.load_state_dict(loader.state_dict())
    assert found + seen(again) == expected
    assert seen(itertools.islice(made().repeat(), len(expected))) == expected


@pytest.mark.parametrize("start", [0, 1, 2, 5])
@pytest.mark.parametrize("filtered", [False, True])
def test_repeat_resumes_whichever_epoch_it_began_with(start: int, filtered: bool) -> None:
    def begun() -> DataLoader:
        line = DataLoader(range(5), batch_size=None, shuffle=True, seed=1, num_workers=0)
        loader = (line.filter(bool) if filtered else line).repeat(3)
        loader.set_epoch(start)
        return loader

    expected = list(begun())
    for left in range(len(expected)):
        loader, again = begun(), begun()
        found = list(itertools.islice(loader, left))
        again.load_state_dict(State.merge([State.from_dict(loader.state_dict())]).to_dict())
        assert found + list(again) == found + list(pickle.loads(pickle.dumps(loader))) == expected


def test_repeating_nothing_ends() -> None:
    assert list(DataLoader([], num_workers=0).repeat()) == []
    assert list(DataLoader(iter(range(3)), batch_size=2, num_workers=0).repeat()) == [[0, 1], [2]]
    assert list(DataLoader(range(5), batch_size=None, num_workers=0).filter(lambda _: False).repeat()) == []


@pytest.mark.parametrize("verb", ["take", "skip"])
def test_a_part_of_what_repeats_is_a_part_of_each_epoch_and_says_so(verb: str) -> None:
    repeated = DataLoader(range(3), batch_size=None, num_workers=0).repeat(2)
    with pytest.warns(ShoalWarning, match=f"{verb} is about each epoch.*steps_per_epoch"):
        made = getattr(repeated, verb)(1)
    assert list(made) == ([0, 0] if verb == "take" else [1, 2, 1, 2])


@pytest.mark.parametrize("workers", [0, 2])
def test_cache_reads_and_maps_each_sample_once(workers: int) -> None:
    read: list[int] = []

    def slow(value: int) -> int:
        read.append(value)
        return 2 * value

    loader = DataLoader(range(30), batch_size=None, num_workers=workers, shuffle=True).map(slow).cache().batch(4)
    epochs = [list(loader) for _ in range(3)]
    loader.close()
    assert sorted(read) == list(range(30))
    assert all(sorted(itertools.chain(*epoch)) == [2 * n for n in range(30)] for epoch in epochs)
    assert epochs[0] != epochs[1]


def test_what_is_random_before_a_cache_is_drawn_once() -> None:
    def noisy(value: int, rng: np.random.Generator) -> float:
        return value + float(rng.random())

    loader = DataLoader(range(5), batch_size=None, num_workers=0, seed=3).map(noisy).cache()
    first = list(loader)
    assert list(loader) == first
    assert list(DataLoader(range(5), batch_size=None, num_workers=0, seed=3).map(noisy)) == first


def test_cache_refuses_what_has_no_samples_to_keep() -> None:
    line = DataLoader(range(5), batch_size=None)
    for refused in (line.filter(bool), line.batch(2), DataLoader(range(5))):
        with pytest.raises(OptionError, match="only samples are kept"):
            refused.cache()
    with pytest.raises(OptionError, match="only samples are kept"):
        list(DataLoader(line.batch(2), batch_size=None).cache())
    with pytest.raises(OptionError, match="only samples with positions are kept"):
        list(DataLoader(iter([1]), batch_size=None).cache())


@pytest.mark.parametrize(
    "make, why",
    [
        (lambda: DataLoader(iter(range(5))), "can only be read from its start"),
        (lambda: DataLoader(Anew(5)), "Anew can only be read from its start"),
        (lambda: DataLoader(range(5), batch_size=None).filter(bool), "filter comes after samples are read"),
        (lambda: DataLoader(range(5)).take(2).unbatch(), "unbatch comes after samples are read"),
        (lambda: DataLoader(range(5)).repeat(), "repeats without end"),
    ],
)
def test_a_length_that_nobody_knows_is_not_made_up(make: Callable[[], DataLoader], why: str) -> None:
    with pytest.raises(TypeError, match=why):
        len(make())


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 50), st.integers(1, 7), flags)
def test_a_length_that_is_known_is_right(count: int, size: int, drop: bool) -> None:
    loader = DataLoader(range(count), batch_size=None, num_workers=0).map(str).batch(size, drop).map(len)
    assert len(loader) == len(list(loader))
    assert len(DataLoader(range(count), batch_size=None)) == count


def test_a_batch_sampler_keeps_its_groups_after_a_filter() -> None:
    data = DataLoader(range(10), batch_size=None).filter(lambda value: value % 2)
    loader = DataLoader(data, batch_sampler=[[0, 1, 2], [4, 6], [3, 5, 7]], num_workers=0)
    assert list(loader) == [[1], [3, 5, 7]]


def test_tf_data_gives_the_same() -> None:
    """One process for all: importing TensorFlow takes seconds, and changes the process."""
    code = """
        import os
        os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
        import tensorflow as tf
        from shoal.load import DataLoader

        def shoal():
            return DataLoader(range(23), batch_size=None, num_workers=0)

        def theirs():
            return tf.data.Dataset.range(23)

        def plain(value):
            if hasattr(value, "element_spec"):
                return [plain(one) for one in value]
            if hasattr(value, "numpy"):
                return value.numpy().tolist()
            return [plain(one) for one in value] if isinstance(value, (list, tuple)) else value

        cases = {
            "map": lambda d: d.map(lambda v: v * 2),
            "filter": lambda d: d.filter(lambda v: v % 3 == 1),
            "batch": lambda d: d.batch(5),
            "batch, drop": lambda d: d.batch(5, True),
            "take and skip": lambda d: d.skip(3).take(7),
            "enumerate": lambda d: d.enumerate(2),
            "window": lambda d: d.window(4, 3),
            "window, apart": lambda d: d.window(2, 5),
            "repeat": lambda d: d.batch(9).repeat(3),
            "unbatch": lambda d: d.batch(5).unbatch(),
            "take_while": lambda d: d.take_while(lambda v: v < 9),
            "batches of batches": lambda d: d.batch(4, True).batch(2),
            "prefetch": lambda d: d.prefetch(3),
            "skip all": lambda d: d.skip(40),
        }
        for name, verb in cases.items():
            ours, expected = [plain(one) for one in verb(shoal())], [plain(one) for one in verb(theirs())]
            assert ours == expected, (name, ours, expected)
        for cycle, block in ((1, 1), (2, 1), (3, 2), (4, 7)):
            ours = list(shoal().interleave(lambda v: [v] * (v * 7 % 5), cycle, block))
            made = theirs().interleave(
                lambda v: tf.data.Dataset.from_tensors(v).repeat(v * 7 % 5), cycle_length=cycle, block_length=block
            )
            assert ours == plain(list(made)), (cycle, block)
        ours = list(shoal().flat_map(lambda v: [v] * (v % 3)))
        made = theirs().flat_map(lambda v: tf.data.Dataset.from_tensors(v).repeat(v % 3))
        assert ours == plain(list(made))
        both = [list(row) for row in shoal().zip(shoal().skip(2))]
        assert both == plain(list(tf.data.Dataset.zip((theirs(), theirs().skip(2)))))
        print("same")
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=240, check=False
    )
    assert done.stdout == "same\n", done.stderr[-3000:]


@pytest.mark.parametrize("sample", [{"__key__": "abc", "cls": 1}, {"a": [1, 2], "b": [1]}, {"a": "text"}, 5])
def test_only_batches_are_taken_apart(sample: Any) -> None:
    with pytest.raises(OptionError, match="only a batch can be taken apart"):
        list(DataLoader([sample], batch_size=None, num_workers=0).unbatch())


@pytest.mark.parametrize("told", [{}, {"shuffle": True}, {"num_workers": 0, "seed": 5}])
def test_a_size_that_nobody_gave_gives_way_to_a_verb(told):
    line = DataLoader(range(300), **told).shuffle(100).map(lambda number: number + 1).batch(128, drop_last=True)
    assert [len(batch) for batch in line.prefetch("auto")] == [128, 128]
    assert all(isinstance(each, int) for batch in line for each in batch)
    assert [len(batch) for batch in DataLoader(range(70), **told)] == [32, 32, 6]


def test_what_was_said_of_the_loaders_own_batches_is_about_the_verbs():
    line = DataLoader(range(10), drop_last=True, collate_fn=sum).batch(4)
    assert list(line) == [0 + 1 + 2 + 3, 4 + 5 + 6 + 7]
    assert len(line) == 2
    assert list(DataLoader(range(6), collate_fn=sum).batch(3, collate_fn=max)) == [2, 5]
    arrays = [np.ones(size) for size in (1, 2, 3, 4)]
    assert [batch.shape for batch in DataLoader(arrays, ragged="pad").batch(2)] == [(2, 2), (2, 4)]
    bucketed = DataLoader(arrays).bucket([3], 2, len)
    assert sorted(batch.shape for batch in bucketed) == [(2, 2), (2, 4)]


@pytest.mark.parametrize(
    "make",
    [
        lambda: DataLoader(range(100), batch_size=10),
        lambda: DataLoader(range(100), LoaderOptions(batch_size=10)),
        lambda: DataLoader(range(100)).with_options(batch_size=10),
        lambda: DataLoader(range(100)).options(batch_size=10),
    ],
)
def test_batches_of_batches_that_were_asked_for_are_warned_of(make):
    with pytest.warns(ShoalWarning, match="makes batches of 10 samples itself"):
        line = make().batch(5)
    assert len(list(line)) == 2
    assert len(list(make().unbatch().batch(5))) == 20
    assert len(list(DataLoader(range(100)).batch(10).batch(5))) == 2  # said twice, so meant


@pytest.mark.parametrize("told", [{}, {"batch_size": 10}])
def test_a_shuffle_that_comes_first_is_of_samples(told):
    batches = list(DataLoader(range(1000), **told).shuffle(1000, seed=3))
    assert sorted(number for batch in batches for number in batch) == list(range(1000))
    assert all(max(batch) - min(batch) > len(batch) for batch in batches[:-1])
    buffered = list(DataLoader(iter(range(1000)), **told).shuffle(1000, seed=3))
    assert all(max(batch) - min(batch) > len(batch) for batch in buffered[:-1])


def test_a_shuffle_without_a_number_mixes_all_that_has_positions():
    line = DataLoader(range(1000)).shuffle(seed=3).batch(100)
    assert list(line) == list(DataLoader(range(1000), batch_size=100, shuffle=True, seed=3))
    for unknown in (DataLoader(iter(range(9))).shuffle(), DataLoader(range(9)).batch(2).shuffle()):
        with pytest.raises(OptionError, match=r"through a buffer.*shuffle\(1000\)"):
            list(unknown)


def test_it_goes_on_where_it_was_stopped():
    line = DataLoader(range(300)).shuffle(100, seed=2).batch(32)
    batches = iter(line)
    first = [next(batches) for _ in range(3)]
    again = DataLoader(range(300)).shuffle(100, seed=2).batch(32)
    again.load_state_dict(line.state_dict())
    assert sorted(number for batch in [*first, *again] for number in batch) == list(range(300))


def test_a_loader_says_what_it_was_told():
    line = DataLoader(range(3), seed=2).shuffle(10).map(str).batch(2)
    assert repr(line) == "DataLoader(range(0, 3), batch_size=None, seed=2).shuffle(...).map(...).batch(...)"
    assert repr(DataLoader(range(3))) == "DataLoader(range(0, 3))"


@pytest.mark.parametrize(
    "then",
    [
        lambda loader: loader.take(3),
        lambda loader: loader.take(0),
        lambda loader: loader.take(100),
        lambda loader: loader.skip(2),
        lambda loader: loader.skip(100),
        lambda loader: loader.skip(2).map(len).take(3),
        lambda loader: loader.enumerate().take(2),
    ],
    ids=["take", "take none", "take more", "skip", "skip more", "skip, map, take", "enumerate, take"],
)
def test_what_is_taken_and_skipped_is_counted_beforehand(then):
    loader = then(DataLoader(list(range(50)), batch_size=8, num_workers=0))
    assert len(loader) == len(list(loader))
