"""``shoal bench``: how fast a dataset is read and written, measured against what its disk can do at most."""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import typer

from shoal.dataset import Dataset
from shoal.errors import FormatError
from shoal.shard import WEBDATASET_RULE, Manifest, Sample, ShardRef, ShardSource, ShardWriter
from shoal.store import local_path, parent_url, scheme_of, store_for

from ._dataset import shards_of
from ._options import JsonOption, PathArgument, SplitOption, parse_bytes
from ._output import print_json, print_table, print_text, progress, show_bytes

__all__ = ["bench"]

_PART = 1 << 20
_BATCH = 256
_ENOUGH = 16 << 20

Way = Callable[[], str | None]
"""Something to measure. It gives back the folder it made, if any, to be removed when the clock has stopped."""


@dataclass(frozen=True, slots=True)
class _Speed:
    """One way to move bytes: its median time, and the median of its ratios to the limit, round by round."""

    seconds: float
    ratio: float

    def document(self, size: int, samples: int) -> dict[str, float]:
        rates = {"bytes_per_second": round(size / self.seconds), "samples_per_second": round(samples / self.seconds)}
        return {"ratio": round(self.ratio, 3), **rates}


def bench(
    path: PathArgument,
    repeats: Annotated[int, typer.Option("--repeats", min=1, metavar="N", help="How often each is measured.")] = 5,
    most: Annotated[str, typer.Option("--bytes", metavar="SIZE", help="Take about this much of the data.")] = "128MiB",
    scratch: Annotated[
        str | None, typer.Option("--scratch", metavar="DIR", help="Where to write; by default beside the data.")
    ] = None,
    split: SplitOption = None,
    as_json: JsonOption = False,
) -> None:
    """Measure reading and writing against the disk.

    All are ratios to the limit for that path: 1.0 is as fast as the bytes can move at all. The limit for reading is a
    plain read of the same files into one buffer, for writing a plain copy of the written files. All are measured in
    turn, several times, on warm files; ratios are medians. What is written is removed again.

    \b
    Examples:
      shoal bench data/
      shoal bench data/ --bytes 1GB --repeats 9
      shoal bench data/ --scratch /mnt/other --json
    """  # noqa: D301 - click's own mark for a paragraph that is not to be wrapped
    source = _some_shards(shards_of(Dataset(path, split=split)), parse_bytes(most))
    unchecked = _source(source.shards, source.manifest, verify=False)
    with closing(source), closing(unchecked), progress("measuring", 2 * repeats, quiet=as_json) as advance:
        size = sum(store_for(ref.url).info(ref.url).size for ref in source.shards)
        reads = _measure_reads(source, unchecked, repeats, advance)
        written, writes = _measure_writes(source, parse_bytes(most), scratch, repeats, advance)
        samples = len(source)
    facts = {
        "path": path,
        "shards": len(source.shards),
        "samples": samples,
        "bytes": size,
        "repeats": repeats,
        "read": {name: speed.document(size, samples) for name, speed in reads.items()},
        "write": {name: speed.document(*written) for name, speed in writes.items()},
    }
    print_json(facts) if as_json else _print(facts)


def _some_shards(source: ShardSource, most: int) -> ShardSource:
    """The first shards, up to ``most`` bytes; at least one."""
    chosen: list[ShardRef] = []
    left = most
    for ref in source.shards:
        left -= store_for(ref.url).info(ref.url).size
        if chosen and left < 0:
            break
        chosen.append(ref)
    if not chosen:
        raise FormatError("there is nothing to measure", expected="at least one shard", found="none")
    return _source(chosen, source.manifest)


def _source(shards: Sequence[ShardRef], manifest: Manifest | None, *, verify: bool = True) -> ShardSource:
    rule = WEBDATASET_RULE if manifest is None else manifest.rule
    return ShardSource(shards, rule=rule, verify=verify, manifest=manifest)


def _measure_reads(
    source: ShardSource, unchecked: ShardSource, repeats: int, advance: Callable[[int], None]
) -> dict[str, _Speed]:
    order = np.random.default_rng(0).permutation(len(source))
    ways: dict[str, Way] = {
        "limit": lambda: _read_plainly(source),
        "sequential": lambda: _read_in_order(source),
        "sequential, unchecked": lambda: _read_in_order(unchecked),
        "random": lambda: _read_at_random(source, order),
    }
    return _measured(ways, repeats, advance)


def _measured(ways: dict[str, Way], repeats: int, advance: Callable[[int], None]) -> dict[str, _Speed]:
    """In turn, so that whatever else the machine does meets all ways alike. The first round only warms up."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(repeats + 1):
        for name, run in ways.items():
            start = time.perf_counter()
            made = run()
            taken = time.perf_counter() - start
            if number:
                times[name].append(taken)
            if made is not None:
                shutil.rmtree(made)
        advance(1 if number else 0)
    limit = times[next(iter(ways))]
    return {
        name: _Speed(
            statistics.median(own), statistics.median(best / each for best, each in zip(limit, own, strict=True))
        )
        for name, own in times.items()
    }


def _read_plainly(source: ShardSource) -> None:
    """The limit: every byte into one buffer, and nothing else."""
    buffer = bytearray(_PART)
    for ref in source.shards:
        if scheme_of(ref.url) == "file":
            with open(local_path(ref.url), "rb", buffering=0) as file:
                while file.readinto(buffer):
                    pass
        else:
            with closing(store_for(ref.url).open(ref.url)) as reader:
                for start in range(0, reader.info.size, _PART):
                    reader.read(start, start + _PART)


def _read_in_order(source: ShardSource) -> None:
    for _ in source.stream():
        pass


def _read_at_random(source: ShardSource, order: np.ndarray[Any, np.dtype[np.int64]]) -> None:
    for start in range(0, len(order), _BATCH):
        source.read(order[start : start + _BATCH])


def _measure_writes(
    source: ShardSource, most: int, scratch: str | None, repeats: int, advance: Callable[[int], None]
) -> tuple[tuple[int, int], dict[str, _Speed]]:
    """Gives the size and number of what was written, too."""
    samples = _samples_in_memory(source, most)
    with _scratch_folder(source, scratch) as folder:
        original = _write(samples, folder)
        paths = [each.path for each in os.scandir(original) if each.is_file()]
        size = sum(os.path.getsize(path) for path in paths)
        ways: dict[str, Way] = {
            "limit": lambda: _copy_plainly(paths, folder),
            "write": lambda: _write(samples, folder),
        }
        return (size, len(samples)), _measured(ways, repeats, advance)


def _samples_in_memory(source: ShardSource, most: int) -> list[Sample]:
    """The first samples, up to ``most`` bytes, so that writing is not measured together with reading."""
    samples: list[Sample] = []
    left, keys = most, set[str]()
    for run in source.stream():
        for sample in run:
            left -= sum(len(value) for name, value in sample.items() if not name.startswith("__"))
            if samples and left < 0:
                return samples
            # Shards that each number their samples anew have the same keys, which one shard cannot have.
            samples.append(sample if sample["__key__"] not in keys else {**sample, "__key__": f"{len(samples):09d}"})
            keys.add(samples[-1]["__key__"])
    return samples


@contextmanager
def _scratch_folder(source: ShardSource, scratch: str | None) -> Iterator[str]:
    """A folder on the disk that the data is on, where that can be; the system's own place for such things elsewhere."""
    url = source.shards[0].url
    beside = local_path(parent_url(url)) if scheme_of(url) == "file" else None
    chosen = scratch or (beside if beside is not None and os.access(beside, os.W_OK) else None)
    with tempfile.TemporaryDirectory(prefix=".shoal-bench-", dir=chosen) as folder:
        yield folder


def _write(samples: list[Sample], folder: str) -> str:
    target = tempfile.mkdtemp(dir=folder)
    with ShardWriter(os.path.join(target, "bench-%06d.tar")) as writer:
        for sample in samples:
            writer.write(sample)
    return target


def _copy_plainly(paths: list[str], folder: str) -> str:
    """What `cat` does: bytes through one buffer, and nothing else."""
    target, buffer = tempfile.mkdtemp(dir=folder), bytearray(_PART)
    view = memoryview(buffer)
    for path in paths:
        copy = os.path.join(target, os.path.basename(path))
        with open(path, "rb", buffering=0) as source, open(copy, "wb", buffering=0) as file:
            while count := source.readinto(buffer):
                file.write(view[:count])
    return target


def _print(facts: dict[str, Any]) -> None:
    rows = [
        (f"{kind}, {name}" if kind == "read" else name, f"{speed['ratio']:.2f}", *_rates(speed))
        for kind in ("read", "write")
        for name, speed in facts[kind].items()
        if name != "limit"
    ]
    limits = [(f"{kind} limit", "1.00", *_rates(facts[kind]["limit"])) for kind in ("read", "write")]
    columns = ["what", "of the limit", "bytes a second", "samples a second"]
    print_table(columns, [*rows, *limits], right=columns[1:])
    size = f"{show_bytes(facts['bytes'])}, {facts['samples']:,} samples"
    if facts["bytes"] < _ENOUGH:
        print_text("\nso little data says little: opening files counts for more than reading them")
    print_text(f"\nover {size} of {facts['path']}, the median of {facts['repeats']} rounds, warm")


def _rates(speed: dict[str, float]) -> tuple[str, str]:
    return f"{show_bytes(speed['bytes_per_second'])}/s", f"{speed['samples_per_second']:,}"
