"""The Dataset: what a user holds."""

from __future__ import annotations

import functools
import operator
import os
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Generic, TypeVar, Unpack, cast, overload

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shoal.codec import decode_spec
from shoal.errors import FieldError, OptionError, SampleKeyError, TarError
from shoal.formats import SourceOptions
from shoal.load import Ragged
from shoal.protocols import DataSource
from shoal.sample import default_network, is_record, schema_of
from shoal.schema import Schema
from shoal.shard import WEBDATASET_RULE, Decoders, ErrorLog, ErrorPolicy, Sample, ShardSource, Source

from ._batches import check_batch_size, in_batches, raw_ordered, raw_shuffled, typed_batches
from ._decoding import LazyDecoders
from ._description import DatasetOptions, Description, Opened, PathLike, Stage
from ._positions import positions_in, wrapped
from ._reading import PAYLOAD, Reading, finished, reading_for, stored_type_of
from ._where import Expression, Field, as_expression, columns_of, resolve_columns, run_where

__all__ = ["Dataset"]

T = TypeVar("T")
V = TypeVar("V")
Int64 = npt.NDArray[np.int64]
_READ_ROWS = 256


class Dataset(Generic[T]):
    """Samples by position, by key, in order, in batches, or by query.

    ``path`` is a tar, a pattern (``data-{000000..000099}.tar``, ``*.tar``), a list of these, a folder, or a URL that a
    registered store serves. Opening is lazy: the first question reads the manifest, or indexes a tar that has no index
    and keeps that in the cache.

    ``decode=True`` decodes json, text, class numbers, arrays, msgpack and cbor, and leaves images, audio and video as
    bytes; ``False`` gives bytes; a spec such as ``"rgb8"``, ``"pil"`` or ``{"jpg": "numpy"}`` decodes more.
    ``verify`` checks all that is read against the index's checksums. ``on_error`` says what to do about damage:
    ``"raise"``, ``"skip"`` within ``error_budget``, or ``"quarantine"``, which also writes down what was passed over;
    ``errors`` counts it.

    ``Dataset[ImageSample](path)`` gives samples of that type, from ``.msgpack`` payloads or from plain fields by name.
    Without a type the manifest's schema makes one; else payloads are ``DictSample`` and anything else is a dict.

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

    @overload
    def __init__(
        self: Dataset[dict[str, Any]],
        path: PathLike | Iterable[PathLike] | DataSource,
        **options: Unpack[DatasetOptions],
    ) -> None: ...
    @overload
    def __init__(
        self,
        path: PathLike | Iterable[PathLike] | DataSource,
        *,
        sample_type: type[T] | None = None,
        **options: Unpack[DatasetOptions],
    ) -> None: ...
    def __init__(
        self,
        path: PathLike | Iterable[PathLike] | DataSource,
        *,
        sample_type: type[Any] | None = None,
        **options: Unpack[DatasetOptions],
    ) -> None:
        self._description = _described(path, sample_type, **options)
        self._opened = Opened(self._description)
        self._rows: Int64 | None = None
        self.errors = ErrorLog(self._description.policy)
        """What was passed over so far."""
        self.seed: int | None = None
        """The seed of the last shuffle, drawn or given."""

    def _view(self, *, rows: Int64 | None = None, **changes: Any) -> Dataset[Any]:
        """This dataset seen otherwise; the source stays open and shared."""
        view: Dataset[Any] = object.__new__(type(self))
        view._description = replace(self._description, **{"stored_type": self._asked_type, **changes})
        view._opened = self._opened
        view._rows = self._rows if rows is None else rows
        view.errors = ErrorLog(self._description.policy)
        view.seed = None
        return view

    def __getstate__(self) -> dict[str, Any]:
        """What is said, not what is open: another process opens its own files."""
        described = replace(self._description, stored_type=self._asked_type)
        return {"description": described, "rows": self._rows, "seed": self.seed}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._description = state["description"]
        self._opened = Opened(self._description)
        self._rows = state["rows"]
        self.errors = ErrorLog(self._description.policy)
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

    def ordered(
        self, batch_size: int | None = None, *, drop_last: bool = False, ragged: Ragged = "list"
    ) -> Iterator[Any]:
        """Samples in order, or batches of them: a ``SampleBatch`` of typed samples, a dict of columns of dicts.

        The last batch may be short, unless ``drop_last``. ``ragged`` says what becomes of arrays of different shapes.
        """
        if batch_size is None:
            return iter(self)
        check_batch_size(batch_size)
        source = self._raw_source()
        if source is None:
            return in_batches(iter(self), batch_size, drop_last, ragged)
        runs = raw_ordered(source, PAYLOAD, self._rows)
        return typed_batches(runs, self.sample_type, batch_size, drop_last, ragged)

    def shuffled(
        self,
        batch_size: int | None = None,
        *,
        seed: int | None = None,
        drop_last: bool = False,
        ragged: Ragged = "list",
    ) -> Iterator[Any]:
        """Samples, or batches of them, in a random order, each once. A drawn seed is kept as ``seed``."""
        self.seed = secrets.randbits(32) if seed is None else seed
        source = self._raw_source()
        if batch_size is not None and source is not None and self._rows is None:
            runs = raw_shuffled(source, PAYLOAD, self.seed)
            return typed_batches(runs, self.sample_type, check_batch_size(batch_size), drop_last, ragged)
        samples = self._walk(np.random.default_rng(self.seed).permutation(self.numbers))
        return samples if batch_size is None else in_batches(samples, check_batch_size(batch_size), drop_last, ragged)

    def _raw_source(self) -> ShardSource | None:
        """The source, where batches can be gathered from its payloads as they are."""
        typed = self._reading.packed and is_record(self._reading.sample_type) and not self._description.stages
        whole = isinstance(self.source, ShardSource) and self._description.policy.on_error == "raise"
        return cast(ShardSource, self.source) if typed and whole else None

    def as_type(self, kind: type[V]) -> Dataset[V]:
        """The same samples seen as another type, through the registered lens. Raises LensNotFoundError."""
        lens = default_network().find(self.sample_type, kind)
        return self._view(sample_type=kind, stages=(*self._description.stages, Stage("map", lens.get)))

    def map(self, function: Callable[[T], V]) -> Dataset[V]:
        """Each sample changed by a function, when it is read."""
        return self._view(sample_type=object, stages=(*self._description.stages, Stage("map", function)))

    def filter(self, function: Callable[[T], object]) -> Dataset[T]:
        """The samples for which a function is true, found as they are read; ``materialize`` gives positions again."""
        return self._view(
            sample_type=self._description.sample_type, stages=(*self._description.stages, Stage("filter", function))
        )

    def materialize(self) -> Dataset[T]:
        """A filtered dataset as a view with a length and positions: reads every sample once."""
        kept = [number for number in self.numbers.tolist() if self._finished(self._read(np.array([number])))]
        stages = tuple(stage for stage in self._description.stages if stage.kind == "map")
        return self._view(rows=np.array(kept, np.int64), sample_type=self._description.sample_type, stages=stages)

    def _refuse_filtered(self, what: str) -> None:
        if any(stage.kind == "filter" for stage in self._description.stages):
            raise TypeError(f"a filtered dataset has not {what} before it is read; use .materialize() or .where()")

    def columns(self, names: Sequence[str]) -> Dataset[dict[str, Any]]:
        """The same samples with only these fields; other fields' bytes are not read. Raises FieldError."""
        self._refuse_unknown(names)
        return self._view(fields=tuple(names), stored_type=dict)

    def select(self, indices: Sequence[int] | npt.NDArray[Any]) -> Dataset[T]:
        """The samples at these positions, in this order."""
        return self._view(
            rows=self._numbers(positions_in(indices, len(self))), sample_type=self._description.sample_type
        )

    def where(self, expression: str | Expression | Field) -> Dataset[T]:
        """The samples whose metadata fits, found in the index without opening a tar.

        ``json.width`` names a column, and a bare ``width`` will do where only one column ends so. Raises QueryError.
        """
        resolved = resolve_columns(as_expression(expression), ("__key__", *self.column_names))
        # A condition without a column, such as "true", still needs one row a sample.
        keep = run_where(resolved, self.table(sorted(columns_of(resolved)) or ["__key__"]))
        rows = np.flatnonzero(keep) if self._rows is None else self._rows[keep]
        return self._view(rows=rows, sample_type=self._description.sample_type)

    def table(self, names: Sequence[str] | None = None) -> pa.Table:
        """Metadata columns as an Arrow table, one row a sample."""
        table = self.source.table(self.column_names if names is None else list(names))
        return table if self._rows is None else table.take(pa.array(self._rows))


def _described(
    path: PathLike | Iterable[PathLike] | DataSource, sample_type: type[Any] | None, **options: Unpack[DatasetOptions]
) -> Description:
    unknown = set(options) - set(DatasetOptions.__annotations__)
    if unknown:
        raise TypeError(f"Dataset has no option {min(unknown)!r}; it has {', '.join(DatasetOptions.__annotations__)}")
    fields = options.get("fields")
    if isinstance(fields, str):
        raise OptionError("fields are a list of names", expected=f"[{fields!r}]", found=repr(fields))
    if not isinstance(path, (str, os.PathLike, DataSource, Iterable)):
        raise OptionError(
            "this names no dataset", expected="a path, a pattern, a list of them or a DataSource", found=repr(path)
        )
    return Description(
        path if isinstance(path, (str, os.PathLike, DataSource)) else tuple(path),
        SourceOptions(options.get("split"), options.get("rule", WEBDATASET_RULE), options.get("verify", True)),
        options.get("format"),
        decode_spec(
            options.get("decode", True),
            allow_pickle=options.get("allow_pickle", False),
            on_decode_error=options.get("on_decode_error", "raise"),
        ),
        ErrorPolicy(options.get("on_error", "raise"), options.get("error_budget"), options.get("quarantine")),
        None if fields is None else tuple(fields),
        sample_type,
    )
