"""Descriptions of datasets: what to open and which methods were called, as picklable values.

`OpenSource` opens the source of a description once, on first use. The module also has the `repr` of a description, the
identity of a source, and checks of the arguments of `Dataset`.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol, TypedDict, Unpack, runtime_checkable

import numpy as np
import pyarrow as pa

from shoal.codec._dispatch import DecodeSpec, decode_spec
from shoal.errors import ManifestError, ObjectChangedError, ObjectNotFoundError, OptionError
from shoal.formats._registry import SourceOptions, open_source
from shoal.protocols import DataSource
from shoal.sample._annotations import is_record
from shoal.sample._dict_sample import DictSample
from shoal.sample._lens import Lens
from shoal.shard._manifest import manifest_url
from shoal.shard._member_names import WEBDATASET_RULE, KeyRule
from shoal.shard._row_view import RowView
from shoal.shard._source import ShardSource, Source
from shoal.shard._stream import ErrorPolicy, OnError
from shoal.store._snapshot import StoreSnapshot
from shoal.store._url import base_name

from ._data_source import source_from_data_source
from ._tombstones import rows_not_deleted

__all__ = [
    "CompositeDescription",
    "DatasetOptions",
    "Description",
    "FinalSource",
    "HasColumns",
    "OpenSource",
    "PathLike",
    "Stage",
    "Step",
    "SupportsIdentity",
    "check_sample_type",
    "describe",
    "digest_of",
    "format_repr",
    "source_identity",
    "with_step",
]

PathLike = str | os.PathLike[str]
_MAX_NAMES_CHARS = 60


class DatasetOptions(TypedDict, total=False):
    """Options of `Dataset`."""

    decode: Any
    split: str | None
    fields: Sequence[str] | None
    format: str | None
    rule: KeyRule
    verify: bool
    on_error: OnError
    error_budget: float | None
    quarantine: str | None
    on_decode_error: Literal["raise", "keep"]
    allow_pickle: bool
    writable: bool
    tombstones: bool
    cache: Literal["blocks", "shards"] | None


@dataclass(frozen=True, slots=True)
class Stage:
    """A function of a `map` or `filter`. Stages run in the order in which they were added."""

    kind: Literal["map", "filter"]
    function: Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Step:
    """A method call that made a view, for `repr`, and for `refresh` to apply it to the dataset as it is now."""

    shown: str
    again: Callable[[Any], Any] | None = None
    """Applies the method to a dataset again; None if it selected positions, or nothing."""
    rows: RowView | None = None
    """The rows of the source that were selected by position."""


@dataclass(frozen=True)
class Description:
    """Everything that says what a dataset is; nothing is opened by it."""

    path: PathLike | tuple[PathLike, ...] | DataSource | CompositeDescription
    options: SourceOptions
    format: str | None
    spec: DecodeSpec
    policy: ErrorPolicy
    fields: tuple[str, ...] | None = None
    stored_type: type[Any] | None = None
    """What stored samples are read as; None leaves it to the data."""
    sample_type: type[Any] | None = None
    """What comes out after all stages, where that is not what is stored."""
    stages: tuple[Stage, ...] = ()
    writable: bool = False
    """Whether arrays are copies that may be written to, rather than views of what was read."""
    tombstones: bool = True
    """Whether samples that were deleted stay away."""
    mixture: Any = None
    """How it was mixed of several datasets, for loaders; None where it was not, or where others were chosen since."""
    steps: tuple[Step, ...] = field(default=(), compare=False)
    """The method calls that led to this view, in order."""


@runtime_checkable
class CompositeDescription(Protocol):
    """A dataset made of others, as a picklable value. It is opened on first use, and again in each process."""

    def open_source(self) -> Source:
        """The source of all of it."""
        ...


@runtime_checkable
class RowsRecipe(CompositeDescription, Protocol):
    """A composite description that shows only some samples of its source."""

    def rows_in_view(self, source: Source) -> RowView | None:
        """Their rows, in order; None for all."""
        ...


def describe(
    path: PathLike | Iterable[PathLike] | DataSource, sample_type: type[Any] | None, **options: Unpack[DatasetOptions]
) -> Description:
    """Check the arguments of `Dataset`. Raises OptionError, and TypeError for an unknown option."""
    unknown = set(options) - set(DatasetOptions.__annotations__)
    if unknown:
        raise TypeError(f"Dataset has no option {min(unknown)!r}; it has {', '.join(DatasetOptions.__annotations__)}")
    fields, rule, cache = options.get("fields"), options.get("rule", WEBDATASET_RULE), options.get("cache")
    if isinstance(fields, str):
        raise OptionError("fields are a list of names", expected=f"[{fields!r}]", found=repr(fields))
    if not isinstance(rule, KeyRule):
        raise OptionError("this is no rule for keys", expected="a KeyRule", found=repr(rule))
    if cache not in (None, "blocks", "shards"):
        expected = "'blocks', 'shards' or None"
        raise OptionError("cache is not one of its values", expected=expected, found=repr(cache))
    verify, writable = options.get("verify", True), options.get("writable", False)
    tombstones = options.get("tombstones", True)
    for name, value in (("verify", verify), ("writable", writable), ("tombstones", tombstones)):
        if type(value) is not bool:
            raise OptionError(f"{name} is yes or no", expected="True or False", found=repr(value))
    return Description(
        _checked_path(path),
        SourceOptions(options.get("split"), rule, verify, cache=cache),
        options.get("format"),
        decode_spec(
            options.get("decode", True),
            allow_pickle=options.get("allow_pickle", False),
            on_decode_error=options.get("on_decode_error", "raise"),
        ),
        ErrorPolicy(options.get("on_error", "raise"), options.get("error_budget"), options.get("quarantine")),
        None if fields is None else tuple(fields),
        sample_type,
        tombstones=tombstones,
        writable=writable,
    )


def _checked_path(path: Any) -> Any:
    """A path, with ``~`` expanded, a tuple of paths, or a DataSource. Raises OptionError for what names no dataset."""
    if not isinstance(path, str) and isinstance(path, DataSource):
        return path
    if hasattr(path, "read") or (isinstance(path, str) and path == "-"):
        raise OptionError(
            "a stream has no positions, and a dataset is read by them",
            expected="a path or a URL",
            found="stdin" if isinstance(path, str) else type(path).__name__,
            hint="read it once, in order: shoal.formats.webdataset.stream(...), which DataLoader takes, too",
        )
    if isinstance(path, str) and path.startswith("pipe:"):
        raise OptionError(
            "no command is run for a path",
            expected="a path or a URL",
            found=repr(path),
            hint="run it before Python and stream what it writes: `COMMAND | python ...` with "
            "shoal.formats.webdataset.stream('-')",
        )
    if isinstance(path, (str, os.PathLike)):
        text = os.fspath(path)
        return os.path.expanduser(text) if isinstance(text, str) and text.startswith("~") else path
    paths = tuple(path) if isinstance(path, Iterable) else (path,)
    for each in paths:
        if not isinstance(each, (str, os.PathLike)):
            expected = "a path, a pattern, a list of them or a DataSource"
            raise OptionError("this names no dataset", expected=expected, found=repr(each))
    return tuple(map(_checked_path, paths))


class OpenSource:
    """The source behind a dataset and all views of it, opened once, when it is first needed."""

    def __init__(self, description: Description, identity: str | None = None) -> None:
        self._description = description
        self._snapshot = StoreSnapshot(beside=manifest_url)
        self._expected = identity
        """What the source must be, where rows of it are known already."""

    @functools.cached_property
    def source(self) -> Source:
        """Where the samples come from."""
        description = self._description
        with self._snapshot.active():
            if isinstance(description.path, CompositeDescription):
                source = description.path.open_source()
            elif isinstance(description.path, DataSource):
                options = description.options
                source = source_from_data_source(description.path, rule=options.rule, verify=options.verify)
            else:
                source = _open_generation(description)
        if self._expected is not None and source_identity(source) != self._expected:
            raise ManifestError(
                "the dataset has changed since this view of it was made",
                found=repr(description.path),
                hint="open it again, or `refresh` the view before it is sent elsewhere",
            )
        return source

    @functools.cached_property
    def identity(self) -> str:
        """What tells this source from others."""
        return source_identity(self.source) if self._expected is None else self._expected

    @property
    def is_open(self) -> bool:
        """Whether the source was needed before."""
        return "source" in self.__dict__

    @functools.cached_property
    def visible_rows(self) -> RowView | None:
        """The rows that the dataset shows before any selection; None for all of the source."""
        path = self._description.path
        if isinstance(path, RowsRecipe):
            return path.rows_in_view(self.source)
        if not self._description.tombstones or isinstance(path, (CompositeDescription, DataSource)):
            return None
        source = self.source
        if isinstance(source, ShardSource) and source.generation is not None:
            return source.index.live() if len(source.index.deleted()) else None
        with self._snapshot.active():
            rows = rows_not_deleted(source, path)
        self._snapshot = StoreSnapshot()  # free the cached listings
        return rows


def _open_generation(description: Description) -> Source:
    """Open the generation that a dataset was read from when it was pickled; the newest where that is not kept."""
    path: Any = description.path
    options = description.options
    if options.generation is not None:
        with contextlib.suppress(ObjectNotFoundError, ObjectChangedError):
            return open_source(path, options, format=description.format)
    return open_source(path, replace(options, generation=None), format=description.format)


def with_step(changed: Description, before: Description, step: Step | None, rows: RowView | None) -> Description:
    """Return the description of a view, with the step that made it.

    After `select`, earlier methods are kept for `repr` only: `refresh` cannot apply them again.
    """
    step = step or _guess_step(changed, before, rows)
    if step is None:
        return changed
    earlier = before.steps
    if step.rows is not None:
        earlier = tuple(Step(each.shown) for each in earlier)
    return replace(changed, steps=(*earlier, step))


def _guess_step(changed: Description, before: Description, rows: RowView | None) -> Step | None:
    """The method that made a view, by what it changed."""
    if rows is not None:
        return Step("materialize()" if len(changed.stages) < len(before.stages) else "select(...)", rows=rows)
    if len(changed.stages) > len(before.stages):
        stage = changed.stages[-1]
        return Step(f"{stage.kind}({_function_name(stage.function)})")
    if changed.fields != before.fields:
        names = repr(list(changed.fields or ()))
        names = names if len(names) <= _MAX_NAMES_CHARS else f"{names[: _MAX_NAMES_CHARS - 3]}..."
        return Step(f"columns({names})")
    return None


def _function_name(function: Any) -> str:
    if isinstance(function, functools.partial):
        return _function_name(function.func)
    if isinstance(function, Lens):
        return getattr(function.get, "__name__", "lens")
    return str(getattr(function, "__name__", type(function).__name__))


def format_repr(description: Description, opened: OpenSource, rows: RowView | None) -> str:
    """Return ``Dataset('data', 120 of 1,000 samples, where(width >= 512), map(f))``. Nothing is opened."""
    count = []
    if rows is not None:
        total = opened.source.index.known_length if opened.is_open and isinstance(opened.source, ShardSource) else None
        count = [f"{len(rows):,} samples" if total is None else f"{len(rows):,} of {total:,} samples"]
    path, steps = _format_path(description.path), (step.shown for step in description.steps)
    return f"Dataset({', '.join([path, *count, *steps])})"


def _format_path(path: object) -> str:
    if isinstance(path, (str, os.PathLike)):
        return repr(os.fspath(path))
    if not isinstance(path, tuple):
        return repr(path)
    names: list[PathLike] = list(path)
    return repr(names) if len(names) <= 4 else f"[{names[0]!r}, ... {len(names) - 2} more ..., {names[-1]!r}]"


@runtime_checkable
class SupportsIdentity(Protocol):
    """A source that says itself what it is."""

    @property
    def identity(self) -> str:
        """Equal for equal sources, in every process."""
        ...


@runtime_checkable
class FinalSource(Protocol):
    """Source whose samples need no decoding or conversion."""

    @property
    def finished_type(self) -> type[Any]:
        """Their type."""
        ...


@runtime_checkable
class HasColumns(Protocol):
    """A source with metadata columns."""

    def column_names(self) -> tuple[str, ...]:
        """Every metadata column."""
        ...

    def metadata(self, columns: Sequence[str]) -> pa.Table:
        """Columns, one row a sample; a name that is no column is one of nulls, where no sample may have values of it.

        Raises FieldError for a column that is not known of all samples.
        """
        ...


def source_identity(source: Source) -> str:
    """A digest that differs where the samples of a source, or their order, may differ; data is not read for it.

    Where the dataset lies is no part of it, so a copy elsewhere is the same.
    """
    if isinstance(source, SupportsIdentity):
        return source.identity
    if not isinstance(source, ShardSource):
        return digest_of([type(source).__qualname__, str(len(source)), *source.fields])
    if source.segment_table is not None:
        return digest_of([repr(source.rule), str(len(source)), source.segment_table.digest])
    names = _relative_names([ref.url for ref in source.shards])
    counts = np.diff(source.starts).tolist()
    sizes = map(source.index.shard_bytes, range(len(source.shards)))
    return digest_of([repr(source.rule), *map(repr, zip(names, counts, sizes, strict=True))])


def _relative_names(urls: list[str]) -> list[str]:
    """The names relative to the folder that contains all of them."""
    parts = [url.split("/") for url in urls]
    if len(set(urls)) < 2:
        return [base_name(url) for url in urls]
    columns = enumerate(zip(*parts, strict=False))
    shared = next((at for at, names in columns if len(set(names)) > 1), min(map(len, parts)) - 1)
    return ["/".join(part[shared:]) for part in parts]


def digest_of(texts: Iterable[str]) -> str:
    """One digest of several strings. Lengths are hashed too, so boundaries matter."""
    digest = hashlib.sha256()
    for text in texts:
        data = text.encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.hexdigest()


def check_sample_type(kind: Any) -> None:
    """Raise OptionError for a class that is no type of samples."""
    if not isinstance(kind, type) or kind is object or is_record(kind) or issubclass(kind, (Mapping, DictSample)):
        return
    if hasattr(kind, "from_bytes") and kind is not int:  # a class of the user's that packs itself
        return
    raise OptionError(
        "this is no type of samples",
        expected="a @packable class, a dataclass, a Struct, a pydantic model or dict",
        found=kind.__name__,
    )
