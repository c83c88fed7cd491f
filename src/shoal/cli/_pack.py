"""``shoal pack``, ``unpack`` and ``convert``: files to shards and back, and between formats."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Annotated, Any

import typer

from shoal.build._folders import FolderPlan, plan_folder
from shoal.dataset._dataset import Dataset
from shoal.errors import FormatError, ObjectExistsError, ObjectNotFoundError, OptionError, StoreError, UnsafeNameError
from shoal.formats._raw import folder_splits
from shoal.formats._registry import detect, formats
from shoal.formats._writers import WRITABLE, write_format
from shoal.shard._member_names import KeyRule
from shoal.shard._writer import ShardWriter
from shoal.store._url import join_url, local_path, parent_url, scheme_of

from ._options import (
    FieldsOption,
    JsonOption,
    LimitOption,
    PathArgument,
    SplitOption,
    WhereOption,
    open_dataset,
    parse_bytes,
    parse_fields,
)
from ._output import print_json, print_text, printable, progress, show_bytes, show_count

__all__ = ["convert", "pack", "unpack"]

_FORCE_HINT = "pass --force to replace it; where two shards have the same keys, unpack them one by one"


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
        bool, typer.Option("--overwrite", help="Replace the split that is there, all at once.")
    ] = False,
    append: Annotated[bool, typer.Option("--append", help="Add shards to what is there.")] = False,
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
    source, pattern = local_path(folder), _shard_pattern(out, split)
    plan = _plan_packing(source, pattern, flatten, label_from_folder)
    splits = folder_splits([next(iter(files.values())) for files in plan.samples.values()])
    if split is None and splits is not None and len(set(splits)) > 1:
        found = " and ".join(sorted(set(splits)))
        hint = "pack the folder of each with --split, or use `shoal build`, which keeps the splits"
        raise OptionError("the folder holds several splits", expected="--split", found=found, hint=hint)
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
        append=append,
        resume=resume,
    )
    _pack_samples(plan, writer, as_json)
    _print_packed(plan, writer, as_json)


def _pack_samples(plan: FolderPlan, writer: ShardWriter, quiet: bool) -> None:
    try:
        with progress("packing", len(plan), quiet=quiet) as advance, writer:
            for sample in plan:
                writer.write(sample)
                advance(1)
    except ObjectExistsError as error:
        error.hint = _with_option_names(error.hint)
        raise


def _with_option_names(hint: str | None) -> str | None:
    """A hint of a writer, with the names of the command's options."""
    names = {name: f"--{name}" for name in ("append", "overwrite", "resume")}
    return hint and functools.reduce(lambda text, name: text.replace(f"{name}=True", names[name]), names, hint)


def _shard_pattern(out: str, split: str | None) -> str:
    """Return the pattern of shard names: OUT if it ends in .tar or has a number in it, else one for the folder OUT."""
    if out.endswith(".tar") or re.search(r"%0?\d*d|\{:0?\d*d?\}", out):
        return out
    return join_url(out, f"{split or 'shard'}-%06d.tar")


def _plan_packing(folder: str, pattern: str, flatten: bool, label_from_folder: bool) -> FolderPlan:
    target = parent_url(pattern)
    out = local_path(target) if scheme_of(target) == "file" else None
    if out is not None and os.path.realpath(out) == os.path.realpath(folder):
        raise OptionError("the shards would lie among the files they are made of", expected="another OUT", found=out)
    rule = KeyRule(folders="flatten" if flatten else "keep")
    return plan_folder(folder, rule=rule, label_from_folder=label_from_folder, without=out)


def _print_packed(plan: FolderPlan, writer: ShardWriter, as_json: bool) -> None:
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


def unpack(
    path: PathArgument,
    out: Annotated[str, typer.Argument(metavar="OUT", help="The folder to write to.")],
    where: WhereOption = None,
    limit: LimitOption = None,
    fields: FieldsOption = None,
    split: SplitOption = None,
    force: Annotated[bool, typer.Option("--force", help="Replace files that are there.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Write samples as files: OUT/KEY.FIELD.

    Bytes are checked as they are read. Nothing is ever written outside OUT, whatever the names in the tar say, and no
    file that is there is replaced unless --force says so.

    \b
    Examples:
      shoal unpack data/ files/
      shoal unpack data/ cats/ --where "label = 'cat'" --fields jpg --limit 100
    """  # noqa: D301 - click's own mark for a paragraph that is not to be wrapped
    dataset = open_dataset(path, split=split, where=where, fields=parse_fields(fields), decode=False, quiet=as_json)
    if limit is not None:
        dataset = dataset.select(range(min(limit, len(dataset))))
    folder = _OutputFolder(local_path(out), force=force)
    with progress("unpacking", len(dataset), quiet=as_json) as advance:
        for sample in dataset:
            _write_sample(folder, sample)
            advance(1)
    if as_json:
        print_json({"out": out, "samples": len(dataset), "files": folder.files, "bytes": folder.bytes})
    else:
        files = f"{show_count(folder.files, 'file')}, {show_bytes(folder.bytes)}"
        print_text(f"{show_count(len(dataset), 'sample')} as {files}: {out}")


def _write_sample(folder: _OutputFolder, sample: dict[str, Any]) -> None:
    for field, data in sample.items():
        if field not in ("__key__", "__url__"):
            folder.write(sample["__key__"], field, data, sample["__url__"])


class _OutputFolder:
    """Writes files below one folder and nowhere else."""

    def __init__(self, root: str, *, force: bool) -> None:
        self.files = 0
        self.bytes = 0
        self._root = root
        self._force = force
        self._inside: set[str] = set()
        self._written: set[str] = set()
        """Files of this run, which it must not replace; only needed with ``force``."""

    def write(self, key: str, field: str, data: bytes, shard: str) -> None:
        """Write one member. Raises UnsafeNameError, or ObjectExistsError for a file that exists."""
        name = f"{key}.{field}"
        reason = _unsafe_reason(name)
        if reason:
            raise UnsafeNameError(f"a member {reason}, so it is not unpacked", found=repr(name), shard=shard, key=key)
        path = os.path.join(self._root, *name.split("/"))
        self._enter(os.path.dirname(path), name, shard)
        try:
            self._create(path, data)
        except FileExistsError as error:
            hint = "two shards have the key: unpack them one by one" if path in self._written else _FORCE_HINT
            raise ObjectExistsError("the file exists already", found=path, shard=shard, hint=hint) from error
        except OSError as error:
            raise StoreError(error.strerror or str(error), found=path, shard=shard) from error
        if self._force:
            self._written.add(path)
        self.files += 1
        self.bytes += len(data)

    def _enter(self, folder: str, name: str, shard: str) -> None:
        """Make a folder, unless a link on its path leads out of the root."""
        if folder in self._inside:
            return
        root, real = os.path.realpath(self._root), os.path.realpath(folder)
        if real != root and os.path.commonpath([root, real]) != root:
            problem = "a link in the folder leads out of it, so nothing is written there"
            raise UnsafeNameError(problem, found=repr(name), shard=shard)
        try:
            os.makedirs(folder, exist_ok=True)
        except OSError as error:
            raise StoreError(error.strerror or str(error), found=folder, shard=shard) from error
        self._inside.add(folder)

    def _create(self, path: str, data: bytes) -> None:
        """Create a file; never writes through an existing link."""
        if self._force and path not in self._written and os.path.lexists(path):
            os.unlink(path)
        with open(path, "xb") as file:
            file.write(data)


def _unsafe_reason(name: str) -> str | None:
    """Return why a file must not have this name; None where it may."""
    parts = name.removeprefix("./").split("/")  # `tar cf x.tar .` writes ./ before every name
    if "\0" in name or "\\" in name:
        return "has a NUL or a backslash in its name"
    if name.startswith("/") or os.path.splitdrive(name)[0]:
        return "has an absolute name"
    if any(part in ("", ".", "..") for part in parts):
        return "has a name that climbs out of its folder"
    return None


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
    append: Annotated[bool, typer.Option("--append", help="Add shards to what is there; tar shards only.")] = False,
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
    if (resume or append) and to_name != "webdataset":
        raise OptionError("--append and --resume are for tar shards", expected="--to webdataset", found=to_name)
    _check_not_same(source, target)
    dataset = _open_source(source, from_format, split, where, fields)
    options = {name: True for name, given in (("append", append), ("resume", resume)) if given}
    urls = _write_converted(dataset, target, to_name, max_samples, overwrite, options, as_json)
    _print_converted(dataset, urls, to_name, as_json)


def _target_format(target: str, to_format: str | None) -> str:
    """Return the format to write. A name without an extension is a folder of tar shards."""
    if to_format is not None:
        if to_format not in WRITABLE:
            raise FormatError("nothing is written in this format", expected=" or ".join(WRITABLE), found=to_format)
        return to_format
    name = os.path.basename(target.rstrip("/"))
    if "." not in name:
        return "webdataset"
    try:
        return detect([target.replace("%06d", "0")])
    except (FormatError, ObjectNotFoundError):
        raise FormatError(
            "the name of DST tells no format", expected=" or ".join(WRITABLE), found=target, hint="say it with --to"
        ) from None


def _check_not_same(source: str, target: str) -> None:
    if scheme_of(source) == scheme_of(target) == "file":
        paths = [os.path.realpath(local_path(name)) for name in (source, target)]
        if paths[0] == paths[1]:
            raise OptionError("the result would take the place of its source", expected="another DST", found=target)


def _open_source(
    source: str, name: str | None, split: str | None, where: str | None, fields: list[str] | None
) -> Dataset[Any]:
    dataset = Dataset(source, sample_type=dict, format=name, split=split, on_decode_error="keep")
    if (chosen := parse_fields(fields)) is not None:
        dataset = dataset.columns(chosen)
    return dataset if where is None else dataset.where(where)


def _write_converted(
    dataset: Dataset[Any],
    target: str,
    name: str,
    max_samples: int | None,
    overwrite: bool,
    options: dict[str, Any],
    quiet: bool,
) -> list[str]:
    try:
        with progress("converting", len(dataset), quiet=quiet) as advance:
            samples = _count_samples(dataset, advance)
            return write_format(target, samples, format=name, max_samples=max_samples, overwrite=overwrite, **options)
    except ObjectExistsError as error:
        error.hint = _with_option_names(error.hint)
        raise


def _count_samples(samples: Iterable[Any], advance: Callable[[int], None]) -> Iterator[Any]:
    for sample in samples:
        yield sample
        advance(1)


def _print_converted(dataset: Dataset[Any], urls: list[str], name: str, as_json: bool) -> None:
    if as_json:
        print_json({"samples": len(dataset), "format": name, "files": urls})
        return
    where = urls[0] if len(urls) == 1 else f"{urls[0]} ..." if urls else "nothing"
    print_text(f"{show_count(len(dataset), 'sample')} in {show_count(len(urls), 'file')} of {name}: {where}")
