"""concat and join."""

import os
import pickle
import tracemalloc

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shoal
from shoal import Dataset, ShardWriter, ShoalWarning
from shoal.dataset import concat
from shoal.dataset._combine import partners
from shoal.errors import (
    ChecksumError,
    FieldError,
    ManifestError,
    OptionError,
    QueryError,
    SampleKeyError,
    SchemaMismatchError,
)

COUNT = 60


def sample(n, name="k"):
    return {"__key__": f"{name}{n:03d}", "json": {"width": n * 10, "patient": n // 7}, "cls": n % 5, "txt": f"text {n}"}


def write(root, samples, name="train", **options):
    with ShardWriter(f"{root}/{name}-%06d.tar", **{"max_samples": 7, **options}) as writer:
        for each in samples:
            writer.write(each)
    return root


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write(tmp_path_factory.mktemp("views"), map(sample, range(COUNT)))


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    return write(tmp_path_factory.mktemp("others"), (sample(n, "o") for n in range(25)))


def bare(found):
    return {name: value for name, value in found.items() if name != "__url__"}


@shoal.packable
class Point:
    x: float
    name: str


@shoal.packable
class Elsewhere:
    x: float
    name: int


@pytest.fixture
def points(tmp_path):
    one = shoal.write_samples([Point(float(n), f"p{n}") for n in range(30)], tmp_path / "one-%03d.tar", max_samples=8)
    two = shoal.write_samples([Point(float(n), f"q{n}") for n in range(9)], tmp_path / "two" / "b.tar")
    return one, two


def test_alike_shards_become_one_source_and_stay_quick(points):
    one, two = points
    both = one.select(range(5, 12)).concat(two, one)
    assert isinstance(both.source, shoal.shard.ShardSource)
    assert len(both.source.shards) == len(one.shards) + 1  # each once
    names = [f"p{n}" for n in range(5, 12)] + [f"q{n}" for n in range(9)] + [f"p{n}" for n in range(30)]
    batches = list(both.ordered(batch_size=7))
    assert all(isinstance(batch, shoal.SampleBatch) for batch in batches)
    assert [name for batch in batches for name in batch.name] == names
    assert sorted(name for batch in both.shuffled(batch_size=7, seed=3) for name in batch.name) == sorted(names)
    assert [point.name for point in both] == names
    assert pickle.loads(pickle.dumps(both))[20].name == names[20]


def test_types_from_the_manifest_are_one_type_where_their_schemas_are(points):
    one, two = (Dataset(os.path.dirname(each.shards[0])) for each in points)
    both = one.concat(two)
    assert len(both) == 39
    assert both[30].name == "q0"
    assert isinstance(both.source, shoal.shard.ShardSource)


def test_different_types_are_refused_by_name(points, tmp_path):
    other = shoal.write_samples([Elsewhere(1.0, 2)], tmp_path / "three" / "c.tar")
    with pytest.raises(SchemaMismatchError, match=r"expected Point.*found Elsewhere.*as_type\(Point\)"):
        points[0].concat(other)
    with pytest.raises(SchemaMismatchError, match="expected dict"):
        points[0].columns(["msgpack"]).concat(points[1])


def test_datasets_read_in_different_ways(folder, other):
    raw, decoded = Dataset(folder, decode=False), Dataset(other)
    both = decoded.select([3, 1]).concat(raw, decoded)
    assert not isinstance(both.source, shoal.shard.ShardSource)
    assert len(both) == 2 + COUNT + 25
    assert both[0]["txt"] == "text 3"
    assert both[2]["txt"] == b"text 0"
    assert [found["__key__"] for found in both] == both.keys() == ["o003", "o001", *raw.keys(), *decoded.keys()]
    assert bare(both.get("o001")) == sample(1, "o")
    assert [found["__key__"] for found in both[[61, 0, 2, 62]]] == [both.keys()[n] for n in (61, 0, 2, 62)]
    assert both.where("width = 30").keys() == ["o003", "k003", "o003"]
    narrow = both.columns(["cls"])
    assert narrow[0].keys() == narrow[5].keys() == {"__key__", "__url__", "cls"}
    assert all(found.keys() == {"__key__", "__url__", "cls"} for found in narrow)
    again = pickle.loads(pickle.dumps(both.where("width >= 200")))
    assert again.keys() == both.where("width >= 200").keys()
    assert again.fingerprint == both.where("width >= 200").fingerprint
    with pytest.raises(FieldError, match="no such column"):
        both.table(["nothing"])
    with pytest.raises(SampleKeyError):
        both.get("nobody")


def double(found):
    return {**found, "cls": found["cls"] * 2}


def test_functions_come_with_their_dataset(folder, other):
    both = Dataset(folder).map(double).concat(Dataset(other))
    assert [found["cls"] for found in both.select([4, COUNT + 4])] == [8, 4]
    assert [found["cls"] for found in both.map(double).select([4, COUNT + 4])] == [16, 8]
    assert [found["cls"] for found in pickle.loads(pickle.dumps(both))][4] == 8
    alike = Dataset(folder).map(double).concat(Dataset(other).map(double))
    assert isinstance(alike.source, shoal.shard.ShardSource)
    assert [found["cls"] for found in alike.select([4, COUNT + 4])] == [8, 8]


def test_a_filtered_dataset_can_be_read_through(folder, other):
    both = Dataset(folder).filter(lambda found: found["cls"] == 1).concat(Dataset(other))
    assert next(iter(both.columns(["cls"])))["cls"] == 1
    assert len(list(both)) == COUNT // 5 + 25
    with pytest.raises(TypeError, match="materialize"):
        len(both)


def test_the_function(folder, other):
    assert len(concat([Dataset(folder), Dataset(other)])) == COUNT + 25
    assert concat(iter([Dataset(folder)])).keys() == Dataset(folder).keys()
    for wrong in ([], [1], [Dataset(folder), "other"]):
        with pytest.raises(OptionError, match="put together"):
            concat(wrong)


def test_memory_of_a_typed_view_is_bounded_and_in_order(points):
    one, _ = points
    view = one.exclude(["000000003"])
    assert [name for batch in view.ordered(batch_size=4) for name in batch.name] == [
        f"p{n}" for n in range(30) if n != 3
    ]


JOINED_COUNT = 40


def write_shards(root, samples, **options):
    with ShardWriter(f"{root}/s-%06d.tar", **{"max_samples": 9, **options}) as writer:
        for each in samples:
            writer.write(each)
    return root


def key(n):
    return f"k{n:03d}"


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Images with a patient each; vectors for most of them in another order; patients."""
    root = tmp_path_factory.mktemp("join")
    images = (
        {"__key__": key(n), "jpg": bytes([n]) * 300, "json": {"n": n, "patient": n % 4}} for n in range(JOINED_COUNT)
    )
    write_shards(root / "images", images)
    order = np.random.default_rng(5).permutation(JOINED_COUNT).tolist()
    write_shards(root / "vectors", ({"__key__": key(n), "npy": np.full(3, n), "cls": n % 3} for n in order))
    write_shards(root / "some", ({"__key__": key(n), "npy": np.full(3, n)} for n in order if n % 2))
    write_shards(
        root / "patients", ({"__key__": f"p{n}", "txt": f"patient {n}", "json": {"patient": n}} for n in range(4))
    )
    return root


@pytest.fixture
def images(root):
    return Dataset(root / "images")


@pytest.fixture
def vectors(root):
    return Dataset(root / "vectors")


def whole(found, n):
    return found["__key__"] == key(n) and found["jpg"] == bytes([n]) * 300 and found["npy"].tolist() == [n] * 3


def test_every_sample_has_its_partner_in_every_way_of_reading(images, vectors):
    joined = images.join(vectors)
    assert len(joined) == JOINED_COUNT
    assert joined.fields == ("jpg", "json", "npy", "cls")
    assert joined.keys() == images.keys()
    assert all(whole(found, n) for n, found in enumerate(joined))
    assert all(whole(joined[n], n) for n in range(JOINED_COUNT))
    assert all(whole(found, n) for found, n in zip(joined[[7, 3, 39, 7]], (7, 3, 39, 7), strict=True))
    assert whole(joined.get("k013"), 13)
    assert "k013" in joined
    assert "nobody" not in joined
    with pytest.raises(SampleKeyError):
        joined.get("nobody")
    batches = list(joined.ordered(batch_size=7))
    assert np.concatenate([batch["npy"] for batch in batches])[:, 0].tolist() == list(range(JOINED_COUNT))
    assert sorted(n for batch in joined.shuffled(batch_size=7, seed=1) for n in batch["npy"][:, 0]) == list(
        range(JOINED_COUNT)
    )
    sent = pickle.loads(pickle.dumps(joined.select([5, 2])))
    assert [found["npy"][0] for found in sent] == [5, 2]
    assert sent.fingerprint == joined.select([5, 2]).fingerprint != joined.fingerprint


@settings(max_examples=30)
@given(
    left=st.lists(st.integers(0, JOINED_COUNT - 1), max_size=20),
    right=st.lists(st.integers(0, JOINED_COUNT - 1), unique=True, max_size=20),
    missing=st.sampled_from(["error", "skip", "none"]),
)
def test_a_join_of_views_is_the_join_of_lists(root, left, right, missing):
    images, vectors = Dataset(root / "images"), Dataset(root / "vectors")
    at = {name: place for place, name in enumerate(vectors.keys())}
    one, two = images.select(left), vectors.select([at[key(n)] for n in right])
    if missing == "error" and not set(left) <= set(right):
        lost = [n for n in left if n not in right]
        with pytest.raises(SampleKeyError, match=f"{len(lost)} of {len(left)} samples have no partner.*{key(lost[0])}"):
            one.join(two, missing=missing)
        return
    expected = [(n, n if n in right else None) for n in left if missing != "skip" or n in right]
    joined = one.join(two, missing=missing)
    for found in (list(joined), joined[:]):
        pairs = [(each["json"]["n"], None if each["npy"] is None else each["npy"][0]) for each in found]
        assert pairs == expected
    assert joined.column("cls").to_pylist() == [None if n is None else n % 3 for _, n in expected]


def test_samples_without_a_partner(images, root):
    some = Dataset(root / "some")
    with pytest.raises(SampleKeyError, match=r"20 of 40 .*'k000', 'k002', 'k004' and 17 more; missing='skip'"):
        images.join(some)
    assert images.join(some, missing="skip").keys() == [key(n) for n in range(1, JOINED_COUNT, 2)]
    nones = images.join(some, missing="none")
    assert [found["npy"] is None for found in nones] == [True, False] * 20
    assert nones[0].keys() == {"__key__", "__url__", "jpg", "json", "npy"}


def test_on_a_column(images, root):
    patients = Dataset(root / "patients")
    for on in ("patient", "json.patient", ("json.patient", "patient")):
        joined = images.join(patients, on=on, fields=["txt"])
        assert [found["txt"] for found in joined] == [f"patient {n % 4}" for n in range(JOINED_COUNT)]
    by_key = images.join(patients.map(lambda found: {"txt": found["txt"]}), on="patient")
    assert by_key[6]["txt"] == "patient 2"
    with pytest.raises(QueryError, match="patent"):
        images.join(patients, on="patent", fields=["txt"])


def test_names_that_clash(images, root):
    patients = Dataset(root / "patients")
    with pytest.raises(FieldError, match=r"both datasets have these fields: found json.*suffix='_right'"):
        images.join(patients, on="patient")
    joined = images.join(patients, on="patient", suffix="_right")
    assert joined.fields == ("jpg", "json", "txt", "json_right")
    assert joined[6]["json"] == {"n": 6, "patient": 2}
    assert joined[6]["json_right"] == {"patient": 2}
    assert joined.where("json_right.patient = 3").keys() == [key(n) for n in range(3, JOINED_COUNT, 4)]
    with pytest.raises(FieldError, match="suffix makes a name that is taken"):
        joined.join(images, suffix="_right")


def test_two_samples_of_one_name(images, root, tmp_path):
    write_shards(tmp_path, [{"__key__": "k001", "txt": "a"}, {"__key__": "k002", "txt": "b"}], max_samples=1)
    both = Dataset(tmp_path).concat(Dataset(tmp_path))
    with pytest.raises(OptionError, match=r"cannot be told apart.*'k001' 2 times"):
        images.join(both)
    assert both.join(images).keys() == ["k001", "k002", "k001", "k002"]  # on the left that is no trouble


def test_where_asks_both_sides(images, vectors):
    joined = images.join(vectors)
    assert set(joined.column_names) == {"json.n", "json.patient", "cls"}
    assert joined.where("cls = 1 and patient = 2").keys() == [
        key(n) for n in range(JOINED_COUNT) if n % 3 == 1 and n % 4 == 2
    ]
    assert joined.where("n < 10").join(images.columns(["json"]), suffix="2").where("json2.n > 7").keys() == [
        "k008",
        "k009",
    ]
    with pytest.raises(QueryError):
        joined.where("nothing = 1")
    with pytest.raises(FieldError, match="no such column"):
        joined.table(["nothing"])


def test_columns_reads_only_the_side_that_is_needed(images, root, tmp_path):
    for name in ("images", "vectors"):
        (tmp_path / name).mkdir()
        for tar in (root / name).glob("*.tar"):
            (tmp_path / name / tar.name).write_bytes(tar.read_bytes())
    images, vectors = Dataset(tmp_path / "images"), Dataset(tmp_path / "vectors")
    joined = images.join(vectors)
    for tar in (tmp_path / "vectors").glob("*.tar"):
        data = bytearray(tar.read_bytes())
        data[600:] = bytes(len(data) - 600)  # the first header stays, so that nobody sees it before reading
        tar.write_bytes(data)
    assert joined.columns(["jpg"])[3].keys() == {"__key__", "__url__", "jpg"}
    assert [found["json"]["n"] for found in joined.columns(["json"])] == list(range(JOINED_COUNT))
    with pytest.raises(ChecksumError):
        joined.columns(["npy"])[3]


def test_damage_on_either_side_is_passed_over(root, tmp_path):
    (tmp_path / "vectors").mkdir()
    for tar in (root / "vectors").glob("*.tar"):
        data = bytearray(tar.read_bytes())
        if tar.name == "s-000001.tar":
            data[600:610] = b"x" * 10
        (tmp_path / "vectors" / tar.name).write_bytes(data)
    fresh = Dataset(root / "vectors").keys()
    vectors = Dataset(tmp_path / "vectors")
    len(vectors.where("true"))
    for tar in (root / "vectors" / ".shoal" / "index").glob("*"):
        (tmp_path / "vectors" / ".shoal" / "index").mkdir(parents=True, exist_ok=True)
        (tmp_path / "vectors" / ".shoal" / "index" / tar.name).write_bytes(tar.read_bytes())
    joined = Dataset(root / "images", on_error="skip").join(Dataset(tmp_path / "vectors"))
    with pytest.warns(ShoalWarning, match="passed over 1 damaged"):
        found = [each["__key__"] for each in joined]
    assert sorted({*map(key, range(JOINED_COUNT))} - {*found}) == [fresh[9]]
    assert joined.errors.count == 1


def test_large_fields_come_a_part_at_a_time(tmp_path):
    count, size = 1000, 50_000
    write_shards(tmp_path / "small", ({"__key__": key(n), "cls": n} for n in range(count)), max_samples=count)
    write_shards(tmp_path / "large", ({"__key__": key(n), "bin": bytes(size)} for n in range(count)), max_samples=count)
    joined = Dataset(tmp_path / "small").join(Dataset(tmp_path / "large"))
    tracemalloc.start()
    try:
        assert sum(len(found["bin"]) for found in joined) == count * size
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < count * size * 0.8


def test_a_join_of_a_join(images, vectors, root):
    joined = images.join(vectors).join(Dataset(root / "patients"), on="patient", fields=["txt"])
    assert joined.fields == ("jpg", "json", "npy", "cls", "txt")
    assert all(whole(found, n) and found["txt"] == f"patient {n % 4}" for n, found in enumerate(joined))
    right = images.columns(["jpg"]).join(vectors.join(images.columns(["json"])))
    assert whole(right[17], 17)
    assert right[17]["json"]["n"] == 17


def test_verbs_after_and_before(images, vectors):
    joined = images.join(vectors)
    assert [found["npy"][0] for found in joined.exclude(["k000"]).select([0, -1])] == [1, 39]
    assert len(joined.concat(joined)) == 2 * JOINED_COUNT
    assert whole(joined.concat(joined)[JOINED_COUNT + 3], 3)
    assert sum(joined.split(train=0.9, val=0.1).num_samples.values()) == JOINED_COUNT
    assert joined.map(lambda found: found["npy"][0])[4] == 4
    mapped = images.map(lambda found: {**found, "twice": found["json"]["n"] * 2}).join(vectors)
    assert mapped[4]["twice"] == 8
    assert whole(mapped[4], 4)
    assert mapped.columns(["twice", "cls"])[4].keys() == {"__key__", "__url__", "twice", "cls"}
    with pytest.raises(TypeError, match="materialize"):
        images.filter(bool).join(vectors)


@shoal.packable
class Both:
    n: int
    npy: np.ndarray


@shoal.packable
class Left:
    n: int
    name: str


def test_typed_samples_join_by_their_fields(tmp_path):
    left = shoal.write_samples([Left(n, f"name {n}") for n in range(5)], tmp_path / "left.tar")
    write_shards(tmp_path / "right", ({"__key__": f"{n:09d}", "npy": np.full(2, n)} for n in range(5)))
    joined = left.join(Dataset(tmp_path / "right"))
    assert joined.fields == ("n", "name", "npy")
    assert joined[3]["__key__"] == "000000003"
    assert joined[3]["name"] == "name 3"
    both = left.join(Dataset(tmp_path / "right"), sample_type=Both)
    assert isinstance(both[4], Both)
    assert both[4].npy.tolist() == [4, 4]
    assert [each.n for each in both] == [0, 1, 2, 3, 4]
    (batch,) = both.ordered(batch_size=5)
    assert batch.npy.tolist() == [[n, n] for n in range(5)]


def test_a_joined_dataset_is_refreshed(tmp_path, root):
    write_shards(tmp_path / "a", ({"__key__": key(n), "cls": n} for n in range(5)))
    write_shards(tmp_path / "b", ({"__key__": key(n), "txt": str(n)} for n in range(5)))
    one, two = Dataset(tmp_path / "a"), Dataset(tmp_path / "b")
    joined = one.join(two)
    sent = pickle.dumps(joined)
    one.append([{"__key__": key(7), "cls": 7}])
    two.append([{"__key__": key(7), "txt": "7"}])
    assert len(joined) == 5
    assert joined.where("cls > 3").refresh().keys() == ["k004", "k007"]
    with pytest.raises(ManifestError, match="changed since it was joined"):
        len(pickle.loads(sent))


@pytest.mark.parametrize(
    "options,match",
    [
        ({"missing": "ignore"}, "no such `missing`"),
        ({"fields": "npy"}, "a list of names"),
        ({"on": 3}, "`on` is a column"),
        ({"on": ("a", "b", "c")}, "`on` is a column"),
    ],
)
def test_options_that_make_no_sense(images, vectors, options, match):
    with pytest.raises(OptionError, match=match):
        images.join(vectors, **options)


def test_what_cannot_be_joined(images, vectors):
    with pytest.raises(OptionError, match="only datasets"):
        images.join("vectors")
    with pytest.raises(FieldError, match="no such field: expected npy or cls, found jpg"):
        images.join(vectors, fields=["jpg"])
    with pytest.raises(OptionError, match="a dict or a typed sample, found int"):
        images.join(vectors.map(lambda found: 3))


values = st.one_of(st.none(), st.integers(-5, 5))


@given(st.lists(values), st.lists(st.integers(-5, 5), unique=True), st.sampled_from(["int64", "double", "uint8"]))
def test_partners_are_those_of_a_dict(left, right, kind):
    if kind == "uint8":
        right = [n for n in right if n >= 0]
    rows = {n: at for at, n in enumerate(right)}
    found = partners(pa.chunked_array([pa.array(left, pa.int64())]), pa.chunked_array([pa.array(right, kind)]))
    assert found.tolist() == [rows.get(n, -1) if n is not None else -1 for n in left]


def test_kinds_that_never_meet():
    with pytest.raises(OptionError, match="string on the left, int64 on the right"):
        partners(pa.chunked_array([["1"]]), pa.chunked_array([[1]]))
