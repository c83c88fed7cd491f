"""`DatasetBase`: length, indexing, iteration and repr of a dataset."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast, overload

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from shoal._typing import IntArray
from shoal.errors import (
    CodecError,
    DecodeError,
    FieldError,
    OptionError,
    PositionError,
    SampleKeyError,
    ShardIndexError,
    ShoalError,
    TarError,
)
from shoal.sample._annotations import is_record, schema_of
from shoal.sample._lens import Lens
from shoal.schema._schema import Schema
from shoal.shard._row_view import RowView
from shoal.shard._segment_table import SegmentTable
from shoal.shard._shard import Decoders, Sample
from shoal.shard._source import FieldSelector, ShardSource, Source
from shoal.shard._stream import ErrorLog

from ._column_stages import EVERYTHING, ColumnSelection, names_after, wanted_by
from ._decoding import PAYLOAD, LazyDecoders, Reading, finished, reading_for, refuse_unmatched, stored_type_of
from ._description import (
    CompositeDescription,
    Description,
    FinalSource,
    HasColumns,
    OpenSource,
    Stage,
    Step,
    format_repr,
    source_identity,
    with_step,
)
from ._metadata import metadata_names
from ._output_format import Formatting

if TYPE_CHECKING:
    from ._dataset import Dataset

__all__ = ["DatasetBase", "positions_in"]

T = TypeVar("T")
V = TypeVar("V")
_READ_ROWS = 256


def _identity(sample: Any) -> Any:
    return sample


class DatasetBase(Generic[T]):
    """Samples of a source that are in view, by position, by key and in order. All methods build on it."""

    _description: Description
    _opened: OpenSource
    _chosen: RowView | None
    """The rows that methods chose, in order; None where none did."""
    errors: ErrorLog
    """What was passed over so far."""
    seed: int | None
    """The seed of the last shuffle, drawn or given."""

    def _begin(self, description: Description, opened: OpenSource | None = None) -> None:
        # A mixture has row numbers of one source. Whatever has another source is not that mixture.
        self._description = replace(description, mixture=None) if opened is None else description
        self._opened = OpenSource(self._description) if opened is None else opened
        self._chosen = None
        self.errors = ErrorLog(description.policy)
        self.seed = None

    def _view(
        self, *, rows: RowView | None = None, whole: bool = False, step: Step | None = None, **changes: Any
    ) -> Dataset[Any]:
        """This dataset seen otherwise; the source stays open and shared.

        ``whole`` drops earlier selections. ``step`` is the method call; without it, it is inferred from the changes.
        """
        view: DatasetBase[Any] = object.__new__(type(self))
        if rows is not None or whole:
            changes.setdefault("mixture", None)
        changed = replace(self._description, **{"stored_type": self._requested_type, **changes})
        view._begin(with_step(changed, self._description, step, rows), self._opened)
        view._chosen = self._chosen if rows is None and not whole else rows
        return cast("Dataset[Any]", view)  # every instance is a Dataset

    def _another(self, description: Description) -> Dataset[Any]:
        """A dataset of the same class, of another description."""
        other: DatasetBase[Any] = object.__new__(type(self))
        other._begin(description)
        return cast("Dataset[Any]", other)

    @property
    def described(self) -> Description:
        """What it is, as a value; nothing is opened for it."""
        return replace(self._description, stored_type=self._requested_type)

    @property
    def is_whole(self) -> bool:
        """Whether all samples of the source are in view, in its order."""
        return self._rows is None

    @property
    def _rows(self) -> RowView | None:
        """The rows in view, in order; None for all of the source."""
        return self._opened.visible_rows if self._chosen is None else self._chosen

    @functools.cached_property
    def rows(self) -> RowView:
        """The row that each sample of this view has in the whole source."""
        return RowView.whole(len(self.source)) if self._rows is None else self._rows

    def __getstate__(self) -> dict[str, Any]:
        """The description, and no open files: another process opens its own."""
        # Rows are only valid for the source that they were taken from.
        identity = None if self._chosen is None else self._opened.identity
        description = self.described
        source = self.source if self._opened.is_open else None
        if isinstance(source, ShardSource) and source.generation is not None:  # others may change the dataset meanwhile
            description = replace(description, options=replace(description.options, generation=source.generation.id))
        return {"description": description, "rows": self._chosen, "seed": self.seed, "identity": identity}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._begin(state["description"], OpenSource(state["description"], state["identity"]))
        self._chosen = state["rows"]
        self.seed = state["seed"]

    @property
    def source(self) -> Source:
        """Where the samples come from."""
        return self._opened.source

    @property
    def _requested_type(self) -> type[Any] | None:
        """The type a user named: by ``sample_type=``, or in brackets, which Python tells only after ``__init__``."""
        if self._description.stored_type is not None:
            return self._description.stored_type
        named = getattr(getattr(self, "__orig_class__", None), "__args__", (None,))[0]
        return named if isinstance(named, type) else None

    @functools.cached_property
    def _reading(self) -> Reading:
        if isinstance(self.source, FinalSource):
            kind = self._requested_type or self.source.finished_type
            return Reading(kind, None, False, None if kind is dict else _identity)
        stored = stored_type_of(self.source, self._requested_type)
        stages = self._description.stages
        looked_at = _fields_read_by(stored, stages) if stages else None
        found = reading_for(self.source, stored, looked_at, writable=self._description.writable)
        if found.packed and self._description.fields:  # samples are read whole: nobody looks at these names later
            self._refuse_unknown(self._description.fields)
        return found

    @functools.cached_property
    def _reader(self) -> Source:
        """The source, which reads of each shard what samples of the type need."""
        source, pick = self.source, self._reading.pick or self._pick
        return source.picking(pick) if pick is not None and isinstance(source, ShardSource) else source

    @property
    def raw_source(self) -> ShardSource | None:
        """The source if batches can be gathered from its payloads directly, else None."""
        typed = self._reading.packed and is_record(self._reading.sample_type) and not self._description.stages
        whole = isinstance(self.source, ShardSource) and self._description.policy.on_error == "raise"
        return cast(ShardSource, self.source) if typed and whole else None

    @property
    def _pick(self) -> FieldSelector | None:
        """Says of each shard which fields of plain samples the stages look at; None for all of them."""
        wanted = wanted_by(self._description.stages)
        plain = self._reading.convert is None and wanted != EVERYTHING
        return partial(_select_present, wanted) if plain else None

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
        except (TarError, ShardIndexError, DecodeError) as error:
            if not self.errors.goes_on:
                raise
            # A TypeError, since list() and the like ask for a length first and go on without when there is none.
            raise TypeError(f"a damaged dataset has no length before it is read: {error}") from error

    def __repr__(self) -> str:
        """What it is, without opening anything."""
        return format_repr(self._description, self._opened, self._chosen)

    @functools.cached_property
    def _decoders(self) -> Decoders:
        payload = PAYLOAD if self._reading.convert and self._reading.packed else None
        if payload is None:
            refuse_unmatched(self._description.spec, self.source)
        digits = not getattr(self.source, "has_integers", False)
        return LazyDecoders(self._description.spec, payload, writable=self._description.writable, digits=digits)

    @functools.cached_property
    def _fields(self) -> tuple[str, ...] | None:
        if self._reading.fields is not None:
            return self._reading.fields
        if self._description.fields:
            self._refuse_unknown(self._description.fields)
        if self._pick is None or (self._description.fields is None and isinstance(self.source, ShardSource)):
            return self._description.fields
        return tuple(self._pick(dict.fromkeys(self._description.fields or self.source.fields, False)) or ())

    def _refuse_unknown(self, names: Sequence[str]) -> None:
        if isinstance(names, str):
            raise OptionError("fields are a list of names", expected=f"[{names!r}]", found=repr(names))
        # The first shard often knows them all; only else are the others asked.
        first = self.source.index.first_fields if names and isinstance(self.source, ShardSource) else ()
        missing = [name for name in names if name not in first]
        if missing and (unknown := [name for name in missing if name not in self.source.fields]):
            known = self.source.fields
            hint = "of typed samples, select_columns([...]) takes some fields" if PAYLOAD in known else None
            raise FieldError("no such field", expected=" or ".join(known), found=unknown[0], hint=hint)

    def __iter__(self) -> Iterator[T]:
        """All samples in order."""
        return self._walk(self._rows)

    def _walk(self, chosen: RowView | None) -> Iterator[T]:
        log = self._begin_pass(chosen)
        try:
            for run in self._stored_runs(chosen, log):
                yield from self._finished_valid(run, log)
                del run  # memory of samples that the caller dropped is reused while it is in the CPU cache
        except GeneratorExit:  # the caller stopped: report what was skipped until then
            log.tell()
            raise
        log.tell()

    def _begin_pass(self, chosen: RowView | None) -> ErrorLog:
        """Return the log of one pass over all samples, or over these rows."""

        def samples() -> int | None:
            try:
                return len(self.source) if chosen is None else len(chosen)
            except (ShoalError, TypeError):  # damaged, or read in order only
                return None

        return self.errors.begin(samples)

    def _stored_runs(self, chosen: RowView | None, log: ErrorLog) -> Iterator[list[Sample]]:
        """Samples as they are stored, a run at a time; ``log`` lets damage pass."""
        if chosen is None:
            return self._reader.stream(self._fields, self._decoders, log)
        if self._is_nearly_all(chosen) and not log.goes_on:
            return self._stored_runs_except(chosen, log)
        return self._chosen_runs(chosen, log)

    def _chosen_runs(self, chosen: RowView, log: ErrorLog) -> Iterator[list[Sample]]:
        return (self._read_valid(rows, log) for rows in chosen.chunks(_READ_ROWS))

    def _is_nearly_all(self, chosen: RowView) -> bool:
        """Whether it is quicker to read everything and leave some out, as where a few samples were deleted."""
        most = isinstance(self.source, ShardSource) and 4 * len(chosen) > 3 * len(self.source)
        return most and chosen.is_ascending

    def _stored_runs_except(self, chosen: RowView, log: ErrorLog) -> Iterator[list[Sample]]:
        start = done = 0
        try:
            for run in self._reader.stream(self._fields, self._decoders, log):
                high = int(chosen.rank(np.array([start + len(run)]))[0])
                kept = (chosen.between(done, high) - start).tolist()
                start, done = start + len(run), high
                if kept:
                    yield run if len(kept) == len(run) else [run[at] for at in kept]
        except (TarError, CodecError):
            pass  # perhaps of a sample that is not in view: the rest is read without those
        yield from self._chosen_runs(chosen.slice(done, len(chosen)), log)

    def runs(self, log: ErrorLog | None = None) -> Iterator[list[T]]:
        """All samples in order, in lists as long as is good to read at once; ``log`` takes what is passed over."""
        log = self._begin_pass(self._rows) if log is None else log
        return (self._finished_valid(run, log) for run in self._stored_runs(self._rows, log))

    def samples_at(self, positions: IntArray) -> list[T]:
        """The samples at these positions, in this order: always a list, whatever format batches have."""
        return self._finished(self._read(self._numbers(positions)))

    @property
    def stored(self) -> Dataset[Any]:
        """The same samples without ``map``, ``filter`` and format."""
        return cast("Dataset[Any]", self) if not self._description.stages else self._view(stages=(), sample_type=None)

    def stored_at(self, positions: IntArray) -> list[Any]:
        """The samples at these positions before ``map`` and ``filter``, with the fields that those look at."""
        rows = positions if self._rows is None else self._rows.rows_at(positions)
        return finished(self._read(rows), self._reading, ())

    def _read_valid(self, rows: IntArray, log: ErrorLog) -> list[Sample]:
        """These samples, without those whose damage ``log`` lets pass."""
        try:
            return self._read(rows)
        except (TarError, DecodeError) as error:
            if len(rows) == 1 or not log.goes_on:
                log.handle(error)
                return []
        return [sample for row in rows for sample in self._read_valid(np.array([row]), log)]

    def _read(self, rows: IntArray) -> list[Sample]:
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

    def _finished_valid(self, samples: list[Sample], log: ErrorLog) -> list[T]:
        """Finished samples, without those that fail in a stage where ``log`` goes on."""
        return self._without_failed(self._finished, samples, log)

    def _before_format_valid(self, samples: list[Sample], log: ErrorLog) -> list[Any]:
        """Samples through all stages but the format, without those that fail where ``log`` goes on."""
        return self._without_failed(self._before_format, samples, log)

    def _without_failed(
        self, finish: Callable[[list[Sample]], list[V]], samples: list[Sample], log: ErrorLog
    ) -> list[V]:
        if not log.goes_on or (self._reading.convert is None and not self._description.stages):
            return finish(samples)
        kept: list[V] = []
        for sample in samples:
            try:
                kept += finish([sample])
            except Exception as error:  # noqa: BLE001 - raised again, or counted and kept by the log
                if isinstance(error, ShoalError):
                    error.at(shard=sample.get("__url__"), key=sample.get("__key__"))
                elif isinstance(sample, dict):
                    error.add_note(f"shard {sample.get('__url__')}, key {sample.get('__key__')}")
                log.handle(error)
        return kept

    @property
    def _format(self) -> Formatting | None:
        """The format that samples are handed out in, which is the last stage."""
        stages = self._description.stages
        last = stages[-1].function if stages else None
        return last if isinstance(last, Formatting) else None

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
        known = source.index.first_fields if isinstance(source, ShardSource) and not complete else source.fields
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
        """The row of one sample, without building arrays."""
        length = len(self)
        if not -length <= position < length:
            self._numbers(np.array([position]))  # which raises
        position += length if position < 0 else 0
        return position if self._rows is None else self._rows.row_at(position)

    def _numbers(self, positions: IntArray) -> IntArray:
        """The rows at these positions of this view."""
        found = _wrap_negative(positions, len(self))
        return found if self._rows is None else self._rows.rows_at(found)

    def _selected(self, item: Any) -> RowView:
        """The rows that a slice, a list, an array or a mask chooses of this view."""
        if isinstance(item, range) and item and min(item[0], item[-1]) >= 0 and max(item[0], item[-1]) < len(self):
            return self.rows.slice(item.start, item.stop, item.step)
        if isinstance(item, slice):
            return self.rows.slice(*item.indices(len(self)))
        if isinstance(item, np.ndarray) and item.dtype == bool and item.shape == (len(self),):
            return self.rows.where(item)
        return RowView.from_rows(self._numbers(positions_in(item, len(self))))

    def get(self, key: str) -> T:
        """The sample with this key: the first where several have it, as in splits that number their samples alike.

        Open one split (``split="val"``) to have its own. Raises SampleKeyError, which suggests near keys.
        """
        self._refuse_filtered("samples by key")
        if not isinstance(key, str):
            raise SampleKeyError("a key is text", expected="str", found=f"{type(key).__name__} {key!r}")
        position = self._position_of(key)
        row = position if self._rows is None else self._rows.row_at(position)
        return self._finished(self._read(np.array([row])))[0]

    def position_of(self, key: str) -> int:
        """The position of the sample with this key. Raises SampleKeyError."""
        self._refuse_filtered("positions")
        return self._position_of(key)

    def _position_of(self, key: str) -> int:
        row = self.source.find(key)
        position = row if self._rows is None else self._rows.position_of(row)
        if position is None:  # another sample may have the same key, and be in view
            position = int(pc.index(self.key_column(), pa.scalar(key)).as_py())
        if position < 0:
            raise SampleKeyError("the sample with this key is not in this view", found=repr(key))
        return position

    def __contains__(self, key: object) -> bool:
        """Whether a sample has this key."""
        try:
            return isinstance(key, str) and self._position_of(key) >= 0
        except SampleKeyError:
            return False

    def keys(self) -> list[str]:
        """The keys of all samples, in order."""
        return self.source.keys(self.rows.as_array())

    def key_column(self) -> pa.ChunkedArray:
        """The keys of all samples, in order, as an Arrow column: cheap for millions."""
        if not isinstance(self.source, HasColumns):
            return pa.chunked_array([pa.array(self.keys(), pa.string())])
        keys = self.source.table(["__key__"]).column(0)
        return keys if self._rows is None else self._rows.pick(keys)

    def _rows_of(self, other: DatasetBase[Any]) -> RowView | None:
        """The rows that the samples of another view have in this source; None where some are not in it."""
        other._refuse_filtered("known samples")
        rows = other.rows
        if other._opened is self._opened:
            return rows
        mine, theirs = self.source, other.source
        if not (isinstance(mine, ShardSource) and isinstance(theirs, ShardSource)):
            return rows if type(mine) is type(theirs) and source_identity(mine) == source_identity(theirs) else None
        if mine.segment_table is not None and theirs.segment_table is not None:
            followed = theirs.segment_table.follow(rows, mine.segment_table)
            if followed is not None:
                return followed
        offsets = np.zeros(len(theirs.shards), np.int64)
        known = {ref.url.removeprefix("./"): number for number, ref in reversed(list(enumerate(mine.shards)))}
        for number in rows.shards(theirs.starts).tolist():
            place = known.get(theirs.shards[number].url.removeprefix("./"))
            if place is None or mine.index.shard_keys(place) != theirs.index.shard_keys(number):
                return None
            offsets[number] = mine.starts[place] - theirs.starts[number]
        return rows.moved(theirs.starts, offsets)

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
        return metadata_names(self)

    @property
    def shards(self) -> tuple[str, ...]:
        """The URLs of the shards."""
        return tuple(ref.url for ref in self.source.shards) if isinstance(self.source, ShardSource) else ()

    @property
    def metadata(self) -> dict[str, Any]:
        """What was said of the dataset when it was written."""
        return self.source.dataset_metadata if isinstance(self.source, ShardSource) else {}

    @property
    def _segment_table(self) -> SegmentTable | None:
        """The index, where it is in segments."""
        return self.source.segment_table if isinstance(self.source, ShardSource) else None

    def _refuse_view(self, what: str) -> None:
        description = self.described
        if (
            self._chosen is not None
            or description.stages
            or description.fields is not None
            or isinstance(description.path, CompositeDescription)
        ):
            raise OptionError(f"{what}, not to a view of it", found=repr(self))

    def _refuse_filtered(self, what: str) -> None:
        stages = self._description.stages
        if stages and any(stage.kind == "filter" for stage in stages):
            raise TypeError(
                f"a filtered dataset does not have {what} before it is read; use .materialize() or .where()"
            )


def _select_present(wanted: ColumnSelection, present: Mapping[str, bool]) -> tuple[str, ...]:
    return tuple(name for name in present if name in wanted)


def positions_in(item: Any, length: int) -> IntArray:
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


def _wrap_negative(positions: IntArray, length: int) -> IntArray:
    """Positions counted from the start; negative ones count from the end. Raises PositionError outside."""
    found = np.where(positions < 0, positions + length, positions)
    outside = (found < 0) | (found >= length)
    if outside.any():
        expected = f"{-length} to {length - 1}" if length else "none: it is empty"
        raise PositionError("no sample at this position", expected=expected, found=int(positions[outside][0]))
    return found


def _fields_read_by(stored: type[Any], stages: tuple[Stage, ...]) -> frozenset[str] | None:
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
