"""One run of neighbouring samples, written to shards in a folder of its own."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoal.codec import EncodeOptions
from shoal.shard import EncodedSample, SampleEncoder, ShardFile, ShardRecord, index_url, record_of, save_index

from ._arrays import Values
from ._flatten import variable_values
from ._layout import DATA_FOLDER, shard_path
from ._record import RECORD_FIELD, encode_record, sample_key
from ._save import whole_of

if TYPE_CHECKING:
    from plaid import Sample

__all__ = ["Run", "SampleCallback", "SampleCallbackContext", "WrittenRun", "place_shards", "write_run", "write_values"]

_SHARD_BYTES = 512 << 20


@dataclass(frozen=True, slots=True)
class SampleCallbackContext:
    """What a ``sample_callback`` is told of the sample that was written, as PLAID tells it."""

    sample: Sample
    split_name: str
    index: int
    """The sample's number in its split."""
    path: Path
    """The split's folder: the shard gets its name when the split is whole."""


SampleCallback = Callable[[SampleCallbackContext], None]


@dataclass(frozen=True, slots=True)
class Run:
    """A stretch of one split."""

    split: str
    first: int
    """The number of its first sample."""
    length: int
    folder: str
    """Where its shards are written."""
    target: str
    """Where they will be."""
    fields: dict[str, str]
    """The member field of each feature path."""


@dataclass(frozen=True, slots=True)
class WrittenRun:
    """The shards of a run; their paths are names in its folder, beside each its index, ``<name>.arrow``."""

    folder: str
    shards: tuple[ShardRecord, ...]


def write_run(run: Run, samples: Iterable[Sample], callback: SampleCallback | None = None) -> WrittenRun:
    """Write samples numbered from ``run.first`` on."""
    return write_values(run.folder, run.fields, _numbered(run, samples, callback))


def _numbered(run: Run, samples: Iterable[Sample], callback: SampleCallback | None) -> Iterator[tuple[int, Values]]:
    for number, sample in enumerate(map(whole_of, samples), run.first):
        yield number, variable_values(sample, run.fields)
        if callback is not None:  # asked for the next one, so this one is written
            callback(SampleCallbackContext(sample, run.split, number, Path(run.target)))


def write_values(folder: str, fields: Mapping[str, str], samples: Iterable[tuple[int, Values]]) -> WrittenRun:
    """Write samples, given by number and features. A shard is full when the next one would make it too large."""
    os.makedirs(folder, exist_ok=True)
    encoder = SampleEncoder(EncodeOptions())
    shards = _Shards(folder)
    try:
        for number, values in samples:
            shards.write(encoder.encode(sample_key(number), _members(number, values, fields)))
        shards.finish()
    except BaseException:
        shards.abort()
        raise
    return WrittenRun(folder, tuple(shards.records))


def _members(number: int, values: Values, fields: Mapping[str, str]) -> dict[str, Any]:
    record = encode_record(number, fields, [path for path, value in values.items() if value is None])
    return {RECORD_FIELD: record} | {fields[path]: value for path, value in values.items() if value is not None}


class _Shards:
    """Numbered shards in one folder, one open at a time."""

    def __init__(self, folder: str) -> None:
        self.records: list[ShardRecord] = []
        self._folder = folder
        self._file: ShardFile | None = None

    def write(self, sample: EncodedSample) -> None:
        if self._file is not None and self._file.size + sample[3] > _SHARD_BYTES:
            self.finish()
        if self._file is None:
            self._file = ShardFile(os.path.join(self._folder, self._name))
        self._file.write(sample)

    @property
    def _name(self) -> str:
        return f"{len(self.records):06d}.tar"

    def finish(self) -> None:
        if self._file is None:
            return
        index = self._file.commit().index
        save_index(index, os.path.join(self._folder, f"{self._name}.arrow"))
        self.records.append(record_of(self._name, index))
        self._file = None

    def abort(self) -> None:
        if self._file is not None:
            self._file.abort()


def place_shards(root: Path, split: str, runs: Iterable[WrittenRun], placed: list[Path]) -> list[ShardRecord]:
    """Give the shards of runs, which come in order, their names in the dataset; ``placed`` notes each file.

    What they are called tells in which order their samples come.
    """
    (root / DATA_FOLDER / split).mkdir(parents=True, exist_ok=True)
    records: list[ShardRecord] = []
    for run in runs:
        for record in run.shards:
            path = shard_path(split, len(records))
            index = Path(index_url(str(root), path))
            index.parent.mkdir(parents=True, exist_ok=True)
            for source, target in ((record.path, root / path), (f"{record.path}.arrow", index)):
                os.replace(Path(run.folder) / source, target)
                placed.append(target)
            records.append(replace(record, path=path))
    return records
