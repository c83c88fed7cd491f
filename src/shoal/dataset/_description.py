"""A dataset as a picklable description, its identity, and the checks of its arguments."""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypedDict, runtime_checkable

import numpy as np
import numpy.typing as npt

from shoal.codec import DecodeSpec
from shoal.errors import ManifestError, OptionError
from shoal.formats import SourceOptions, open_source
from shoal.protocols import DataSource
from shoal.sample import DictSample, is_record
from shoal.shard import ErrorPolicy, KeyRule, OnError, ShardSource, Source, manifest_url
from shoal.store import StoreSnapshot, base_name

from ._data_source import source_from_data_source
from ._tombstones import living_rows

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
    "check_path",
    "check_sample_type",
    "digest_of",
    "source_identity",
]

PathLike = str | os.PathLike[str]
Int64 = npt.NDArray[np.int64]


class DatasetOptions(TypedDict, total=False):
    """What may be said about opening a dataset."""

    decode: Any
    split: str | None
    fields: Sequence[str] | None
    format: str | None
    rule: KeyRule
    verify: bool
    on_error: OnError
    error_budget: int | None
    quarantine: str | None
    on_decode_error: Literal["raise", "keep"]
    allow_pickle: bool
    writable: bool
    tombstones: bool
    cache: Literal["blocks", "shards"] | None


@dataclass(frozen=True, slots=True)
class Stage:
    """A step that samples go through, in the order the steps were written."""

    kind: Literal["map", "filter"]
    function: Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Step:
    """A verb that made a view, for those who ask what it is, and for doing it again on a dataset that has grown."""

    shown: str
    again: Callable[[Any], Any] | None = None
    """Chooses samples of a dataset as this verb did; None where it chose positions, or none."""
    rows: Int64 | None = None
    """The samples chosen by position, by their numbers in the source."""


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
    """The verbs that led here, in the order written."""


@runtime_checkable
class CompositeDescription(Protocol):
    """Datasets put together as one, as a value: opened when it is first needed, and again in another process."""

    def open_source(self) -> Source:
        """The source of all of it."""
        ...


@runtime_checkable
class RowsRecipe(CompositeDescription, Protocol):
    """A recipe whose dataset shows only some samples of its source."""

    def rows_in_view(self, source: Source) -> Int64 | None:
        """Their numbers, in order; None for all."""
        ...


class OpenSource:
    """The source behind a dataset and all views of it, opened once, when it is first needed."""

    def __init__(self, description: Description, identity: str | None = None) -> None:
        self._description = description
        self._glance = StoreSnapshot(beside=manifest_url)
        self._expected = identity
        """What the source must be, where numbers of its samples are known already."""

    @functools.cached_property
    def source(self) -> Source:
        """Where the samples come from."""
        with self._glance.looking():
            source = self._open()
        if self._expected is not None and source_identity(source) != self._expected:
            raise ManifestError(
                "the dataset has changed since this view of it was made",
                found=repr(self._description.path),
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
    def living(self) -> Int64 | None:
        """The numbers of the samples that the whole dataset shows; None for all of the source."""
        path = self._description.path
        if isinstance(path, RowsRecipe):
            return path.rows_in_view(self.source)
        if not self._description.tombstones or isinstance(path, (CompositeDescription, DataSource)):
            return None
        source = self.source
        with self._glance.looking():
            living = living_rows(source, path)
        self._glance = StoreSnapshot()  # what it holds is not needed any more
        return living

    def _open(self) -> Source:
        description = self._description
        if isinstance(description.path, CompositeDescription):
            return description.path.open_source()
        if isinstance(description.path, DataSource):
            options = description.options
            return source_from_data_source(description.path, rule=options.rule, verify=options.verify)
        return open_source(description.path, description.options, format=description.format)


@runtime_checkable
class SupportsIdentity(Protocol):
    """A source that says itself what it is."""

    @property
    def identity(self) -> str:
        """Equal for equal sources, in every process."""
        ...


@runtime_checkable
class FinalSource(Protocol):
    """A source whose samples are what a user is to see already."""

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


def source_identity(source: Source) -> str:
    """A digest that differs where the samples of a source, or their order, may differ; data is not read for it.

    Where the dataset lies is no part of it, so a copy elsewhere is the same.
    """
    if isinstance(source, SupportsIdentity):
        return source.identity
    if not isinstance(source, ShardSource):
        return digest_of([type(source).__qualname__, str(len(source)), *source.fields])
    names = same_folder([ref.url for ref in source.shards])
    counts = np.diff(source.starts).tolist()
    sizes = [
        source.shard(number).index.facts.size if ref.size is None else ref.size
        for number, ref in enumerate(source.shards)
    ]
    return digest_of([repr(source.rule), *map(repr, zip(names, counts, sizes, strict=True))])


def same_folder(urls: list[str]) -> list[str]:
    """The names as seen from the folder that holds them all."""
    parts = [url.split("/") for url in urls]
    if len(set(urls)) < 2:
        return [base_name(url) for url in urls]
    columns = enumerate(zip(*parts, strict=False))
    shared = next((at for at, names in columns if len(set(names)) > 1), min(map(len, parts)) - 1)
    return ["/".join(part[shared:]) for part in parts]


def digest_of(texts: Iterable[str]) -> str:
    """One digest of several texts, each told apart from its neighbours."""
    digest = hashlib.sha256()
    for text in texts:
        data = text.encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.hexdigest()


def check_path(path: Any) -> None:
    """Raise OptionError for what names no dataset."""
    is_stream = hasattr(path, "read") and not isinstance(path, DataSource)
    if is_stream or (isinstance(path, str) and path == "-"):
        raise OptionError(
            "a stream has no positions, and a dataset is read by them",
            expected="a path or a URL",
            found=type(path).__name__ if is_stream else "stdin",
            hint="read it once, in order: shoal.formats.webdataset.stream(...), which DataLoader takes, too",
        )
    if isinstance(path, (str, os.PathLike, DataSource)):
        _refuse_command(path)
        return
    odd = [path] if not isinstance(path, Iterable) else [each for each in path if not _is_path(each)]
    if odd:
        expected = "a path, a pattern, a list of them or a DataSource"
        raise OptionError("this names no dataset", expected=expected, found=repr(odd[0]))


def _is_path(path: object) -> bool:
    return isinstance(path, (str, os.PathLike))


def _refuse_command(path: object) -> None:
    if isinstance(path, str) and path.startswith("pipe:"):
        raise OptionError(
            "no command is run for a path",
            expected="a path or a URL",
            found=repr(path),
            hint="run it before Python and stream what it writes: `COMMAND | python ...` with "
            "shoal.formats.webdataset.stream('-')",
        )


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
