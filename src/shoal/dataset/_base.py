"""What every dataset has: length, indexing, iteration and repr."""

from __future__ import annotations

import functools
import operator
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast, overload

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from shoal.errors import FieldError, OptionError, PositionError, SampleKeyError, ShardIndexError, TarError
from shoal.sample import Lens, is_record, schema_of
from shoal.schema import Schema
from shoal.shard import Decoders, ErrorLog, FieldSelector, Sample, ShardSource, Source

from ._columns import EVERYTHING, ColumnSelection, names_after, wanted_by
from ._decoding import PAYLOAD, LazyDecoders, Reading, finished, reading_for, refuse_unmatched, stored_type_of
from ._description import Description, FinalSource, HasColumns, OpenSource, PathLike, Stage, Step
from ._output_format import Formatting, format_of

if TYPE_CHECKING:
    from ._dataset import Dataset

__all__ = ["Core", "positions_in"]

T = TypeVar("T")
Int64 = npt.NDArray[np.int64]
_READ_ROWS = 256
_MOST = 60


def _as_it_is(sample: Any) -> Any:
    return sample


class Core(Generic[T]):
    """What every verb stands on: the samples of a source that are in view, by position, by key, in order."""

    _description: Description
    _opened: OpenSource
    _chosen: Int64 | None
    """The numbers of the samples that verbs chose, in order; None where none did."""
    errors: ErrorLog
    """What was passed over so far."""
    seed: int | None
    """The seed of the last shuffle, drawn or given."""

    def _begin(self, description: Description, opened: OpenSource | None = None) -> None:
        self._description = description
        self._opened = OpenSource(description) if opened is None else opened
        self._chosen = None
        self.errors = ErrorLog(description.policy)
        self.seed = None

    def _view(
        self, *, rows: Int64 | None = None, whole: bool = False, step: Step | None = None, **changes: Any
    ) -> Dataset[Any]:
        """This dataset seen otherwise; the source stays open and shared.

        ``whole`` forgets what was chosen before. ``step`` says what led there; without it, that is told from the
        changes.
        """
        view: Core[Any] = object.__new__(type(self))
        if rows is not None or whole:
            changes.setdefault("mixture", None)
        changed = replace(self._description, **{"stored_type": self._asked_type, **changes})
        view._begin(with_step(changed, self._description, step, rows), self._opened)
        view._chosen = self._chosen if rows is None and not whole else rows
        return cast("Dataset[Any]", view)  # nobody holds a Core that is not one

    def _another(self, description: Description) -> Dataset[Any]:
        """A dataset of the same class, of another description."""
        other: Core[Any] = object.__new__(type(self))
        other._begin(description)
        return cast("Dataset[Any]", other)

    @property
    def described(self) -> Description:
        """What it is, as a value; nothing is opened for it."""
        return replace(self._description, stored_type=self._asked_type)

    @property
    def is_whole(self) -> bool:
        """Whether all samples of the source are in view, in its order."""
        return self._rows is None

    @property
    def _rows(self) -> Int64 | None:
        """The numbers of the samples in view, in order; None for all of the source."""
        return self._opened.living if self._chosen is None else self._chosen

    def __getstate__(self) -> dict[str, Any]:
        """What is said, not what is open: another process opens its own files."""
        # Numbers mean something only in the source they were counted in.
        identity = None if self._chosen is None else self._opened.identity
        return {"description": self.described, "rows": self._chosen, "seed": self.seed, "identity": identity}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._begin(state["description"], OpenSource(state["description"], state["identity"]))
        self._chosen = state["rows"]
        self.seed = state["seed"]

    @property
    def source(self) -> Source:
        """Where the samples come from."""
        return self._opened.source

    @property
    def _asked_type(self) -> type[Any] | None:
        """The type a user named: by ``sample_type=``, or in brackets, which Python tells only after ``__init__``."""
        if self._description.stored_type is not None:
            return self._description.stored_type
        named = getattr(getattr(self, "__orig_class__", None), "__args__", (None,))[0]
        return named if isinstance(named, type) else None

    @functools.cached_property
    def _reading(self) -> Reading:
        if isinstance(self.source, FinalSource):
            kind = self._asked_type or self.source.finished_type
            return Reading(kind, None, False, None if kind is dict else _as_it_is)
        stored = stored_type_of(self.source, self._asked_type)
        looked_at = fields_looked_at(stored, self._description.stages)
        found = reading_for(self.source, stored, looked_at, writable=self._description.writable)
        if found.packed:  # samples are read whole, and nobody looks at these names later
            self._refuse_unknown(self._description.fields or ())
        return found

    @functools.cached_property
    def _reader(self) -> Source:
        """The source, which reads of each shard what samples of the type need."""
        source, pick = self.source, self._reading.pick or self._pick
        return source.picking(pick) if pick is not None and isinstance(source, ShardSource) else source

    @property
    def _pick(self) -> FieldSelector | None:
        """Says of each shard which fields of plain samples the stages look at; None for all of them."""
        wanted = wanted_by(self._description.stages)
        plain = self._reading.convert is None and wanted != EVERYTHING
        return partial(_those_in, wanted) if plain else None

    @property
    def sample_type(self) -> type[T]:
        """The type of the samples."""
        return cast("type[T]", self._description.sample_type or self._reading.sample_type)

    @property
    def schema(self) -> Schema | None:
        """What a sample holds, where samples have a type."""
        return schema_of(self.sample_type) if is_record(self.sample_type) else None

    def __len__(self) -> int:
        self._refuse_filtered("a length")
        try:
            return len(self.source) if self._rows is None else len(self._rows)
        except (TarError, ShardIndexError) as error:
            if not self.errors.goes_on:
                raise
            # A TypeError, since list() and the like ask for a length first and go on without when there is none.
            raise TypeError(f"a damaged dataset has no length before it is read: {error}") from error

    def __repr__(self) -> str:
        """What it is, without opening anything."""
        return shown_dataset(self._description, self._opened, self._chosen)

    @functools.cached_property
    def _decoders(self) -> Decoders:
        payload = PAYLOAD if self._reading.convert and self._reading.packed else None
        if payload is None:
            refuse_unmatched(self._description.spec, self.source)
        return LazyDecoders(self._description.spec, payload, writable=self._description.writable)

    @functools.cached_property
    def _fields(self) -> tuple[str, ...] | None:
        if self._reading.fields is not None:
            return self._reading.fields
        self._refuse_unknown(self._description.fields or ())
        if self._pick is None or (self._description.fields is None and isinstance(self.source, ShardSource)):
            return self._description.fields
        return tuple(self._pick(dict.fromkeys(self._description.fields or self.source.fields, False)) or ())

    def _refuse_unknown(self, names: Sequence[str]) -> None:
        if isinstance(names, str):
            raise OptionError("fields are a list of names", expected=f"[{names!r}]", found=repr(names))
        # The first shard often knows them all; only else are the others asked.
        first = self.source.first_fields if names and isinstance(self.source, ShardSource) else ()
        missing = [name for name in names if name not in first]
        if missing and (unknown := [name for name in missing if name not in self.source.fields]):
            known = self.source.fields
            hint = "of typed samples, select_columns([...]) takes some fields" if PAYLOAD in known else None
            raise FieldError("no such field", expected=" or ".join(known), found=unknown[0], hint=hint)

    def __iter__(self) -> Iterator[T]:
        """All samples in order."""
        return self._walk(self._rows)

    def _walk(self, chosen: Int64 | None) -> Iterator[T]:
        log = self.errors
        try:
            for run in self._stored_runs(chosen, log):
                yield from self._finished(run)
                del run  # what the caller dropped is free for the next ones, and still in the processor's cache
        except GeneratorExit:  # the caller had enough: what was passed over until then is told too
            log.tell()
            raise
        log.tell()

    def _stored_runs(self, chosen: Int64 | None, log: ErrorLog) -> Iterator[list[Sample]]:
        """Samples as they are stored, a run at a time; ``log`` lets damage pass."""
        if chosen is None:
            return self._reader.stream(self._fields, self._decoders, log)
        if self._is_nearly_all(chosen) and not log.goes_on:
            return self._stored_but_for(chosen, log)
        parts = (chosen[at : at + _READ_ROWS] for at in range(0, len(chosen), _READ_ROWS))
        return (self._read_sound(rows, log) for rows in parts)

    def _is_nearly_all(self, chosen: Int64) -> bool:
        """Whether it is quicker to read everything and leave some out, as where a few samples were deleted."""
        most = isinstance(self.source, ShardSource) and 4 * len(chosen) > 3 * len(self.source)
        return most and bool((chosen[1:] > chosen[:-1]).all())

    def _stored_but_for(self, chosen: Int64, log: ErrorLog) -> Iterator[list[Sample]]:
        start = 0
        for run in self._reader.stream(self._fields, self._decoders, log):
            low, high = np.searchsorted(chosen, (start, start + len(run)))
            kept = (chosen[low:high] - start).tolist()
            start += len(run)
            if kept:
                yield run if len(kept) == len(run) else [run[at] for at in kept]

    def runs(self, log: ErrorLog | None = None) -> Iterator[list[T]]:
        """All samples in order, in lists as long as is good to read at once; ``log`` takes what is passed over."""
        return map(self._finished, self._stored_runs(self._rows, self.errors if log is None else log))

    def samples_at(self, positions: Int64) -> list[T]:
        """The samples at these positions, in this order: always a list, whatever format batches have."""
        return self._finished(self._read(self._numbers(positions)))

    @property
    def stored(self) -> Dataset[Any]:
        """The same samples without ``map``, ``filter`` and format."""
        return cast("Dataset[Any]", self) if not self._description.stages else self._view(stages=(), sample_type=None)

    def stored_at(self, positions: Int64) -> list[Any]:
        """The samples at these positions before ``map`` and ``filter``, with the fields that those look at."""
        rows = positions if self._rows is None else self._rows[positions]
        return finished(self._read(rows), self._reading, ())

    def _read_sound(self, rows: Int64, log: ErrorLog) -> list[Sample]:
        """These samples, without those whose damage ``log`` lets pass."""
        try:
            return self._read(rows)
        except TarError as error:
            if len(rows) == 1 or not log.goes_on:
                log.handle(error)
                return []
        return [sample for row in rows for sample in self._read_sound(np.array([row]), log)]

    def _read(self, rows: Int64) -> list[Sample]:
        return self._reader.read(rows, self._fields, self._decoders)

    def _read_one(self, row: int) -> Sample:
        reader = self._reader
        if isinstance(reader, ShardSource):
            return reader.read_one(row, self._fields, self._decoders)
        return reader.read(np.array([row]), self._fields, self._decoders)[0]

    def _finished(self, samples: list[Sample]) -> list[T]:
        if self._reading.convert is None and not self._description.stages:
            return cast("list[T]", samples)
        return finished(samples, self._reading, self._description.stages)

    @property
    def _format(self) -> Formatting | None:
        """The format that samples are handed out in."""
        return format_of(self._description.stages)

    def _before_format(self, samples: list[Sample]) -> list[Any]:
        """Samples through all stages but the format."""
        stages = self._description.stages
        return finished(samples, self._reading, stages if self._format is None else stages[:-1])

    def _several(self, samples: list[Sample]) -> Any:
        """A list of samples; one batch of them where they have a format."""
        form = self._format
        return self._finished(samples) if form is None else form.batch(self._before_format(samples), self._columns())

    def _columns(self, *, complete: bool = False) -> tuple[str, ...] | None:
        """The columns of samples, ``__key__`` and ``__url__`` among those of dicts; None where they are not known.

        Fields are those of the first shard, unless ``complete``, for which all are asked.
        """
        return names_after(self._description.stages, self._stored_columns(complete))

    def _stored_columns(self, complete: bool) -> tuple[str, ...] | None:
        reading, source = self._reading, self.source
        if is_record(reading.sample_type):
            return tuple(schema_of(reading.sample_type).names)
        if reading.convert is not None or reading.sample_type is not dict:
            return None
        known = source.first_fields if isinstance(source, ShardSource) and not complete else source.fields
        chosen = self._description.fields
        return ("__key__", "__url__", *(name for name in known if chosen is None or name in chosen))

    @overload
    def __getitem__(self, item: int | np.integer[Any] | str) -> T: ...
    @overload
    def __getitem__(self, item: slice | Sequence[int] | npt.NDArray[Any]) -> list[T]: ...
    def __getitem__(self, item: Any) -> Any:
        """One sample by position or key, or a list of samples by slice, list, array or mask."""
        if isinstance(item, str):
            return self.get(item)
        if isinstance(item, (int, np.integer)) or getattr(item, "ndim", None) == 0:  # a tensor's item, too
            return self._finished([self._read_one(self._number(operator.index(item)))])[0]
        return self._several(self._read(self._numbers(positions_in(item, len(self)))))

    def _number(self, position: int) -> int:
        """The number of one sample, without the price of arrays."""
        length = len(self)
        if not -length <= position < length:
            self._numbers(np.array([position]))  # which raises
        position += length if position < 0 else 0
        return position if self._rows is None else int(self._rows[position])

    def _numbers(self, positions: Int64) -> Int64:
        """Sample numbers of positions in this view."""
        found = wrapped(positions, len(self))
        return found if self._rows is None else self._rows[found]

    def get(self, key: str) -> T:
        """The sample with this key: the first where several have it, as in splits that number their samples alike.

        Open one split (``split="val"``) to have its own. Raises SampleKeyError, which suggests near keys.
        """
        self._refuse_filtered("samples by key")
        if not isinstance(key, str):
            raise SampleKeyError("a key is text", expected="str", found=f"{type(key).__name__} {key!r}")
        return self._finished(self._read(np.array([self._number_of(key)])))[0]

    def position_of(self, key: str) -> int:
        """The position of the sample with this key. Raises SampleKeyError."""
        self._refuse_filtered("positions")
        number = self._number_of(key)
        return number if self._rows is None else int(np.argmax(self._rows == number))

    def _number_of(self, key: str) -> int:
        number = self.source.find(key)
        if self._rows is None or number in self._rows:
            return number
        # Another sample may have the same key, and be in view.
        at = int(pc.index(self.key_column(), pa.scalar(key)).as_py())
        if at < 0:
            raise SampleKeyError("the sample with this key is not in this view", found=repr(key))
        return int(self._rows[at])

    def __contains__(self, key: object) -> bool:
        """Whether a sample has this key."""
        try:
            return isinstance(key, str) and self._number_of(key) >= 0
        except SampleKeyError:
            return False

    def keys(self) -> list[str]:
        """The keys of all samples, in order."""
        return self.source.keys(self.numbers)

    def key_column(self) -> pa.ChunkedArray:
        """The keys of all samples, in order, as an Arrow column: cheap for millions."""
        if not isinstance(self.source, HasColumns):
            return pa.chunked_array([pa.array(self.keys(), pa.string())])
        keys = self.source.table(["__key__"]).column(0)
        return keys if self._rows is None else keys.take(pa.array(self._rows))

    @property
    def numbers(self) -> Int64:
        """The number of each sample of this view in the whole source."""
        return np.arange(len(self.source)) if self._rows is None else self._rows

    def head(self, count: int = 5) -> list[T]:
        """The first samples."""
        return [sample for _, sample in zip(range(count), self, strict=False)]

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields samples have."""
        chosen = self._description.fields
        stored = tuple(name for name in self.source.fields if chosen is None or name in chosen)
        named = names_after(self._description.stages, stored) if self._reading.convert is None else None
        return stored if named is None else named

    @property
    def column_names(self) -> tuple[str, ...]:
        """The metadata columns that ``where`` can ask about."""
        return self.source.column_names() if isinstance(self.source, HasColumns) else ()

    @property
    def shards(self) -> tuple[str, ...]:
        """The URLs of the shards."""
        return tuple(ref.url for ref in self.source.shards) if isinstance(self.source, ShardSource) else ()

    @property
    def metadata(self) -> dict[str, Any]:
        """What was said of the dataset when it was written."""
        manifest = self.source.manifest if isinstance(self.source, ShardSource) else None
        return {} if manifest is None else dict(manifest.metadata)

    def _refuse_filtered(self, what: str) -> None:
        stages = self._description.stages
        if stages and any(stage.kind == "filter" for stage in stages):
            raise TypeError(
                f"a filtered dataset does not have {what} before it is read; use .materialize() or .where()"
            )


def _those_in(wanted: ColumnSelection, present: Mapping[str, bool]) -> tuple[str, ...]:
    return tuple(name for name in present if name in wanted)


def positions_in(item: Any, length: int) -> Int64:
    """The positions that a slice, a list, an array or a mask names. Raises OptionError for anything else."""
    if isinstance(item, slice):
        return np.arange(*item.indices(length))
    positions = np.asarray(item)
    if positions.dtype == bool:
        if positions.shape != (length,):
            raise OptionError("a mask has one entry a sample", expected=length, found=len(np.atleast_1d(positions)))
        return np.flatnonzero(positions)
    if positions.ndim != 1 or (positions.size and not np.issubdtype(positions.dtype, np.integer)):
        expected = "int, slice, list of int or a mask"
        raise OptionError("positions are whole numbers", expected=expected, found=type(item).__name__)
    return positions.astype(np.int64)


def wrapped(positions: Int64, length: int) -> Int64:
    """Positions counted from the start; negative ones count from the end. Raises PositionError outside."""
    found = np.where(positions < 0, positions + length, positions)
    outside = (found < 0) | (found >= length)
    if outside.any():
        expected = f"{-length} to {length - 1}" if length else "none: it is empty"
        raise PositionError("no sample at this position", expected=expected, found=int(positions[outside][0]))
    return found


def fields_looked_at(stored: type[Any], stages: tuple[Stage, ...]) -> frozenset[str] | None:
    """The fields that stages look at until one of them makes another sample; None where that may be all.

    Found in the functions' code, so a lens that reads two fields costs two fields. The fields of a sample that comes
    out as it is are all looked at.
    """
    if not is_record(stored):
        return None
    schema = schema_of(stored)
    if (wanted := wanted_by(stages)) != EVERYTHING:  # steps that say themselves which columns they look at
        return frozenset(name for name in schema.names if name in wanted)
    seen: frozenset[str] = frozenset()
    for stage in stages:
        lens: Any = stage.function
        if not isinstance(lens, Lens):
            lens = Lens(stage.function, source=stored, view=object)
        read = lens.reads(schema)
        if read is None:
            return None
        seen |= read
        if stage.kind != "filter":
            return seen
    return None


def with_step(changed: Description, before: Description, step: Step | None, rows: Int64 | None) -> Description:
    """The description of a view, with the verb that made it noted.

    Samples chosen by position end what came before: doing that again could not change the choice.
    """
    step = step or _told(changed, before, rows)
    if step is None:
        return changed
    earlier = before.steps
    if step.rows is not None:
        earlier = tuple(Step(each.shown) for each in earlier)
    return replace(changed, steps=(*earlier, step))


def _told(changed: Description, before: Description, rows: Int64 | None) -> Step | None:
    """The verb, told from what it changed."""
    if rows is not None:
        return Step("materialize()" if len(changed.stages) < len(before.stages) else "select(...)", rows=rows)
    if len(changed.stages) > len(before.stages):
        stage = changed.stages[-1]
        return Step(f"{stage.kind}({shown_function(stage.function)})")
    if changed.fields != before.fields:
        return Step(f"columns({_cut(list(changed.fields or ()))})")
    return None


def shown_function(function: Any) -> str:
    """A function by the name it was given."""
    if isinstance(function, functools.partial):
        return shown_function(function.func)
    if isinstance(function, Lens):
        return getattr(function.get, "__name__", "lens")
    return str(getattr(function, "__name__", type(function).__name__))


def _cut(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _MOST else f"{text[: _MOST - 3]}..."


def shown_dataset(description: Description, opened: OpenSource, chosen: Int64 | None) -> str:
    """``Dataset('data', 120 of 1,000 samples, where(width >= 512), map(f))``."""
    count = [] if chosen is None else [_count(len(chosen), opened)]
    return f"Dataset({', '.join([_shown_path(description.path), *count, *(step.shown for step in description.steps)])})"


def _shown_path(path: object) -> str:
    if isinstance(path, (str, os.PathLike)):
        return repr(os.fspath(path))
    if not isinstance(path, tuple):
        return repr(path)
    names: list[PathLike] = list(path)
    return repr(names) if len(names) <= 4 else f"[{names[0]!r}, ... {len(names) - 2} more ..., {names[-1]!r}]"


def _count(shown: int, opened: OpenSource) -> str:
    total = opened.source.known_length if opened.is_open and isinstance(opened.source, ShardSource) else None
    return f"{shown:,} samples" if total is None else f"{shown:,} of {total:,} samples"
