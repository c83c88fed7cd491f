"""Stages that select, rename, map and decode the columns of a sample.

A column is a field of a dict sample, ``__key__`` and ``__url__`` among them, or of a typed one. A stage says which
columns it reads and which it returns, so that a dataset reads only the fields that its stages need.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from typing import Any, Protocol, runtime_checkable

from shoal.codec._codec import Buffer, Decoder
from shoal.codec._dispatch import DecodeSpec, decoders
from shoal.errors import ColumnError, OptionError
from shoal.sample._annotations import is_record, schema_of

from ._description import Stage

__all__ = [
    "EVERYTHING",
    "ColumnSelection",
    "DecodeColumns",
    "Drop",
    "Keep",
    "MapColumns",
    "PickTuple",
    "Relabel",
    "RelabelMatching",
    "Rename",
    "columns_of_sample",
    "names_after",
    "origin_of",
    "wanted_by",
]


@dataclass(frozen=True, slots=True)
class ColumnSelection:
    """Which columns somebody looks at: these, or all but these."""

    names: frozenset[str] = frozenset()
    all_but: bool = False

    def __contains__(self, name: str) -> bool:
        return (name in self.names) != self.all_but


EVERYTHING = ColumnSelection(all_but=True)


@runtime_checkable
class ColumnStep(Protocol):
    """A function of a sample that is open about its columns."""

    def __call__(self, sample: Any) -> Any:
        """The sample after the step."""
        ...

    def needs(self, wanted: ColumnSelection) -> ColumnSelection:
        """What must go in for what is wanted to come out."""
        ...

    def names(self, before: tuple[str, ...]) -> tuple[str, ...] | None:
        """The columns after the step, by those before it; None where that is not known, or there are no columns."""
        ...


def columns_of_sample(sample: Any) -> dict[str, Any]:
    """A sample by column. Raises OptionError for one that has none, such as a tuple."""
    if isinstance(sample, dict):
        return sample
    if isinstance(sample, Mapping):
        return dict(sample)
    if is_record(type(sample)):
        # Of a sample that was read in part, only that part is there.
        return {name: getattr(sample, name) for name in schema_of(type(sample)).names if hasattr(sample, name)}
    raise OptionError(
        "this verb is about the columns of a sample",
        expected="a dict or a typed sample",
        found=type(sample).__name__,
        hint="columns are named before to_tuple and batched, not after",
    )


@dataclass(frozen=True, slots=True)
class Keep:
    """Only these columns, in this order; those that a sample lacks stay lacking, or are an error where ``strict``."""

    columns: tuple[str, ...]
    strict: bool = False

    def __call__(self, sample: Any) -> dict[str, Any]:
        """The sample with these columns only."""
        found = columns_of_sample(sample)
        _refuse_missing(found, self.columns if self.strict else ())
        return {name: found[name] for name in self.columns if name in found}

    def needs(self, wanted: ColumnSelection) -> ColumnSelection:
        """Those of the kept ones that are wanted."""
        return ColumnSelection(frozenset(name for name in self.columns if name in wanted))

    def names(self, before: tuple[str, ...]) -> tuple[str, ...]:
        """The kept ones."""
        return self.columns


@dataclass(frozen=True, slots=True)
class Drop:
    """All columns but these."""

    columns: frozenset[str]
    strict: bool = False

    def __call__(self, sample: Any) -> dict[str, Any]:
        """The sample without these columns."""
        found = columns_of_sample(sample)
        _refuse_missing(found, self.columns if self.strict else ())
        return {name: value for name, value in found.items() if name not in self.columns}

    def needs(self, wanted: ColumnSelection) -> ColumnSelection:
        """What is wanted, without the dropped ones."""
        names = wanted.names | self.columns if wanted.all_but else wanted.names - self.columns
        return ColumnSelection(names, wanted.all_but)

    def names(self, before: tuple[str, ...]) -> tuple[str, ...]:
        """Those that stay."""
        return tuple(name for name in before if name not in self.columns)


@dataclass(frozen=True, slots=True)
class Rename:
    """Columns under new names, in their old places: Hugging Face's renaming."""

    pairs: tuple[tuple[str, str], ...]
    strict: bool = False

    def __call__(self, sample: Any) -> dict[str, Any]:
        """The sample with its columns renamed."""
        new, found = dict(self.pairs), columns_of_sample(sample)
        _refuse_missing(found, new if self.strict else ())
        return {new.get(name, name): value for name, value in found.items()}

    def needs(self, wanted: ColumnSelection) -> ColumnSelection:
        """The same under the old names."""
        old = {new: name for name, new in self.pairs}
        return ColumnSelection(frozenset(old.get(name, name) for name in wanted.names), wanted.all_but)

    def names(self, before: tuple[str, ...]) -> tuple[str, ...]:
        """All of them, renamed."""
        new = dict(self.pairs)
        return tuple(new.get(name, name) for name in before)


@dataclass(frozen=True, slots=True)
class Relabel:
    """Each new column is the first of its alternatives that a sample has: webdataset's renaming."""

    choices: tuple[tuple[str, tuple[str, ...]], ...]
    keep: bool = True

    def __call__(self, sample: Any) -> dict[str, Any]:
        """The sample with the new columns, after the other ones if these are kept."""
        found = columns_of_sample(sample)
        kept = {name: value for name, value in found.items() if name not in self._replaced} if self.keep else {}
        return kept | {new: first_of(found, names) for new, names in self.choices}

    @property
    def _replaced(self) -> frozenset[str]:
        return frozenset(name for _, names in self.choices for name in names)

    def needs(self, wanted: ColumnSelection) -> ColumnSelection:
        """The alternatives of all new columns, since one that is missing is an error, and what else is wanted."""
        if not self.keep:
            return ColumnSelection(self._replaced)
        new = {name for name, _ in self.choices}
        rest = frozenset(name for name in wanted.names if name not in new)
        return ColumnSelection(rest - self._replaced if wanted.all_but else rest | self._replaced, wanted.all_but)

    def names(self, before: tuple[str, ...]) -> tuple[str, ...]:
        """Those that are kept, then the new ones."""
        kept = [name for name in before if name not in self._replaced] if self.keep else []
        return tuple(dict.fromkeys([*kept, *(new for new, _ in self.choices)]))


@dataclass(frozen=True, slots=True)
class PickTuple:
    """A tuple of columns, each the first of its alternatives that a sample has."""

    choices: tuple[tuple[str, ...], ...]
    missing_is_error: bool = True
    none_is_error: bool = True

    def __call__(self, sample: Any) -> tuple[Any, ...]:
        """The tuple. Raises ColumnError for a column that is missing, or None, where that is an error."""
        found = columns_of_sample(sample)
        values = tuple(first_of(found, names, missing=self.missing_is_error) for names in self.choices)
        empty = [names for names, value in zip(self.choices, values, strict=True) if value is None]
        if empty and self.none_is_error:
            raise ColumnError("a column of the tuple is None", found=";".join(empty[0]), key=found.get("__key__"))
        return values

    def needs(self, wanted: ColumnSelection) -> ColumnSelection:
        """All alternatives."""
        return ColumnSelection(frozenset(name for names in self.choices for name in names))

    def names(self, before: tuple[str, ...]) -> None:
        """A tuple has no columns."""


@dataclass(frozen=True, slots=True)
class MapColumns:
    """A function for each of some columns."""

    functions: tuple[tuple[str, Callable[[Any], Any]], ...]

    def __call__(self, sample: Any) -> dict[str, Any]:
        """The sample with these columns changed. Raises ColumnError for one that is missing."""
        found = dict(columns_of_sample(sample))
        for name, function in self.functions:
            found[name] = function(first_of(found, (name,)))
        return found

    def needs(self, wanted: ColumnSelection) -> ColumnSelection:
        """What is wanted, and what is changed: a function that fails must fail."""
        changed = frozenset(name for name, _ in self.functions)
        names = wanted.names - changed if wanted.all_but else wanted.names | changed
        return ColumnSelection(names, wanted.all_but)

    def names(self, before: tuple[str, ...]) -> tuple[str, ...]:
        """The same."""
        return before


@dataclass(frozen=True, slots=True)
class RelabelMatching:
    """Columns whose names match a pattern, under a new name."""

    patterns: tuple[tuple[str, str], ...]
    """Patterns and new names; of several that match, the last wins."""
    keep_unselected: bool = False
    must_match: bool = True
    duplicate_is_error: bool = True

    def __call__(self, sample: Any) -> dict[str, Any]:
        """The sample with its columns renamed. Raises ColumnError where a pattern matches none, or two become one."""
        found = columns_of_sample(sample)
        renamed: dict[str, Any] = {}
        matched: set[str] = set()
        for name, value in found.items():
            hit = next((pair for pair in reversed(self.patterns) if _matches(name, pair[0])), None)
            if hit is not None:
                matched.add(hit[0])
                self._put(renamed, hit[1], value, found)
            elif self.keep_unselected:
                renamed[name] = value
        missed = [pattern for pattern, _ in self.patterns if pattern not in matched]
        if missed and self.must_match:
            expected, key = f"a column that matches {missed[0]}", found.get("__key__")
            raise ColumnError("a pattern matches no column", expected=expected, found=", ".join(found), key=key)
        return renamed

    def _put(self, renamed: dict[str, Any], name: str, value: Any, found: dict[str, Any]) -> None:
        if name in renamed and self.duplicate_is_error:
            key = found.get("__key__")
            raise ColumnError("two columns would have one name", expected="one column", found=name, key=key)
        renamed.setdefault(name, value)

    def needs(self, wanted: ColumnSelection) -> ColumnSelection:
        """All: any may match."""
        return EVERYTHING

    def names(self, before: tuple[str, ...]) -> None:
        """Not known before a sample is seen."""


def _matches(name: str, pattern: str) -> bool:
    return fnmatch(name.rpartition("/")[2].lower(), pattern)


@dataclass(frozen=True, slots=True)
class DecodeColumns:
    """Columns that are bytes decoded by their names; others stay as they are."""

    spec: DecodeSpec

    def __call__(self, sample: Any) -> dict[str, Any]:
        """The sample with more of its columns decoded."""
        return {
            name: _decoded(self.spec, name, value) if isinstance(value, (bytes, memoryview)) else value
            for name, value in columns_of_sample(sample).items()
        }

    def needs(self, wanted: ColumnSelection) -> ColumnSelection:
        """The same."""
        return wanted

    def names(self, before: tuple[str, ...]) -> tuple[str, ...]:
        """The same."""
        return before


def _decoded(spec: DecodeSpec, name: str, data: Buffer) -> Any:
    found = _decoder(spec, name)
    return data if found is None else found(data)


@functools.lru_cache(maxsize=256)
def _decoder(spec: DecodeSpec, name: str) -> Decoder | None:
    return decoders(spec, [name]).get(name)


def _refuse_missing(sample: dict[str, Any], names: Iterable[str]) -> None:
    for name in names:
        first_of(sample, (name,))


def first_of(sample: dict[str, Any], names: tuple[str, ...], *, missing: bool = True) -> Any:
    """The first of these columns that a sample has. Raises ColumnError, or gives None, when it has none of them."""
    for name in names:
        if name in sample:
            return sample[name]
    if missing:
        expected, key = ";".join(names), sample.get("__key__")
        found = ", ".join(name for name in sample if not name.startswith("__")) or "no column that is looked at"
        hint = "`fields` of the dataset says what there is"
        raise ColumnError("a sample has no such column", expected=expected, found=found, key=key, hint=hint)
    return None


def wanted_by(stages: Iterable[Stage]) -> ColumnSelection:
    """What all stages together look at in the samples that are read; any other function may look at everything."""
    wanted = EVERYTHING
    for stage in reversed(tuple(stages)):
        step = stage.function
        wanted = step.needs(wanted) if stage.kind == "map" and isinstance(step, ColumnStep) else EVERYTHING
    return wanted


def names_after(stages: Iterable[Stage], names: tuple[str, ...] | None) -> tuple[str, ...] | None:
    """The columns after all stages, by those before them; None where a function may have changed them."""
    for stage in stages:
        if stage.kind == "map" and names is not None:
            names = stage.function.names(names) if isinstance(stage.function, ColumnStep) else None
    return names


def origin_of(name: str, stages: Iterable[Stage]) -> str | None:
    """The stored column that comes out under this name unchanged; None where there may be no such one."""
    for stage in reversed(tuple(stages)):
        step = stage.function
        if stage.kind == "filter":
            continue
        if isinstance(step, Rename):
            name = {new: old for old, new in step.pairs}.get(name, name)
        elif isinstance(step, Relabel):
            names = dict(step.choices).get(name, (name,) if step.keep else ())
            if len(names) != 1:
                return None
            name = names[0]
        elif not isinstance(step, (Keep, Drop)):
            return None
    return name
