"""Images of one size in batches: one array, decoded in place, never overwritten while somebody looks at it."""

from __future__ import annotations

import gc
import io

import numpy as np
import PIL.Image
import pytest
import torch

import shoal
from shoal.codec import ImageSpec, decode, decode_spec
from shoal.errors import DecodeError, ErrorBudgetExceeded
from shoal.formats import webdataset as wds
from shoal.load import collate

COUNT = 30
RNG = np.random.default_rng(5)


def jpeg(number):
    pixels = RNG.integers(0, 256, (40 + number, 60 + 3 * number, 3), dtype=np.uint8)
    stream = io.BytesIO()
    PIL.Image.fromarray(pixels).save(stream, "JPEG")
    return stream.getvalue()


JPEGS = [jpeg(number) for number in range(COUNT)]


def written(folder, *, instead=None, without=(), count=COUNT):
    """A dataset of two shards and more; ``instead`` holds other bytes for some images, ``without`` has none."""
    with shoal.ShardWriter(f"{folder}/train-%06d.tar", max_samples=11) as writer:
        for number in range(count):
            image = {} if number in without else {"jpg": (instead or {}).get(number, JPEGS[number])}
            writer.write({"__key__": f"k{number:02d}", **image, "cls": number, "json": {"n": number}})
    return str(folder)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return written(tmp_path_factory.mktemp("images"))


def opened(path, spec="rgb8@20x30", **options):
    return shoal.Dataset(path, decode={"jpg": spec}, **options)


def same(found, expected):
    assert found.keys() == expected.keys()
    assert list(found) == list(expected)
    for name, column in expected.items():
        assert type(found[name]) is type(column), name
        assert np.array_equal(found[name], column), name


@pytest.mark.parametrize(
    "spec", ["rgb8@20x30", "l8@7", "rgba8@300", "rgb@8x9", "torchrgb8@8", ImageSpec("rgb8", 9, "pad")]
)
@pytest.mark.parametrize("options", [{}, {"shuffle": True, "seed": 3}, {"num_workers": 2}, {"num_workers": 0}])
def test_a_batch_is_what_collating_its_samples_gives(path, spec, options):
    ds = opened(path, spec)
    whole = list(ds.loader(batch_size=8, **options))
    one_by_one = list(ds.loader(batch_size=8, collate_fn=collate, **options))
    assert len(whole) == len(one_by_one) == 4
    for found, expected in zip(whole, one_by_one, strict=True):
        if spec == "torchrgb8@8":
            assert all(map(torch.equal, found.pop("jpg"), expected.pop("jpg")))
        same(found, expected)


def test_the_batch_is_one_array_of_the_size(path):
    batch = next(iter(opened(path).loader(batch_size=8)))
    assert (batch["jpg"].shape, batch["jpg"].dtype) == ((8, 20, 30, 3), np.uint8)
    assert batch["jpg"].flags.c_contiguous
    assert batch["jpg"].flags.writeable
    assert batch["jpg"].ctypes.data % 4096 == 0


@pytest.mark.parametrize(
    "view",
    [
        lambda ds: ds.select([7, 3, 22, 3]),
        lambda ds: ds.where("n > 12"),
        lambda ds: ds.decode({"jpg": "rgb8@5"}),
        lambda ds: ds.select_columns(["jpg", "cls"]),
        lambda ds: ds.rename_columns({"jpg": "picture"}),
        lambda ds: ds.map(lambda sample: {**sample, "mean": sample["jpg"].mean()}),
        lambda ds: ds.filter(lambda sample: sample["cls"] % 2 == 0),
    ],
)
def test_views_have_batches_too(path, view):
    ds = view(opened(path, "rgb8@6"))
    found, expected = list(ds.loader(batch_size=4)), list(ds.loader(batch_size=4, collate_fn=collate))
    assert len(found) == len(expected) > 0
    for one, other in zip(found, expected, strict=True):
        same(one, other)


def test_an_option_of_the_dataset_a_verb_and_the_format_say_the_same(path):
    expected = [decode("jpg", data, decode_spec("rgb8@20x30")) for data in JPEGS]
    by_option = [sample["jpg"] for sample in opened(path)]
    by_verb = [sample["jpg"] for sample in shoal.Dataset(path).decode("rgb8@20x30")]
    by_format = [sample["jpg"] for sample in wds.stream(f"{path}/train-000000.tar", decode={"jpg": "rgb8@20x30"})]
    renamed = [
        sample["picture.jpg"]
        for sample in shoal.Dataset(path).rename_columns({"jpg": "picture.jpg"}).decode("rgb8@20x30")
    ]
    assert np.array_equal(by_option, expected)
    assert np.array_equal(by_verb, expected)
    assert np.array_equal(by_format, expected[:11])
    assert np.array_equal(renamed, expected)
    assert all(sample["jpg"].flags.writeable for sample in opened(path, writable=True))


HOLDERS = {
    "the batch": lambda batch: batch,
    "the array": lambda batch: {"jpg": batch["jpg"]},
    "one row": lambda batch: {"jpg": batch["jpg"][2]},
    "a slice of a view": lambda batch: {"jpg": batch["jpg"].reshape(len(batch["jpg"]), -1)[1:, 10:90][::-1]},
    "a tensor": lambda batch: {"jpg": torch.from_numpy(batch["jpg"])},
    "a tensor's slice": lambda batch: {"jpg": torch.from_numpy(batch["jpg"]).permute(0, 3, 1, 2)[:, 1]},
    "a memoryview": lambda batch: {"jpg": memoryview(batch["jpg"])[1:3]},
}


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("holder", HOLDERS)
def test_what_is_held_is_never_overwritten(path, holder, workers):
    loader = opened(path).loader(batch_size=6, shuffle=True, seed=2, num_workers=workers)
    held, copies = [], []
    for _ in range(3):
        for batch in loader:
            held.append(HOLDERS[holder](batch))
            copies.append(np.asarray(held[-1]["jpg"]).copy())
    del batch
    gc.collect()
    for _ in loader:  # nobody holds these: their memory is used again and again
        pass
    for kept, copy in zip(held, copies, strict=True):
        assert np.array_equal(np.asarray(kept["jpg"]), copy)


def test_memory_of_batches_that_nobody_holds_is_used_again(path):
    loader = opened(path, "rgb8@200").loader(batch_size=5, num_workers=0)
    places = set()
    for _ in range(5):
        for batch in loader:
            places.add(batch["jpg"].ctypes.data)
            del batch
    assert len(places) <= 2


def test_an_image_that_some_samples_have_not_makes_a_list(tmp_path):
    ds = opened(written(tmp_path, without={3, 9}))
    first, second, *_ = ds.loader(batch_size=8)
    assert [image is None for image in first["jpg"]] == [number == 3 for number in range(8)]
    assert [image is None for image in second["jpg"]] == [number == 1 for number in range(8)]
    samples = list(ds)
    assert all(np.array_equal(first["jpg"][number], samples[number]["jpg"]) for number in range(8) if number != 3)


# ------------------------------------------------------------------------------------------------------------- damage

DAMAGED = {5: b"no image", 17: JPEGS[17][:300]}


@pytest.mark.parametrize("workers", [0, 2])
def test_a_damaged_image_is_named(tmp_path, workers):
    loader = opened(written(tmp_path, instead=DAMAGED)).loader(batch_size=4, num_workers=workers)
    with pytest.raises(DecodeError) as caught:
        list(loader)
    error = caught.value
    assert (error.key, error.field) == ("k05", "jpg")
    assert error.shard.endswith("train-000000.tar")
    assert "an image" in str(error)


@pytest.mark.filterwarnings("ignore:skipped:shoal.errors.ShoalWarning")
def test_a_damaged_image_can_be_passed_over(tmp_path):
    ds = opened(written(tmp_path, instead=DAMAGED))
    loader = ds.loader(batch_size=4, on_error="skip", error_budget=2)
    labels = [label for batch in loader for label in batch["cls"]]
    assert labels == [number for number in range(COUNT) if number not in DAMAGED]
    assert loader.stats().skipped == 2
    with pytest.raises(ErrorBudgetExceeded):
        list(ds.loader(batch_size=4, on_error="skip", error_budget=1))


def test_bytes_that_are_kept_make_a_list_of_their_batch(tmp_path):
    ds = opened(written(tmp_path, instead=DAMAGED), on_decode_error="keep")
    first, second, *_ = ds.loader(batch_size=4)
    assert first["jpg"].shape == (4, 20, 30, 3)
    assert [type(image) for image in second["jpg"]] == [np.ndarray, bytes, np.ndarray, np.ndarray]
    assert second["jpg"][1] == b"no image"


@pytest.mark.parametrize("spec", ["rgb8@20x30", "rgb8", "pil"])
def test_a_loader_says_how_long_decoding_took(path, spec):
    decoding = opened(path, spec).loader(batch_size=5, num_workers=1)
    plain = opened(path, False).loader(batch_size=5, num_workers=1)
    assert len(list(decoding)) == len(list(plain)) == COUNT // 5
    assert decoding.stats().decode > 0
    assert decoding.stats().fetch > 0
    assert plain.stats().decode == 0


def test_what_takes_longest_is_named():
    stats = shoal.LoaderStats(wait=3.0, busy=7.0, fetch=1.0, decode=2.0, map=1.5)
    assert stats.bound_by == "decode-bound, 30 % wait"
