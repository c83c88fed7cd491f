"""``shoal pack``: a folder of files into shards."""

from __future__ import annotations

import os
import re
from typing import Annotated, Any

import typer

from shoal.build._sources import FolderPlan, plan_folder
from shoal.errors import ObjectExistsError, OptionError
from shoal.shard import KeyRule, ShardWriter
from shoal.store import join_url, local_path, parent_url, scheme_of

from ._options import JsonOption, parse_bytes
from ._output import print_json, print_text, printable, progress, show_bytes, show_count

__all__ = ["pack"]


def pack(
    folder: Annotated[str, typer.Argument(metavar="FOLDER", help="The folder with the files.")],
    out: Annotated[str, typer.Argument(metavar="OUT", help="A folder, or a pattern such as out/train-%06d.tar.")],
    max_samples: Annotated[int, typer.Option("--max-samples", min=1, metavar="N", help="Of one shard.")] = 10_000,
    max_bytes: Annotated[str, typer.Option("--max-bytes", metavar="SIZE", help="Of one shard.")] = "1GiB",
    compression: Annotated[
        str | None, typer.Option("--compression", metavar="NAME", help="gzip, zstd, bz2 or xz; none if not given.")
    ] = None,
    level: Annotated[int | None, typer.Option("--level", metavar="N", help="Of the compression.")] = None,
    split: Annotated[str | None, typer.Option("--split", metavar="NAME", help="The split these samples are.")] = None,
    flatten: Annotated[bool, typer.Option("--flatten", help="Leave folders out of the keys.")] = False,
    label_from_folder: Annotated[
        bool,
        typer.Option(
            "--label-from-folder", help="The folder below FOLDER is the class: adds cls, and the list of classes."
        ),
    ] = False,
    hashed: Annotated[bool, typer.Option("--hash", help="Keep each shard's sha256 in the manifest.")] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the dataset that is there, all at once.")
    ] = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on after the finished shards of a run that was cut.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Pack a folder of files into a dataset.

    It becomes tar shards with their indexes and a manifest. Files with the same name up to the first dot, in the same
    folder, are one sample: cats/1.jpg and cats/1.txt give the key cats/1 with the fields jpg and txt. The same files
    give the same bytes, whatever order the disk has.

    \b
    Examples:
      shoal pack photos/ out/
      shoal pack imagenet/val out/ --split validation --label-from-folder
      shoal pack texts/ 'out/texts-%04d.tar' --compression zstd --max-bytes 256MB
    """  # noqa: D301 - click's own mark for a paragraph that is not to be wrapped
    source, pattern = local_path(folder), _pattern(out, split)
    plan = _plan(source, pattern, flatten, label_from_folder)
    writer = ShardWriter(
        pattern,
        max_samples=max_samples,
        max_bytes=parse_bytes(max_bytes),
        compression=compression,
        level=level,
        metadata={"classes": list(plan.classes)} if plan.classes else None,
        split=split,
        hashed=hashed,
        overwrite=overwrite,
        resume=resume,
    )
    _run(plan, writer, as_json)
    _report(plan, writer, as_json)


def _run(plan: FolderPlan, writer: ShardWriter, quiet: bool) -> None:
    try:
        _write(plan, writer, quiet)
    except ObjectExistsError as error:
        error.hint = "write elsewhere, or pass --overwrite to replace it"
        raise


def _write(plan: FolderPlan, writer: ShardWriter, quiet: bool) -> None:
    with progress("packing", len(plan), quiet=quiet) as advance, writer:
        for sample in plan:
            writer.write(sample)
            advance(1)


def _pattern(out: str, split: str | None) -> str:
    """A name that ends in .tar, or has a place for a number, names the shards; any other is a folder for them."""
    if out.endswith(".tar") or re.search(r"%0?\d*d|\{:0?\d*d?\}", out):
        return out
    return join_url(out, f"{split or 'shard'}-%06d.tar")


def _plan(folder: str, pattern: str, flatten: bool, label_from_folder: bool) -> FolderPlan:
    target = parent_url(pattern)
    out = local_path(target) if scheme_of(target) == "file" else None
    if out is not None and os.path.realpath(out) == os.path.realpath(folder):
        raise OptionError("the shards would lie among the files they are made of", expected="another OUT", found=out)
    rule = KeyRule(folders="flatten" if flatten else "keep")
    return plan_folder(folder, rule=rule, label_from_folder=label_from_folder, without=out)


def _report(plan: FolderPlan, writer: ShardWriter, as_json: bool) -> None:
    size = sum(record.bytes for record in writer.shards)
    if as_json:
        facts: dict[str, Any] = {"samples": writer.samples, "bytes": size, "shards": writer.urls}
        print_json({**facts, "classes": list(plan.classes), "skipped": list(plan.skipped)})
        return
    packed = f"{show_count(writer.samples, 'sample')} in {show_count(len(writer.shards), 'shard')}, {show_bytes(size)}"
    print_text(f"{packed}: {writer.root}")
    if plan.classes:
        print_text(f"{len(plan.classes):,} classes: {printable(', '.join(plan.classes[:10]))}")
    if plan.skipped:
        some = printable(", ".join(plan.skipped[:5]))
        print_text(f"passed over {show_count(len(plan.skipped), 'file')} without an extension: {some}")
