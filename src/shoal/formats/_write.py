"""Samples in, files of a format out."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from shoal.errors import FormatError, ObjectExistsError, ObjectNotFoundError, OptionError, WriteError
from shoal.shard import ShardWriter
from shoal.store import join_url, numbered_name, store_for

from ._plain import Row, as_member, extension_of_image, is_bytes, member_key, member_name, rows_from
from ._registry import detect_name

__all__ = ["WRITABLE", "target_pattern", "write_format"]

PathLike = str | os.PathLike[str]
Rows = Iterator[tuple[str, Row]]
WRITABLE = ("webdataset", "raw", "imagefolder", "npz", "hdf5", "tfrecord", "parquet", "arrow", "csv", "jsonl")
"""The formats that can be written."""
_ENDINGS = {
    "webdataset": ".tar",
    "npz": ".npz",
    "hdf5": ".h5",
    "tfrecord": ".tfrecord",
    "parquet": ".parquet",
    "arrow": ".arrow",
    "csv": ".csv",
    "jsonl": ".jsonl",
}
_FOLDERS = ("raw", "imagefolder")


def write_format(
    path: PathLike,
    samples: Iterable[Any],
    *,
    format: str | None = None,  # noqa: A002 - the word users expect
    max_samples: int | None = None,
    keys: bool = True,
    overwrite: bool = False,
    **options: Any,
) -> list[str]:
    """Write samples as files of a format; return where they are.

    ``path`` is a file, a name with a number (``a-%06d.parquet``), or a folder; its ending says the format, unless
    ``format`` does. A file is closed after ``max_samples`` samples where the name has a number. ``keys`` writes the
    keys too, as a column or feature ``__key__``. A file is seen when it is whole.

    | format | what is written | options |
    | --- | --- | --- |
    | webdataset | tar shards | those of `ShardWriter` |
    | raw | a file ``key.field`` for each field | |
    | imagefolder | ``class_name/key.jpg`` of each image | |
    | npz | a file for each sample; with ``rows=True``, one of stacked arrays | ``rows``, ``compressed`` |
    | hdf5 | a dataset for each field | ``compression``, as h5py has it |
    | tfrecord | ``tf.train.Example``; floats become float32 | ``compression_type`` |
    | parquet, arrow | a column for each field | ``row_group_size``; ``compression`` |
    | csv, jsonl | text; bytes are refused | ``delimiter`` |

    Raises FormatError for a format that is only read, ObjectExistsError unless ``overwrite``, and WriteError or
    EncodeError for samples that do not fit.

    Example:
        >>> write_format("memory://doc/out/a.jsonl", [{"__key__": "x", "size": 1}])
        ['memory://doc/out/a.jsonl']
        >>> import shoal
        >>> shoal.Dataset("memory://doc/out/a.jsonl").get("x")["size"]
        1
    """
    target = os.fspath(path)
    name = detect_name(target) if format is None else format
    if name not in WRITABLE:
        expected = " or ".join(WRITABLE)
        raise FormatError("samples cannot be written in this format", expected=expected, found=name or target)
    if name == "webdataset":
        return _write_shards(target, samples, max_samples, overwrite, options)
    if name in _FOLDERS or (name == "npz" and not options.get("rows")):
        return _write_objects(name, target, rows_from(samples), overwrite, options)
    return _write_files(name, target, rows_from(samples), max_samples, keys, overwrite, options)


def target_pattern(target: str, name: str) -> str:
    """Where files go: a folder gets numbered names."""
    ending = _ENDINGS[name]
    if detect_name(target) == name or numbered_name(target, 0) != target:
        return target
    return join_url(target, f"part-%06d{ending}")


def _write_shards(
    target: str, samples: Iterable[Any], max_samples: int | None, overwrite: bool, options: dict[str, Any]
) -> list[str]:
    pattern = target_pattern(target, "webdataset")
    limits = (
        {"max_samples": 10_000}
        if numbered_name(pattern, 0) != pattern
        else {"max_samples": 1 << 62, "max_bytes": 1 << 62}
    )
    limits |= {"max_samples": max_samples} if max_samples else {}
    with ShardWriter(pattern, **{**limits, **options}, overwrite=overwrite) as writer:
        for key, row in rows_from(samples):
            writer.write((member_key(key, row), dict(_members(key, row))))
    return writer.urls


def _members(key: str, row: Row) -> Iterator[tuple[str, bytes]]:
    for field, value in row.items():
        if value is not None:
            yield as_member(member_name(field), value)


def _write_objects(name: str, root: str, rows: Rows, overwrite: bool, options: dict[str, Any]) -> list[str]:
    from ._npz import pack_npz

    known = {"rows", "compressed"} if name == "npz" else set()
    _refuse_unknown(name, options, known)
    written = []
    for key, row in rows:
        if name == "npz":
            objects = [(f"{key}.npz", pack_npz(row, compressed=bool(options.get("compressed"))))]
        elif name == "imagefolder":
            objects = [_image(key, row)]
        else:
            objects = [(f"{member_key(key, row)}.{field}", data) for field, data in _members(key, row)]
        for path, data in objects:
            written.append(_put(join_url(root, path), data, overwrite))
    return written


def _put(url: str, data: bytes, overwrite: bool) -> str:
    _refuse_existing(url, overwrite)
    store_for(url).write_all(url, data)
    return url


def _image(key: str, row: Row) -> tuple[str, bytes]:
    """The path and bytes of a sample's image. Raises WriteError without one, or without a class."""
    from shoal.codec import codec_for

    kinds = {field: codec_for(field) for field in row}
    image = next((field for field, codec in kinds.items() if codec is not None and codec.kind == "image"), None)
    label = next((row[field] for field in ("class_name", "label", "cls") if row.get(field) is not None), None)
    if image is None or not is_bytes(row[image]):
        raise WriteError("a sample has no image in bytes", expected="a field such as image or jpg", key=key)
    if label is None:
        raise WriteError("a sample has no class", expected="a field class_name, label or cls", key=key)
    data = bytes(row[image])
    stem = member_key(key, row).removeprefix(f"{label}/").replace("/", "-")
    return f"{label}/{stem}.{extension_of_image(data) if image in ('image', 'img') else image}", data


def _write_files(
    name: str, target: str, rows: Rows, max_samples: int | None, keys: bool, overwrite: bool, options: dict[str, Any]
) -> list[str]:
    from ._write_files import FILE_WRITERS

    write, known = FILE_WRITERS[name]
    _refuse_unknown(name, options, known)
    pattern = target_pattern(target, name)
    numbered = numbered_name(pattern, 0) != pattern
    if max_samples is not None and not numbered:
        raise OptionError("several files need a number in their name", expected="such as a-%06d", found=pattern)
    most = (max_samples or 100_000) if numbered else None
    kept = ((key, {"__key__": key, **row} if keys else row) for key, row in rows)
    return list(_written(pattern, kept, most, overwrite, lambda url, some: write(url, some, options)))


def _written(
    pattern: str, rows: Rows, most: int | None, overwrite: bool, write: Callable[[str, Rows], None]
) -> Iterator[str]:
    """One file after the other, each with up to ``most`` samples; without any samples, one empty file."""
    for number in itertools.count():
        first = next(rows, None)
        if first is None and number:
            return
        url = numbered_name(pattern, number)
        _refuse_existing(url, overwrite)
        some = itertools.chain([] if first is None else [first], rows)
        write(url, itertools.islice(some, most) if most else some)
        yield url
        if most is None:
            return


def _refuse_unknown(name: str, options: dict[str, Any], known: set[str]) -> None:
    unknown = set(options) - known
    if unknown:
        expected = ", ".join(sorted(known)) or "none"
        raise OptionError(f"writing {name} has no such option", expected=expected, found=min(unknown))


def _refuse_existing(url: str, overwrite: bool) -> None:
    if overwrite:
        return
    try:
        store_for(url).info(url)
    except ObjectNotFoundError:
        return
    raise ObjectExistsError("a file is there already", found=url, hint="write elsewhere, or pass overwrite=True")
