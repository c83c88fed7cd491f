"""A dataset as a table: `to_arrow`, `to_pandas`, `to_parquet`, SQL over its metadata by duckdb, and `describe`."""

# ruff: noqa: SLF001 - reads private attributes of the dataset, of which it is a part

from __future__ import annotations

import itertools
import operator
import os
import re
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute

from shoal.codec._registry import codec_for
from shoal.errors import FieldError, FormatError, MissingExtraError, OptionError, QueryError, WriteError
from shoal.sample._annotations import is_record, schema_of
from shoal.shard._layout import SAMPLES, SHARDS
from shoal.shard._row_view import RowView
from shoal.shard._segment_table import SplitPart
from shoal.shard._source import ShardSource, Source
from shoal.shard._stream import ErrorLog

from ._arrow_batches import (
    KEY,
    Keyed,
    Layout,
    Part,
    SchemaWidenedError,
    batches_of,
    can_gather,
    gathered_parts,
    row_parts,
    with_widest_layout,
)
from ._base import DatasetBase
from ._decoding import PAYLOAD
from ._description import PathLike, Step
from ._metadata import metadata_table
from ._parquet import shards_from_parquet, write_parquet
from ._query import Expression, Field, resolve_columns, sql_of
from ._query_parser import as_expression

if TYPE_CHECKING:
    import pandas as pd

    from ._dataset import Dataset

__all__ = ["ColumnSummary", "FieldSummary", "Summary", "Tabular", "run_condition", "short_names"]

T = TypeVar("T")
pc: Any = pyarrow.compute  # its functions are created at import, so type checkers do not see them
_MAX_TOP_VALUES = 5
SQL_KEY = "key"
_SQL_ROW = "__row__"
_SQL_TOKENS = re.compile(
    r"""
    (?P<skip> '(?:[^']|'')*' | --[^\n]* | /\*.*?\*/ | \$(?P<tag>\w*)\$.*?\$(?P=tag)\$ )
    | (?P<name> (?: "(?:[^"]|"")*" | [^\W\d]\w* ) (?: \s*\.\s* (?: "(?:[^"]|"")*" | \w+ ) )* )
    | .
    """,
    re.VERBOSE | re.DOTALL,
)
_SQL_NAME_PART = re.compile(r'"(?:[^"]|"")*"|\w+')


class Tabular(DatasetBase[T]):
    """Methods that give samples, or their metadata, as tables."""

    def to_batches(self, columns: Sequence[str] | None = None, *, batch_size: int = 1024) -> Iterator[pa.RecordBatch]:
        """The samples as Arrow record batches, read as they are asked for.

        The columns are ``__key__`` and the fields of the samples, or those named. Typed samples have the types of their
        schema; arrays are fixed-shape tensors, or structs of ``data`` and ``shape`` where shapes differ; images and
        sounds are the bytes of their files. Of untyped samples, JSON of one shape is a struct and other JSON is text. A
        batch has at most ``batch_size`` rows, fewer where samples are large.

        All batches have one schema, which the first samples give. Raises WriteError where a later one does not fit it;
        ``to_arrow`` and ``to_parquet`` find the schema that fits all.

        Examples:
            >>> import shoal
            >>> with shoal.ShardWriter("memory://doc/batches/data-%06d.tar") as writer:
            ...     for number in range(5):
            ...         writer.write({"__key__": f"k{number}", "cls": number, "json": {"width": 10 * number}})
            >>> [batch.num_rows for batch in shoal.Dataset("memory://doc/batches").to_batches(batch_size=2)]
            [2, 2, 1]
        """
        _check_size(batch_size)
        return self._checked_batches(columns, batch_size)

    def _checked_batches(self, columns: Sequence[str] | None, batch_size: int) -> Iterator[pa.RecordBatch]:
        try:
            yield from batches_of(self._parts(columns, batch_size), columns)
        except SchemaWidenedError as widened:
            raise WriteError(
                "a sample does not fit the columns of those before",
                field=widened.column,
                hint="use to_arrow() or to_parquet(), which look for columns that fit all",
            ) from None

    def to_arrow(self, columns: Sequence[str] | None = None, *, batch_size: int = 1024) -> pa.Table:
        """All samples as one Arrow table; the columns are those of ``to_batches``. The metadata alone is ``table()``.

        Examples:
            >>> import shoal
            >>> with shoal.ShardWriter("memory://doc/arrow/data-%06d.tar") as writer:
            ...     for number in range(3):
            ...         writer.write({"__key__": f"k{number}", "cls": number, "json": {"width": 10 * number}})
            >>> table = shoal.Dataset("memory://doc/arrow").to_arrow()
            >>> table.column_names, table["json"].to_pylist()[1]
            (['__key__', 'cls', 'json'], {'width': 10})
        """
        _check_size(batch_size)

        def build(layout: Layout | None) -> pa.Table:
            self._reset_errors(layout)
            batches = list(batches_of(self._parts(columns, batch_size), columns, layout))
            return pa.Table.from_batches(batches) if batches else self._empty(columns).empty_table()

        return with_widest_layout(build)

    def to_pandas(self, columns: Sequence[str] | None = None, *, limit: int | None = None) -> pd.DataFrame:
        """The samples, or the first ``limit`` of them, as a DataFrame: ``__key__`` and a column for each field.

        The cells are the fields as samples have them: arrays are NumPy's, images are decoded where samples decode them.
        Raises MissingExtraError where pandas is not installed.

        Examples:
            >>> import shoal
            >>> with shoal.ShardWriter("memory://doc/pandas/data-%06d.tar") as writer:
            ...     for number in range(3):
            ...         writer.write({"__key__": f"k{number}", "cls": number, "txt": "hello"})
            >>> shoal.Dataset("memory://doc/pandas").to_pandas(["__key__", "cls"]).cls.sum().item()
            3
        """
        pandas = _pandas()
        rows = self._keyed(columns)
        keyed = list(itertools.islice(rows, limit))
        rows.close()
        known = [KEY, *_field_names([sample for _, sample in keyed])] if keyed else self._empty(columns).names
        names = known if columns is None else list(columns)
        unknown = [name for name in names if name not in known]
        if unknown:
            raise FieldError("no such field", expected=" or ".join(known), found=unknown[0])
        found = {name: [key if name == KEY else _field_value(sample, name) for key, sample in keyed] for name in names}
        return cast("pd.DataFrame", pandas.DataFrame(found))

    def to_parquet(
        self,
        path: PathLike,
        *,
        columns: Sequence[str] | None = None,
        row_group_size: int = 4096,
        compression: str | None = "zstd",
    ) -> int:
        """Write the samples to one Parquet file, and return how many there are.

        The columns are those of ``to_batches``. A row group at a time is in memory, and the file appears when it is
        whole. ``Dataset.from_parquet`` gives equal samples back, of the same type where they had one.

        Examples:
            >>> import shoal
            >>> with shoal.ShardWriter("memory://doc/parquet/data-%06d.tar") as writer:
            ...     for number in range(3):
            ...         writer.write({"__key__": f"k{number}", "cls": number, "json": {"width": 10 * number}})
            >>> ds = shoal.Dataset("memory://doc/parquet")
            >>> ds.to_parquet("memory://doc/table.parquet")
            3
            >>> again = shoal.Dataset.from_parquet("memory://doc/table.parquet", "memory://doc/again")
            >>> again.get("k2")["json"]
            {'width': 20}
        """
        _check_size(row_group_size)

        def build(layout: Layout | None) -> int:
            self._reset_errors(layout)
            batches = batches_of(self._parts(columns, row_group_size), columns, layout)
            return write_parquet(batches, self._empty(columns), os.fspath(path), compression)

        written: int = with_widest_layout(build)
        return written

    @classmethod
    def from_parquet(
        cls,
        path: PathLike | Iterable[PathLike],
        output: PathLike | None = None,
        *,
        sample_type: type[Any] | None = None,
        key: str | None = None,
        columns: Sequence[str] | Mapping[str, str] | None = None,
        max_samples: int | None = None,
        max_bytes: int | None = None,
        compression: str | None = None,
        overwrite: bool = False,
        append: bool = False,
        batch_size: int = 1024,
    ) -> Dataset[Any]:
        """Write shards of what Parquet files hold, row by row, and open them; without ``output`` open them as they are.

        ``path`` is a file, a folder, a pattern or a list of these. ``output`` names the shards as for `write_samples`.
        A table that ``to_parquet`` wrote gives the samples it was made of. Rows of any other become samples of
        ``sample_type``, or else `DictSample` with a field for each column. ``columns`` chooses some; as a mapping
        (``{"image": "jpg", "label": "cls"}``) it makes plain WebDataset samples with a member for each. ``key`` names
        the column with the samples' keys; else that is ``__key__``, or their numbers.

        Raises:
            FormatError: A file is not Parquet, or the files differ.
            OptionError: Only shards can have what was asked for, and there is no ``output``.
            SchemaMismatchError: A row does not fit ``sample_type``; no dataset is there then.

        Examples:
            >>> import pyarrow as pa, pyarrow.parquet as pq, shoal, tempfile
            >>> folder = tempfile.mkdtemp()
            >>> pq.write_table(pa.table({"text": ["one", "two"], "class": [0, 1]}), f"{folder}/table.parquet")
            >>> ds = shoal.Dataset.from_parquet(f"{folder}/table.parquet", f"{folder}/shards")
            >>> ds[1].text, ds.where("class = 0").keys()
            ('two', ['000000000'])
        """
        made: Any = cls
        if output is None:
            if key is not None or isinstance(columns, Mapping) or compression is not None:
                raise OptionError("keys, members and compression are of shards", expected="an output to write them to")
            return cast("Dataset[Any]", made(path, sample_type=sample_type, format="parquet", fields=columns))
        urls, kind = shards_from_parquet(
            path,
            output,
            sample_type=sample_type,
            key=key,
            columns=columns,
            max_samples=max_samples,
            max_bytes=max_bytes,
            compression=compression,
            overwrite=overwrite,
            append=append,
            batch_size=_check_size(batch_size),
        )
        return cast("Dataset[Any]", made(urls) if kind is None else made(urls, sample_type=kind))

    def _reset_errors(self, layout: Layout | None) -> None:
        if layout is not None:  # a second pass skips the same samples again
            self.errors = ErrorLog(self._description.policy)

    def _empty(self, columns: Sequence[str] | None) -> pa.Schema:
        """The schema of a table without rows."""
        schema = schema_of(self.sample_type) if is_record(self.sample_type) else None
        names = [KEY, *(schema.names if schema is not None else self.fields)]
        kept = [name for name in names if columns is None or name in columns]
        return pa.schema([pa.field(name, pa.string() if name == KEY else pa.null()) for name in kept])

    def _keyed(self, columns: Sequence[str] | None = None) -> Generator[Keyed]:
        """The samples in view, each with its key; only these columns are read, where they are members."""
        if columns is not None and self._reading.convert is None and not self._description.stages:
            if isinstance(columns, str):
                raise OptionError("columns are a list of names", expected=f"[{columns!r}]", found=repr(columns))
            fields = [name for name in columns if name != KEY]
            if fields:
                self._refuse_unknown(fields)
                narrow: Tabular[Any] = self._view(fields=tuple(fields), stored_type=dict)
                return narrow._keyed_runs()
        return self._keyed_runs()

    def _keyed_runs(self) -> Generator[Keyed]:
        log = self._begin_pass(self._rows)
        alike = not log.goes_on and all(stage.kind == "map" for stage in self._description.stages)
        try:
            for run in self._stored_runs(self._rows, log):
                for part in [run] if alike else [[sample] for sample in run]:
                    keys = [sample["__key__"] for sample in part]
                    found = self._before_format_valid(part, log)
                    yield from zip(keys if alike else keys * len(found), found, strict=True)
        except GeneratorExit:  # the caller stopped: report what was skipped until then
            log.tell()
            raise
        log.tell()

    def _parts(self, columns: Sequence[str] | None, size: int) -> Iterator[Part]:
        """The samples in view as columns of values, some at a time."""
        dataset, schema = cast("Dataset[Any]", self), self.schema  # every instance is a Dataset
        source = dataset.raw_source
        if source is None or schema is None or not can_gather(schema) or not len(self):
            return row_parts(self._keyed(columns), size)
        number, _ = source.index.locate(self.rows.row_at(0))
        mean = source.index.mean_bytes(number, PAYLOAD)
        batches = dataset._all_batches
        return gathered_parts(batches, schema, columns, size, mean)

    def sql(self, query: str) -> pa.Table:
        """The answer of duckdb to a query over ``ds``: the metadata of the samples in view, read from the index.

        ``ds`` has a column ``key`` and the metadata columns under their short names (``width`` for ``json.width``)
        where those are clear; the whole name always works. Raises QueryError, and MissingExtraError without duckdb.

        Examples:
            >>> import shoal
            >>> with shoal.ShardWriter("memory://doc/sql/data-%06d.tar") as writer:
            ...     for number in range(4):
            ...         writer.write(
            ...             {"__key__": f"k{number}", "json": {"width": 100 * number, "kind": "ab"[number % 2]}}
            ...         )
            >>> ds = shoal.Dataset("memory://doc/sql")
            >>> ds.sql("select key, width from ds where width > 100 order by width desc").to_pylist()
            [{'key': 'k3', 'width': 300}, {'key': 'k2', 'width': 200}]
            >>> ds.sql("select kind, avg(json.width) as mean from ds group by kind order by kind").to_pylist()
            [{'kind': 'a', 'mean': 100.0}, {'kind': 'b', 'mean': 200.0}]
        """
        self._refuse_filtered("a table of metadata")
        return run_sql(query, self._metadata_table())

    def where_sql(self, condition: str | Expression | Field) -> Dataset[T]:
        """The samples for which a condition is true, in duckdb's SQL with all its functions; ``where`` needs no duckdb.

        Examples:
            >>> import shoal
            >>> with shoal.ShardWriter("memory://doc/where-sql/data-%06d.tar") as writer:
            ...     for number in range(4):
            ...         writer.write({"__key__": f"k{number}", "json": {"width": number}})
            >>> shoal.Dataset("memory://doc/where-sql").where_sql("width % 2 = 1 and length(key) = 2").keys()
            ['k1', 'k3']
        """
        text = condition
        if not isinstance(text, str):
            text = sql_of(resolve_columns(as_expression(condition), ("__key__", *self.column_names)))
        keep = run_condition(text, self._metadata_table())
        step = Step(f"where_sql({text!r})", again=operator.methodcaller("where_sql", condition))
        return self._view(rows=self.rows.where(keep), step=step)

    def _metadata_table(self) -> pa.Table:
        """The keys and the metadata columns that have one type and are in the index of every shard."""
        try:
            return metadata_table(self, ["__key__", *self.column_names])
        except FieldError:
            known = [name for name in self.column_names if self._is_known(name)]
            return metadata_table(self, ["__key__", *known])

    def _is_known(self, column: str) -> bool:
        try:
            metadata_table(self, [column])
        except FieldError:
            return False
        return True

    def index_files(self, kind: Literal["samples", "shards"] = "samples") -> dict[str, list[str]]:
        """The Parquet files of the index that is read, by split: what duckdb, polars or pandas can query by themselves.

        ``samples`` have a row for each sample: ``__key__``, ``__shard__`` (the number of its shard in the file of
        shards beside it) and the metadata columns. ``shards`` have a row for each tar. Files of one split may lack
        columns that others have. Query these files and never a pattern: older generations are in the folder too.

        Rows of deleted samples are in the files. `deleted_index_rows` tells which, under the names that duckdb has for
        a file and a row in it. ::

            files, deleted = ds.index_files()["train"], ds.deleted_index_rows()
            duckdb.sql(
                'SELECT "json.width", count(*)'
                " FROM read_parquet($files, filename=true, file_row_number=true, union_by_name=true)"
                " ANTI JOIN deleted USING (filename, file_row_number) GROUP BY 1",
                params={"files": files},
            )

            frames = []
            for file in files:
                gone = deleted.filter(pc.field("filename") == file)["file_row_number"].to_pylist()
                frames.append(pandas.read_parquet(file).drop(index=gone))

        Raises OptionError when called on a view, whose rows the files do not tell, and FormatError where the index is
        not in segments.
        """
        if kind not in ("samples", "shards"):
            raise OptionError(f"kind must be 'samples' or 'shards', got {kind!r}")
        files: dict[str, list[str]] = {}
        for part in self._index_parts():
            files.setdefault(part.name, []).extend(part.files(SAMPLES if kind == "samples" else SHARDS))
        return files

    def deleted_index_rows(self) -> pa.Table:
        """Which rows of `index_files` are of deleted samples: columns ``filename`` and ``file_row_number``, from 0."""
        names, numbers = [pa.array([], pa.string())], [pa.array([], pa.int64())]
        for part in self._index_parts():
            for file, rows in part.deleted_rows():
                names.append(pa.repeat(pa.scalar(file, pa.string()), len(rows)))
                numbers.append(pa.array(rows, pa.int64()))
        return pa.table({"filename": pa.chunked_array(names), "file_row_number": pa.chunked_array(numbers)})

    def _index_parts(self) -> tuple[SplitPart, ...]:
        self._refuse_view("the files of the index belong to a dataset")
        table = self._segment_table
        if table is None:
            raise FormatError(
                "Only an index in segments has Parquet files, and writers do not make one yet",
                hint="use `sql` or `to_parquet`",
            )
        return table.parts

    def describe(self) -> Summary:
        """What is in the dataset: samples, sizes of fields, ranges and commonest values of metadata; from the index.

        Examples:
            >>> import shoal
            >>> with shoal.ShardWriter("memory://doc/describe/data-%06d.tar") as writer:
            ...     for number in range(4):
            ...         writer.write({"__key__": f"k{number}", "json": {"width": number, "kind": "ab"[number % 2]}})
            >>> shoal.Dataset("memory://doc/describe").describe()
            4 samples in 1 shard, 88 B of fields
            <BLANKLINE>
            field  type  samples  size  mean
            json   json  4        88 B  22 B
            <BLANKLINE>
            column      type    nulls  distinct  values
            json.width  int64   0      4         0 to 3, mean 1.5
            json.kind   string  0      2         a (2), b (2)
        """
        self._refuse_filtered("a description")
        deleted = len(cast("Dataset[Any]", self).tombstones)
        return summarize(self, deleted)


def _check_size(size: int) -> int:
    if size < 1:
        raise OptionError("a batch has at least one row", expected="1 or more", found=size)
    return size


def _field_names(samples: list[Any]) -> list[str]:
    names: dict[str, None] = {}
    for sample in samples:
        if isinstance(sample, Mapping):
            names.update(dict.fromkeys(name for name in sample if not name.startswith("__")))
        elif is_record(type(sample)):
            return list(schema_of(type(sample)).names)
        else:
            raise WriteError(
                "these samples are no rows of a table", expected="typed samples or dicts", found=type(sample).__name__
            )
    return list(names)


def _field_value(sample: Any, name: str) -> Any:
    if isinstance(sample, Mapping):
        return sample.get(name)
    return getattr(sample, name)


def _pandas() -> Any:
    try:
        import pandas as pd
    except ImportError as error:
        raise MissingExtraError(
            "the package pandas cannot be imported", found=error, hint="pip install 'shoal[pandas]'"
        ) from error
    return pd


def short_names(columns: Sequence[str]) -> dict[str, str]:
    """For each column the name it has in SQL: its last part, or the whole name where that would not be clear.

    Examples:
        >>> short_names(["json.width", "json.size", "meta.json.size", "cls"])
        {'json.width': 'width', 'json.size': 'json.size', 'meta.json.size': 'meta.json.size', 'cls': 'cls'}
    """
    # SQL names are case-insensitive.
    lasts = Counter(name.rpartition(".")[2].lower() for name in columns)
    taken = {SQL_KEY, KEY, _SQL_ROW, *(name.lower() for name in columns if "." in name)}
    short = {name: name.rpartition(".")[2] for name in columns}
    return {
        name: last if lasts[last.lower()] == 1 and last.lower() not in taken else name for name, last in short.items()
    }


def run_sql(query: str, table: pa.Table) -> pa.Table:
    """The answer to a query over ``ds``, which is this table of columns and ``__key__``.

    Raises:
        QueryError: duckdb does not understand the query.
        MissingExtraError: duckdb is not installed.
    """
    names = {KEY: SQL_KEY, **short_names([name for name in table.column_names if name != KEY])}
    return _run_duckdb(rewrite_query(query, names), table.rename_columns([names[name] for name in table.column_names]))


def run_condition(condition: str, table: pa.Table) -> npt.NDArray[np.bool_]:
    """The rows in which a condition is true, whatever else duckdb knows in it."""
    row = pa.array(np.arange(table.num_rows))
    # As a value and not in a WHERE, so that rows keep their order and no part of the condition is pushed down to Arrow.
    query = f"select {_SQL_ROW}, coalesce(({condition}\n), false) as kept from ds"  # noqa: S608 - SQL is what is asked for
    names = {KEY: SQL_KEY, **short_names([name for name in table.column_names if name != KEY])}
    renamed = table.rename_columns([names[name] for name in table.column_names]).append_column(_SQL_ROW, row)
    found = _run_duckdb(rewrite_query(query, names), renamed)
    kept = np.zeros(table.num_rows, np.bool_)
    kind = found.schema.field("kept").type
    if not pa.types.is_boolean(kind):
        raise QueryError("this is not a condition", expected="a boolean", found=str(kind))
    kept[found.column(_SQL_ROW).to_numpy()] = found.column("kept").to_numpy()
    return kept


def rewrite_query(query: str, names: dict[str, str]) -> str:
    """The query with whole column names, as ``json.width``, in the form that its table has them."""

    def replaced(found: re.Match[str]) -> str:
        chain = found["name"]
        if chain is None:
            return found[0]
        parts = [part[1:-1].replace('""', '"') if part[0] == '"' else part for part in _SQL_NAME_PART.findall(chain)]
        name = ".".join(parts)
        for whole in (name, name.removeprefix("ds.")):
            if whole in names and (whole != names[whole] or "." in whole):
                return '"' + names[whole].replace('"', '""') + '"'
        return chain

    return _SQL_TOKENS.sub(replaced, query)


def _run_duckdb(query: str, table: pa.Table) -> pa.Table:
    duckdb = _duckdb()
    connection = duckdb.connect(config={"enable_external_access": "false"})  # a query reads the dataset, no files
    try:
        # Filters pushed down to Arrow would follow its rules, in which NaN is not equal to NaN.
        connection.execute("set disabled_optimizers = 'filter_pushdown'")
        connection.register("ds", table)
        connection.execute("set lock_configuration = true")
        answer = connection.sql(query)
        if answer is None:
            raise QueryError("this gives no table", expected="a query, such as select", found=query)
        found: pa.Table = answer.to_arrow_table()
    except duckdb.Error as error:
        hint = f"the table is ds, with {', '.join(table.column_names[:20])}"
        raise QueryError("duckdb cannot run this query", found=str(error), hint=hint) from error
    finally:
        connection.close()
    return found


def _duckdb() -> Any:
    try:
        import duckdb
    except ImportError as error:
        raise MissingExtraError(
            "the package duckdb cannot be imported", found=error, hint="pip install 'shoal[sql]'"
        ) from error
    return duckdb


@dataclass(frozen=True, slots=True)
class FieldSummary:
    """One field of the stored samples: one member of the tars."""

    name: str
    type: str
    """What its name says it is: the codec that reads it."""
    samples: int
    """How many samples have it."""
    bytes: int

    @property
    def mean_bytes(self) -> float:
        """Of those samples that have it."""
        return self.bytes / self.samples if self.samples else 0.0


@dataclass(frozen=True, slots=True)
class ColumnSummary:
    """One metadata column: of numbers the range and the mean, of all others the commonest values."""

    name: str
    type: str
    nulls: int
    distinct: int
    """How many different values there are, null not counted."""
    min: Any = None
    max: Any = None
    mean: float | None = None
    top: tuple[tuple[Any, int], ...] = ()
    """The commonest values and how often they come, the most common first."""

    @property
    def shown(self) -> str:
        """Its values in a few words."""
        if self.mean is not None:
            return f"{self.min:g} to {self.max:g}, mean {self.mean:.4g}"
        return ", ".join(f"{_shorten(value)} ({count:,})" for value, count in self.top)


@dataclass(frozen=True, repr=False)
class Summary:
    """What ``describe`` found. ``print`` shows it as tables, ``to_dict`` gives it as JSON has it."""

    samples: int
    shards: int
    bytes: int
    """Of the fields of the samples in view, headers and padding not counted."""
    schema: str | None
    fields: tuple[FieldSummary, ...]
    columns: tuple[ColumnSummary, ...]
    deleted: int = 0
    """Samples that are stored and stay away, because they were deleted."""
    left_out: tuple[tuple[str, str], ...] = ()
    """Columns that no query can ask about, and why."""

    def to_dict(self) -> dict[str, Any]:
        """The same as plain dicts, lists and scalars."""
        plain = asdict(self)
        plain["fields"] = [{**asdict(one), "mean_bytes": one.mean_bytes} for one in self.fields]
        plain["columns"] = [{**asdict(one), "top": [list(pair) for pair in one.top]} for one in self.columns]
        plain["left_out"] = dict(self.left_out)
        return plain

    def __repr__(self) -> str:
        """A few tables of text."""
        counts = f"{_format_count(self.samples, 'sample')} in {_format_count(self.shards, 'shard')}"
        head = f"{counts}, {_format_bytes(self.bytes)} of fields"
        head = f"{head}; {self.deleted:,} deleted" if self.deleted else head
        parts = [head if self.schema is None else f"{head}\n{self.schema}"]
        if self.fields:
            rows = [
                (f.name, f.type, f"{f.samples:,}", _format_bytes(f.bytes), _format_bytes(f.mean_bytes))
                for f in self.fields
            ]
            parts.append(_format_table(("field", "type", "samples", "size", "mean"), rows))
        if self.columns:
            parts.append(
                _format_table(
                    ("column", "type", "nulls", "distinct", "values"), [_summary_row(one) for one in self.columns]
                )
            )
        return "\n\n".join(parts)


def _summary_row(one: ColumnSummary) -> tuple[str, ...]:
    return one.name, one.type, f"{one.nulls:,}", f"{one.distinct:,}", one.shown


def _shorten(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 20 else f"{text[:19]}…"


def _format_count(number: int, name: str) -> str:
    return f"{number:,} {name}{'' if number == 1 else 's'}"


def _format_bytes(count: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if count < 1024 or unit == "TiB":
            break
        count /= 1024
    return f"{count:,.0f} {unit}" if unit == "B" else f"{count:,.1f} {unit}"


def _format_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[at]) for row in (header, *rows)) for at in range(len(header))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in (header, *rows)
    ]
    return "\n".join(lines)


def summarize(dataset: Tabular[Any], deleted: int = 0) -> Summary:
    """What the samples in view are."""
    rows, schema = dataset._rows, dataset.schema
    fields, shards = _summarize_fields(dataset.source, rows)
    columns, left_out = _summarize_columns(dataset)
    samples = len(dataset.source) if rows is None else len(rows)
    total = sum(one.bytes for one in fields)
    shown = None if schema is None else str(schema)
    return Summary(samples, shards, total, shown, fields, columns, deleted, left_out)


def _summarize_fields(source: Source, rows: RowView | None) -> tuple[tuple[FieldSummary, ...], int]:
    if not isinstance(source, ShardSource):
        return (), 0
    totals = source.index.field_totals(None if rows is None else rows.as_array())
    found = (FieldSummary(name, _codec_name(name), count, size) for name, (count, size) in totals.items())
    touched = len(source.shards) if rows is None else len(rows.shards(source.starts))
    return tuple(found), touched


def _codec_name(field: str) -> str:
    codec = codec_for(field)
    return "bytes" if codec is None else codec.name


def _summarize_columns(
    dataset: Tabular[Any],
) -> tuple[tuple[ColumnSummary, ...], tuple[tuple[str, str], ...]]:
    found, left_out = [], []
    for name in dataset.column_names:
        try:
            column = metadata_table(dataset, [name]).column(0)
        except FieldError as error:  # in some shard it has no column, or one of another type
            left_out.append((name, str(error)))
            continue
        found.append(_summarize_column(name, column))
    return tuple(found), tuple(left_out)


def _summarize_column(name: str, values: pa.ChunkedArray) -> ColumnSummary:
    kind, nulls = str(values.type), values.null_count
    if pa.types.is_null(values.type):
        return ColumnSummary(name, kind, nulls, 0)
    distinct = pc.count_distinct(values, mode="only_valid").as_py()
    numeric = pa.types.is_integer(values.type) or pa.types.is_floating(values.type)
    if numeric and nulls < len(values):
        ends = pc.min_max(values).as_py()
        return ColumnSummary(name, kind, nulls, distinct, ends["min"], ends["max"], pc.mean(values).as_py())
    return ColumnSummary(name, kind, nulls, distinct, top=_top_values(values))


def _top_values(values: pa.ChunkedArray) -> tuple[tuple[Any, int], ...]:
    counted = values.drop_null().value_counts()
    order = np.argsort(-counted.field("counts").to_numpy(), kind="stable")[:_MAX_TOP_VALUES]
    chosen = counted.take(pa.array(order)).to_pylist()
    return tuple((one["values"], one["counts"]) for one in chosen)
