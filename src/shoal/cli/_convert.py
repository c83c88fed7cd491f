"""``shoal convert``: samples from one format into another."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from typing import Annotated, Any

import typer

from shoal.dataset import Dataset
from shoal.errors import FormatError, ObjectExistsError, ObjectNotFoundError, OptionError
from shoal.formats import WRITABLE, detect, formats, write_format
from shoal.store import local_path, scheme_of

from ._options import FieldsOption, JsonOption, SplitOption, WhereOption, parse_fields
from ._output import print_json, print_text, progress, show_count

__all__ = ["convert"]


def convert(
    source: Annotated[str, typer.Argument(metavar="SRC", help="A file, a pattern, a folder or a URL.")],
    target: Annotated[str, typer.Argument(metavar="DST", help="A file, a name such as a-%06d.parquet, or a folder.")],
    from_format: Annotated[
        str | None, typer.Option("--from", metavar="NAME", help="The format of SRC, where its name does not tell.")
    ] = None,
    to_format: Annotated[
        str | None, typer.Option("--to", metavar="NAME", help="The format of DST, where its name does not tell.")
    ] = None,
    split: SplitOption = None,
    where: WhereOption = None,
    fields: FieldsOption = None,
    max_samples: Annotated[
        int | None, typer.Option("--max-samples", min=1, metavar="N", help="Of one file or shard.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace what is there.")] = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on after the finished shards of a run that was cut; tar shards only.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Convert samples from one format into another.

    Reads tar shards, raw files, folders of images by class, npz, hdf5, tfrecord, parquet, arrow, csv, jsonl, MosaicML's
    mds and litdata; writes all of these but the last two. A folder as DST becomes tar shards, unless --to says
    otherwise. In a tar, a field whose name says no type gets one: an array label becomes label.npy, a text label.txt,
    anything else label.json.

    \b
    Examples:
      shoal convert table.parquet shards/
      shoal convert 'train-*.tfrecord' shards/ --max-samples 5000
      shoal convert shards/ table.parquet --fields json,txt
      shoal convert mds-folder/ out/ --to tfrecord
    """  # noqa: D301 - click's own mark for a paragraph that is not to be wrapped
    to_name = _target_format(target, to_format)
    if from_format is not None and from_format not in formats():
        raise FormatError("no such format", expected=" or ".join(formats()), found=from_format)
    if resume and to_name != "webdataset":
        raise OptionError("only tar shards can be gone on with", expected="--to webdataset", found=to_name)
    _refuse_same(source, target)
    dataset = _opened(source, from_format, split, where, fields)
    urls = _run(dataset, target, to_name, max_samples, overwrite, resume, as_json)
    _report(dataset, urls, to_name, as_json)


def _target_format(target: str, asked: str | None) -> str:
    """What is to be written. A name that tells nothing is a folder for tar shards."""
    if asked is not None:
        if asked not in WRITABLE:
            raise FormatError("nothing is written in this format", expected=" or ".join(WRITABLE), found=asked)
        return asked
    name = os.path.basename(target.rstrip("/"))
    if "." not in name:
        return "webdataset"
    try:
        return detect([target.replace("%06d", "0")])
    except (FormatError, ObjectNotFoundError):
        raise FormatError(
            "the name of DST tells no format", expected=" or ".join(WRITABLE), found=target, hint="say it with --to"
        ) from None


def _refuse_same(source: str, target: str) -> None:
    if scheme_of(source) == scheme_of(target) == "file":
        paths = [os.path.realpath(local_path(name)) for name in (source, target)]
        if paths[0] == paths[1]:
            raise OptionError("the result would take the place of its source", expected="another DST", found=target)


def _opened(
    source: str, name: str | None, split: str | None, where: str | None, fields: list[str] | None
) -> Dataset[Any]:
    dataset = Dataset(source, sample_type=dict, format=name, split=split, on_decode_error="keep")
    if (chosen := parse_fields(fields)) is not None:
        dataset = dataset.columns(chosen)
    return dataset if where is None else dataset.where(where)


def _run(
    dataset: Dataset[Any],
    target: str,
    name: str,
    max_samples: int | None,
    overwrite: bool,
    resume: bool,
    quiet: bool,
) -> list[str]:
    options = {"resume": True} if resume else {}
    try:
        with progress("converting", len(dataset), quiet=quiet) as advance:
            samples = _counted(dataset, advance)
            return write_format(target, samples, format=name, max_samples=max_samples, overwrite=overwrite, **options)
    except ObjectExistsError as error:
        error.hint = "write elsewhere, or pass --overwrite to replace it"
        raise


def _counted(samples: Iterable[Any], advance: Callable[[int], None]) -> Iterator[Any]:
    for sample in samples:
        yield sample
        advance(1)


def _report(dataset: Dataset[Any], urls: list[str], name: str, as_json: bool) -> None:
    if as_json:
        print_json({"samples": len(dataset), "format": name, "files": urls})
        return
    where = urls[0] if len(urls) == 1 else f"{urls[0]} ..." if urls else "nothing"
    print_text(f"{show_count(len(dataset), 'sample')} in {show_count(len(urls), 'file')} of {name}: {where}")
