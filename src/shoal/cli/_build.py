"""``shoal build``, ``reshard`` and ``merge``: make shards, in parallel."""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Callable
from typing import Annotated, Any, Literal

import typer

from shoal.build import _reshard
from shoal.build._build import build_shards
from shoal.build._report import BuildReport
from shoal.errors import ErrorBudgetExceeded, ObjectExistsError, OptionError, WriteError
from shoal.shard._member_names import KeyRule
from shoal.store._registry import store_for

from ._options import JsonOption, PathArgument, SplitOption, WhereOption, parse_bytes, parse_fields
from ._output import print_json, print_table, print_text, printable, show_bytes, show_count

__all__ = ["build", "merge", "reshard"]

MaxSamplesOption = Annotated[int, typer.Option("--max-samples", min=1, metavar="N", help="Of one shard.")]
MaxBytesOption = Annotated[str, typer.Option("--max-bytes", metavar="SIZE", help="Of one shard.")]
SplitsOption = Annotated[
    str | None,
    typer.Option("--splits", metavar="A=0.9,B=0.1", help="Draw splits by their shares; with the seed."),
]
SampleOption = Annotated[
    str | None, typer.Option("--sample", metavar="N|0.x", help="Only this many items, or this share, drawn.")
]
ShuffleOption = Annotated[bool, typer.Option("--shuffle", help="Write in an order drawn by the seed.")]
SeedOption = Annotated[int, typer.Option("--seed", metavar="N", help="Of splits, sample and shuffle.")]
CompressionOption = Annotated[
    str | None, typer.Option("--compression", metavar="NAME", help="gzip, zstd, bz2 or xz; none if not given.")
]
LevelOption = Annotated[int | None, typer.Option("--level", metavar="N", help="Of the compression.")]
HashOption = Annotated[bool, typer.Option("--hash", help="Keep each shard's sha256 in the manifest.")]
WorkersOption = Annotated[
    int | None, typer.Option("--workers", min=1, metavar="N", help="Processes; all processors if not given.")
]
EngineOption = Annotated[
    str, typer.Option("--engine", metavar="NAME", help="local, ray, or the address of a Ray cluster.")
]
OverwriteOption = Annotated[bool, typer.Option("--overwrite", help="Replace the dataset that is there, all at once.")]
ReportOption = Annotated[
    str | None, typer.Option("--report", metavar="PATH", help="Write what became of it, failures and all, as JSON.")
]
FunctionOption = Annotated[
    str | None,
    typer.Option("--function", metavar="MODULE:NAME", help="Called with each sample; a .py file will do, too."),
]
FromOption = Annotated[
    str | None, typer.Option("--from", metavar="NAME", help="The format of SRC, where its name does not tell.")
]
AsSplitOption = Annotated[str | None, typer.Option("--split", metavar="NAME", help="The split these samples are.")]
DedupeOption = Annotated[bool, typer.Option("--dedupe", help="Leave out what an earlier item has, too.")]
DedupeFieldsOption = Annotated[
    list[str] | None, typer.Option("--dedupe-fields", metavar="A,B", help="Of these fields only.")
]
FetchOption = Annotated[
    list[str] | None,
    typer.Option("--fetch", metavar="COLUMN[=FIELD]", help="A column of paths or URLs, whose bytes are wanted."),
]
BaseOption = Annotated[
    str | None, typer.Option("--base", metavar="FOLDER", help="Where relative paths of such columns begin.")
]
LabelsOption = Annotated[
    bool | None, typer.Option("--labels/--no-labels", help="Whether folders are classes: adds cls.")
]
FlattenOption = Annotated[bool, typer.Option("--flatten", help="Leave folders out of the keys.")]
NumberOption = Annotated[bool, typer.Option("--number-keys", help="Give samples numbers for keys.")]
BudgetOption = Annotated[
    str, typer.Option("--error-budget", metavar="N|0.x", help="How many items, or which share, may fail.")
]
RetryOption = Annotated[bool, typer.Option("--retry", help="Build shards again that lack items which failed before.")]
SourcesArgument = Annotated[
    list[str], typer.Argument(metavar="SRC... OUT", help="Sources; last a folder, or a/{split}-%06d.tar.")
]


def build(
    paths: SourcesArgument,
    function: FunctionOption = None,
    from_format: FromOption = None,
    max_samples: MaxSamplesOption = 10_000,
    max_bytes: MaxBytesOption = "1GiB",
    split: AsSplitOption = None,
    splits: SplitsOption = None,
    sample: SampleOption = None,
    shuffle: ShuffleOption = False,
    seed: SeedOption = 0,
    dedupe: DedupeOption = False,
    dedupe_fields: DedupeFieldsOption = None,
    fetch: FetchOption = None,
    base: BaseOption = None,
    labels: LabelsOption = None,
    flatten: FlattenOption = False,
    numbered: NumberOption = False,
    compression: CompressionOption = None,
    level: LevelOption = None,
    hashed: HashOption = False,
    error_budget: BudgetOption = "0",
    retry: RetryOption = False,
    workers: WorkersOption = None,
    engine: EngineOption = "local",
    overwrite: OverwriteOption = False,
    report: ReportOption = None,
    as_json: JsonOption = False,
) -> None:
    """Build a dataset from any source, in parallel.

    SRC is a folder of files or of images by class, a table, TFRecord files, tar shards, or whatever else shoal reads;
    several are taken one after the other. The same sources and options give the same bytes for any number of workers.
    When it is interrupted, the same command does the rest.

    \b
    Examples:
      shoal build imagenet/train out/ --splits train=0.99,validation=0.01 --shuffle
      shoal build links.csv s3://bucket/photos --fetch url=jpg --error-budget 0.01
      shoal build 'parts/*.parquet' out/ --function prepare.py:tokens --workers 8
    """  # noqa: D301 - click's own mark for a paragraph that is not to be wrapped
    sources, out = split_sources_and_out(paths)
    called = None if function is None else load_function(function)
    options: dict[str, Any] = {
        "format": from_format,
        "max_samples": max_samples,
        "max_bytes": parse_bytes(max_bytes),
        "split": split,
        "splits": parse_splits(splits),
        "sample": parse_sample("sample", sample),
        "shuffle": shuffle,
        "seed": seed,
        "dedupe": parse_fields(dedupe_fields) or dedupe,
        "fetch": parse_fetch_options(fetch),
        "base": base,
        "labels": labels,
        "rule": KeyRule(folders="flatten" if flatten else "keep"),
        "keys": "number" if numbered else "keep",
        "error_budget": parse_sample("error-budget", error_budget) or 0,
        "retry": retry,
    }
    storage: dict[str, Any] = {"compression": compression, "level": level, "hashed": hashed, "overwrite": overwrite}
    execution: dict[str, Any] = {"workers": workers, "engine": engine, "progress": False if as_json else None}
    source = sources if len(sources) > 1 else sources[0]
    print_report(
        with_command_hints(lambda: build_shards(source, out, called, **options, **storage, **execution)),
        report,
        as_json,
    )


_OPTION_NAMES = (
    ("overwrite=True", "--overwrite"),
    ("raise error_budget", "raise --error-budget"),
    ("keys='number'", "--keys number"),
)
"""Texts in hints of errors, and the command's option for each."""
_NO_BUDGET = ("; raise error_budget to go on without such items", "")


def split_sources_and_out(paths: list[str]) -> tuple[list[str], str]:
    """Return the sources and, from the last argument, where to write."""
    if len(paths) < 2:
        raise OptionError("there is no place to write to", expected="SRC and OUT", found=" ".join(paths))
    return paths[:-1], paths[-1]


def with_command_hints(work: Callable[[], BuildReport], *, budget: bool = True) -> BuildReport:
    """Call ``work``; hints of errors name options of the command, which has ``--error-budget`` with ``budget``."""
    try:
        return work()
    except (ObjectExistsError, WriteError, ErrorBudgetExceeded) as error:
        for text, option in _OPTION_NAMES if budget else (_NO_BUDGET, *_OPTION_NAMES):
            error.hint = None if error.hint is None else error.hint.replace(text, option)
        raise


def parse_splits(text: str | None) -> dict[str, float] | None:
    """Parse shares by name. Raises OptionError.

    Examples:
        >>> parse_splits("train=0.9,test=0.1")
        {'train': 0.9, 'test': 0.1}
    """
    if text is None:
        return None
    pairs = [part.partition("=") for part in text.split(",") if part.strip()]
    try:
        return {name.strip(): float(share) for name, _, share in pairs}
    except ValueError:
        raise OptionError("these are no splits", expected="such as train=0.9,test=0.1", found=repr(text)) from None


def parse_sample(name: str, text: str | None) -> float | None:
    """Parse a number, or a share where it has a point. Raises OptionError.

    Examples:
        >>> parse_sample("sample", "100"), parse_sample("sample", "0.1")
        (100, 0.1)
    """
    if text is None:
        return None
    try:
        return float(text) if "." in text else int(text)
    except ValueError:
        expected = "a number such as 100, or a share such as 0.1"
        raise OptionError(f"--{name} is no number", expected=expected, found=repr(text)) from None


def parse_fetch_options(given: list[str] | None) -> dict[str, str | None] | None:
    if not given:
        return None
    return {column: field or None for column, _, field in (text.partition("=") for text in given)}


def load_function(name: str) -> Callable[[Any], Any]:
    """Import the function ``module:name`` or ``file.py:name``. Raises OptionError."""
    module, colon, attribute = name.rpartition(":")
    if not colon:
        raise OptionError("this names no function", expected="module:name", found=name)
    function = getattr(_import_module(module), attribute, None)
    if not callable(function):
        raise OptionError("the module has no such function", expected=f"{attribute} in {module}", found=name)
    return function  # type: ignore[no-any-return]


def _import_module(name: str) -> Any:
    """Import a module, also from the working folder, or a file; under its own name, so that workers can import it."""
    folder, stem = os.path.split(os.path.abspath(name)) if name.endswith(".py") else (os.getcwd(), name)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        return importlib.import_module(stem.removesuffix(".py"))
    except ImportError as error:
        raise OptionError("the module cannot be imported", found=f"{name}: {error}") from error


def print_report(report: BuildReport, path: str | None, as_json: bool) -> None:
    """Print the report of a build, and write it to ``path`` where given."""
    document = {**report.to_json(), "root": report.root, "written": report.written, "seconds": report.seconds}
    if path is not None:
        store_for(path).write_all(path, json.dumps(document, indent=1).encode() + b"\n")
    if as_json:
        print_json(document)
        return
    samples = f"{show_count(report.samples, 'sample')} in {show_count(len(report.shards), 'shard')}"
    print_text(f"{samples}, {show_bytes(report.bytes)}: {report.root}")
    if len(report.splits) > 1:
        rows = [
            (split, f"{sum(one.samples for one in records):,}", str(len(records)))
            for split, records in report.splits.items()
        ]
        print_table(("split", "samples", "shards"), rows, right=("samples", "shards"))
    kept = len(report.shards) - report.written
    if kept > 0:
        print_text(f"{show_count(kept, 'shard')} of them done by an earlier run")
    for count, words in ((report.dropped, "left out by the function"), (report.duplicates, "left out as duplicates")):
        if count:
            print_text(f"{show_count(count, 'item')} {words}")
    for failure in report.failures[:5]:
        print_text(printable(f"failed: item {failure.item} ({failure.key or 'no key'}): {failure.reason}"))
    if len(report.failures) > 5:
        print_text(f"and {len(report.failures) - 5:,} more failed; --report lists them all")


def reshard(
    path: PathArgument,
    out: Annotated[str, typer.Argument(metavar="OUT", help="A folder, or a pattern such as out/{split}-%06d.tar.")],
    max_samples: MaxSamplesOption = 10_000,
    max_bytes: MaxBytesOption = "1GiB",
    where: WhereOption = None,
    split: SplitOption = None,
    splits: SplitsOption = None,
    sample: SampleOption = None,
    shuffle: ShuffleOption = False,
    seed: SeedOption = 0,
    dedupe: Annotated[bool, typer.Option("--dedupe", help="Leave out what an earlier sample has, too.")] = False,
    compression: CompressionOption = None,
    level: LevelOption = None,
    hashed: HashOption = False,
    workers: WorkersOption = None,
    engine: EngineOption = "local",
    overwrite: OverwriteOption = False,
    report: ReportOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write the samples of a dataset as other shards.

    Samples are copied as the bytes they are, and checked on the way. When it is interrupted, the same command does the
    rest.

    \b
    Examples:
      shoal reshard small-shards/ out/ --max-bytes 1GiB
      shoal reshard data/ mixed/ --shuffle --seed 7
      shoal reshard data/ large/ --where "width >= 512"
    """  # noqa: D301 - click's own mark for a paragraph that is not to be wrapped
    done = with_command_hints(
        lambda: _reshard.reshard(
            path,
            out,
            max_samples=max_samples,
            max_bytes=parse_bytes(max_bytes),
            where=where,
            split=split,
            splits=parse_splits(splits),
            sample=parse_sample("sample", sample),
            shuffle=shuffle,
            seed=seed,
            dedupe=dedupe,
            compression=compression,
            level=level,
            hashed=hashed,
            workers=workers,
            engine=engine,
            overwrite=overwrite,
            progress=False if as_json else None,
        ),
        budget=False,
    )
    print_report(done, report, as_json)


def merge(
    paths: Annotated[list[str], typer.Argument(metavar="PATH... OUT", help="Datasets; last a folder or a pattern.")],
    keys: Annotated[
        str, typer.Option("--keys", metavar="HOW", help="keep, prefix (with the dataset's name) or number.")
    ] = "keep",
    max_samples: MaxSamplesOption = 10_000,
    max_bytes: MaxBytesOption = "1GiB",
    shuffle: ShuffleOption = False,
    seed: SeedOption = 0,
    dedupe: Annotated[bool, typer.Option("--dedupe", help="Leave out what an earlier sample has, too.")] = False,
    compression: CompressionOption = None,
    level: LevelOption = None,
    hashed: HashOption = False,
    workers: WorkersOption = None,
    engine: EngineOption = "local",
    overwrite: OverwriteOption = False,
    report: ReportOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write the samples of several datasets as one.

    Splits of the same name are joined. Samples are copied as the bytes they are, unless --keys changes their names.

    \b
    Examples:
      shoal merge cats/ dogs/ pets/
      shoal merge part-1/ part-2/ all/ --keys prefix --shuffle
    """  # noqa: D301 - click's own mark for a paragraph that is not to be wrapped
    sources, out = split_sources_and_out(paths)
    done = with_command_hints(
        lambda: _reshard.merge(
            sources,
            out,
            keys=_parse_keys(keys),
            max_samples=max_samples,
            max_bytes=parse_bytes(max_bytes),
            shuffle=shuffle,
            seed=seed,
            dedupe=dedupe,
            compression=compression,
            level=level,
            hashed=hashed,
            workers=workers,
            engine=engine,
            overwrite=overwrite,
            progress=False if as_json else None,
        ),
        budget=False,
    )
    print_report(done, report, as_json)


def _parse_keys(text: str) -> Literal["keep", "prefix", "number"]:
    known: dict[str, Literal["keep", "prefix", "number"]] = {"keep": "keep", "prefix": "prefix", "number": "number"}
    if text not in known:
        raise OptionError("no such --keys", expected="keep, prefix or number", found=repr(text))
    return known[text]
