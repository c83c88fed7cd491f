"""Openers of the formats that come with shoal besides tar shards.

The module of a format is imported when the format is first used.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, cast

from shoal.errors import OptionError
from shoal.shard._source import Source
from shoal.store._base import ObjectReader

from ._registry import IMAGE_ENDINGS, Format, SourceOptions, register_built_in
from ._sources import Files, PathLike
from ._text_lines import compressed_endings

__all__ = ["register_all"]

Paths = PathLike | Iterable[PathLike]


def _files(path: Paths, options: SourceOptions, endings: tuple[str, ...] | None) -> Files:
    return Files(path if isinstance(path, (str, os.PathLike)) else tuple(path), endings, options.split)


def _reading_options(name: str, options: SourceOptions, **defaults: Any) -> dict[str, Any]:
    """The options for reading this format, with defaults. Raises OptionError for what it does not know."""
    args = dict(options.reading)
    unknown = set(args) - set(defaults)
    if unknown:
        known = ", ".join(sorted(defaults)) or "none"
        raise OptionError(f"the format {name} has no such option", expected=known, found=min(unknown))
    return {**defaults, **args}


def _open_raw(path: Paths, options: SourceOptions) -> Source:
    from ._raw import ObjectSource, raw_fields, raw_values

    args = _reading_options("raw", options, field=None)
    field = args["field"]
    values = raw_values if field is None else partial(_under, field)
    return ObjectSource(
        "raw",
        _files(path, options, None),
        values,
        raw_fields if field is None else lambda paths, read: (field,),
        options=args,
    )


def _under(name: str, path: str, data: bytes, fields: Any) -> dict[str, Any]:
    return {name: data} if fields is None or name in fields else {}


def _open_imagefolder(path: Paths, options: SourceOptions) -> Source:
    from ._raw import ObjectSource, class_labels, image_values, relative_paths, stem_of

    _reading_options("imagefolder", options)
    files = _files(path, options, IMAGE_ENDINGS)

    def labels(paths: Sequence[str]) -> Sequence[Mapping[str, Any]]:
        # A class has one number in all splits, also where a split has no image of some class.
        everything = paths if files.split is None else relative_paths(replace(files, split=None))
        return class_labels(paths, everything)

    return ObjectSource(
        "imagefolder",
        files,
        image_values,
        lambda paths, read: ("image", "cls", "class_name"),
        key=stem_of,
        extra=labels,
    )


def _open_npz(path: Paths, options: SourceOptions) -> Source:
    from ._npz import NpzRows, npz_fields, npz_values
    from ._raw import ObjectSource, stem_of
    from ._sources import PartSource

    args, files = _reading_options("npz", options, rows=False, key=None), _files(path, options, (".npz",))
    if args["rows"]:
        return PartSource("npz", files, NpzRows, key=args["key"], options=args)
    return ObjectSource("npz", files, npz_values, npz_fields, key=stem_of, options=args)


def _open_hdf5(path: Paths, options: SourceOptions) -> Source:
    from ._hdf5 import Hdf5Part
    from ._sources import PartSource

    args = _reading_options("hdf5", options, group="/", key=None)
    files = _files(path, options, (".h5", ".hdf5"))
    return PartSource("hdf5", files, partial(Hdf5Part, group=args["group"]), key=args["key"], options=args)


def _open_tfrecord(path: Paths, options: SourceOptions) -> Source:
    from ._sources import PartSource
    from ._tfrecord import RecordOptions, TFRecordPart

    args = _reading_options("tfrecord", options, compression_type=None, example=True, lists=(), key=None)
    lists = args["lists"] if isinstance(args["lists"], bool) else tuple(args["lists"])
    how = RecordOptions(args["compression_type"], args["example"], lists, options.verify)
    files = _files(path, options, _ENDINGS["tfrecord"])
    return PartSource("tfrecord", files, partial(TFRecordPart, options=how), key=args["key"], options=args)


def _open_parquet(path: Paths, options: SourceOptions) -> Source:
    from ._arrow import ParquetPart, TableSource

    args = _reading_options("parquet", options, key=None)
    return TableSource("parquet", _files(path, options, _ENDINGS["parquet"]), ParquetPart, key=args["key"])


def _open_arrow(path: Paths, options: SourceOptions) -> Source:
    from ._arrow import ArrowPart, TableSource

    args = _reading_options("arrow", options, key=None)
    return TableSource("arrow", _files(path, options, _ENDINGS["arrow"]), ArrowPart, key=args["key"])


def _open_csv(path: Paths, options: SourceOptions) -> Source:
    from ._csv_jsonl import ColumnType, CsvOptions, CsvPart
    from ._sources import PartSource

    args = _reading_options("csv", options, delimiter=None, quote='"', header=True, types=(), key=None)
    types: Any = args["types"]
    kinds: tuple[tuple[str, ColumnType], ...] | None = None
    if types is not None:
        named = tuple(types.items() if isinstance(types, Mapping) else types)
        kinds = tuple(
            (name, cast(ColumnType, kind.__name__ if isinstance(kind, type) else kind)) for name, kind in named
        )
        args["types"] = kinds
    how = CsvOptions(args["delimiter"], args["quote"], args["header"], kinds)

    def open_part(reader: ObjectReader) -> CsvPart:
        is_first = reader.info.url == source.infos[0].url
        return CsvPart(reader, how, None if is_first else cast(CsvPart, source.part(0)))

    source = PartSource("csv", _files(path, options, _ENDINGS["csv"]), open_part, key=args["key"], options=args)
    return source


def _open_jsonl(path: Paths, options: SourceOptions) -> Source:
    from ._csv_jsonl import JsonlPart
    from ._sources import PartSource

    args = _reading_options("jsonl", options, key=None)
    return PartSource("jsonl", _files(path, options, _ENDINGS["jsonl"]), JsonlPart, key=args["key"])


def _open_mds(path: Paths, options: SourceOptions) -> Source:
    from ._mds import mds_chunks

    return _open_chunks("mds", path, options, mds_chunks)


def _open_litdata(path: Paths, options: SourceOptions) -> Source:
    from ._litdata import litdata_chunks

    return _open_chunks("litdata", path, options, litdata_chunks)


def _open_chunks(name: str, path: Paths, options: SourceOptions, specs: Callable[..., Any]) -> Source:
    from ._mds import IndexFolder
    from ._sources import PartSource

    args = _reading_options(name, options, key=None)
    if not isinstance(path, (str, os.PathLike)):
        raise OptionError(f"the format {name} is a folder", expected="one path", found=repr(path))
    folder = IndexFolder(os.fspath(path), specs, options.split)
    return PartSource(name, folder, folder.open, key=args["key"], counts=folder.counts, max_open=4)


_ENDINGS: dict[str, tuple[str, ...]] = {
    "npz": (".npz",),
    "hdf5": (".h5", ".hdf5"),
    "tfrecord": (".tfrecord", ".tfrecords", ".tfrecord.gz", ".tfrecords.gz"),
    "parquet": (".parquet", ".pq"),
    "arrow": (".arrow", ".feather"),
    "csv": compressed_endings(".csv", ".tsv"),
    # C4 and Dolma call compressed JSON Lines .json.gz; a plain .json is taken for them by its content only.
    "jsonl": (*compressed_endings(".jsonl", ".ndjson"), *compressed_endings(".json")[1:]),
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
        register_built_in(Format(name, _ENDINGS.get(name, ()), opener))
