"""The Dataset: what a user holds."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, overload

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shoal.codec import DecodeSpec, decode_spec, decoders
from shoal.errors import FieldError, OptionError, PositionError, SampleKeyError, TarError
from shoal.formats import SourceOptions, open_source
from shoal.shard import WEBDATASET_RULE, Decoders, ErrorLog, ErrorPolicy, KeyRule, OnError, Sample, ShardSource, Source

from ._where import Expression, Field, as_expression, columns_of, resolve_columns, run_where

__all__ = ["Dataset"]

PathLike = str | os.PathLike[str]
Int64 = npt.NDArray[np.int64]
_READ_ROWS = 256


@dataclass(frozen=True)
class _Description:
    """Everything that says what a dataset is; nothing is opened by it."""

    path: PathLike | tuple[PathLike, ...]
    options: SourceOptions
    format: str | None
    spec: DecodeSpec
    policy: ErrorPolicy
    fields: tuple[str, ...] | None = None


class _Opened:
    """The source behind a dataset and all views of it, opened once, when it is first needed."""

    def __init__(self, description: _Description) -> None:
        self._description = description

    @functools.cached_property
    def source(self) -> Source:
        description = self._description
        return open_source(description.path, description.options, format=description.format)


class Dataset:
    """Samples by position, by key, in order, or by query.

    ``path`` is a tar, a pattern (``data-{000000..000099}.tar``, ``*.tar``), a list of these, a folder, or a URL.
    Opening is lazy: the first question reads the manifest, or indexes a tar that has no index and keeps that in the
    cache.

    ``decode=True`` decodes json, text, class numbers, arrays, msgpack and cbor, and leaves images, audio and video as
    bytes; ``False`` gives bytes; a spec such as ``"rgb8"``, ``"pil"`` or ``{"jpg": "numpy"}`` decodes more.
    ``verify`` checks all that is read against the index's checksums. ``on_error`` says what to do about damage:
    ``"raise"``, ``"skip"`` within ``error_budget``, or ``"quarantine"``, which also writes down what was passed over;
    ``errors`` counts it.

    Example:
        >>> import shoal
        >>> with shoal.ShardWriter("memory://doc/ds/train-%06d.tar") as writer:
        ...     for number in range(4):
        ...         writer.write({"__key__": f"k{number}", "txt": "hi", "json": {"width": number * 100}})
        >>> ds = shoal.Dataset("memory://doc/ds")
        >>> len(ds), ds[0]["txt"], ds.get("k3")["json"]
        (4, 'hi', {'width': 300})
        >>> [sample["__key__"] for sample in ds.where("width >= 200")]
        ['k2', 'k3']
    """

    def __init__(
        self,
        path: PathLike | Iterable[PathLike],
        *,
        decode: Any = True,
        split: str | None = None,
        fields: Sequence[str] | None = None,
        format: str | None = None,  # noqa: A002 - the word users expect
        rule: KeyRule = WEBDATASET_RULE,
        verify: bool = True,
        on_error: OnError = "raise",
        error_budget: int | None = None,
        quarantine: str | None = None,
        on_decode_error: Literal["raise", "keep"] = "raise",
        allow_pickle: bool = False,
    ) -> None:
        self._description = _Description(
            path if isinstance(path, (str, os.PathLike)) else tuple(path),
            SourceOptions(split, rule, verify),
            format,
            decode_spec(decode, allow_pickle=allow_pickle, on_decode_error=on_decode_error),
            ErrorPolicy(on_error, error_budget, quarantine),
            None if fields is None else tuple(fields),
        )
        self._opened = _Opened(self._description)
        self._rows: Int64 | None = None
        self.errors = ErrorLog(self._description.policy)
        """What was passed over so far."""

    def _view(self, *, rows: Int64 | None = None, **changes: Any) -> Dataset:
        """This dataset seen otherwise; the source stays open and shared."""
        view = object.__new__(Dataset)
        view._description = replace(self._description, **changes)
        view._opened = self._opened
        view._rows = self._rows if rows is None else rows
        view.errors = ErrorLog(self._description.policy)
        return view

    @property
    def source(self) -> Source:
        """Where the samples come from."""
        return self._opened.source

    def __len__(self) -> int:
        return len(self.source) if self._rows is None else len(self._rows)

    def __repr__(self) -> str:
        path = self._description.path
        return f"Dataset({os.fspath(path)!r})" if isinstance(path, (str, os.PathLike)) else f"Dataset({list(path)!r})"

    @functools.cached_property
    def _decoders(self) -> Decoders:
        return _LazyDecoders(self._description.spec)

    def __iter__(self) -> Iterator[Sample]:
        """All samples in order."""
        log = self.errors
        if self._rows is None:
            runs = self.source.stream(self._description.fields, self._decoders, log)
        else:
            parts = (self._rows[at : at + _READ_ROWS] for at in range(0, len(self._rows), _READ_ROWS))
            runs = (self._read_sound(rows, log) for rows in parts)
        try:
            for run in runs:
                yield from run
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
        return self.source.read(rows, self._description.fields, self._decoders)

    @overload
    def __getitem__(self, item: int) -> Sample: ...
    @overload
    def __getitem__(self, item: slice | Sequence[int] | npt.NDArray[Any]) -> list[Sample]: ...
    @overload
    def __getitem__(self, item: str) -> Sample: ...
    def __getitem__(self, item: Any) -> Any:
        """One sample by position or key, or a list of samples by slice, list, array or mask."""
        if isinstance(item, str):
            return self.get(item)
        if isinstance(item, slice):
            return self._read(self._numbers(np.arange(*item.indices(len(self)))))
        if isinstance(item, (int, np.integer)):
            return self._read(self._number(int(item)))[0]
        return self._read(self._numbers(_positions(item, len(self))))

    def _number(self, position: int) -> Int64:
        """The number of one sample, without the price of arrays."""
        length = len(self)
        if not -length <= position < length:
            return self._numbers(np.array([position]))  # which raises
        position += length if position < 0 else 0
        return np.array([position]) if self._rows is None else self._rows[position : position + 1]

    def _numbers(self, positions: Int64) -> Int64:
        """Sample numbers of positions in this view; negative ones count from the end."""
        length = len(self)
        wrapped = np.where(positions < 0, positions + length, positions)
        outside = (wrapped < 0) | (wrapped >= length)
        if outside.any():
            raise PositionError(
                "no sample at this position", expected=f"{-length} to {length - 1}", found=int(positions[outside][0])
            )
        return wrapped if self._rows is None else self._rows[wrapped]

    def get(self, key: str) -> Sample:
        """The sample with this key. Raises SampleKeyError, which suggests near keys."""
        return self._read(np.array([self._number_of(key)]))[0]

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
        return self.source.keys(np.arange(len(self.source)) if self._rows is None else self._rows)

    @property
    def numbers(self) -> Int64:
        """The number of each sample of this view in the whole source."""
        return np.arange(len(self.source)) if self._rows is None else self._rows

    def head(self, count: int = 5) -> list[Sample]:
        """The first samples."""
        return self[: min(count, len(self))]

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

    def columns(self, names: Sequence[str]) -> Dataset:
        """The same samples with only these fields; other fields' bytes are not read. Raises FieldError."""
        missing = [name for name in names if name not in self.source.fields]
        if missing:
            raise FieldError("no such field", expected=" or ".join(self.source.fields), found=missing[0])
        return self._view(fields=tuple(names))

    def select(self, indices: Sequence[int] | npt.NDArray[Any]) -> Dataset:
        """The samples at these positions, in this order."""
        return self._view(rows=self._numbers(_positions(indices, len(self))))

    def where(self, expression: str | Expression | Field) -> Dataset:
        """The samples whose metadata fits, found in the index without opening a tar.

        ``json.width`` names a column, and a bare ``width`` will do where only one column ends so. Raises QueryError.
        """
        resolved = resolve_columns(as_expression(expression), ("__key__", *self.column_names))
        # A condition without a column, such as "true", still needs one row a sample.
        keep = run_where(resolved, self.table(sorted(columns_of(resolved)) or ["__key__"]))
        rows = np.flatnonzero(keep) if self._rows is None else self._rows[keep]
        return self._view(rows=rows)

    def table(self, names: Sequence[str] | None = None) -> pa.Table:
        """Metadata columns as an Arrow table, one row a sample."""
        table = self.source.table(self.column_names if names is None else list(names))
        return table if self._rows is None else table.take(pa.array(self._rows))


class _LazyDecoders(dict[str, Any]):
    """Each field's decoder, found when the field is first met: shards need not all have the same fields."""

    def __init__(self, spec: DecodeSpec) -> None:
        super().__init__()
        self._spec = spec
        self._known: set[str] = set()

    def __contains__(self, field: object) -> bool:
        if field not in self._known and isinstance(field, str):
            self.update(decoders(self._spec, [field]))
            self._known.add(field)  # last: another thread takes a known field without a decoder for bytes
        return super().__contains__(field)


def _positions(item: Any, length: int) -> Int64:
    positions = np.asarray(item)
    if positions.dtype == bool:
        if positions.shape != (length,):
            raise OptionError("a mask has one entry a sample", expected=length, found=len(np.atleast_1d(positions)))
        return np.flatnonzero(positions)
    if positions.ndim != 1 or (positions.size and not np.issubdtype(positions.dtype, np.integer)):
        raise OptionError(
            "positions are whole numbers", expected="int, slice, list of int or a mask", found=type(item).__name__
        )
    return positions.astype(np.int64)
