"""What a dataset is, as a value; and its source, opened once for all views of it."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypedDict, runtime_checkable

import numpy as np
import numpy.typing as npt

from shoal.codec import DecodeSpec
from shoal.errors import ManifestError
from shoal.formats import SourceOptions, open_source
from shoal.protocols import DataSource
from shoal.shard import ErrorPolicy, KeyRule, OnError, Source, manifest_url
from shoal.store import Glance

from ._growing._tombstones import living_rows
from ._identity import source_identity
from ._opening._data_source import source_from_data_source

__all__ = ["DatasetOptions", "Description", "Opened", "PathLike", "Recipe", "RowsRecipe", "Stage", "Step"]

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

    path: PathLike | tuple[PathLike, ...] | DataSource | Recipe
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
class Recipe(Protocol):
    """Datasets put together as one, as a value: opened when it is first needed, and again in another process."""

    def open_source(self) -> Source:
        """The source of all of it."""
        ...


@runtime_checkable
class RowsRecipe(Recipe, Protocol):
    """A recipe whose dataset shows only some samples of its source."""

    def rows_in_view(self, source: Source) -> Int64 | None:
        """Their numbers, in order; None for all."""
        ...


class Opened:
    """The source behind a dataset and all views of it, opened once, when it is first needed."""

    def __init__(self, description: Description, identity: str | None = None) -> None:
        self._description = description
        self._glance = Glance(beside=manifest_url)
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
        if not self._description.tombstones or isinstance(path, (Recipe, DataSource)):
            return None
        source = self.source
        with self._glance.looking():
            living = living_rows(source, path)
        self._glance = Glance()  # what it holds is not needed any more
        return living

    def _open(self) -> Source:
        description = self._description
        if isinstance(description.path, Recipe):
            return description.path.open_source()
        if isinstance(description.path, DataSource):
            options = description.options
            return source_from_data_source(description.path, rule=options.rule, verify=options.verify)
        return open_source(description.path, description.options, format=description.format)
