"""Two datasets side by side: each sample of the left with the fields of its partner on the right."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute

from shoal.dataset._identity import digest_of
from shoal.errors import FieldError, ManifestError, OptionError, SampleKeyError, TarError
from shoal.sample import is_record, schema_of
from shoal.shard import Decoders, ErrorLog, Sample, Source

from ._join_map import Missing

if TYPE_CHECKING:
    from shoal.dataset._dataset import Dataset

__all__ = ["JoinSource", "Joined", "names_of", "renamed"]

pc: Any = pyarrow.compute  # its functions are made as it is imported, out of a checker's sight

Int64 = npt.NDArray[np.int64]
_NO_DECODERS: Decoders = {}
_AT_ONCE = 256  # so that large fields on the right never come for thousands of small samples on the left


def names_of(dataset: Dataset[Any]) -> tuple[str, ...]:
    """The fields of a dataset's samples; where a function makes them, those of the first one, which is read."""
    if is_record(dataset.sample_type):
        return tuple(schema_of(dataset.sample_type).names)
    if dataset.sample_type is dict and not dataset.described.stages:
        return dataset.fields
    return tuple(name for sample in dataset.head(1) for name in _as_dict(sample) if not name.startswith("__"))


def renamed(left: Sequence[str], right: Sequence[str], suffix: str | None) -> dict[str, str]:
    """What each field of the right is called in a joined sample. Raises FieldError for names that clash."""
    clashing = [name for name in right if name in left]
    if clashing and not suffix:
        raise FieldError(
            "both datasets have these fields",
            found=", ".join(clashing),
            hint="take only some with fields=[...], or pass suffix='_right' to rename them",
        )
    names = {name: f"{name}{suffix}" if name in clashing else name for name in right}
    again = [name for name in names.values() if name in left or list(names.values()).count(name) > 1]
    if again:
        raise FieldError("the suffix makes a name that is taken", found=again[0], hint="choose another suffix")
    return names


@dataclass(frozen=True, slots=True, repr=False)
class Joined:
    """Which datasets, and which sample of the right belongs to each of the left."""

    left: Dataset[Any]
    right: Dataset[Any]
    rows: Int64
    names: Mapping[str, str]
    """What each field taken of the right is called."""
    on: str | tuple[str, str]
    missing: Missing
    fields: tuple[str, ...] | None
    suffix: str | None
    sample_type: type[Any] | None

    def __repr__(self) -> str:
        return f"{self.left!r}.join({self.right!r})"

    def open_source(self) -> Source:
        """The joined samples. Raises ManifestError when the datasets are no longer those that were joined."""
        if len(self.left) != len(self.rows) or int(self.rows.max(initial=-1)) >= len(self.right):
            raise ManifestError("a dataset has changed since it was joined", found=repr(self), hint="join again")
        return JoinSource(self)

    def refreshed(self) -> Joined:
        """The same of what is there now."""
        again: Dataset[Any] = self.left.refresh().join(
            self.right.refresh(),
            on=self.on,
            missing=self.missing,
            fields=self.fields,
            suffix=self.suffix,
            sample_type=self.sample_type,
        )
        path = again.described.path
        assert isinstance(path, Joined)  # noqa: S101 - it was joined just now
        return path


class JoinSource:
    """Joined samples as a source: dicts, numbered as the samples of the left are."""

    def __init__(self, joined: Joined) -> None:
        self._joined = joined
        self._left, self._right = joined.left, joined.right
        self._narrowed: dict[tuple[Any, ...], Dataset[Any]] = {}

    def __len__(self) -> int:
        return len(self._joined.rows)

    @property
    def identity(self) -> str:
        """Equal where both sides and their pairs are."""
        pairs = hashlib.sha256(np.ascontiguousarray(self._joined.rows, "<i8").tobytes()).hexdigest()
        names = sorted(self._joined.names.items())
        return digest_of(["join", self._left.fingerprint, self._right.fingerprint, pairs, repr(names)])

    @functools.cached_property
    def _left_names(self) -> tuple[str, ...]:
        return names_of(self._left)

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields of the left, then those of the right."""
        return (*self._left_names, *self._joined.names.values())

    def read(self, rows: Int64, fields: Sequence[str] | None = None, decoders: Decoders = _NO_DECODERS) -> list[Sample]:
        """The samples with these numbers: each side is asked once, and not at all for no field."""
        left = self._dicts(self._narrow_left(fields), rows)
        return self._with_partners(left, self._joined.rows[rows], fields)

    def stream(
        self, fields: Sequence[str] | None = None, decoders: Decoders = _NO_DECODERS, log: ErrorLog | None = None
    ) -> Iterator[list[Sample]]:
        """All samples in order; a part of the left at a time, with its partners."""
        if log is not None and log.goes_on:
            for start in range(0, len(self), _AT_ONCE):
                yield self._sound(np.arange(start, min(start + _AT_ONCE, len(self))), fields, log)
            return
        start = 0
        for run in self._narrow_left(fields).runs(log):
            for at in range(0, len(run), _AT_ONCE):
                part = run[at : at + _AT_ONCE]
                rows = np.arange(start, start + len(part))
                start += len(part)
                yield self._with_partners(self._keyed(part, rows), self._joined.rows[rows], fields)

    def _sound(self, rows: Int64, fields: Sequence[str] | None, log: ErrorLog) -> list[Sample]:
        try:
            return self.read(rows, fields)
        except TarError as error:
            if len(rows) == 1:
                log.handle(error)
                return []
        return [sample for row in rows for sample in self._sound(np.array([row]), fields, log)]

    def _narrow_left(self, fields: Sequence[str] | None) -> Dataset[Any]:
        wanted = None if fields is None else [name for name in self._left_names if name in fields]
        return self._narrow("left", self._left, wanted)

    def _narrow(self, name: str, side: Dataset[Any], wanted: Sequence[str] | None) -> Dataset[Any]:
        place = (name, None if wanted is None else tuple(wanted))
        if place not in self._narrowed:
            self._narrowed[place] = _narrow(side, wanted)
        return self._narrowed[place]

    def _dicts(self, side: Dataset[Any], rows: Int64) -> list[Sample]:
        return self._keyed(side.samples_at(rows), rows)

    def _keyed(self, samples: Sequence[Any], rows: Int64) -> list[Sample]:
        """Samples of the left as dicts with their keys, which typed ones do not have."""
        found = [_as_dict(sample) for sample in samples]
        if found and "__key__" not in found[0]:
            keys = self.keys(rows)
            found = [{"__key__": key, "__url__": "", **each} for key, each in zip(keys, found, strict=True)]
        return found

    def _with_partners(self, left: list[Sample], rows: Int64, fields: Sequence[str] | None) -> list[Sample]:
        names = self._joined.names
        wanted = [name for name, called in names.items() if fields is None or called in fields]
        left = _only(left, fields)
        if not wanted:
            return left
        partnered = np.flatnonzero(rows >= 0)
        side = self._narrow("right", self._right, wanted)
        right = side.samples_at(rows[partnered]) if len(partnered) else []
        for at, partner in zip(partnered.tolist(), right, strict=True):
            _add(left[at], _as_dict(partner), wanted, names)
        for at in np.flatnonzero(rows < 0).tolist():
            left[at].update({names[name]: None for name in wanted})
        return left

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
        return self._left.key_column()

    def column_names(self) -> tuple[str, ...]:
        """The metadata columns of the left, then those of the right under the names of their fields."""
        return (*self._left.column_names, *self._right_columns)

    @functools.cached_property
    def _right_columns(self) -> dict[str, str]:
        """The metadata columns of the right by what they are called here; those that clash are not here."""
        taken = {"__key__", *self._left.column_names}
        found = {_called(column, self._joined.names): column for column in self._right.column_names}
        return {called: column for called, column in found.items() if called not in taken}

    def table(self, columns: Sequence[str]) -> pa.Table:
        """Metadata columns of both sides, one row a sample; null where a sample has no partner."""
        right = self._right_columns
        unknown = [name for name in columns if name not in ("__key__", *self.column_names())]
        if unknown:
            raise FieldError("no such column", expected=" or ".join(self.column_names()), found=unknown[0])
        own = [name for name in columns if name not in right and name != "__key__"]
        theirs = [name for name in columns if name in right]
        found: dict[str, Any] = {"__key__": self._keys} if "__key__" in columns else {}
        if own:
            found |= dict(zip(own, self._left.table(own).columns, strict=True))
        if theirs:
            rows = pa.array(self._joined.rows, mask=self._joined.rows < 0)
            taken = self._right.table([right[name] for name in theirs]).take(rows)
            found |= dict(zip(theirs, taken.columns, strict=True))
        return pa.table([found[name] for name in columns], names=list(columns))


def _called(column: str, names: Mapping[str, str]) -> str:
    """A column of a field that is called otherwise is called otherwise too."""
    for name in sorted(names, key=len, reverse=True):
        if column == name or column.startswith(f"{name}."):
            return names[name] + column[len(name) :]
    return column


def _narrow(side: Dataset[Any], wanted: Sequence[str] | None) -> Dataset[Any]:
    """One side, reading no more than these fields where it is made of fields and no function needs the others."""
    plain = side.sample_type is dict and not side.described.stages
    return side if wanted is None or not plain or set(wanted) >= set(side.fields) else side.columns(wanted)


def _as_dict(sample: Any) -> Sample:
    if isinstance(sample, dict):
        return sample
    if isinstance(sample, Mapping):
        return dict(sample)
    if is_record(type(sample)):
        return {name: getattr(sample, name) for name in schema_of(type(sample)).names}
    raise OptionError("a joined sample has fields", expected="a dict or a typed sample", found=type(sample).__name__)


def _only(samples: list[Sample], fields: Sequence[str] | None) -> list[Sample]:
    """Of each sample only these fields: a side may have had to read more."""
    if fields is None:
        return [dict(sample) for sample in samples]
    wanted = set(fields)
    return [
        {name: value for name, value in sample.items() if name in wanted or name.startswith("__")} for sample in samples
    ]


def _add(sample: Sample, partner: Sample, wanted: Sequence[str], names: Mapping[str, str]) -> None:
    for name in wanted:
        if name in partner:
            if names[name] in sample:  # a function gave another field than for the first sample
                hint = "pass suffix='_right', or take only some with fields=[...]"
                raise FieldError(
                    "both datasets have this field", found=names[name], key=sample.get("__key__"), hint=hint
                )
            sample[names[name]] = partner[name]
