"""The peers' loaders, each as its own manual shows it, for any kind of sample.

A kind of sample says how it is written for each and what a batch is; here is only what a peer needs for all of them.
``WORKERS`` processes or threads each. What a peer stores is made once, in its own format, below ``.bench/loader``.
"""

from __future__ import annotations

import functools
import glob
import importlib
import itertools
import random
import shutil
import subprocess
import sys
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from ._data import FOLDER

__all__ = [
    "WORKERS",
    "huggingface_batches",
    "litdata_batches",
    "made",
    "peer",
    "spdl_batches",
    "streaming_batches",
    "torch_batches",
    "webdataset_batches",
    "write_litdata",
    "write_mds",
]

WORKERS = 2
SHUFFLED = 1000
"""Samples in the buffers of those that shuffle by one."""

Columns = Callable[[list[Any]], Any]

# Without their dependencies: they ask for clients of every cloud, and for a NumPy and a torch that are not here.
_WANTED = (
    "mosaicml-streaming==0.13.0",
    "litdata==0.2.76",
    "pylance==14.0.2",
    "lance-namespace==0.13.0",
    "lance-namespace-urllib3-client==0.13.0",
    "spdl-core==0.8.0",
    "spdl-io==0.8.0",
    "lightning-utilities==0.15.3",
    "tifffile",
    "boto3==1.44.0",
    "botocore==1.44.0",
    "jmespath",
    "s3transfer",
    "python-dateutil==2.9.0.post0",
    "python-snappy==0.7.3",
    "cramjam",
    "zstd==1.5.7.2",
    "Brotli",
    "catalogue<3",
)


@functools.cache
def _installed() -> str:
    folder = FOLDER / "loader_peers"
    installed, wanted = folder / "installed.txt", "\n".join(_WANTED)
    if not installed.exists() or installed.read_text() != wanted:
        pip = [sys.executable, "-m", "pip", "install", "-qq", "--disable-pip-version-check", "--no-deps", "--upgrade"]
        subprocess.run([*pip, "--target", str(folder), *_WANTED], check=True)
        installed.write_text(wanted)
    return str(folder)


def peer(name: str) -> Any:
    """A module of a peer. Streaming's packages import every cloud's client; its modules do not."""
    if _installed() not in sys.path:
        sys.path.append(_installed())
    if name.startswith("streaming.") and "streaming" not in sys.modules:
        for package in ("streaming", "streaming.base"):
            sys.modules[package] = types.ModuleType(package)
            sys.modules[package].__path__ = [f"{_installed()}/{package.replace('.', '/')}"]
    return importlib.import_module(name)


def made(folder: str, write: Callable[[str], object]) -> str:
    """The path of something that ``write`` made once."""
    path = FOLDER / "loader" / folder
    if not path.exists():
        partial = path.with_name(path.name + ".partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.parent.mkdir(parents=True, exist_ok=True)
        write(str(partial))
        partial.rename(path)
    return str(path)


def write_mds(folder: str, columns: dict[str, str], samples: Iterable[dict[str, Any]]) -> None:
    """For Streaming."""
    with peer("streaming.base.format").MDSWriter(out=folder, columns=columns) as writer:
        for sample in samples:
            writer.write(sample)


def write_litdata(folder: str, samples: Iterable[dict[str, Any]], chunk_bytes: str) -> None:
    """For litData: its writer, in this process, as its ``optimize`` calls it.

    With one large chunk for all of a small dataset, as by default, its workers are fifty times slower.
    """
    writer = peer("litdata.streaming.writer").BinaryWriter(folder, chunk_bytes=chunk_bytes)
    for number, sample in enumerate(samples):
        writer.add_item(number, sample)
    writer.done()
    writer.merge()


def torch_batches(dataset: Any, workers: int, **options: Any) -> Iterator[Any]:
    """What a torch DataLoader gives, epoch after epoch, with the same processes."""
    loader = importlib.import_module("torch.utils.data").DataLoader
    return _epochs(loader(dataset, num_workers=workers, persistent_workers=workers > 0, **options))


def _epochs(loader: Any) -> Iterator[Any]:
    try:
        while True:
            yield from loader
    finally:
        if getattr(loader, "_iterator", None) is not None:  # persistent workers end with their iterator
            loader._iterator._shutdown_workers()  # noqa: SLF001 - there is no other way


def webdataset_batches(tars: str, batch: int, columns: Columns, each: Callable[..., Any] | None, workers: int) -> Any:
    """webdataset: shards in a random order, samples through a buffer."""
    webdataset = importlib.import_module("webdataset")
    urls = sorted(glob.glob(f"{tars}/*.tar"))
    dataset = webdataset.WebDataset(urls, shardshuffle=len(urls), empty_check=False).shuffle(SHUFFLED)
    dataset = dataset if each is None else dataset.map(each)
    return torch_batches(dataset.batched(batch, collation_fn=columns), workers, batch_size=None)


def streaming_batches(folder: str, batch: int, columns: Columns, each: Callable[..., Any] | None, workers: int) -> Any:
    """Streaming: its own shuffle of all samples."""
    whole = peer("streaming.base.dataset").StreamingDataset
    peer("streaming.base.util").clean_stale_shared_memory()  # of a turn that was broken off

    class Mapped(whole):  # type: ignore[misc,valid-type] # as its manual has it
        def __getitem__(self, at: Any) -> Any:
            sample = super().__getitem__(at)
            return sample if each is None else each(sample)

    dataset = Mapped(local=folder, shuffle=True, batch_size=batch)
    return torch_batches(dataset, workers, batch_size=batch, collate_fn=columns)


def litdata_batches(folder: str, batch: int, columns: Columns, each: Callable[..., Any] | None, workers: int) -> Any:
    """litData: its own shuffle of all samples."""
    lit = peer("litdata")
    dataset = lit.StreamingDataset(folder, shuffle=True, transform=each)
    stays = {"persistent_workers": True} if workers else {}
    return _epochs(lit.StreamingDataLoader(dataset, batch_size=batch, num_workers=workers, collate_fn=columns, **stays))


def huggingface_batches(
    stream: Any, batch: int, columns: Columns, each: Callable[..., Any] | None, workers: int
) -> Any:
    """Hugging Face datasets, streaming: shards in a random order, samples through a buffer."""
    shuffled = stream.shuffle(seed=1, buffer_size=SHUFFLED)
    shuffled = shuffled if each is None else shuffled.map(each)
    return torch_batches(shuffled, workers, batch_size=batch, collate_fn=columns)


def spdl_batches(
    tars: str, batch: int, columns: Columns, each: Callable[..., Any] | None, group: Callable[[Any], list[Any]]
) -> Iterator[Any]:
    """SPDL: shards in a random order are read and taken apart by its own reader on threads, samples through a buffer.

    ``group`` makes samples of a shard's (name, bytes). It shuffles nothing itself; the buffer is a list.
    """
    pipeline = peer("spdl.pipeline")
    urls = sorted(glob.glob(f"{tars}/*.tar"))
    read = functools.partial(_spdl_shard, group)

    def work(samples: list[Any]) -> Any:
        return columns(samples if each is None else [each(sample) for sample in samples])

    for epoch in itertools.count():
        order = random.Random(epoch).sample(urls, len(urls))
        builder = pipeline.PipelineBuilder().add_source(order).pipe(read, concurrency=WORKERS)
        mixed = builder.pipe(_Buffer(batch, epoch)).pipe(work, concurrency=WORKERS).add_sink(4)
        built = mixed.build(num_threads=WORKERS)
        with built.auto_stop():
            yield from built.get_iterator(timeout=60)


def _spdl_shard(group: Callable[[Any], list[Any]], url: str) -> list[Any]:
    with open(url, "rb") as file:
        return group(peer("spdl.io").iter_tarfile(file.read()))


class _Buffer:
    """Batches of shuffled samples, of a shard and what was left of the one before."""

    def __init__(self, batch: int, seed: int) -> None:
        self._batch = batch
        self._random = random.Random(seed)
        self._held: list[Any] = []

    def __call__(self, samples: list[Any]) -> Iterator[list[Any]]:
        self._held += samples
        self._random.shuffle(self._held)
        while len(self._held) >= SHUFFLED + self._batch:
            yield self._held[-self._batch :]
            del self._held[-self._batch :]
