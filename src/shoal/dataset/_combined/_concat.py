"""Datasets one after the other, as one: of one source where they are alike, else each read in its own way."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute

from shoal.dataset._identity import digest_of
from shoal.errors import FieldError, SampleKeyError
from shoal.shard import Decoders, ErrorLog, Manifest, Sample, ShardSource, Source

if TYPE_CHECKING:
    from shoal.dataset._dataset import Dataset

__all__ = ["ConcatSource", "Concatenated", "ShardsConcatenated"]

pc: Any = pyarrow.compute  # its functions are made as it is imported, out of a checker's sight

Int64 = npt.NDArray[np.int64]
_NO_DECODERS: Decoders = {}


def _shown(parts: Sequence[Dataset[Any]]) -> str:
    names = [repr(part) for part in parts]
    return f"concat({', '.join(names if len(names) <= 3 else [*names[:2], f'... {len(names) - 2} more'])})"


@dataclass(frozen=True, slots=True, repr=False)
class ShardsConcatenated:
    """Tar shards that are read in one way: all of them are one source, and nothing that is quick gets slower."""

    parts: tuple[Dataset[Any], ...]

    def __repr__(self) -> str:
        return _shown(self.parts)

    def open_source(self) -> Source:
        """One source of all shards; shards that several parts show are in it once."""
        sources = self._sources()
        first = next(iter(sources.values()))
        schemas = [source.manifest.schema for source in sources.values() if source.manifest is not None]
        manifest = Manifest({}, {}, schemas[0]) if schemas and schemas[0] is not None else None
        refs = [ref for source in sources.values() for ref in source.shards]
        return ShardSource(refs, rule=first.rule, verify=first.verify, manifest=manifest)

    def rows_in_view(self, source: Source) -> Int64 | None:
        """The samples of each part, one part after the other."""
        sources = self._sources()
        if len(sources) == len(self.parts) and all(part.is_whole for part in self.parts):
            return None
        lengths = [len(each) for each in sources.values()]
        starts = dict(zip(sources, np.cumsum([0, *lengths]).tolist(), strict=False))
        return np.concatenate([part.numbers + starts[_shards(part).shards] for part in self.parts])

    def _sources(self) -> dict[Any, ShardSource]:
        return {_shards(part).shards: _shards(part) for part in self.parts}

    def refreshed(self) -> ShardsConcatenated:
        """The same of what is there now."""
        return ShardsConcatenated(tuple(part.refresh() for part in self.parts))


def _shards(part: Dataset[Any]) -> ShardSource:
    source = part.source
    assert isinstance(source, ShardSource)  # noqa: S101 - `concat` made this recipe only of such
    return source


@dataclass(frozen=True, slots=True, repr=False)
class Concatenated:
    """Datasets of any kind, each read in its own way."""

    parts: tuple[Dataset[Any], ...]
    sample_type: type[Any]

    def __repr__(self) -> str:
        return _shown(self.parts)

    def open_source(self) -> Source:
        """The parts as one source."""
        return ConcatSource(self.parts, self.sample_type)

    def refreshed(self) -> Concatenated:
        """The same of what is there now."""
        return Concatenated(tuple(part.refresh() for part in self.parts), self.sample_type)


class ConcatSource:
    """The samples of several datasets as they come out of them, numbered through."""

    def __init__(self, parts: Sequence[Dataset[Any]], sample_type: type[Any]) -> None:
        self.finished_type = sample_type
        """Samples are whole: nothing is left to convert."""
        self._parts = tuple(parts)
        self._narrowed: dict[tuple[str, ...], tuple[Dataset[Any], ...]] = {}

    def __len__(self) -> int:
        return int(self._starts[-1])

    @functools.cached_property
    def _starts(self) -> Int64:
        return np.cumsum([0, *(len(part) for part in self._parts)], dtype=np.int64)

    @property
    def identity(self) -> str:
        """Equal where all parts are."""
        return digest_of(["concat", *(part.fingerprint for part in self._parts)])

    @property
    def fields(self) -> tuple[str, ...]:
        """Every field of every part."""
        return tuple(dict.fromkeys(name for part in self._parts for name in part.fields))

    def column_names(self) -> tuple[str, ...]:
        """Every metadata column of every part."""
        return tuple(dict.fromkeys(name for part in self._parts for name in part.column_names))

    def read(self, rows: Int64, fields: Sequence[str] | None = None, decoders: Decoders = _NO_DECODERS) -> list[Sample]:
        """The samples with these numbers, in this order: each part is asked once for all it holds."""
        numbers = np.searchsorted(self._starts, rows, "right") - 1
        found: list[Sample] = [{}] * len(rows)
        for number in np.unique(numbers).tolist():
            at = np.flatnonzero(numbers == number)
            part = self._narrow(fields)[number]
            samples = _only(part.samples_at(rows[at] - self._starts[number]), fields)
            for position, sample in zip(at.tolist(), samples, strict=True):
                found[position] = sample
        return found

    def stream(
        self, fields: Sequence[str] | None = None, decoders: Decoders = _NO_DECODERS, log: ErrorLog | None = None
    ) -> Iterator[list[Sample]]:
        """All samples, part by part."""
        for part in self._narrow(fields):
            for run in part.runs(log):
                yield _only(run, fields)

    def _narrow(self, fields: Sequence[str] | None) -> tuple[Dataset[Any], ...]:
        """The parts, so that they read no more than these fields, where no function needs to see the others."""
        if fields is None:
            return self._parts
        wanted = tuple(fields)
        if wanted not in self._narrowed:
            self._narrowed[wanted] = tuple(
                part if part.described.stages else part.columns([name for name in wanted if name in part.fields])
                for part in self._parts
            )
        return self._narrowed[wanted]

    def find(self, key: str) -> int:
        """The number of the first sample with this key. Raises SampleKeyError."""
        at = int(pc.index(self._keys, pa.scalar(key)).as_py())
        if at < 0:
            raise SampleKeyError("no sample has this key", found=repr(key))
        return at

    def keys(self, rows: Int64) -> list[str]:
        """The keys of these samples."""
        keys: list[str] = self._keys.take(pa.array(rows)).to_pylist()
        return keys

    @functools.cached_property
    def _keys(self) -> pa.ChunkedArray:
        return self.table(["__key__"]).column(0)

    def table(self, columns: Sequence[str]) -> pa.Table:
        """Metadata columns, one row a sample; null where a part has no such column."""
        known = {"__key__", *self.column_names()}
        for name in columns:
            if name not in known:
                raise FieldError("no such column", expected=" or ".join(sorted(known)), found=name)
        try:
            parts = [_columns_of(part, columns) for part in self._parts]
            return pa.concat_tables(parts, promote_options="permissive").select(list(columns))
        except pa.ArrowTypeError as error:
            raise FieldError("a column is of other types in other datasets", found=str(error)) from error


def _columns_of(part: Dataset[Any], columns: Sequence[str]) -> pa.Table:
    length = len(part)  # which a filtered dataset refuses to tell
    has = set(part.column_names)
    table = part.table([name for name in columns if name in has]) if has.intersection(columns) else None
    arrays = [
        part.key_column() if name == "__key__" else table[name] if table and name in has else pa.nulls(length)
        for name in columns
    ]
    return pa.table(arrays, names=list(columns))


def _only(samples: list[Any], fields: Sequence[str] | None) -> list[Any]:
    """Dicts with only these fields, where only some are wanted."""
    if fields is None:
        return samples
    wanted = set(fields)
    return [
        {name: value for name, value in sample.items() if name in wanted or name.startswith("__")}
        if isinstance(sample, dict)
        else sample
        for sample in samples
    ]
