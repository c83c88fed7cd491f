"""Reading remote shards: few requests, several in parallel, the same samples as from disk, in bounded memory."""

from __future__ import annotations

import pathlib
import random
import threading
import time
from datetime import UTC, datetime, timedelta
from urllib.parse import urlsplit

import numpy as np
import pytest
from tests.shard.segments import commit_splits, copy_as_segments
from tests.store.servers import BUCKET, Fault, ProxyHandler, RangedHandler, fault_proxy, serving
from tests.store.settings import keys

import shoal
from shoal import store
from shoal.errors import ChecksumError, ObjectChangedError, StaleIndexError, StoreError, StoreTimeoutError
from shoal.formats import webdataset
from shoal.shard import ShardSource
from shoal.store import configure, statistics, store_for

SAMPLES, SHARDS = 300, 4


def samples(size=8_000, count=SAMPLES):
    draw = random.Random(0)
    for number in range(count):
        body = draw.randbytes(size + 11 * (number % 7))
        yield {"__key__": f"{number:06d}", "bin": body, "json": {"number": number}, "txt": f"text {number}"}


def write(root, *, size=8_000, count=SAMPLES, **options):
    with shoal.ShardWriter(f"{root}/train-%06d.tar", max_samples=-(-count // SHARDS), **options) as writer:
        for sample in samples(size, count):
            writer.write(sample)


def plain(found):
    return [{name: value for name, value in sample.items() if name != "__url__"} for sample in found]


def same(found, expected):
    """Without the megabytes that pytest would show."""
    return plain(found) == plain(expected)


def difference(act):
    before = statistics()
    result = act()
    return result, statistics() - before


def settled():
    """Wait until no request is under way."""
    ends = time.monotonic() + 20
    while statistics().in_flight and time.monotonic() < ends:
        threading.Event().wait(0.01)
    return statistics().in_flight == 0


def test_an_epoch_takes_two_requests_and_two_more_for_each_shard_beside_its_bytes(s3):
    write(s3)
    found, done = difference(lambda: list(shoal.Dataset(f"{s3}/")))
    assert same(found, samples())
    assert dict(done.requests) == {"LIST": 1, "GET": 1 + 3 * SHARDS}
    stored = sum(info.size for info in store.list(s3) if ".tar" in info.url)
    assert done.bytes_read <= 1.05 * stored


@pytest.mark.parametrize("options", [{}, {"compression": "zstd"}, {"compression": "gzip"}], ids=str)
@pytest.mark.parametrize("reading", [{}, {"fields": ["json"]}, {"fields": ["json", "txt"]}, {"verify": False}], ids=str)
def test_samples_are_those_on_disk(s3, tmp_path, options, reading):
    write(s3, **options)
    write(str(tmp_path), **options)
    far, near = shoal.Dataset(f"{s3}/", **reading), shoal.Dataset(str(tmp_path), **reading)
    assert same(list(far), list(near))
    rows = np.random.default_rng(0).permutation(SAMPLES)[:40]
    assert same(far[rows], near[rows])


def test_many_parts_come_in_order_several_at_once(proxy, broken, monkeypatch):
    for name in ("_FIRST_PART_BYTES", "_PART_BYTES"):
        monkeypatch.setattr(f"shoal.shard._sequential.{name}", 100_000)
    monkeypatch.setattr("shoal.shard._sequential._SLOW_BYTES_PER_S", 0)  # or small parts would count as slow
    monkeypatch.setattr("shoal.shard._shard_file.BLOCK_BYTES", 50_000)
    write(broken)
    proxy.most_at_once = 0
    assert same(list(shoal.Dataset(f"{broken}/")), samples())
    assert 2 <= proxy.most_at_once <= 5 + 5  # and what opens the next shards
    large = [asked for _, path, asked, _ in proxy.requests if ".tar?" not in path and path.endswith(".tar") and asked]
    assert len(large) > 20


def test_over_slow_connections_more_and_smaller_parts_come_at_once(proxy, broken, monkeypatch):
    """Every connection is slow here: so is a cloud's, and then all of them together are not."""
    sizes = {"_FIRST_PART_BYTES": 100_000, "_PART_BYTES": 100_000, "_SLOW_PART_BYTES": 50_000}
    for name, value in {**sizes, "_SLOW_BYTES_PER_S": 1e15, "_SLOW_CONCURRENCY": 7}.items():
        monkeypatch.setattr(f"shoal.shard._sequential.{name}", value)
    monkeypatch.setattr("shoal.shard._shard_file.BLOCK_BYTES", 20_000)
    write(broken, count=800)
    proxy.requests.clear()
    proxy.most_at_once = 0
    assert same(list(shoal.Dataset(f"{broken}/")), samples(count=800))
    sizes = [_asked(one) for one in proxy.requests if one[0] == "GET" and urlsplit(one[1]).path.endswith(".tar")]
    large = [size for size in sizes if 60_000 < size <= 100_000]  # before anything was known
    assert len(large) >= 6
    assert len([size for size in sizes if 20_000 < size <= 50_000]) > 60
    assert max(sizes) <= 100_000
    assert proxy.most_at_once <= 7 + 5  # and what opens the next shards


def _asked(request):
    first, _, last = (request[2] or "bytes=0-0").removeprefix("bytes=").partition("-")
    return int(last) - int(first) + 1


def test_projection_skips_bytes_where_that_pays(s3):
    write(s3, size=300_000, count=24)
    found, done = difference(lambda: list(shoal.Dataset(f"{s3}/", fields=["json"])))
    assert [sample["json"]["number"] for sample in found] == list(range(24))
    assert done.bytes_read < 200_000
    write(f"{s3}/small")  # gaps of 8 kB cost less than requests
    _, done = difference(lambda: list(shoal.Dataset(f"{s3}/small", fields=["json"])))
    assert done.requests["GET"] <= 1 + 3 * SHARDS


def test_who_stops_early_leaves_nothing_under_way(s3):
    write(s3)
    for count, _ in enumerate(shoal.Dataset(f"{s3}/")):
        if count == 3:
            break
    assert settled()


def test_requests_are_bounded_over_all_loaders(proxy, broken):
    write(broken)
    configure(max_in_flight=3)
    proxy.most_at_once = 0
    loaders = [shoal.DataLoader(shoal.Dataset(f"{broken}/"), batch_size=16, shuffle=True, window=64) for _ in range(3)]
    found = [[] for _ in loaders]

    def read(loader, into):
        for batch in loader:
            into.extend(batch["__key__"])

    threads = [threading.Thread(target=read, args=pair) for pair in zip(loaders, found, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for loader, told in zip(loaders, found, strict=True):
        loader.close()
        assert len(told) == len(set(told)) == SAMPLES
    assert 1 < proxy.most_at_once <= 3


def test_a_large_object_comes_in_parts_at_once(proxy, broken):
    configure(f"s3://{BUCKET}", part_size=5 << 20)
    data = random.Random(1).randbytes(22 << 20)
    store.put(f"{broken}/large", data)
    proxy.most_at_once = 0
    same = store_for(broken).open(f"{broken}/large").read(0, len(data)) == data
    assert same
    assert proxy.most_at_once >= 2


def loaded(dataset, **options):
    with shoal.DataLoader(dataset, batch_size=16, **options) as loader:
        return [key for batch in loader for key in batch["__key__"]]


@pytest.mark.parametrize(
    "options", [{}, {"shuffle": True}, {"shuffle": True, "window": 96, "block_samples": 6}], ids=str
)
@pytest.mark.parametrize("share", [{}, {"rank": 1, "world_size": 3}], ids=str)
def test_a_loader_reads_the_same_from_afar(s3, tmp_path, options, share):
    write(s3)
    write(str(tmp_path))
    assert loaded(shoal.Dataset(f"{s3}/"), **options, **share) == loaded(
        shoal.Dataset(str(tmp_path)), **options, **share
    )
    assert settled()


def test_shuffled_samples_come_by_blocks(s3):
    write(s3)
    options = {"shuffle": True, "window": 96, "block_samples": 10, "lanes": 3}
    keys, done = difference(lambda: loaded(shoal.Dataset(f"{s3}/"), **options))
    assert sorted(keys) == [f"{number:06d}" for number in range(SAMPLES)]
    assert keys != sorted(keys)
    # Thirty blocks, some across two shards, and those of the next epoch that were begun when this one ended.
    assert done.requests["GET"] < 1 + 2 * SHARDS + 80
    assert done.requests.get("HEAD", 0) == 0


def test_what_fits_is_fetched_once_for_all_epochs(s3):
    write(s3)
    with shoal.DataLoader(shoal.Dataset(f"{s3}/"), batch_size=16, shuffle=True) as loader:
        first, done = difference(lambda: [key for batch in loader for key in batch["__key__"]])
        stored = sum(info.size for info in store.list(s3) if ".tar" in info.url)
        assert done.bytes_read < 1.2 * stored
        second, done = difference(lambda: [key for batch in loader for key in batch["__key__"]])
        assert done.bytes_read < 0.2 * stored
        assert loader.stats().requests > 0
        assert loader.stats().downloaded > 0.9 * stored
    assert sorted(first) == sorted(second)
    assert first != second


def test_a_filtered_loader_reads_ahead_too(s3):
    write(s3)
    loader = shoal.DataLoader(shoal.Dataset(f"{s3}/"), batch_size=None, shuffle=True, window=96, block_samples=10)
    kept = loader.filter(lambda sample: sample["json"]["number"] % 2 == 0)
    found, done = difference(lambda: sorted(sample["json"]["number"] for sample in kept))
    kept.close()
    assert found == list(range(0, SAMPLES, 2))
    assert done.requests["GET"] < 120


def test_the_window_keeps_to_the_memory_budget(s3):
    write(s3)
    source = shoal.Dataset(f"{s3}/").source
    assert isinstance(source, ShardSource)
    order = [np.arange(start, start + 10) for start in range(0, SAMPLES, 10)]
    told = shoal.shard.ReadSchedule(iter([(0, numbers) for numbers in order]), SAMPLES, 10, 20, 300_000)
    window = shoal.shard.SampleWindow(source, told, lambda numbers: numbers, lambda _: None, 8_500.0)
    window.go_on()
    for numbers in order:
        with window.reading(numbers):
            assert len(source.read(numbers)) == 10
    window.close()
    assert 0 < window.most_held <= 300_000


def test_an_epoch_over_a_bad_line_is_byte_exact(proxy, broken):
    write(broken)
    kinds = ["reset", "cut", "status", "fewer-bytes", "latency"]
    for number in range(20):
        path = f"train-{number % 4:06d}.tar"
        proxy.faults.append(Fault(kinds[number % 5], path=path, status=500, after=number * 20_000, seconds=0.05))
    with shoal.DataLoader(shoal.Dataset(f"{broken}/"), batch_size=None, shuffle=True, window=96) as loader:
        found = sorted(loader, key=lambda sample: sample["__key__"])
    assert same(found, samples())
    assert sum(proxy.happened.values()) >= 15


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_shard_that_is_replaced_in_mid_epoch_is_told(proxy, broken, shuffle):
    write(broken)
    dataset = shoal.Dataset(f"{broken}/")
    len(dataset), [dataset.source.shard(number) for number in range(SHARDS)]
    url = f"{broken}/train-000002.tar"
    store.put(url, store.get(url)[:-1] + b"!")
    if shuffle:
        with pytest.raises(ObjectChangedError), shoal.DataLoader(dataset, shuffle=True, window=96) as loader:
            list(loader)
    else:
        with pytest.raises(ObjectChangedError):
            list(dataset)
    assert settled()


def test_another_etag_in_mid_read_is_told(proxy, broken):
    write(broken)
    dataset = shoal.Dataset(f"{broken}/")
    dataset[0]
    proxy.faults.append(Fault("other-etag", path="train-000000.tar", times=100))
    with pytest.raises(ObjectChangedError):
        list(dataset)


def test_a_slow_drip_is_given_up_and_taken_up_again(proxy, broken):
    write(broken)
    configure(f"s3://{BUCKET}", timeout=0.6)
    dataset = shoal.Dataset(f"{broken}/")
    [dataset.source.shard(number) for number in range(SHARDS)]
    proxy.faults.append(Fault("drip", path="train-000001.tar", after=300_000, seconds=0.05))
    assert same(list(dataset), samples())
    assert proxy.happened["drip"] == 1


def test_a_line_that_only_drips_ends_with_an_error(proxy, broken):
    write(broken)
    configure(f"s3://{BUCKET}", timeout=0.3, retries=1)
    dataset = shoal.Dataset(f"{broken}/")
    [dataset.source.shard(number) for number in range(SHARDS)]
    proxy.faults.append(Fault("drip", path="train-000001.tar", seconds=0.05, times=100))
    with pytest.raises(StoreTimeoutError):
        list(dataset)


def test_credentials_that_expire_in_mid_epoch_are_asked_for_anew(proxy, broken):
    write(broken)
    asked = []

    def provider():
        asked.append(time.monotonic())
        return {**keys(), "expires_at": datetime.now(UTC) + timedelta(hours=1)}

    configure(f"s3://{BUCKET}", credential_provider=provider)
    dataset = shoal.Dataset(f"{broken}/")
    [dataset.source.shard(number) for number in range(SHARDS)]
    before = len(asked)
    for number in range(SHARDS):  # the server takes them no longer, though they said an hour
        proxy.faults.append(Fault("status", path=f"train-{number:06d}.tar", status=403))
    assert same(list(dataset), samples())
    assert proxy.happened["status"] == SHARDS
    assert len(asked) > before


def test_a_server_that_is_gone_ends_the_epoch_with_an_error(proxy, broken):
    write(broken)
    configure(f"s3://{BUCKET}", retries=0)
    dataset = shoal.Dataset(f"{broken}/")
    [dataset.source.shard(number) for number in range(SHARDS)]
    proxy.faults.append(Fault("status", path="train-000002.tar", status=500, times=1000))
    with pytest.raises(StoreError):
        list(dataset)
    proxy.faults.clear()
    assert same(list(dataset), samples())


def test_foreign_shards_are_read_in_one_pass_where_nobody_needs_an_index(s3):
    write(s3)
    for number in range(SHARDS):
        store.copy(f"{s3}/train-{number:06d}.tar", f"{s3}/foreign/x-{number}.tar")
    urls = [f"{s3}/foreign/x-{number}.tar" for number in range(SHARDS)]
    source = ShardSource([shoal.shard.ShardRef(url) for url in urls])
    found, done = difference(lambda: [sample for run in source.stream() for sample in run])
    assert [sample["bin"] for sample in found] == [sample["bin"] for sample in samples()]
    stored = sum(store_for(url).info(url).size for url in urls)
    assert done.bytes_read < 1.05 * stored


def test_a_foreign_shard_is_indexed_once_and_then_found(s3):
    write(s3)
    url = f"{s3}/foreign/x.tar"
    store.copy(f"{s3}/train-000000.tar", url)
    size = store_for(url).info(url).size
    assert shoal.Dataset(url)[7]["json"] == {"number": 7}
    found, done = difference(lambda: shoal.Dataset(url)[9]["json"])
    assert found == {"number": 9}
    assert done.bytes_read < size / 10


def test_a_stream_reads_ahead_in_few_requests(s3):
    write(s3, size=60_000)
    url = f"{s3}/train-000000.tar"
    found, done = difference(lambda: sum(1 for _ in webdataset.stream(url)))
    assert found == SAMPLES // SHARDS
    assert done.requests["GET"] <= 8


@pytest.mark.parametrize("balance", ["round-robin", "least-in-flight"])
def test_several_endpoints_share_the_requests(s3, s3_endpoint, balance):
    write(s3)
    with fault_proxy(s3_endpoint) as one, fault_proxy(s3_endpoint) as two:
        configure(f"s3://{BUCKET}", endpoint=None, endpoints=[one.url, two.url], balance=balance)
        assert same(list(shoal.Dataset(f"{s3}/")), samples())
        assert min(len(one.requests), len(two.requests)) >= 4
        one.faults.append(Fault("status", status=500, times=1000))  # one of them is ill: the other one does it
        assert same(list(shoal.Dataset(f"{s3}/")), samples())


class _Halting(ProxyHandler):
    """Sends the first half of a large answer, and the rest when it is told to."""

    def answer(self, status, headers, body=b"", length=None):
        if self.command != "GET" or len(body) < 4_000_000:
            return super().answer(status, headers, body, length)
        super().answer(status, headers, body[: len(body) // 2], len(body))
        self.wfile.flush()
        self.server.was_told.append(self.server.go_on.wait(20))
        self.wfile.write(body[len(body) // 2 :])
        return None


def test_samples_are_there_as_soon_as_their_bytes_are(s3, s3_endpoint, tmp_path):
    """Not when the last byte is of the request that brings them."""
    for root in (s3, tmp_path):
        write(root, size=80_000)
    with fault_proxy(s3_endpoint, _Halting, go_on=threading.Event(), was_told=[]) as proxy:
        configure(f"s3://{BUCKET}", endpoint=proxy.url)
        found = iter(shoal.Dataset(s3))
        first = next(found)
        proxy.go_on.set()
        assert same([first, *found], shoal.Dataset(tmp_path))
        assert settled()
        assert proxy.was_told == [True] * SHARDS


def served(http, folder, **options):
    """The URLs of small shards of several blocks that a server has, and the path of each on it."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("shoal.shard._shard_file.BLOCK_BYTES", 20_000)
        patched.setattr("shoal.shard._shard_file._COMPRESSED_BLOCK_BYTES", 20_000)
        write(str(folder), size=1_000, count=120, **options)
    for path in filter(pathlib.Path.is_file, folder.rglob("*")):
        http.objects[f"/{path.relative_to(folder)}"] = path.read_bytes()
    names = sorted(name for name in http.objects if "train-" in name and ".shoal" not in name)
    return [http.url + name for name in names], names


@pytest.mark.parametrize("options", [{}, {"compression": "zstd"}], ids=str)
@pytest.mark.parametrize("fields", [None, ["json"], ["bin", "txt"]], ids=str)
def test_the_store_counts_what_was_estimated(http, tmp_path, options, fields):
    urls, _ = served(http, tmp_path, **options)
    draw = np.random.default_rng(0)
    for rows in ([5, 100, 50], range(30), range(10, 110), draw.permutation(120), draw.integers(0, 120, 60), [7]):
        source = shoal.Dataset(urls, decode=False).source
        assert isinstance(source, ShardSource)
        shards = [source.shard(number) for number in range(SHARDS)]
        cost = source.estimate(np.array(rows), fields)
        _, done = difference(lambda source=source, rows=rows: source.columns(np.array(rows), fields))
        assert (done.requests["GET"], done.bytes_read) == (cost.requests, cost.bytes)
        assert len(shards) == SHARDS


class MeetingHandler(RangedHandler):
    """Answers requests for ranges of tars only when as many as ``server.meeting`` waits for are under way."""

    def do_GET(self):
        if self.server.meeting is not None and ".tar" in self.path and self.headers.get("Range"):
            self.server.meeting.wait(20)
        super().do_GET()


def test_requests_of_a_batch_over_several_shards_are_under_way_together(tmp_path):
    with serving(MeetingHandler, objects={}, requests=[], quirks=set(), secret=None, meeting=None) as http:
        urls, _ = served(http, tmp_path)
        source = shoal.Dataset(urls, decode=False).source
        assert isinstance(source, ShardSource)
        rows = np.array([100, 5, 40, 70])
        assert len({source.shard_of(row).url for row in rows.tolist()}) == SHARDS
        http.meeting = threading.Barrier(SHARDS)
        assert same(source.read(rows), shoal.Dataset(str(tmp_path), decode=False)[rows])


FIELDS = ["bin", "json", "txt"]
WAYS = {
    "stream": lambda opened, fields: list(opened(fields=fields)),
    "column": lambda opened, fields: [list(opened().source.stream_column(name)) for name in fields or FIELDS],
    "few": lambda opened, fields: opened().source.read(np.array([5, 100, 50]), fields),
    "all": lambda opened, fields: opened().source.columns(np.random.default_rng(0).permutation(120), fields),
    "run": lambda opened, fields: opened().source.read(np.arange(2, 90), fields),
    "one": lambda opened, fields: opened().source.read(np.array([5]), fields),
    "ordered": lambda opened, fields: list(shoal.DataLoader(opened(fields=fields), batch_size=16)),
    "shuffled": lambda opened, fields: list(shoal.DataLoader(opened(fields=fields), batch_size=16, shuffle=True)),
    "blocks": lambda opened, fields: list(opened(fields=fields, cache="blocks")),
    "shards": lambda opened, fields: list(opened(fields=fields, cache="shards")),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_flipped_byte_of_a_remote_shard_is_found_by_every_way_to_read_it(http, tmp_path, way):
    urls, names = served(http, tmp_path)
    near = shoal.Dataset(str(tmp_path), decode=False).source
    assert isinstance(near, ShardSource)
    good = http.objects[names[0]]
    for field, part in near.shard(0).index.fields.items():
        offset, size = int(part.offset[5]), int(part.size[5])
        for at in (0, size // 2, size - 1):
            http.objects[names[0]] = good[: offset + at] + bytes([good[offset + at] ^ 4]) + good[offset + at + 1 :]
            for fields in (None, [field]):
                with pytest.raises(ChecksumError) as caught:
                    WAYS[way](lambda **options: shoal.Dataset(urls, decode=False, **options), fields)
                found = caught.value
                assert (found.shard, found.key, found.field, found.offset) == (urls[0], "000005", field, offset)


# ------------------------------------------------------------------------------------------------------------ segments


def write_segments(root):
    write(f"{root}/old")
    copy_as_segments(f"{root}/old", f"{root}/new", shards_per_segment=SHARDS)
    return f"{root}/new"


def test_segments_open_with_one_request_and_the_first_sample_takes_three(s3):
    root = write_segments(s3)
    dataset = shoal.Dataset(root)
    count, opening = difference(lambda: len(dataset))
    first, reading = difference(lambda: dataset[150])
    others, more = difference(lambda: [dataset[number]["json"]["number"] for number in (7, 90, 299)])

    assert count == SAMPLES
    assert dict(opening.requests) == {"GET": 1}
    assert same([first], list(samples())[150:151])
    assert dict(reading.requests) == {"GET": 3}  # shards, extents, the tar
    assert others == [7, 90, 299]
    assert dict(more.requests) == {"GET": 3}  # the records are in memory by now


def test_segments_answer_keys_and_queries_without_a_tar(s3):
    root = write_segments(s3)
    dataset = shoal.Dataset(root)
    assert len(dataset) == SAMPLES
    found, done = difference(lambda: dataset.position_of("000123"))
    assert (found, dict(done.requests)) == (123, {"GET": 2})  # keys, and the key to compare
    found, done = difference(lambda: len(dataset.where("json.number >= 200")))
    assert (found, dict(done.requests)) == (100, {"GET": 1})


def test_an_epoch_of_segments_is_the_same_in_as_few_requests(s3):
    root = write_segments(s3)
    found, done = difference(lambda: list(shoal.Dataset(root)))
    assert same(found, samples())
    assert done.requests["GET"] <= 1 + 3 * SHARDS
    stored = sum(info.size for info in store.list(root) if ".tar" in info.url)
    assert done.bytes_read <= 1.05 * stored
    loader = shoal.DataLoader(shoal.Dataset(root), batch_size=16, shuffle=True, window=64, block_samples=16, seed=3)
    keys = [key for batch in loader for key in batch["__key__"]]
    assert sorted(keys) == [f"{number:06d}" for number in range(SAMPLES)]


@pytest.mark.parametrize("is_same_size", [True, False])
def test_a_remote_dataset_that_was_replaced_is_told_from_damage(s3, is_same_size):
    root = write_segments(s3)
    dataset, damaged = shoal.Dataset(root), shoal.Dataset(root)
    assert len(dataset) == len(damaged) == SAMPLES
    for number in range(SHARDS):
        url = f"{root}/train-{number:06d}.tar"
        data = bytearray(store.get(url))
        data[512:522] = b"other data"
        store.put(url, bytes(data) if is_same_size else bytes(data) + bytes(512))
    with pytest.raises(ChecksumError if is_same_size else StaleIndexError):
        damaged[0]
    commit_splits(root, {}, new_lineage=True)
    for read in (lambda: dataset[0], lambda: dataset[150:160], lambda: list(dataset)):
        with pytest.raises(ObjectChangedError, match=r"replaced.*refresh"):
            read()
