"""webdataset's verbs: the same shards through webdataset and through shoal give the same values."""

from __future__ import annotations

import io
import itertools
import pickle
import tarfile

import numpy as np
import pytest
import torch
import webdataset as wds
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

import shoal
from shoal import Dataset, ShardWriter, ShoalWarning
from shoal.errors import ColumnError, DecodeError, OptionError, PositionError, SampleKeyError
from shoal.store import MemoryStore, register_store

COUNT = 10


def picture(n, form):
    stream = io.BytesIO()
    Image.fromarray(np.full((4, 6, 3), n * 20, np.uint8)).save(stream, form)
    return stream.getvalue()


def sample(n):
    image = {"png": picture(n, "png")} if n % 3 == 1 else {"jpg": picture(n, "jpeg")}
    return {
        "__key__": f"k{n:03d}",
        **image,
        "cls": n % 4,
        "json": {"n": n},
        "txt": f"text {n}",
        "npy": np.full(3, n, np.float32),
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("verbs")
    with ShardWriter(root / "a-%06d.tar", max_samples=4) as writer:
        for n in range(COUNT):
            writer.write(sample(n))
    return root


@pytest.fixture
def ours(folder):
    return Dataset(folder)


@pytest.fixture
def theirs(folder, leaky_peer):
    return lambda: wds.WebDataset(str(folder / "a-{000000..000002}.tar"), shardshuffle=False)


def bare(value):
    """A sample or batch without what says only where it came from, which each program says in its own way."""
    if isinstance(value, dict):
        return {name: part for name, part in value.items() if name not in ("__url__", "__local_path__")}
    return value


def same(one, two):
    """Equal in value, type and shape, however deep."""
    assert type(one) is type(two), (one, two)
    if isinstance(one, dict):
        assert one.keys() == two.keys()
        return all(same(one[name], two[name]) for name in one)
    if isinstance(one, (list, tuple)):
        assert len(one) == len(two)
        return all(itertools.starmap(same, zip(one, two, strict=True)))
    if isinstance(one, np.ndarray):
        assert (one.dtype, one.shape) == (two.dtype, two.shape)
        return bool((one == two).all())
    if isinstance(one, torch.Tensor):
        return one.dtype == two.dtype and torch.equal(one, two)
    return one == two


def alike(mine, peer):
    found, expected = [bare(value) for value in mine], [bare(value) for value in peer]
    assert len(found) == len(expected) > 0
    return all(itertools.starmap(same, zip(found, expected, strict=True)))


# --------------------------------------------------------------------------------------------- the same as webdataset


@pytest.mark.parametrize("form", ["rgb", "rgb8", "l8", "torchrgb", "torchrgb8"])
def test_the_usual_pipeline(ours, theirs, form):
    def pipeline(ds):
        return ds.decode(form).to_tuple("jpg;png", "cls").batched(4)

    assert alike(pipeline(ours), pipeline(theirs()))


PIPELINES = {
    "decode": lambda ds: ds.decode(),
    "tuple": lambda ds: ds.decode().to_tuple("txt", "cls", "__key__"),
    "tuple of a text": lambda ds: ds.decode().to_tuple("txt json"),
    "tuple of a list": lambda ds: ds.decode().to_tuple(["nope", "txt"], "cls"),
    "tuple with gaps": lambda ds: ds.decode("rgb8").to_tuple("jpg", "png", "cls", missing_is_error=False),
    "rename": lambda ds: ds.decode("rgb8").rename(image="jpg;png", label="cls"),
    "rename only": lambda ds: ds.decode().rename(label="cls", words=["nope", "txt"], keep=False),
    "rename twice": lambda ds: ds.decode().rename(a="txt").rename(b="a", keep=False),
    "rename keys": lambda ds: ds.decode().rename_keys(label="c?s", words="t*t"),
    "rename keys by pairs": lambda ds: ds.decode().rename_keys(("a", "*"), ("b", "txt"), duplicate_is_error=False),
    "rename keys and keep": lambda ds: ds.decode("rgb8").rename_keys(
        ("i", "jpg"), ("j", "zz"), keep_unselected=True, must_match=False
    ),
    "map_dict": lambda ds: ds.decode().map_dict(cls=lambda n: n + 0.5, txt=str.upper),
    "map_tuple": lambda ds: ds.decode().to_tuple("txt", "cls").map_tuple(None, float),
    "more functions than places": lambda ds: ds.decode().to_tuple("txt").map_tuple(len, None, None),
    "slice": lambda ds: ds.decode().slice(3),
    "slice from to": lambda ds: ds.decode().slice(2, 7),
    "slice by step": lambda ds: ds.decode().slice(1, None, 4),
    "batches of dicts": lambda ds: ds.decode().map(lambda s: {k: s[k] for k in ("__key__", "cls", "npy")}).batched(3),
    "batches of tuples": lambda ds: ds.decode().to_tuple("npy", "cls", "txt", "json").batched(4),
    "batches of numbers": lambda ds: ds.decode().to_tuple("cls").map_tuple(lambda n: n / 4).batched(4),
    "no partial batch": lambda ds: ds.decode().to_tuple("cls").batched(4, partial=False),
    "one batch": lambda ds: ds.decode().to_tuple("cls").batched(100),
    "own collation": lambda ds: ds.decode().to_tuple("cls").batched(4, collation_fn=lambda rows: sum(rows, ())),
    "no collation": lambda ds: ds.decode().to_tuple("cls").batched(4, collation_fn=None),
    "listed": lambda ds: ds.decode().to_tuple("cls", "txt").listed(3),
    "unlisted": lambda ds: ds.decode().to_tuple("cls", "txt").listed(3).unlisted(),
    "unbatched": lambda ds: ds.decode().to_tuple("cls", "txt", "npy").batched(3).unbatched(),
    "unbatched dicts": lambda ds: ds.decode().rename(a="txt", b="cls", keep=False).batched(3).unbatched(),
    "batches of batches": lambda ds: ds.decode().to_tuple("cls").batched(2).batched(2),
    "short epoch": lambda ds: ds.decode().to_tuple("cls").with_epoch(4),
    "long epoch": lambda ds: ds.decode().to_tuple("cls").with_epoch(23),
    "epoch of batches": lambda ds: ds.decode().to_tuple("cls").batched(4).with_epoch(nbatches=5),
    "tensors": lambda ds: ds.decode("torchrgb8").to_tuple("jpg;png").batched(4),
    "decode only": lambda ds: ds.decode("rgb8", only=["jpg", "cls"]),
    "decode only, as a text": lambda ds: ds.decode(only="txt"),
    "handlers": lambda ds: ds.decode(lambda name, data: len(data) if name == ".jpg" else None),
}


@pytest.mark.parametrize("name", PIPELINES)
def test_every_verb_does_what_webdataset_does(folder, theirs, name):
    pipeline = PIPELINES[name]
    raw = Dataset(folder, decode=False)
    assert alike(pipeline(raw), pipeline(theirs()))
    assert alike(pipeline(Dataset(folder)), pipeline(theirs()))  # decoded by then, and it makes no difference


IN_ORDER_ONLY = {"unlisted", "unbatched", "unbatched dicts"}
NOT_PICKLED = {
    name for name in PIPELINES if any(word in name for word in ("map", "own", "numbers", "handlers", "dicts"))
}


@pytest.mark.parametrize("name", sorted(PIPELINES.keys() - IN_ORDER_ONLY))
def test_what_comes_in_order_comes_by_position(ours, name):
    made = PIPELINES[name](ours)
    listed = list(made)
    assert len(made) == len(listed)
    assert alike([made[at] for at in range(len(made))], listed)
    assert alike(made[::-1], listed[::-1])
    assert same(bare(made[-1]), bare(listed[-1]))
    assert alike(made.select([0, len(made) - 1]), [listed[0], listed[-1]])
    with pytest.raises(PositionError):
        made[len(listed)]


@pytest.mark.parametrize("name", sorted(IN_ORDER_ONLY))
def test_parts_of_batches_come_in_order_only(ours, name):
    made = PIPELINES[name](ours)
    with pytest.raises(TypeError, match="not known before"):
        len(made)
    with pytest.raises(TypeError):
        made[0]


@pytest.mark.parametrize("name", sorted(PIPELINES.keys() - NOT_PICKLED))
def test_another_process_gets_the_same(ours, name):
    made = PIPELINES[name](ours)
    assert alike(pickle.loads(pickle.dumps(made)), made)


@settings(max_examples=60)
@given(
    st.lists(
        st.sampled_from(["batch", "list", "epoch", "slice", "filter"]).flatmap(
            lambda verb: st.tuples(st.just(verb), st.integers(1, 13))
        ),
        max_size=4,
    )
)
def test_verbs_in_the_order_written(numbers_ds, verbs):
    made, expected = numbers_ds, list(range(COUNT))
    for verb, n in verbs:
        if verb == "filter":
            made, expected = made.filter(lambda x, n=n: size(x) % n), [x for x in expected if size(x) % n]
        elif verb == "slice":
            made, expected = made.slice(n // 3, n), expected[n // 3 : n]
        elif verb == "epoch":
            made = made.with_epoch(n)
            expected = list(itertools.islice(itertools.cycle(expected), n))
        else:
            made = made.listed(n, partial=verb == "batch")
            cut = [expected[at : at + n] for at in range(0, len(expected), n)]
            expected = [part for part in cut if len(part) == n or verb == "batch"]
    assert list(made) == expected
    if not any(verb == "filter" for verb, _ in verbs):
        assert len(made) == len(expected)
        assert [made[at] for at in range(len(made))] == expected


def size(value):
    return value if isinstance(value, int) else len(value)


@pytest.fixture(scope="module")
def numbers_ds(folder):
    return Dataset(folder).map(lambda one: one["json"]["n"])


# ----------------------------------------------------------------------------------------------------------- decoding


def test_decode_replaces_what_was_said(folder):
    ds = Dataset(folder, decode="rgb8")
    assert isinstance(ds.decode("pil")[0]["jpg"], Image.Image)
    assert isinstance(ds.decode()[0]["jpg"], bytes)
    assert ds.decode(False)[0]["cls"] == b"0"
    assert ds.decode({"cls": lambda data: int(data) + 100}, "rgb8")[3]["cls"] == 103
    assert ds[0]["jpg"].dtype == np.uint8  # the first is as it was
    kept = ds.remove_columns("txt").decode(False)
    assert kept[0]["cls"] == b"0"
    assert "txt" not in kept[0]


def test_decode_after_other_verbs_is_a_step(folder):
    seen = []
    ds = Dataset(folder).filter(lambda one: seen.append(type(one.get("jpg"))) or one["cls"] == 0).decode("rgb8")
    assert [one["jpg"].shape for one in ds if "jpg" in one] == [(4, 6, 3)] * 2
    assert set(seen) <= {bytes, type(None)}  # the filter came before
    renamed = Dataset(folder).rename(photo="jpg;png").decode("rgb8")
    assert renamed[0]["photo"][:2] == b"\xff\xd8"  # photo is no extension that decodes, as in webdataset
    raw = Dataset(folder, decode=False).rename(**{"a.txt": "txt"}).decode()
    assert raw[2]["a.txt"] == "text 2"


@pytest.mark.parametrize("spec", ["nope", 5, ["nope"]])
def test_an_unknown_spec_is_refused_at_once(ours, theirs, spec):
    with pytest.raises((ValueError, AssertionError)):
        theirs().decode(spec)
    with pytest.raises(OptionError):
        ours.decode(spec)
    assert issubclass(OptionError, ValueError)


def test_a_field_that_does_not_decode(tmp_path):
    with ShardWriter(tmp_path / "a.tar") as writer:
        writer.write({"__key__": "k", "json": b"{", "txt": "sound"})
    ds = Dataset(tmp_path / "a.tar", decode=False)
    with pytest.raises(DecodeError):
        ds.decode()[0]
    assert ds.decode(on_decode_error="keep")[0]["json"] == b"{"
    assert ds.decode(only="txt")[0]["txt"] == "sound"


def test_decode_of_a_name_that_no_sample_has(folder, tmp_path):
    with pytest.raises(OptionError, match=r"no sample has: expected .*jpg.*, found jpgg"):
        Dataset(folder, decode={"jpgg": "rgb8"})[0]
    with pytest.raises(OptionError, match=r"found mask\.png"):
        list(Dataset(folder).decode({"mask.png": "rgb8"}))
    assert Dataset(folder, decode={"webp": "rgb8", "jpg png": "rgb8"})[0]["jpg"].shape == (4, 6, 3)
    # Without a manifest, only the first of several shards is asked.
    for n in range(2):
        with tarfile.open(tmp_path / f"{n}.tar", "w") as tar:
            tar.addfile(tarfile.TarInfo("k.txt" if n else "k.cls"))
    with pytest.warns(ShoalWarning, match=r"'special', which the first shard has not; it has cls"):
        Dataset([tmp_path / "0.tar", tmp_path / "1.tar"], decode={"special": len})[1]
    with pytest.raises(OptionError, match="special"):
        Dataset(tmp_path / "0.tar", decode={"special": len})[0]


# ------------------------------------------------------------------------------------------------------------- columns


def test_a_missing_column_is_an_error_when_it_is_read(ours, theirs):
    for make in (
        lambda ds: ds.decode().to_tuple("nope;never", "cls"),
        lambda ds: ds.decode().rename(a="nope"),
        lambda ds: ds.decode().rename_keys(a="nope*"),
        lambda ds: ds.decode().rename_keys(a="*"),
    ):
        with pytest.raises(ValueError):
            list(make(theirs()))
        with pytest.raises(ColumnError) as error:
            list(make(ours))
        assert isinstance(error.value, ValueError)
    with pytest.raises(KeyError):
        list(theirs().decode().map_dict(nope=len))
    with pytest.raises(ColumnError, match=r"expected nope, found .*txt.* \(key k000\)"):
        list(ours.map_dict(nope=len))
    with pytest.raises(ColumnError, match="None"):
        list(ours.map_dict(txt=lambda _: None).to_tuple("txt"))
    assert ours.map_dict(txt=lambda _: None).to_tuple("txt", none_is_error=False)[0] == (None,)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda ds: ds.to_tuple(),
        lambda ds: ds.to_tuple("a b", "c"),
        lambda ds: ds.to_tuple(""),
        lambda ds: ds.to_tuple([]),
        lambda ds: ds.map_dict(),
        lambda ds: ds.map_dict(cls=3),
        lambda ds: ds.map_tuple("len"),
        lambda ds: ds.batched(0),
        lambda ds: ds.batched(2.5),
        lambda ds: ds.batched(2, collation_fn="stack"),
        lambda ds: ds.slice(-1),
        lambda ds: ds.slice(),
        lambda ds: ds.slice(0, 1, 0),
        lambda ds: ds.slice(0, 1, 1, 1),
        lambda ds: ds.with_length(-1),
        lambda ds: ds.with_epoch(1.5),
    ],
)
def test_what_makes_no_sense_is_refused_at_once(ours, wrong):
    with pytest.raises(OptionError):
        wrong(ours)


def test_columns_are_of_samples_not_of_tuples(ours):
    with pytest.raises(OptionError, match="before to_tuple"):
        ours.to_tuple("cls").to_tuple("cls")[0]
    with pytest.raises(OptionError, match="to_tuple comes before"):
        ours.map_tuple(len)[0]
    with pytest.raises(OptionError, match="no batch"):
        list(ours.map(lambda one: one["cls"]).unbatched())


def test_arrays_of_different_shapes_are_not_batched(ours, theirs):
    def pipeline(ds):
        return ds.decode().to_tuple("npy", "cls").map_tuple(lambda array: array[: int(array[0])]).batched(4)

    with pytest.raises(AssertionError, match="shapes"):
        list(pipeline(theirs()))
    with pytest.raises(OptionError, match="different shapes"):
        list(pipeline(ours))
    with pytest.raises(ColumnError, match="differ in their columns"):
        list(ours.batched(4))  # some have a jpg and some a png
    with pytest.raises(OptionError, match="different lengths"):
        list(ours.to_tuple("cls", "npy").map_tuple(lambda n: [n], None).unbatched())


# ------------------------------------------------------------------------------------------ only what is needed is read


class Counting(MemoryStore):
    """Remembers how many bytes of shards were read."""

    read_bytes = 0

    def open(self, url):
        reader, store = super().open(url), self
        read = reader.read

        def counted(offset, size):
            data = read(offset, size)
            store.read_bytes += len(data) if url.endswith(".tar") else 0
            return data

        reader.read = counted
        return reader


@pytest.fixture
def counted():
    store = Counting()
    register_store("counted", store)
    with ShardWriter("counted://verbs/a-%06d.tar", max_samples=10) as writer:
        for n in range(20):
            writer.write(
                {"__key__": f"k{n}", "big.bin": bytes(200_000), "txt": f"text {n}", "cls": n, "npy": np.zeros(9)}
            )
    store.read_bytes = 0
    return store, Dataset("counted://verbs")


@pytest.mark.parametrize(
    "narrow",
    [
        lambda ds: ds.to_tuple("caption;txt", "cls"),
        lambda ds: ds.rename(words="txt", keep=False),
        lambda ds: ds.rename(words="txt").to_tuple("words"),
        lambda ds: ds.remove_columns("big.bin"),
        lambda ds: ds.remove_columns("big.bin").rename_columns({"txt": "words"}),
        lambda ds: ds.rename_columns({"big.bin": "huge"}).remove_columns("huge"),
        lambda ds: ds.select_columns(["cls", "__key__"]),
        lambda ds: ds.rename_columns({"txt": "words"}).map_dict(words=len).select_columns(["words"]),
        lambda ds: ds.with_format("numpy", columns=["cls", "npy"]),
        lambda ds: ds.remove_columns(["big.bin"]).with_format("numpy"),
        lambda ds: ds.decode(False).to_tuple("txt").batched(3),
        lambda ds: ds.to_tuple("txt").with_epoch(30),
        lambda ds: ds.columns(["txt", "big.bin"]).remove_columns("big.bin"),
    ],
)
def test_no_other_bytes_are_read(counted, narrow):
    store, ds = counted
    made = narrow(ds)
    assert len(list(made)) >= 7
    made[1]
    assert 0 < store.read_bytes < 200_000


def test_a_function_may_look_at_everything(counted):
    store, ds = counted
    assert len(list(ds.filter(lambda one: len(one["big.bin"]) > 1).to_tuple("txt"))) == 20
    assert store.read_bytes > 20 * 200_000


def test_nothing_but_keys(counted):
    store, ds = counted
    assert list(ds.to_tuple("__key__")) == [(f"k{n}",) for n in range(20)]
    assert store.read_bytes < 20_000


# ------------------------------------------------------------------------------------------------------- typed samples


@shoal.packable
class Point:
    at: NDArray[np.float32]
    label: str


@pytest.fixture
def points():
    rows = [Point(np.full(2, n, np.float32), f"p{n}") for n in range(7)]
    return shoal.write_samples(rows, "memory://verbs/points.tar")


def test_typed_samples(points):
    assert points.to_tuple("label")[2] == ("p2",)
    assert points.rename(name="label", keep=False)[1] == {"name": "p1"}
    assert points.map_dict(label=len)[1]["label"] == 2
    assert [batch.label for batch in points.batched(3)] == [["p0", "p1", "p2"], ["p3", "p4", "p5"], ["p6"]]
    assert points.batched(3)[1].at.tolist() == [[3, 3], [4, 4], [5, 5]]
    assert len(points.batched(3, partial=False)) == len(list(points.batched(3, partial=False))) == 2
    assert [point.label for point in points.batched(3).unbatched()] == [f"p{n}" for n in range(7)]
    assert [point.label for point in points.with_epoch(9)][7:] == ["p0", "p1"]
    assert points.select([5, 6]).batched(2)[0].label == ["p5", "p6"]
    with pytest.raises(ColumnError, match="nope"):
        points.to_tuple("nope")[0]


# ------------------------------------------------------------------------------------------------- epochs and lengths


def test_an_epoch_without_end(numbers_ds, theirs):
    endless = numbers_ds.with_epoch()
    assert list(itertools.islice(endless, 25)) == [n % COUNT for n in range(25)]
    assert len(list(itertools.islice(theirs().with_epoch(), 25))) == 25
    with pytest.raises(TypeError, match="no end"):
        len(endless)
    assert list(endless.slice(12)) == [n % COUNT for n in range(12)]


def test_an_epoch_of_nothing_ends(numbers_ds):
    assert list(numbers_ds.filter(lambda _: False).with_epoch(5)) == []
    assert list(numbers_ds.select([]).with_epoch(5)) == []
    assert len(numbers_ds.select([]).with_epoch(5)) == 0


def test_an_epoch_of_a_filter(numbers_ds):
    odd = numbers_ds.filter(lambda n: n % 2).with_epoch(7)
    assert list(odd) == [1, 3, 5, 7, 9, 1, 3]
    assert len(odd) == 7
    with pytest.raises(TypeError, match="no positions"):
        odd[0]


def test_each_epoch_begins_at_the_start(numbers_ds, theirs):
    peer = theirs().decode().to_tuple("json").with_epoch(4)
    assert [row[0]["n"] for row in peer] == [row[0]["n"] for row in peer] == [0, 1, 2, 3]
    mine = numbers_ds.with_epoch(4)
    assert list(mine) == list(mine) == [0, 1, 2, 3]


def test_with_length_changes_only_the_length(numbers_ds):
    odd = numbers_ds.filter(lambda n: n % 2).with_length(5)
    assert len(odd) == 5
    assert list(odd) == [1, 3, 5, 7, 9]
    with pytest.warns(ShoalWarning, match=r"with_length\(3\) of 10"):
        short = numbers_ds.with_length(3)
    assert len(short) == 3
    assert list(short) == list(range(COUNT))
    assert len(numbers_ds.with_length(3, silent=True)) == 3
    assert short[2] == 2


def test_elements_that_were_made_have_no_keys(ours):
    batches = ours.to_tuple("cls").batched(3)
    with pytest.raises(SampleKeyError):
        batches["k000"]
    assert "k000" not in batches
    with pytest.raises(SampleKeyError):
        batches.keys()
    assert batches.column_names == ()


def test_batches_of_one_dataset_are_not_those_of_another(ours):
    assert ours.batched(3).fingerprint == ours.batched(3).fingerprint
    different = [ours.batched(3), ours.batched(4), ours.select([1]).batched(3), ours.listed(3), ours.with_epoch(3)]
    assert len({ds.fingerprint for ds in different}) == len(different)
    assert repr(ours.batched(3)).endswith(".batched(3))")


def test_damage_passed_over_below_is_told_above(tmp_path):
    with ShardWriter(tmp_path / "a.tar") as writer:
        for n in range(6):
            writer.write(sample(n))
    data = bytearray((tmp_path / "a.tar").read_bytes())
    data[data.index(b"text 3")] ^= 0xFF
    (tmp_path / "a.tar").write_bytes(data)
    batches = Dataset(tmp_path, on_error="skip").to_tuple("txt").batched(2)
    with pytest.warns(ShoalWarning, match="passed over 1"):
        assert [batch[0] for batch in batches] == [["text 0", "text 1"], ["text 2", "text 4"], ["text 5"]]
    assert batches.errors.count == 1


# ---------------------------------------------------------------------------------------------------- shuffled first


def test_a_pipeline_that_shuffles_first_gives_webdatasets_samples(ours, theirs):
    lines = [ds.shuffle(100).decode().to_tuple("cls", "txt").batched(4) for ds in (ours, theirs())]
    pairs = [
        sorted((int(label), text) for labels, texts in line for label, text in zip(labels, texts, strict=True))
        for line in lines
    ]
    assert pairs[0] == pairs[1]
    assert all(isinstance(labels, np.ndarray) for labels, _ in lines[0])


def test_verbs_of_samples_go_on_after_shuffle_map_and_filter(ours):
    line = ours.shuffle(seed=3).filter(lambda one: one["cls"] % 2 == 0).map(lambda one: {**one, "x": one["cls"] * 2})
    found = list(line.rename(y="x").map_dict(y=str).to_tuple("cls", "y").map_tuple(None, int))
    assert sorted(found) == sorted((one["cls"], one["cls"] * 2) for one in ours if one["cls"] % 2 == 0)
    assert found != sorted(found)
    lists = list(ours.shuffle(seed=3).to_tuple("cls").listed(4, partial=False))
    assert all(isinstance(one, list) and len(one) == 4 for one in lists)
    assert list(ours.shuffle(seed=3).to_tuple("cls")) == list(ours.to_tuple("cls").shuffle(seed=3))
    with pytest.raises(OptionError, match="decode before batch"):
        ours.shuffle(seed=3).batch(4).decode("rgb")
