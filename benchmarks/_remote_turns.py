"""What each contender does over the wire. Each gives dicts of bytes, and says how many and how large they were."""

from __future__ import annotations

import http.client
import importlib
import io
import json
import os
import tarfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from itertools import groupby
from typing import Any

import obstore
from tests.store.servers import ACCESS_KEY, BUCKET, SECRET_KEY

__all__ = ["CONTENDERS", "main"]

Samples = Iterable[dict[str, Any]]
PREFIX = f"s3://{BUCKET}/bench"
_HOUR = timedelta(hours=1)
_PEER_SHARDS = 3
"""Peers read the first few shards, and count by what they read: all of them would take each of them half a minute."""


def _resident() -> float:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def _objects(endpoint: str) -> tuple[Any, list[tuple[str, int]]]:
    from obstore.store import S3Store

    facts = {"access_key_id": ACCESS_KEY, "secret_access_key": SECRET_KEY, "region": "us-east-1"}
    client = S3Store(BUCKET, endpoint=endpoint, client_options={"allow_http": True, "timeout": "120s"}, **facts)
    found = [one for page in client.list("bench") for one in page if one["path"].endswith(".tar")]
    return client, sorted((one["path"], one["size"]) for one in found)


def _few_objects(endpoint: str) -> tuple[Any, list[tuple[str, int]]]:
    client, objects = _objects(endpoint)
    return client, objects[:_PEER_SHARDS]


def _tar_samples(file: Any) -> Iterator[dict[str, Any]]:
    """What a user of tarfile writes: members in a row with the same key are a sample."""
    with tarfile.open(fileobj=file, mode="r|") as tar:
        members = ((one.name.partition("."), tar.extractfile(one)) for one in tar if one.isfile())
        for key, group in groupby(members, lambda pair: pair[0][0]):
            yield {"__key__": key, **{name[2]: body.read() for name, body in group if body is not None}}


# ------------------------------------------------------------------------------------------------------------ the limit


def raw(part: int, at_once: int) -> Callable[[str], int]:
    """obstore's own GETs of all bytes, streamed, so many of such parts at once: what nobody can beat."""

    def run(endpoint: str) -> int:
        client, objects = _objects(endpoint)
        cuts = [(path, at, min(at + part, size)) for path, size in objects for at in range(0, size, part)]

        def fetch(cut: tuple[str, int, int]) -> int:
            path, start, stop = cut
            return sum(map(len, client.get(path, options={"range": (start, stop)}).stream(256 << 10)))

        with ThreadPoolExecutor(at_once) as pool:
            return sum(pool.map(fetch, cuts))

    return run


def raw_sockets(part: int, at_once: int) -> Callable[[str], int]:
    """The same with URLs that obstore signed and the standard library's client: fewer copies on the way."""

    def run(endpoint: str) -> int:
        client, objects = _objects(endpoint)
        host = endpoint.removeprefix("http://")
        paths = {path: obstore.sign(client, "GET", path, _HOUR).removeprefix(endpoint) for path, _ in objects}
        cuts = [(path, at, min(at + part, size)) for path, size in objects for at in range(0, size, part)]
        own = threading.local()

        def fetch(cut: tuple[str, int, int]) -> int:
            path, start, stop = cut
            if not hasattr(own, "line"):
                own.line = http.client.HTTPConnection(host, timeout=120)
            own.line.request("GET", paths[path], headers={"Range": f"bytes={start}-{stop - 1}"})
            answer = own.line.getresponse()
            return sum(map(len, iter(lambda: answer.read(512 << 10), b"")))

        with ThreadPoolExecutor(at_once) as pool:
            return sum(pool.map(fetch, cuts))

    return run


def raw_blocks(endpoint: str) -> int:
    """obstore's GETs of a block shuffle's blocks, in the loader's order."""
    order, ranges = _block_ranges(endpoint)
    client, _ = _objects(endpoint)

    def fetch(block: int) -> int:
        return sum(len(client.get_range(path, start=start, end=stop)) for path, start, stop in ranges[block])

    with ThreadPoolExecutor(32) as pool:
        return sum(pool.map(fetch, order))


def _block_ranges(endpoint: str) -> tuple[list[int], dict[int, list[tuple[str, int, int]]]]:
    import numpy as np

    import shoal
    from shoal.shard._extents import shard_extents
    from shoal.shard._read_plan import prefetch_ranges

    from ._remote import reach

    reach(endpoint)
    dataset = shoal.Dataset(f"{PREFIX}/")
    loader = shoal.DataLoader(dataset, batch_size=64, shuffle=True)
    order: Any = loader.order
    source: Any = dataset.source
    size = getattr(order, "block_samples", 40)
    blocks = list(dict.fromkeys((order.samples(np.arange(order.length)) // size).tolist()))
    found: dict[int, list[tuple[str, int, int]]] = {}
    for block in blocks:
        first, last = block * size, min((block + 1) * size, len(source))
        for number in range(len(source.shards)):
            low, high = max(first, int(source.starts[number])), min(last, int(source.starts[number + 1]))
            if low < high:
                base, shard = int(source.starts[number]), source.shard(number)
                path = shard.url.removeprefix(f"s3://{BUCKET}/")
                for start, stop in prefetch_ranges(shard_extents(shard, slice(low - base, high - base))):
                    found.setdefault(block, []).append((path, start, stop))
    return blocks, found


# ---------------------------------------------------------------------------------------------------------------- shoal


def _shoal(endpoint: str, **options: Any) -> Any:
    import shoal

    from ._remote import reach

    reach(endpoint)
    return shoal.Dataset(f"{PREFIX}/", decode=False, **options)


def shoal_in_order(endpoint: str) -> Samples:
    """All samples, checksums verified."""
    return _shoal(endpoint)


def shoal_field(endpoint: str) -> Samples:
    """One small field of all samples."""
    return _shoal(endpoint, fields=["cls"])


def shoal_shuffled(endpoint: str) -> Iterator[dict[str, Any]]:
    """A loader's batches, block-shuffled."""
    import shoal

    with shoal.DataLoader(_shoal(endpoint), batch_size=64, shuffle=True, collate_fn=list) as loader:
        for batch in loader:
            yield from batch


def shoal_cached(endpoint: str) -> Samples:
    """From the cache, which an epoch before has filled."""
    return _shoal(endpoint, cache="blocks")


def shoal_local(endpoint: str) -> Samples:
    """The same files on the local disk."""
    import shoal

    del endpoint
    return shoal.Dataset(os.environ["SHOAL_BENCH_LOCAL"], decode=False)


# ---------------------------------------------------------------------------------------------------------------- peers


def s3dlio_loader(endpoint: str) -> Iterator[dict[str, Any]]:
    """s3dlio's loader gives whole objects; tarfile cuts them."""
    import s3dlio

    del endpoint
    _, objects = _few_objects(os.environ["AWS_ENDPOINT_URL"])
    dataset = s3dlio.PyDataset.from_uris([f"s3://{BUCKET}/{path}" for path, _ in objects])
    options = {"prefetch": 2, "reader_mode": "range", "part_size": 16 << 20, "max_inflight_parts": 4}
    for view in s3dlio.PyBytesAsyncDataLoader(dataset, options):
        yield from _tar_samples(io.BytesIO(memoryview(view)))


def s3torchconnector(endpoint: str) -> Iterator[dict[str, Any]]:
    """Amazon's connector: a stream an object, cut by tarfile."""
    from s3torchconnector import S3ClientConfig, S3IterableDataset

    config = S3ClientConfig(force_path_style=True)
    urls = [f"s3://{BUCKET}/{path}" for path, _ in _few_objects(endpoint)[1]]
    dataset = S3IterableDataset.from_objects(urls, region="us-east-1", endpoint=endpoint, s3client_config=config)
    for reader in dataset:
        yield from _tar_samples(reader)


def webdataset_pipe(endpoint: str) -> Samples:
    """webdataset over the AWS command line, as its documents say."""
    import webdataset

    _, objects = _few_objects(endpoint)
    urls = [f"pipe:aws --endpoint-url {endpoint} s3 cp s3://{BUCKET}/{path} -" for path, _ in objects]
    return webdataset.WebDataset(urls, shardshuffle=False)


def webdataset_http(endpoint: str) -> Samples:
    """webdataset over http, which it does with curl: URLs signed beforehand."""
    import webdataset

    client, objects = _few_objects(endpoint)
    urls = [f"pipe:curl -s '{obstore.sign(client, 'GET', path, _HOUR)}'" for path, _ in objects]
    return webdataset.WebDataset(urls, shardshuffle=False)


def _s3fs(endpoint: str) -> Any:
    import s3fs

    return s3fs.S3FileSystem(
        key=ACCESS_KEY, secret=SECRET_KEY, client_kwargs={"endpoint_url": endpoint}, default_block_size=16 << 20
    )


def s3fs_tarfile(endpoint: str) -> Iterator[dict[str, Any]]:
    """fsspec's file, cut by tarfile."""
    system, (_, objects) = _s3fs(endpoint), _few_objects(endpoint)
    for path, _ in objects:
        with system.open(f"{BUCKET}/{path}", "rb") as file:
            yield from _tar_samples(file)


def s3fs_webdataset(endpoint: str) -> Iterator[dict[str, Any]]:
    """fsspec's file, cut by webdataset."""
    from webdataset.tariterators import group_by_keys, tar_file_iterator

    system, (_, objects) = _s3fs(endpoint), _few_objects(endpoint)
    for path, _ in objects:
        with system.open(f"{BUCKET}/{path}", "rb") as file:
            members = ({"fname": name, "data": data, "__url__": path} for name, data in _named(tar_file_iterator(file)))
            yield from group_by_keys(members)


def _named(members: Iterable[Any]) -> Iterator[tuple[str, bytes]]:
    for one in members:
        yield (one["fname"], one["data"]) if isinstance(one, dict) else one


CONTENDERS: dict[str, Callable[[str], Any]] = {
    "raw 16 MB x 2": raw(16 << 20, 2),
    "raw 16 MB x 4": raw(16 << 20, 4),
    "raw 16 MB x 8": raw(16 << 20, 8),
    "raw 32 MB x 4": raw(32 << 20, 4),
    "raw whole x 2": raw(1 << 40, 2),
    "raw sockets 32 MB x 4": raw_sockets(32 << 20, 4),
    "raw blocks": raw_blocks,
    "shoal": shoal_in_order,
    "shoal, one field": shoal_field,
    "shoal, block-shuffled": shoal_shuffled,
    "shoal, cached": shoal_cached,
    "shoal, local": shoal_local,
    "s3dlio + tarfile": s3dlio_loader,
    "s3torchconnector + tarfile": s3torchconnector,
    "webdataset, http": webdataset_http,
    "webdataset, aws pipe": webdataset_pipe,
    "s3fs + webdataset": s3fs_webdataset,
    "s3fs + tarfile": s3fs_tarfile,
}


_IMPORTED = {
    "raw": ("obstore", "shoal.dataset", "shoal.load"),
    "shoal": ("obstore", "pyarrow.compute", "shoal.dataset", "shoal.load", "shoal.store._obstore"),
    "webdataset": ("obstore", "webdataset"),
    "s3dlio": ("obstore", "s3dlio"),
    "s3torchconnector": ("s3torchconnector",),
    "s3fs": ("obstore", "s3fs", "botocore.session"),
}
"""What a contender loads at its first use: before the clock starts, for everybody."""


def _watched(found: Any, peak: list[float]) -> tuple[int, int]:
    """How many samples, and about their bytes; the memory in use is looked at on the way."""
    if isinstance(found, int):
        return 0, found
    count = size = 0
    for sample in found:
        count += 1
        size += sum(map(len, sample.values()))  # keys too, but quick: it is timed, and only where there are samples
        if count % 500 == 0:
            peak.append(_resident())
    return count, size


def _look(peak: list[float], over: threading.Event) -> None:
    while not over.wait(0.02):
        peak.append(_resident())


def main(name: str, endpoint: str) -> None:
    """One turn: prints what it took."""
    from shoal.store import statistics

    contender = CONTENDERS[name]
    for word, modules in _IMPORTED.items():
        if word in name:
            for module in modules:
                importlib.import_module(module)
    before, over = _resident(), threading.Event()
    peak = [before]
    watch = threading.Thread(target=_look, args=(peak, over))
    watch.start()
    begun, used, children = time.perf_counter(), time.process_time(), os.times()
    count, size = _watched(contender(endpoint), peak)
    seconds, after = time.perf_counter() - begun, os.times()
    processor = time.process_time() - used
    processor += after.children_user + after.children_system - children.children_user - children.children_system
    over.set()
    watch.join()
    downloaded = statistics().bytes_read if name.startswith("shoal") else None
    told = {"seconds": seconds, "samples": count, "bytes": size, "downloaded": downloaded}
    print(json.dumps({**told, "processor": processor, "memory": max(peak) - before}))
