"""``shoal unpack``: samples back into files, never outside the folder that was named."""

from __future__ import annotations

import os
from typing import Annotated, Any

import typer

from shoal.errors import ObjectExistsError, StoreError, UnsafeNameError
from shoal.store import local_path

from ._dataset import open_dataset
from ._options import FieldsOption, JsonOption, LimitOption, PathArgument, SplitOption, WhereOption, parse_fields
from ._output import print_json, print_text, progress, show_bytes, show_count

__all__ = ["unpack"]


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
    folder = _Folder(local_path(out), force=force)
    with progress("unpacking", len(dataset), quiet=as_json) as advance:
        for sample in dataset:
            _write_sample(folder, sample)
            advance(1)
    if as_json:
        print_json({"out": out, "samples": len(dataset), "files": folder.files, "bytes": folder.bytes})
    else:
        files = f"{show_count(folder.files, 'file')}, {show_bytes(folder.bytes)}"
        print_text(f"{show_count(len(dataset), 'sample')} as {files}: {out}")


def _write_sample(folder: _Folder, sample: dict[str, Any]) -> None:
    for field, data in sample.items():
        if field not in ("__key__", "__url__"):
            folder.write(sample["__key__"], field, data, sample["__url__"])


_REPLACE = "pass --force to replace it; where two shards have the same keys, unpack them one by one"


class _Folder:
    """Writes files below one folder and nowhere else."""

    def __init__(self, root: str, *, force: bool) -> None:
        self.files = 0
        self.bytes = 0
        self._root = root
        self._force = force
        self._inside: set[str] = set()
        self._written: set[str] = set()
        """What this run made, which it must not replace. Kept only where it may replace anything."""

    def write(self, key: str, field: str, data: bytes, shard: str) -> None:
        """Write one member. Raises UnsafeNameError, or ObjectExistsError for a file that is there."""
        name = f"{key}.{field}"
        reason = _unsafe(name)
        if reason:
            raise UnsafeNameError(f"a member {reason}, so it is not unpacked", found=repr(name), shard=shard, key=key)
        path = os.path.join(self._root, *name.split("/"))
        self._enter(os.path.dirname(path), name, shard)
        try:
            self._create(path, data)
        except FileExistsError as error:
            hint = "two shards have the key: unpack them one by one" if path in self._written else _REPLACE
            raise ObjectExistsError("the file exists already", found=path, shard=shard, hint=hint) from error
        except OSError as error:
            raise StoreError(error.strerror or str(error), found=path, shard=shard) from error
        if self._force:
            self._written.add(path)
        self.files += 1
        self.bytes += len(data)

    def _enter(self, folder: str, name: str, shard: str) -> None:
        """Make a folder, unless a link on the way to it leads out."""
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
        """Never through a link that is there: the file is made anew, in place of whatever has its name."""
        if self._force and path not in self._written and os.path.lexists(path):
            os.unlink(path)
        with open(path, "xb") as file:
            file.write(data)


def _unsafe(name: str) -> str | None:
    """Why no file may have this name."""
    parts = name.removeprefix("./").split("/")  # what `tar cf x.tar .` puts before every name
    if "\0" in name or "\\" in name:
        return "has a NUL or a backslash in its name"
    if name.startswith("/") or os.path.splitdrive(name)[0]:
        return "has an absolute name"
    if any(part in ("", ".", "..") for part in parts):
        return "has a name that climbs out of its folder"
    return None
