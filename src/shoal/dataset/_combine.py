"""Split, concatenate and join datasets."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute

from shoal._typing import IntArray
from shoal.errors import FieldError, ManifestError, OptionError, SampleKeyError, SchemaMismatchError, TarError
from shoal.sample._annotations import is_record, schema_of
from shoal.schema._json_schema import schema_hash
from shoal.shard._manifest import Manifest
from shoal.shard._row_view import RowView
from shoal.shard._segment_table import SegmentTable
from shoal.shard._shard import Decoders, Sample
from shoal.shard._source import ShardSource, Source, UrlsBySplit
from shoal.shard._split_names import same_split
from shoal.shard._stream import ErrorLog
from shoal.shard._table import join_columns, refuse_unknown_column

from ._description import CompositeDescription, Step, digest_of
from ._metadata import metadata_table
from ._query import Expression, Field
from ._splits import By, DatasetDict, ReapplySplit, assign_splits, check_weights, group_keys, is_picklable, to_strings
from ._transforms import Transforms

if TYPE_CHECKING:
    from ._dataset import Dataset

__all__ = ["Combine", "concat", "partners"]

T = TypeVar("T")
Missing = Literal["error", "skip", "none"]
pc: Any = pyarrow.compute  # its functions are created at import, so type checkers do not see them
_NO_DECODERS: Decoders = {}
_MAX_JOINED_ROWS = 256  # large fields on the right are never read for thousands of small samples on the left
_MAX_KEYS_SHOWN = 3


class Combine(Transforms[T]):
    """Methods that split a dataset, and concatenate and join several."""

    def split(
        self, weights: Mapping[str, float] | None = None, /, *, by: By = "key", seed: int = 0, **named: float
    ) -> DatasetDict[T]:
        """Splits by hash: the same key falls into the same split always, however the dataset grows.

        Weights are shares that sum to 1; a split's size is its share in expectation. ``by`` names a metadata column,
        or is a function of the key, and then all samples of one value fall into one split: ``by="patient"`` keeps a
        patient's images together. Another ``seed`` gives other splits. No tar is opened.

        Raises OptionError for weights that are not one whole, and for samples that have no value in the column.

        Examples:
            >>> import shoal
            >>> with shoal.ShardWriter("memory://doc/split/a-%06d.tar") as writer:
            ...     for number in range(1000):
            ...         writer.write({"__key__": f"k{number:04d}", "json": {"patient": number // 10}})
            >>> splits = shoal.Dataset("memory://doc/split").split(train=0.8, val=0.2, by="patient")
            >>> splits.num_samples
            {'train': 850, 'val': 150}
        """
        shares = check_weights(weights, named)
        if type(seed) is not int:
            raise OptionError("a seed is a whole number", expected="int", found=repr(seed))
        part = assign_splits(self._groups(by), shares, seed)
        shown = ", ".join(f"{name}={weight:g}" for name, weight in shares.items())
        splits = {}
        for number, name in enumerate(shares):
            rows = self.rows.where(part == number)
            again = ReapplySplit(shares, by, seed, name) if is_picklable(by) else None
            step = Step(f"split({shown})[{name!r}]", again, None if again else rows)
            splits[name] = self._view(rows=rows, step=step)
        return DatasetDict(splits, sample_type=self._requested_type)

    def _groups(self, by: By) -> pa.ChunkedArray:
        """The text that decides for each sample. Raises OptionError where a sample has none."""
        if callable(by) and not isinstance(by, (Field, Expression)):
            return group_keys(self.key_column(), by)
        if not isinstance(by, (str, Field, Expression)):
            raise OptionError("`by` is a column or a function", expected="'key', a column, a function", found=repr(by))
        values = self.column(by)
        if values.null_count:
            hint = f"leave them out: where('{by} is not null')" if isinstance(by, str) else "leave them out"
            found = f"{values.null_count:,} of {len(values):,} samples without"
            raise OptionError("samples have no value to split by", expected=f"a value of {by}", found=found, hint=hint)
        return to_strings(values)

    def concat(self, *others: Dataset[T]) -> Dataset[T]:
        """These samples, then those of the others. See :func:`shoal.dataset.concat`.

        Examples:
            >>> import shoal
            >>> for name in ("a", "b"):
            ...     with shoal.ShardWriter(f"memory://doc/concat/{name}/s-%06d.tar") as writer:
            ...         writer.write({"__key__": name, "txt": "hi"})
            >>> a, b = (shoal.Dataset(f"memory://doc/concat/{name}") for name in ("a", "b"))
            >>> a.concat(b, a).keys()
            ['a', 'b', 'a']
        """
        parts = (self, *others)
        for part in others:
            if not isinstance(part, Combine):
                raise OptionError("only datasets can be put together", expected="a Dataset", found=repr(part))
        kind = _common_sample_type(parts)
        if len(parts) == 1:
            return self._view()
        if _can_share_source(parts):
            return self._made_of(ShardsConcatenated(parts))  # type: ignore[arg-type] # every instance is a Dataset
        recipe = Concatenated(parts, kind)  # type: ignore[arg-type] # as above
        return self._made_of(recipe, stored_type=None, sample_type=None, stages=(), fields=None)

    def join(
        self,
        other: Dataset[Any],
        on: str | tuple[str, str] = "key",
        *,
        missing: Missing = "error",
        fields: Sequence[str] | None = None,
        suffix: str | None = None,
        sample_type: type[Any] | None = None,
    ) -> Dataset[Any]:
        """Each sample with the fields of its partner in another dataset: column groups in other shards.

        Partners have the same key, or the same value in the metadata column ``on`` (a pair of names where the two
        datasets call it differently); they are found in the indexes. ``missing`` says what becomes of a sample without
        a partner: an error, left out (``"skip"``), or its fields are None (``"none"``). ``fields`` takes only some of
        the other's fields; ``suffix`` is added to those that both have, which is an error else. Samples are dicts of
        both sides' fields, or of ``sample_type``, by field name. ``where`` sees the columns of both sides, and
        ``columns`` reads no more than it must of each.

        Raises SampleKeyError for samples without a partner, FieldError for names that clash, OptionError for samples
        of the other that cannot be told apart.

        Examples:
            >>> import shoal
            >>> with shoal.ShardWriter("memory://doc/join/text/s-%06d.tar") as writer:
            ...     for key in ("a", "b", "c"):
            ...         writer.write({"__key__": key, "txt": f"text {key}"})
            >>> with shoal.ShardWriter("memory://doc/join/scores/s-%06d.tar") as writer:
            ...     for key in ("c", "a"):
            ...         writer.write({"__key__": key, "json": {"score": ord(key)}})
            >>> text, scores = (shoal.Dataset(f"memory://doc/join/{name}") for name in ("text", "scores"))
            >>> joined = text.join(scores, missing="skip")
            >>> [(sample["txt"], sample["json"]) for sample in joined.where("score > 97")]
            [('text c', {'score': 99})]
        """
        if not isinstance(other, Combine):
            raise OptionError("only datasets can be joined", expected="a Dataset", found=repr(other))
        self._refuse_filtered("partners")
        other._refuse_filtered("partners")  # noqa: SLF001 - as self's
        if missing not in get_args(Missing):
            raise OptionError("no such `missing`", expected="'error', 'skip' or 'none'", found=repr(missing))
        left_on, right_on = (on, on) if isinstance(on, str) else _column_pair(on)
        names = right_names(field_names(self._view()), _select_fields(field_names(other), fields), suffix)
        rows = partners(self.column(left_on), other.column(right_on))
        left: Dataset[Any] = self._view()
        if missing == "error":
            check_partners(rows, self.key_column())
        elif missing == "skip" and (rows < 0).any():
            left, rows = self._view(rows=self.rows.where(rows >= 0), step=Step("with a partner")), rows[rows >= 0]
        taken = None if fields is None else tuple(fields)
        recipe = Joined(left, other, rows, names, on, missing, taken, suffix, sample_type)
        return self._made_of(recipe, stored_type=sample_type or dict, sample_type=None, stages=(), fields=None)

    def _made_of(self, recipe: CompositeDescription, **changes: Any) -> Dataset[Any]:
        """A dataset of a composite description, with the other options of this one."""
        return self._another(replace(self.described, path=recipe, steps=(), tombstones=True, format=None, **changes))


def concat(datasets: Iterable[Dataset[T]]) -> Dataset[T]:
    """Datasets one after the other, as one.

    Tar shards that are read in one way become one source, and all that is quick with them stays so; anything else
    (other formats, other options, different functions) is read each in its own way. All must have samples of one type.
    Raises SchemaMismatchError, naming both, when two have not.

    Examples:
        >>> import shoal
        >>> for name in ("a", "b"):
        ...     with shoal.ShardWriter(f"memory://doc/concats/{name}/s-%06d.tar") as writer:
        ...         writer.write({"__key__": name, "txt": "hi"})
        >>> concat([shoal.Dataset("memory://doc/concats/a"), shoal.Dataset("memory://doc/concats/b")]).keys()
        ['a', 'b']
    """
    parts = list(datasets)
    if not parts or not isinstance(parts[0], Combine):
        found = type(parts[0]).__name__ if parts else "none"
        raise OptionError("only datasets can be put together", expected="a list of one or more", found=found)
    return parts[0].concat(*parts[1:])


def _common_sample_type(parts: Sequence[Combine[Any]]) -> type[Any]:
    """The type of all samples; ``object`` where a function made some. Raises SchemaMismatchError."""
    kinds = [part.sample_type for part in parts]
    if object in kinds:
        return object
    for part, kind in zip(parts, kinds, strict=True):
        if not _same_type(kind, kinds[0]):
            raise SchemaMismatchError(
                "the datasets have samples of different types",
                expected=f"{kinds[0].__name__}, as in {parts[0]!r}",
                found=f"{kind.__name__} in {part!r}",
                hint=f"see one as the other: as_type({kinds[0].__name__})",
            )
    return kinds[0]


def _same_type(one: type[Any], two: type[Any]) -> bool:
    if one is two:
        return True
    return is_record(one) and is_record(two) and schema_hash(schema_of(one)) == schema_hash(schema_of(two))


def _can_share_source(parts: Sequence[Combine[Any]]) -> bool:
    """Whether all are tar shards that are read, checked, decoded and changed in one way."""
    sources = [part.source for part in parts]
    ways = [
        (source.rule, source.verify, source.dataset_schema, isinstance(source.index, SegmentTable))
        for source in sources
        if isinstance(source, ShardSource)
    ]
    if len(ways) < len(parts) or any(way != ways[0] for way in ways):
        return False
    said = [part.described for part in parts]
    return all(
        (each.spec, each.policy, each.fields, each.stored_type, each.stages)
        == (said[0].spec, said[0].policy, said[0].fields, said[0].stored_type, said[0].stages)
        for each in said
    )


def _column_pair(on: Any) -> tuple[str, str]:
    if isinstance(on, tuple) and len(on) == 2 and all(isinstance(name, str) for name in on):
        return on[0], on[1]
    raise OptionError("`on` is a column", expected="'key', a name, or a pair of names", found=repr(on))


def _select_fields(names: Sequence[str], fields: Sequence[str] | None) -> tuple[str, ...]:
    if fields is None:
        return tuple(names)
    if isinstance(fields, str):
        raise OptionError("fields are a list of names", expected=f"[{fields!r}]", found=repr(fields))
    for name in fields:
        if name not in names:
            raise FieldError("the other dataset has no such field", expected=" or ".join(names), found=name)
    return tuple(dict.fromkeys(fields))


def _format_concat(parts: Sequence[Dataset[Any]]) -> str:
    names = [repr(part) for part in parts]
    return f"concat({', '.join(names if len(names) <= 3 else [*names[:2], f'... {len(names) - 2} more'])})"


@dataclass(frozen=True, slots=True, repr=False)
class ShardsConcatenated:
    """Datasets of tar shards with equal options, opened as one source, so that every fast path still applies."""

    parts: tuple[Dataset[Any], ...]

    def __repr__(self) -> str:
        return _format_concat(self.parts)

    def open_source(self) -> Source:
        """One source of all shards; shards that several parts show are in it once."""
        sources = self._sources()
        first = next(iter(sources.values()))
        tables = [source.index for source in sources.values() if isinstance(source.index, SegmentTable)]
        if tables:
            return ShardSource(SegmentTable.concatenate(tables), verify=first.verify)
        schemas = [source.manifest.schema for source in sources.values() if source.manifest is not None]
        manifest = Manifest({}, {}, schemas[0]) if schemas and schemas[0] is not None else None
        refs = [ref for source in sources.values() for ref in source.shards]
        splits = [source.urls_by_split for source in sources.values() if source.urls_by_split is not None]
        return ShardSource(
            refs, rule=first.rule, verify=first.verify, manifest=manifest, urls_by_split=lambda: _join_splits(splits)
        )

    def rows_in_view(self, source: Source) -> RowView | None:
        """The samples of each part, one part after the other."""
        sources = self._sources()
        if len(sources) == len(self.parts) and all(part.is_whole for part in self.parts):
            return None
        lengths = [len(each) for each in sources.values()]
        starts = dict(zip(sources, np.cumsum([0, *lengths]).tolist(), strict=False))
        return RowView.concat([part.rows.shifted(starts[_shards(part).shards]) for part in self.parts])

    def _sources(self) -> dict[Any, ShardSource]:
        return {_shards(part).shards: _shards(part) for part in self.parts}

    def refreshed(self) -> ShardsConcatenated:
        """The same of what is there now."""
        return ShardsConcatenated(tuple(part.refresh() for part in self.parts))


def _join_splits(splits: Iterable[UrlsBySplit]) -> dict[str, list[str]]:
    joined: dict[str, list[str]] = {}
    for urls_by_split in splits:
        for name, urls in urls_by_split().items():
            joined.setdefault(same_split(name, joined), []).extend(urls)
    return joined


def _shards(part: Dataset[Any]) -> ShardSource:
    source = part.source
    assert isinstance(source, ShardSource)  # noqa: S101 - `concat` made this recipe only of such
    return source


@dataclass(frozen=True, slots=True, repr=False)
class Concatenated:
    """Datasets of any kind, each read in its own way."""

    parts: tuple[Dataset[Any], ...]
    sample_type: type[Any]

    def __repr__(self) -> str:
        return _format_concat(self.parts)

    def open_source(self) -> Source:
        """The parts as one source."""
        return ConcatSource(self.parts, self.sample_type)

    def refreshed(self) -> Concatenated:
        """The same of what is there now."""
        return Concatenated(tuple(part.refresh() for part in self.parts), self.sample_type)


class ConcatSource:
    """The samples of several datasets as they come out of them, numbered through."""

    def __init__(self, parts: Sequence[Dataset[Any]], sample_type: type[Any]) -> None:
        self.finished_type = sample_type
        """Samples are whole: nothing is left to convert."""
        self._parts = tuple(parts)
        self._narrowed: dict[tuple[str, ...], tuple[Dataset[Any], ...]] = {}

    def __len__(self) -> int:
        return int(self._starts[-1])

    @functools.cached_property
    def _starts(self) -> IntArray:
        return np.cumsum([0, *(len(part) for part in self._parts)], dtype=np.int64)

    @property
    def identity(self) -> str:
        """Equal where all parts are."""
        return digest_of(["concat", *(part.fingerprint for part in self._parts)])

    @property
    def fields(self) -> tuple[str, ...]:
        """Every field of every part."""
        return tuple(dict.fromkeys(name for part in self._parts for name in part.fields))

    def column_names(self) -> tuple[str, ...]:
        """Every metadata column of every part."""
        return tuple(dict.fromkeys(name for part in self._parts for name in part.column_names))

    def read(
        self, rows: IntArray, fields: Sequence[str] | None = None, decoders: Decoders = _NO_DECODERS
    ) -> list[Sample]:
        """The samples with these numbers, in this order: each part is asked once for all it holds."""
        numbers = np.searchsorted(self._starts, rows, "right") - 1
        found: list[Sample] = [{}] * len(rows)
        for number in np.unique(numbers).tolist():
            at = np.flatnonzero(numbers == number)
            part = self._narrow(fields)[number]
            samples = _with_fields(part.samples_at(rows[at] - self._starts[number]), fields)
            for position, sample in zip(at.tolist(), samples, strict=True):
                found[position] = sample
        return found

    def stream(
        self, fields: Sequence[str] | None = None, decoders: Decoders = _NO_DECODERS, log: ErrorLog | None = None
    ) -> Iterator[list[Sample]]:
        """All samples, part by part."""
        for part in self._narrow(fields):
            for run in part.runs(log):
                yield _with_fields(run, fields)

    def _narrow(self, fields: Sequence[str] | None) -> tuple[Dataset[Any], ...]:
        """The parts, so that they read no more than these fields, where no function needs to see the others."""
        if fields is None:
            return self._parts
        wanted = tuple(fields)
        if wanted not in self._narrowed:
            self._narrowed[wanted] = tuple(
                part if part.described.stages else part.columns([name for name in wanted if name in part.fields])
                for part in self._parts
            )
        return self._narrowed[wanted]

    def find(self, key: str) -> int:
        """The number of the first sample with this key. Raises SampleKeyError."""
        at = int(pc.index(self._keys, pa.scalar(key)).as_py())
        if at < 0:
            raise SampleKeyError("no sample has this key", found=repr(key))
        return at

    def keys(self, rows: IntArray) -> list[str]:
        """The keys of these samples."""
        keys: list[str] = self._keys.take(pa.array(rows)).to_pylist()
        return keys

    @functools.cached_property
    def _keys(self) -> pa.ChunkedArray:
        return self.table(["__key__"]).column(0)

    def table(self, columns: Sequence[str]) -> pa.Table:
        """Metadata columns, one row a sample. Raises FieldError for one that there is not, and as `metadata` does."""
        refuse_unknown_column(columns, self.column_names())
        return self.metadata(columns)

    def metadata(self, columns: Sequence[str]) -> pa.Table:
        """Metadata columns, one row a sample; null where samples of a part have no such value.

        Raises FieldError for a column that is not known of all samples, or is not of one type.
        """
        for part in self._parts:
            len(part)  # raises for a filtered dataset
        tables = [metadata_table(part, columns) for part in self._parts]
        names = [repr(part) for part in self._parts]
        found = [join_columns(name, [table.column(name) for table in tables], names) for name in columns]
        return pa.table(found, names=list(columns))


def _with_fields(samples: list[Any], fields: Sequence[str] | None) -> list[Any]:
    """Dict samples with only these fields; others, and all if ``fields`` is None, as they are."""
    if fields is None:
        return samples
    wanted = set(fields)
    return [
        {name: value for name, value in sample.items() if name in wanted or name.startswith("__")}
        if isinstance(sample, dict)
        else sample
        for sample in samples
    ]


def field_names(dataset: Dataset[Any]) -> tuple[str, ...]:
    """The fields of a dataset's samples; where a function makes them, those of the first one, which is read."""
    if is_record(dataset.sample_type):
        return tuple(schema_of(dataset.sample_type).names)
    if dataset.sample_type is dict and not dataset.described.stages:
        return dataset.fields
    return tuple(name for sample in dataset.head(1) for name in _as_dict(sample) if not name.startswith("__"))


def right_names(left: Sequence[str], right: Sequence[str], suffix: str | None) -> dict[str, str]:
    """What each field of the right is called in a joined sample. Raises FieldError for names that clash."""
    clashing = [name for name in right if name in left]
    if clashing and not suffix:
        raise FieldError(
            "both datasets have these fields",
            found=", ".join(clashing),
            hint="take only some with fields=[...], or pass suffix='_right' to rename them",
        )
    names = {name: f"{name}{suffix}" if name in clashing else name for name in right}
    again = [name for name in names.values() if name in left or list(names.values()).count(name) > 1]
    if again:
        raise FieldError("the suffix makes a name that is taken", found=again[0], hint="choose another suffix")
    return names


@dataclass(frozen=True, slots=True, repr=False)
class Joined:
    """Which datasets, and which sample of the right belongs to each of the left."""

    left: Dataset[Any]
    right: Dataset[Any]
    rows: IntArray
    names: Mapping[str, str]
    """What each field taken of the right is called."""
    on: str | tuple[str, str]
    missing: Missing
    fields: tuple[str, ...] | None
    suffix: str | None
    sample_type: type[Any] | None

    def __repr__(self) -> str:
        return f"{self.left!r}.join({self.right!r})"

    def open_source(self) -> Source:
        """The joined samples. Raises ManifestError when the datasets are no longer those that were joined."""
        if len(self.left) != len(self.rows) or int(self.rows.max(initial=-1)) >= len(self.right):
            raise ManifestError("a dataset has changed since it was joined", found=repr(self), hint="join again")
        return JoinSource(self)

    def refreshed(self) -> Joined:
        """The same of what is there now."""
        again: Dataset[Any] = self.left.refresh().join(
            self.right.refresh(),
            on=self.on,
            missing=self.missing,
            fields=self.fields,
            suffix=self.suffix,
            sample_type=self.sample_type,
        )
        path = again.described.path
        assert isinstance(path, Joined)  # noqa: S101 - it was joined just now
        return path


class JoinSource:
    """Joined samples as a source: dicts, numbered as the samples of the left are."""

    def __init__(self, joined: Joined) -> None:
        self._joined = joined
        self._left, self._right = joined.left, joined.right
        self._narrowed: dict[tuple[Any, ...], Dataset[Any]] = {}

    def __len__(self) -> int:
        return len(self._joined.rows)

    @property
    def identity(self) -> str:
        """Equal where both sides and their pairs are."""
        pairs = hashlib.sha256(np.ascontiguousarray(self._joined.rows, "<i8").tobytes()).hexdigest()
        names = sorted(self._joined.names.items())
        return digest_of(["join", self._left.fingerprint, self._right.fingerprint, pairs, repr(names)])

    @functools.cached_property
    def _left_names(self) -> tuple[str, ...]:
        return field_names(self._left)

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields of the left, then those of the right."""
        return (*self._left_names, *self._joined.names.values())

    def read(
        self, rows: IntArray, fields: Sequence[str] | None = None, decoders: Decoders = _NO_DECODERS
    ) -> list[Sample]:
        """The samples with these numbers: each side is asked once, and not at all for no field."""
        left = self._read_left(self._narrow_left(fields), rows)
        return self._with_partners(left, self._joined.rows[rows], fields)

    def stream(
        self, fields: Sequence[str] | None = None, decoders: Decoders = _NO_DECODERS, log: ErrorLog | None = None
    ) -> Iterator[list[Sample]]:
        """All samples in order; a part of the left at a time, with its partners."""
        if log is not None and log.goes_on:
            for start in range(0, len(self), _MAX_JOINED_ROWS):
                yield self._read_valid(np.arange(start, min(start + _MAX_JOINED_ROWS, len(self))), fields, log)
            return
        start = 0
        for run in self._narrow_left(fields).runs(log):
            for at in range(0, len(run), _MAX_JOINED_ROWS):
                part = run[at : at + _MAX_JOINED_ROWS]
                rows = np.arange(start, start + len(part))
                start += len(part)
                yield self._with_partners(self._keyed(part, rows), self._joined.rows[rows], fields)

    def _read_valid(self, rows: IntArray, fields: Sequence[str] | None, log: ErrorLog) -> list[Sample]:
        try:
            return self.read(rows, fields)
        except TarError as error:
            if len(rows) == 1:
                log.handle(error)
                return []
        return [sample for row in rows for sample in self._read_valid(np.array([row]), fields, log)]

    def _narrow_left(self, fields: Sequence[str] | None) -> Dataset[Any]:
        wanted = None if fields is None else [name for name in self._left_names if name in fields]
        return self._narrow("left", self._left, wanted)

    def _narrow(self, name: str, side: Dataset[Any], wanted: Sequence[str] | None) -> Dataset[Any]:
        place = (name, None if wanted is None else tuple(wanted))
        if place not in self._narrowed:
            self._narrowed[place] = _narrow(side, wanted)
        return self._narrowed[place]

    def _read_left(self, side: Dataset[Any], rows: IntArray) -> list[Sample]:
        return self._keyed(side.samples_at(rows), rows)

    def _keyed(self, samples: Sequence[Any], rows: IntArray) -> list[Sample]:
        """Samples of the left as dicts with their keys, which typed ones do not have."""
        found = [_as_dict(sample) for sample in samples]
        if found and "__key__" not in found[0]:
            keys = self.keys(rows)
            found = [{"__key__": key, "__url__": "", **each} for key, each in zip(keys, found, strict=True)]
        return found

    def _with_partners(self, left: list[Sample], rows: IntArray, fields: Sequence[str] | None) -> list[Sample]:
        names = self._joined.names
        wanted = [name for name, called in names.items() if fields is None or called in fields]
        left = _copies_with_fields(left, fields)
        if not wanted:
            return left
        partnered = np.flatnonzero(rows >= 0)
        side = self._narrow("right", self._right, wanted)
        right = side.samples_at(rows[partnered]) if len(partnered) else []
        for at, partner in zip(partnered.tolist(), right, strict=True):
            _add(left[at], _as_dict(partner), wanted, names)
        for at in np.flatnonzero(rows < 0).tolist():
            left[at].update({names[name]: None for name in wanted})
        return left

    def find(self, key: str) -> int:
        """The number of the first sample with this key. Raises SampleKeyError."""
        at = int(pc.index(self._keys, pa.scalar(key)).as_py())
        if at < 0:
            raise SampleKeyError("no sample has this key", found=repr(key))
        return at

    def keys(self, rows: IntArray) -> list[str]:
        """The keys of these samples."""
        keys: list[str] = self._keys.take(pa.array(rows)).to_pylist()
        return keys

    @functools.cached_property
    def _keys(self) -> pa.ChunkedArray:
        return self._left.key_column()

    def column_names(self) -> tuple[str, ...]:
        """The metadata columns of the left, then those of the right under the names of their fields."""
        return (*self._left.column_names, *self._right_columns)

    @functools.cached_property
    def _right_columns(self) -> dict[str, str]:
        """The metadata columns of the right by what they are called here; those that clash are not here."""
        taken = {"__key__", *self._left.column_names}
        found = {_joined_column(column, self._joined.names): column for column in self._right.column_names}
        return {called: column for called, column in found.items() if called not in taken}

    def table(self, columns: Sequence[str]) -> pa.Table:
        """Metadata columns of both sides. Raises FieldError for one that there is not, and as `metadata` does."""
        refuse_unknown_column(columns, self.column_names())
        return self.metadata(columns)

    def metadata(self, columns: Sequence[str]) -> pa.Table:
        """Metadata columns of both sides, one row a sample; null where a sample has no partner."""
        right = self._right_columns
        own = [name for name in columns if name not in right and name != "__key__"]
        theirs = [name for name in columns if name in right]
        found: dict[str, Any] = {"__key__": self._keys} if "__key__" in columns else {}
        if own:
            found |= dict(zip(own, metadata_table(self._left, own).columns, strict=True))
        if theirs:
            rows = pa.array(self._joined.rows, mask=self._joined.rows < 0)
            taken = metadata_table(self._right, [right[name] for name in theirs]).take(rows)
            found |= dict(zip(theirs, taken.columns, strict=True))
        return pa.table([found[name] for name in columns], names=list(columns))


def _joined_column(column: str, names: Mapping[str, str]) -> str:
    """The name of a column of the right, in which the name of a right_names field is replaced."""
    for name in sorted(names, key=len, reverse=True):
        if column == name or column.startswith(f"{name}."):
            return names[name] + column[len(name) :]
    return column


def _narrow(side: Dataset[Any], wanted: Sequence[str] | None) -> Dataset[Any]:
    """One side, reading no more than these fields where it is made of fields and no function needs the others."""
    plain = side.sample_type is dict and not side.described.stages
    return side if wanted is None or not plain or set(wanted) >= set(side.fields) else side.columns(wanted)


def _as_dict(sample: Any) -> Sample:
    if isinstance(sample, dict):
        return sample
    if isinstance(sample, Mapping):
        return dict(sample)
    if is_record(type(sample)):
        return {name: getattr(sample, name) for name in schema_of(type(sample)).names}
    raise OptionError("a joined sample has fields", expected="a dict or a typed sample", found=type(sample).__name__)


def _copies_with_fields(samples: list[Sample], fields: Sequence[str] | None) -> list[Sample]:
    """Copies of dict samples with only these fields, since a side may have read more; None keeps all."""
    if fields is None:
        return [dict(sample) for sample in samples]
    wanted = set(fields)
    return [
        {name: value for name, value in sample.items() if name in wanted or name.startswith("__")} for sample in samples
    ]


def _add(sample: Sample, partner: Sample, wanted: Sequence[str], names: Mapping[str, str]) -> None:
    for name in wanted:
        if name in partner:
            if names[name] in sample:  # a function gave another field than for the first sample
                hint = "pass suffix='_right', or take only some with fields=[...]"
                raise FieldError(
                    "both datasets have this field", found=names[name], key=sample.get("__key__"), hint=hint
                )
            sample[names[name]] = partner[name]


def partners(left: pa.ChunkedArray, right: pa.ChunkedArray) -> IntArray:
    """For each value on the left its row on the right, or -1. Nothing is the partner of null.

    Raises OptionError when the values are of kinds that never meet, or one is twice on the right.
    """
    left, right = _to_common_type(left, right)
    values = right.combine_chunks()
    _check_unique(values)
    rows = pc.index_in(left, value_set=values, skip_nulls=True)
    found: IntArray = pc.fill_null(rows, -1).to_numpy().astype(np.int64)
    return found


def _to_common_type(left: pa.ChunkedArray, right: pa.ChunkedArray) -> tuple[pa.ChunkedArray, pa.ChunkedArray]:
    """Both as one type in which equal values are equal."""
    for is_kind, kind in ((_is_text, pa.large_string()), (pa.types.is_integer, None), (_is_number, pa.float64())):
        if all(is_kind(side.type) or pa.types.is_null(side.type) for side in (left, right)):
            return _cast(left, right, kind or pa.int64())
    if left.type != right.type:
        found = f"{left.type} on the left, {right.type} on the right"
        raise OptionError("the columns to join on are of different kinds", found=found)
    return left, right


def _cast(left: pa.ChunkedArray, right: pa.ChunkedArray, kind: pa.DataType) -> tuple[pa.ChunkedArray, pa.ChunkedArray]:
    try:
        return left.cast(kind), right.cast(kind)
    except pa.ArrowInvalid as error:
        raise OptionError("the columns to join on hold numbers too large to compare", found=str(error)) from error


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _check_unique(values: pa.Array) -> None:
    present = values.drop_null()
    if len(present.unique()) == len(present):
        return
    counts = pc.value_counts(present)
    numbers = counts.field("counts").to_numpy(zero_copy_only=False)
    first = int(np.argmax(numbers > 1))
    raise OptionError(
        "samples on the right cannot be told apart",
        expected="each value once",
        found=f"{counts.field('values')[first].as_py()!r} {numbers[first]} times",
        hint="choose one of them with `where`, `select` or `exclude`, or join on another column",
    )


def check_partners(rows: IntArray, keys: pa.ChunkedArray) -> None:
    """Raise SampleKeyError, naming the first, when samples on the left have no partner."""
    lost = np.flatnonzero(rows < 0)
    if not len(lost):
        return
    shown = ", ".join(map(repr, keys.take(pa.array(lost[:_MAX_KEYS_SHOWN])).to_pylist()))
    more = f" and {len(lost) - _MAX_KEYS_SHOWN:,} more" if len(lost) > _MAX_KEYS_SHOWN else ""
    raise SampleKeyError(
        f"{len(lost):,} of {len(rows):,} samples have no partner",
        found=f"{shown}{more}",
        hint="missing='skip' leaves them out, missing='none' fills the fields with None",
    )
