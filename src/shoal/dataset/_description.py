"""What a dataset is, as a value; and its source, opened once for all views of it."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypedDict, runtime_checkable

from shoal.codec import DecodeSpec
from shoal.formats import SourceOptions, open_source
from shoal.protocols import DataSource
from shoal.shard import ErrorPolicy, KeyRule, OnError, Source

from ._data_source import source_from_data_source

__all__ = ["DatasetOptions", "Description", "Opened", "PathLike", "Recipe", "Stage"]

PathLike = str | os.PathLike[str]


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


@dataclass(frozen=True, slots=True)
class Stage:
    """A step that samples go through, in the order the steps were written."""

    kind: Literal["map", "filter"]
    function: Callable[[Any], Any]


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


@runtime_checkable
class Recipe(Protocol):
    """Datasets put together as one, as a value: opened when it is first needed, and again in another process."""

    def open_source(self) -> Source:
        """The source of all of it."""
        ...


class Opened:
    """The source behind a dataset and all views of it, opened once, when it is first needed."""

    def __init__(self, description: Description) -> None:
        self._description = description

    @functools.cached_property
    def source(self) -> Source:
        """Where the samples come from."""
        description = self._description
        if isinstance(description.path, Recipe):
            return description.path.open_source()
        if isinstance(description.path, DataSource):
            options = description.options
            return source_from_data_source(description.path, rule=options.rule, verify=options.verify)
        return open_source(description.path, description.options, format=description.format)
