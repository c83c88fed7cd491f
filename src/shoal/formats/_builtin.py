"""The formats that come with shoal besides tar shards: how each is opened, and how it is written.

What a format needs is imported when it is first used, so that nobody pays for the others.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from shoal.errors import OptionError
from shoal.shard import Source

from ._registry import Files, Format, PathLike, SourceOptions, register_built_in

__all__ = ["register_all"]

Paths = PathLike | Iterable[PathLike]
_NO_ENDINGS: tuple[str, ...] = ()


def _files(path: Paths, options: SourceOptions, endings: tuple[str, ...] | None) -> Files:
    held = path if isinstance(path, (str, os.PathLike)) else tuple(path)
    return Files(held, endings, options.split)


def _taken(name: str, options: SourceOptions, **defaults: Any) -> dict[str, Any]:
    """What was said about reading this format. Raises OptionError for what it does not know."""
    said = dict(options.reading)
    unknown = set(said) - set(defaults)
    if unknown:
        known = ", ".join(sorted(defaults)) or "none"
        raise OptionError(f"the format {name} has no such option", expected=known, found=min(unknown))
    return {**defaults, **said}


def _open_raw(path: Paths, options: SourceOptions) -> Source:
    from ._raw import ObjectSource, raw_fields, raw_values

    said = _taken("raw", options, field=None)
    field = said["field"]
    values = raw_values if field is None else partial(_under, field)
    return ObjectSource(
        "raw",
        _files(path, options, None),
        values,
        raw_fields if field is None else lambda paths, read: (field,),
        told=said,
    )


def _under(name: str, path: str, data: bytes, fields: Any) -> dict[str, Any]:
    return {name: data} if fields is None or name in fields else {}


def _open_imagefolder(path: Paths, options: SourceOptions) -> Source:
    from ._raw import IMAGE_ENDINGS, ObjectSource, class_labels, image_values, stem_of

    _taken("imagefolder", options)
    return ObjectSource(
        "imagefolder",
        _files(path, options, IMAGE_ENDINGS),
        image_values,
        lambda paths, read: ("image", "cls", "class_name"),
        key=stem_of,
        extra=class_labels,
    )


def _open_npz(path: Paths, options: SourceOptions) -> Source:
    from ._npz import NpzRows, npz_fields, npz_values
    from ._raw import ObjectSource, stem_of
    from ._sources import PartSource

    said, files = _taken("npz", options, rows=False, key=None), _files(path, options, (".npz",))
    if said["rows"]:
        return PartSource("npz", files, NpzRows, key=said["key"], told=said)
    return ObjectSource("npz", files, npz_values, npz_fields, key=stem_of, told=said)


def _open_hdf5(path: Paths, options: SourceOptions) -> Source:
    from ._hdf5 import Hdf5Part
    from ._sources import PartSource

    said = _taken("hdf5", options, group="/", key=None)
    files = _files(path, options, (".h5", ".hdf5"))
    return PartSource("hdf5", files, partial(Hdf5Part, group=said["group"]), key=said["key"], told=said)


def _open_tfrecord(path: Paths, options: SourceOptions) -> Source:
    from ._sources import PartSource
    from ._tfrecord import RecordOptions, TFRecordPart

    said = _taken("tfrecord", options, compression_type=None, example=True, lists=(), key=None)
    lists = said["lists"] if isinstance(said["lists"], bool) else tuple(said["lists"])
    how = RecordOptions(said["compression_type"], said["example"], lists, options.verify)
    files = _files(path, options, _ENDINGS["tfrecord"])
    return PartSource("tfrecord", files, partial(TFRecordPart, options=how), key=said["key"], told=said)


def _open_parquet(path: Paths, options: SourceOptions) -> Source:
    from ._arrow import ParquetPart, TableSource

    said = _taken("parquet", options, key=None)
    return TableSource("parquet", _files(path, options, _ENDINGS["parquet"]), ParquetPart, key=said["key"])


def _open_arrow(path: Paths, options: SourceOptions) -> Source:
    from ._arrow import ArrowPart, TableSource

    said = _taken("arrow", options, key=None)
    return TableSource("arrow", _files(path, options, _ENDINGS["arrow"]), ArrowPart, key=said["key"])


def _open_csv(path: Paths, options: SourceOptions) -> Source:
    from ._csv_jsonl import CsvOptions, CsvPart
    from ._sources import PartSource

    said = _taken("csv", options, delimiter=None, quote='"', header=True, types=(), key=None)
    types = said["types"]
    said["types"] = types if types is None else tuple(types.items() if isinstance(types, Mapping) else types)
    first = path if isinstance(path, (str, os.PathLike)) else next(iter(path), "")
    delimiter = said["delimiter"] or ("\t" if os.fspath(first).lower().endswith(".tsv") else ",")
    how = CsvOptions(delimiter, said["quote"], said["header"], said["types"])
    files = _files(path, options, _ENDINGS["csv"])
    return PartSource("csv", files, partial(CsvPart, options=how), key=said["key"], told=said)


def _open_jsonl(path: Paths, options: SourceOptions) -> Source:
    from ._csv_jsonl import JsonlPart
    from ._sources import PartSource

    said = _taken("jsonl", options, key=None)
    return PartSource("jsonl", _files(path, options, _ENDINGS["jsonl"]), JsonlPart, key=said["key"])


def _open_mds(path: Paths, options: SourceOptions) -> Source:
    from ._chunks import mds_chunks

    return _open_chunks("mds", path, options, mds_chunks)


def _open_litdata(path: Paths, options: SourceOptions) -> Source:
    from ._chunks import litdata_chunks

    return _open_chunks("litdata", path, options, litdata_chunks)


def _open_chunks(name: str, path: Paths, options: SourceOptions, specs: Callable[..., Any]) -> Source:
    from ._chunks import IndexFolder
    from ._sources import PartSource

    said = _taken(name, options, key=None)
    if not isinstance(path, (str, os.PathLike)):
        raise OptionError(f"the format {name} is a folder", expected="one path", found=repr(path))
    folder = IndexFolder(os.fspath(path), specs, options.split)
    return PartSource(name, folder, folder.open, key=said["key"], counts=folder.counts, most_open=4)


_ENDINGS: dict[str, tuple[str, ...]] = {
    "npz": (".npz",),
    "hdf5": (".h5", ".hdf5"),
    "tfrecord": (".tfrecord", ".tfrecords", ".tfrecord.gz", ".tfrecords.gz"),
    "parquet": (".parquet", ".pq"),
    "arrow": (".arrow", ".feather"),
    "csv": (".csv", ".tsv"),
    "jsonl": (".jsonl", ".ndjson"),
}
_OPENERS: dict[str, Callable[[Paths, SourceOptions], Source]] = {
    "raw": _open_raw,
    "imagefolder": _open_imagefolder,
    "npz": _open_npz,
    "hdf5": _open_hdf5,
    "tfrecord": _open_tfrecord,
    "parquet": _open_parquet,
    "arrow": _open_arrow,
    "csv": _open_csv,
    "jsonl": _open_jsonl,
    "mds": _open_mds,
    "litdata": _open_litdata,
}


def register_all() -> None:
    """Let paths be opened as these formats."""
    for name, opener in _OPENERS.items():
        register_built_in(Format(name, _ENDINGS.get(name, _NO_ENDINGS), opener))
