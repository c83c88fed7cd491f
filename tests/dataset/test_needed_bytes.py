"""A lens that looks at some fields costs those fields: bytes are counted at the store, and other fields damaged."""

from __future__ import annotations

import pickle
from typing import Annotated

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

import shoal
from shoal.errors import ChecksumError, DecodeError, LensError, SchemaMismatchError
from shoal.store import MemoryStore, register_store

LARGE = 100_000


@shoal.packable
class Full:
    image: NDArray[np.uint8]
    label: str
    width: int


@shoal.packable
class Named:
    label: str


@shoal.packable
class Length:
    length: int


@shoal.lens
def name_of(src: Full) -> Named:
    return Named(src.label)


@shoal.lens
def length_of(src: Named) -> Length:
    return Length(len(src.label))


@shoal.packable
class Plain:
    """A photo as others store it: jpg, txt and json members."""

    photo: Annotated[bytes, shoal.Fields("jpg|png")]
    txt: str
    width: int


@shoal.lens
def caption_of(src: Plain) -> Named:
    return Named(src.txt)


@shoal.packable
class Wide:
    width: int


@shoal.lens
def width_of(src: Plain) -> Wide:
    return Wide(src.width)


class CountingStore(MemoryStore):
    """A store that counts the bytes read from each object."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def open(self, url):
        return CountingReader(self, super().open(url))


class CountingReader:
    def __init__(self, store, inner):
        self.store, self.inner, self.info = store, inner, inner.info

    def read(self, start, stop):
        data = self.inner.read(start, stop)
        self.store.count += len(data) if self.info.url.endswith(".tar") else 0
        return data

    def read_many(self, starts, stops):
        return [self.read(start, stop) for start, stop in zip(starts, stops, strict=True)]

    def close(self):
        self.inner.close()


@pytest.fixture
def store():
    made = CountingStore()
    register_store("counted", made)
    return made


def plain_sample(number, **changes):
    fields = {"jpg": bytes([number]) * LARGE, "json": {"width": number}, "txt": f"text {number}"}
    return {"__key__": f"k{number}", **fields, **changes}


def write(url, samples):
    with shoal.ShardWriter(f"{url}/a-%06d.tar", max_samples=4) as writer:
        for sample in samples:
            writer.write(sample)
    return url


def cost(store, read):
    """What was read, and how many bytes that took. Opening a shard looks at its first header, which is not counted."""
    before = store.count
    found = read()
    return found, store.count - before


@pytest.fixture
def photos(store):
    dataset = shoal.Dataset[Plain](write("counted://photos", map(plain_sample, range(6))))
    assert len(dataset[:]) == 6  # opens both shards
    return dataset


@pytest.mark.parametrize(
    "read",
    [
        list,
        lambda ds: ds[:],
        lambda ds: [ds[n] for n in range(6)],
        lambda ds: [ds.get(f"k{n}") for n in range(6)],
        lambda ds: list(ds.select(range(6))),
        lambda ds: list(ds.where("json.width >= 0")),
        lambda ds: [sample for batch in ds.ordered(batch_size=4) for sample in batch],
        lambda ds: sorted((s for batch in ds.shuffled(batch_size=4) for s in batch), key=lambda s: s.label),
    ],
    ids=["iter", "slice", "position", "key", "select", "where", "ordered", "shuffled"],
)
def test_only_the_members_of_the_fields_looked_at_are_read(store, photos, read):
    found, count = cost(store, lambda: read(photos.as_type(Named)))
    assert found == [Named(f"text {n}") for n in range(6)]
    assert count <= 6 * 2048  # texts and, where one read takes a run of small members, what is between them
    _, whole = cost(store, lambda: list(photos))
    assert whole > 6 * LARGE


def test_what_is_in_json_costs_the_json_and_several_hops_cost_the_first(store, photos):
    found, count = cost(store, lambda: list(photos.as_type(Wide)))
    assert found == [Wide(n) for n in range(6)]
    assert count <= 6 * 2048
    found, count = cost(store, lambda: list(photos.as_type(Length)))
    assert found == [Length(6)] * 6
    assert count <= 6 * 2048
    assert cost(store, lambda: list(photos.as_type(Named).as_type(Length))) == (found, count)


def test_filters_before_the_lens_count_and_those_after_it_do_not(store, photos):
    some = photos.filter(lambda sample: sample.width % 2).as_type(Named).filter(lambda named: named.label != "text 1")
    found, count = cost(store, lambda: list(some))
    assert found == [Named("text 3"), Named("text 5")]
    assert count <= 6 * 2048
    _, count = cost(store, lambda: list(photos.filter(lambda sample: len(sample.photo) > 0).as_type(Named)))
    assert count > 6 * LARGE


def test_a_function_is_looked_into_as_a_lens_is(store, photos):
    found, count = cost(store, lambda: list(photos.map(lambda sample: sample.width * 2)))
    assert found == [0, 2, 4, 6, 8, 10]
    assert count <= 6 * 2048
    found, count = cost(store, lambda: list(photos.map(repr)))
    assert len(found) == 6
    assert count > 6 * LARGE


def test_a_type_reads_no_members_that_it_has_no_field_for(store):
    url = write("counted://typed", map(plain_sample, range(4)))

    @shoal.packable
    class Captioned:
        txt: str
        width: int

    dataset = shoal.Dataset[Captioned](url)
    assert dataset[0] == Captioned("text 0", 0)
    found, count = cost(store, lambda: list(dataset))
    assert found == [Captioned(f"text {n}", n) for n in range(4)]
    assert count <= 4 * 2048


def test_a_sample_without_the_field_is_still_looked_for_in_json(store):
    samples = [plain_sample(n) for n in range(4)]
    del samples[2]["txt"]
    samples[2]["json"]["txt"] = "from json"
    dataset = shoal.Dataset[Plain](write("counted://sparse", samples)).as_type(Named)
    assert [sample.label for sample in dataset] == ["text 0", "text 1", "from json", "text 3"]
    assert dataset[2] == Named("from json")


def test_shards_with_other_fields_are_each_read_for_what_they_have(store):
    first = [plain_sample(n) for n in range(4)]
    second = [{"__key__": f"k{n}", "png": bytes(LARGE), "json": {"width": n, "txt": f"text {n}"}} for n in range(4, 8)]
    dataset = shoal.Dataset[Plain](write("counted://mixed", [*first, *second]))
    assert [sample.label for sample in dataset.as_type(Named)] == [f"text {n}" for n in range(8)]
    found, count = cost(store, lambda: dataset.as_type(Named)[[7, 0]])
    assert found == [Named("text 7"), Named("text 0")]
    assert count <= 2 * 2048


def test_damage_in_a_field_that_nobody_looks_at_is_not_met(store, photos):
    url = photos.shards[0]
    data = store.read_all(url)
    at = data.index(b"\x01" * 100)
    store.write_all(url, data[: at + 50] + b"\x00" + data[at + 51 :])
    damaged = shoal.Dataset[Plain]("counted://photos")
    assert [sample.label for sample in damaged.as_type(Named)] == [f"text {n}" for n in range(6)]
    with pytest.raises(ChecksumError):
        list(damaged)


# -- payloads


def corrupt(url):
    """Payloads whose image is not an array."""
    maps = [{"image": b"no array", "label": f"text {n}", "width": n} for n in range(6)]
    return write(url, [{"__key__": f"k{n}", "msgpack": msgspec.msgpack.encode(one)} for n, one in enumerate(maps)])


@pytest.mark.parametrize(
    "read",
    [list, lambda ds: ds[:], lambda ds: [s for batch in ds.ordered(batch_size=4) for s in batch]],
    ids=["iter", "slice", "ordered"],
)
def test_fields_of_a_payload_that_nobody_looks_at_are_not_decoded(store, read):
    dataset = shoal.Dataset[Full](corrupt("counted://corrupt"))
    assert read(dataset.as_type(Named)) == [Named(f"text {n}") for n in range(6)]
    assert read(dataset.as_type(Length)) == [Length(6)] * 6
    with pytest.raises((DecodeError, SchemaMismatchError)) as caught:
        read(dataset)
    assert caught.value.key == "k0"
    assert caught.value.field == "image"


def test_a_field_that_is_looked_at_and_does_not_fit_is_told_with_shard_and_key(store):
    payloads = [msgspec.msgpack.encode({"image": b"", "label": n, "width": n}) for n in range(2)]
    url = write("counted://unfit", [{"__key__": f"k{n}", "msgpack": data} for n, data in enumerate(payloads)])
    with pytest.raises(SchemaMismatchError, match="label") as caught:
        list(shoal.Dataset[Full](url).as_type(Named))
    assert caught.value.key == "k0"
    assert caught.value.shard.startswith("counted://unfit")


def test_classes_that_compute_are_read_whole(store):
    @shoal.packable
    class Computed:
        label: str
        width: int
        image: NDArray[np.uint8]

        def __post_init__(self):
            self.label = f"{self.label} {self.image.size}"

    @shoal.lens
    def named(src: Computed) -> Named:
        return Named(src.label)

    written = shoal.write_samples([Computed("a", 1, np.zeros(3, np.uint8))], "counted://computed")
    # Once when it was made, and once when it was read.
    assert written.as_type(Named)[0] == Named("a 3 3")


def test_a_view_through_lenses_opens_in_another_process(photos):
    for view, expected in ((photos.as_type(Named), Named("text 3")), (photos.as_type(Length), Length(6))):
        assert pickle.loads(pickle.dumps(view))[3] == expected


def test_a_lens_of_ones_own_need_not_be_registered(store, photos):
    loud = shoal.Lens(lambda src: Named(src.txt.upper()), source=Plain, view=Named)
    found, count = cost(store, lambda: photos.as_type(Named, lens=loud)[:2])
    assert found == [Named("TEXT 0"), Named("TEXT 1")]
    assert count <= 2 * 2048
    structural = shoal.structural_lens(Plain, Wide)
    found, count = cost(store, lambda: list(photos.as_type(Wide, lens=structural)))
    assert found == [Wide(n) for n in range(6)]
    assert count <= 6 * 2048


@pytest.mark.parametrize("kind, lens", [(Length, length_of), (Wide, caption_of)], ids=["source", "view"])
def test_a_lens_that_does_not_lead_there_is_refused(photos, kind, lens):
    with pytest.raises(LensError, match="do not follow"):
        photos.as_type(kind, lens=lens)
