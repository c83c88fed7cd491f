"""``shoal reshard`` and ``shoal merge``: shards into other shards."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from shoal import build as building
from shoal.errors import OptionError

from ._build import (
    CompressionOption,
    EngineOption,
    HashOption,
    LevelOption,
    MaxBytesOption,
    MaxSamplesOption,
    OverwriteOption,
    ReportOption,
    SampleOption,
    SeedOption,
    ShuffleOption,
    SplitsOption,
    WorkersOption,
    hinted,
    parse_sample,
    parse_splits,
    sources_and_out,
    tell,
)
from ._options import JsonOption, PathArgument, SplitOption, WhereOption, parse_bytes

__all__ = ["merge", "reshard"]


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
    done = hinted(
        lambda: building.reshard(
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
    tell(done, report, as_json)


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
    sources, out = sources_and_out(paths)
    done = hinted(
        lambda: building.merge(
            sources,
            out,
            keys=_keys(keys),
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
    tell(done, report, as_json)


def _keys(text: str) -> Literal["keep", "prefix", "number"]:
    known: dict[str, Literal["keep", "prefix", "number"]] = {"keep": "keep", "prefix": "prefix", "number": "number"}
    if text not in known:
        raise OptionError("no such --keys", expected="keep, prefix or number", found=repr(text))
    return known[text]
