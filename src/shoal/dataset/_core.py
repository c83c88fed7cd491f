"""The core of a dataset: a description, its open source, the samples in view, and how they are read."""

from __future__ import annotations

import functools
import operator
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast, overload

import numpy as np
import numpy.typing as npt

from shoal.errors import FieldError, OptionError, SampleKeyError, TarError
from shoal.sample import is_record, schema_of
from shoal.schema import Schema
from shoal.shard import Decoders, ErrorLog, Sample, ShardSource, Source

from ._decoding import LazyDecoders
from ._description import Description, Opened
from ._positions import positions_in, wrapped
from ._reading import PAYLOAD, Reading, finished, reading_for, stored_type_of

if TYPE_CHECKING:
    from ._dataset import Dataset

__all__ = ["Core"]

T = TypeVar("T")
Int64 = npt.NDArray[np.int64]
_READ_ROWS = 256


class Core(Generic[T]):
    """What every verb stands on: the samples of a source that are in view, by position, by key, in order."""

    _description: Description
    _opened: Opened
    _rows: Int64 | None
    """The numbers of the samples in view, in order; None for all of the source."""
    errors: ErrorLog
    """What was passed over so far."""
    seed: int | None
    """The seed of the last shuffle, drawn or given."""

    def _begin(self, description: Description, opened: Opened | None = None) -> None:
        self._description = description
        self._opened = Opened(description) if opened is None else opened
        self._rows = None
        self.errors = ErrorLog(description.policy)
        self.seed = None

    def _view(self, *, rows: Int64 | None = None, **changes: Any) -> Dataset[Any]:
        """This dataset seen otherwise; the source stays open and shared."""
        view: Core[Any] = object.__new__(type(self))
        view._begin(replace(self._description, **{"stored_type": self._asked_type, **changes}), self._opened)
        view._rows = self._rows if rows is None else rows
        return cast("Dataset[Any]", view)  # nobody holds a Core that is not one

    def __getstate__(self) -> dict[str, Any]:
        """What is said, not what is open: another process opens its own files."""
        described = replace(self._description, stored_type=self._asked_type)
        return {"description": described, "rows": self._rows, "seed": self.seed}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._begin(state["description"])
        self._rows = state["rows"]
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
        return reading_for(self.source, stored_type_of(self.source, self._asked_type))

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
        return len(self.source) if self._rows is None else len(self._rows)

    def __repr__(self) -> str:
        path = self._description.path
        shown = (
            os.fspath(path) if isinstance(path, (str, os.PathLike)) else list(path) if isinstance(path, tuple) else path
        )
        return f"Dataset({shown!r})"

    @functools.cached_property
    def _decoders(self) -> Decoders:
        return LazyDecoders(
            self._description.spec, but=PAYLOAD if self._reading.convert and self._reading.packed else None
        )

    @functools.cached_property
    def _fields(self) -> tuple[str, ...] | None:
        if self._reading.fields is not None:
            return self._reading.fields
        self._refuse_unknown(self._description.fields or ())
        return self._description.fields

    def _refuse_unknown(self, names: Sequence[str]) -> None:
        if isinstance(names, str):
            raise OptionError("fields are a list of names", expected=f"[{names!r}]", found=repr(names))
        # The first shard often knows them all; only else are the others asked.
        first = self.source.first_fields if names and isinstance(self.source, ShardSource) else ()
        missing = [name for name in names if name not in first]
        if missing and (unknown := [name for name in missing if name not in self.source.fields]):
            raise FieldError("no such field", expected=" or ".join(self.source.fields), found=unknown[0])

    def __iter__(self) -> Iterator[T]:
        """All samples in order."""
        return self._walk(self._rows)

    def _walk(self, chosen: Int64 | None) -> Iterator[T]:
        log = self.errors
        if chosen is None:
            runs = self.source.stream(self._fields, self._decoders, log)
        else:
            parts = (chosen[at : at + _READ_ROWS] for at in range(0, len(chosen), _READ_ROWS))
            runs = (self._read_sound(rows, log) for rows in parts)
        try:
            for run in runs:
                yield from self._finished(run)
        except GeneratorExit:  # the caller had enough: what was passed over until then is told too
            log.tell()
            raise
        log.tell()

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
        return self.source.read(rows, self._fields, self._decoders)

    def _finished(self, samples: list[Sample]) -> list[T]:
        if self._reading.convert is None and not self._description.stages:
            return cast("list[T]", samples)
        return finished(samples, self._reading, self._description.stages)

    @overload
    def __getitem__(self, item: int | str) -> T: ...
    @overload
    def __getitem__(self, item: slice | Sequence[int] | npt.NDArray[Any]) -> list[T]: ...
    def __getitem__(self, item: Any) -> Any:
        """One sample by position or key, or a list of samples by slice, list, array or mask."""
        if isinstance(item, str):
            return self.get(item)
        if isinstance(item, (int, np.integer)) or getattr(item, "ndim", None) == 0:  # a tensor's item, too
            return self._finished(self._read(self._number(operator.index(item))))[0]
        return self._finished(self._read(self._numbers(positions_in(item, len(self)))))

    def _number(self, position: int) -> Int64:
        """The number of one sample, without the price of arrays."""
        length = len(self)
        if not -length <= position < length:
            return self._numbers(np.array([position]))  # which raises
        position += length if position < 0 else 0
        return np.array([position]) if self._rows is None else self._rows[position : position + 1]

    def _numbers(self, positions: Int64) -> Int64:
        """Sample numbers of positions in this view."""
        found = wrapped(positions, len(self))
        return found if self._rows is None else self._rows[found]

    def get(self, key: str) -> T:
        """The sample with this key. Raises SampleKeyError, which suggests near keys."""
        self._refuse_filtered("samples by key")
        if not isinstance(key, str):
            raise SampleKeyError("a key is text", expected="str", found=f"{type(key).__name__} {key!r}")
        return self._finished(self._read(np.array([self._number_of(key)])))[0]

    def _number_of(self, key: str) -> int:
        number = self.source.find(key)
        if self._rows is not None and number not in self._rows:
            raise SampleKeyError("the sample with this key is not in this view", found=repr(key))
        return number

    def __contains__(self, key: object) -> bool:
        """Whether a sample has this key."""
        try:
            return isinstance(key, str) and self._number_of(key) >= 0
        except SampleKeyError:
            return False

    def keys(self) -> list[str]:
        """The keys of all samples, in order."""
        return self.source.keys(self.numbers)

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
        return tuple(name for name in self.source.fields if chosen is None or name in chosen)

    @property
    def column_names(self) -> tuple[str, ...]:
        """The metadata columns that ``where`` can ask about."""
        return self.source.column_names() if isinstance(self.source, ShardSource) else ()

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
        if any(stage.kind == "filter" for stage in self._description.stages):
            raise TypeError(f"a filtered dataset has not {what} before it is read; use .materialize() or .where()")
