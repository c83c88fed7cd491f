"""What is in a dataset, told from its indexes alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute

from shoal.codec import codec_for
from shoal.errors import FieldError
from shoal.schema import Schema
from shoal.shard import ShardSource, Source

__all__ = ["ColumnSummary", "FieldSummary", "Summary", "summarize"]

pc: Any = pyarrow.compute
Int64 = npt.NDArray[np.int64]
_TOP = 5


@dataclass(frozen=True, slots=True)
class FieldSummary:
    """One field of the stored samples: one member of the tars."""

    name: str
    type: str
    """What its name says it is: the codec that reads it."""
    samples: int
    """How many samples have it."""
    bytes: int

    @property
    def mean_bytes(self) -> float:
        """Of those samples that have it."""
        return self.bytes / self.samples if self.samples else 0.0


@dataclass(frozen=True, slots=True)
class ColumnSummary:
    """One metadata column: of numbers the range and the mean, of all others the commonest values."""

    name: str
    type: str
    nulls: int
    distinct: int
    """How many different values there are, null not counted."""
    min: Any = None
    max: Any = None
    mean: float | None = None
    top: tuple[tuple[Any, int], ...] = ()
    """The commonest values and how often they come, the most common first."""

    @property
    def shown(self) -> str:
        """Its values in a few words."""
        if self.mean is not None:
            return f"{self.min:g} to {self.max:g}, mean {self.mean:.4g}"
        return ", ".join(f"{_short(value)} ({count:,})" for value, count in self.top)


@dataclass(frozen=True, repr=False)
class Summary:
    """What ``describe`` found. ``print`` shows it as tables, ``to_dict`` gives it as JSON has it."""

    samples: int
    shards: int
    bytes: int
    """Of the fields of the samples in view, headers and padding not counted."""
    schema: str | None
    fields: tuple[FieldSummary, ...]
    columns: tuple[ColumnSummary, ...]
    deleted: int = 0
    """Samples that are stored and stay away, because they were deleted."""
    left_out: tuple[tuple[str, str], ...] = ()
    """Columns that no query can ask about, and why."""

    def to_dict(self) -> dict[str, Any]:
        """The same as plain dicts, lists and scalars."""
        plain = asdict(self)
        plain["fields"] = [{**asdict(one), "mean_bytes": one.mean_bytes} for one in self.fields]
        plain["columns"] = [{**asdict(one), "top": [list(pair) for pair in one.top]} for one in self.columns]
        plain["left_out"] = dict(self.left_out)
        return plain

    def __repr__(self) -> str:
        """A few tables of text."""
        head = f"{_count(self.samples, 'sample')} in {_count(self.shards, 'shard')}, {_size(self.bytes)} of fields"
        head = f"{head}; {self.deleted:,} deleted" if self.deleted else head
        parts = [head if self.schema is None else f"{head}\n{self.schema}"]
        if self.fields:
            rows = [(f.name, f.type, f"{f.samples:,}", _size(f.bytes), _size(f.mean_bytes)) for f in self.fields]
            parts.append(_table(("field", "type", "samples", "size", "mean"), rows))
        if self.columns:
            parts.append(
                _table(("column", "type", "nulls", "distinct", "values"), [_shown(one) for one in self.columns])
            )
        return "\n\n".join(parts)


def _shown(one: ColumnSummary) -> tuple[str, ...]:
    return one.name, one.type, f"{one.nulls:,}", f"{one.distinct:,}", one.shown


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 20 else f"{text[:19]}…"


def _count(number: int, name: str) -> str:
    return f"{number:,} {name}{'' if number == 1 else 's'}"


def _size(count: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if count < 1024 or unit == "TiB":
            break
        count /= 1024
    return f"{count:,.0f} {unit}" if unit == "B" else f"{count:,.1f} {unit}"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[at]) for row in (header, *rows)) for at in range(len(header))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in (header, *rows)
    ]
    return "\n".join(lines)


# ------------------------------------------------------------------------------------------------------------ gathering


def summarize(
    source: Source, rows: Int64 | None, names: Sequence[str], schema: Schema | None, deleted: int = 0
) -> Summary:
    """What the samples ``rows`` of a source are, None for all of them."""
    fields, shards = _fields(source, rows)
    columns, left_out = _columns(source, rows, names)
    samples = len(source) if rows is None else len(rows)
    total = sum(one.bytes for one in fields)
    shown = None if schema is None else str(schema)
    return Summary(samples, shards, total, shown, fields, columns, deleted, left_out)


def _fields(source: Source, rows: Int64 | None) -> tuple[tuple[FieldSummary, ...], int]:
    if not isinstance(source, ShardSource):
        return (), 0
    totals: dict[str, list[int]] = {}
    numbers = None if rows is None else np.searchsorted(source.starts, rows, "right") - 1
    touched = range(len(source.shards)) if numbers is None else np.unique(numbers).tolist()
    for number in touched:
        index = source.shard(number).index
        chosen = slice(None) if rows is None else rows[numbers == number] - source.starts[number]
        for name, part in index.fields.items():
            total = totals.setdefault(name, [0, 0])
            total[0] += int((part.offset[chosen] > 0).sum())
            total[1] += int(part.size[chosen].sum())
    found = (FieldSummary(name, _type(name), count, size) for name, (count, size) in totals.items())
    return tuple(found), len(touched)


def _type(field: str) -> str:
    codec = codec_for(field)
    return "bytes" if codec is None else codec.name


def _columns(
    source: Source, rows: Int64 | None, names: Sequence[str]
) -> tuple[tuple[ColumnSummary, ...], tuple[tuple[str, str], ...]]:
    found, left_out = [], []
    for name in names:
        try:
            column = source.table([name]).column(0)
        except FieldError as error:  # in some shard it has no column, or one of another type
            left_out.append((name, str(error)))
            continue
        found.append(_column(name, column if rows is None else column.take(pa.array(rows))))
    return tuple(found), tuple(left_out)


def _column(name: str, values: pa.ChunkedArray) -> ColumnSummary:
    kind, nulls = str(values.type), values.null_count
    if pa.types.is_null(values.type):
        return ColumnSummary(name, kind, nulls, 0)
    distinct = pc.count_distinct(values, mode="only_valid").as_py()
    numeric = pa.types.is_integer(values.type) or pa.types.is_floating(values.type)
    if numeric and nulls < len(values):
        ends = pc.min_max(values).as_py()
        return ColumnSummary(name, kind, nulls, distinct, ends["min"], ends["max"], pc.mean(values).as_py())
    return ColumnSummary(name, kind, nulls, distinct, top=_commonest(values))


def _commonest(values: pa.ChunkedArray) -> tuple[tuple[Any, int], ...]:
    counted = values.drop_null().value_counts()
    order = np.argsort(-counted.field("counts").to_numpy(), kind="stable")[:_TOP]
    chosen = counted.take(pa.array(order)).to_pylist()
    return tuple((one["values"], one["counts"]) for one in chosen)
