"""Formats: how a path is opened as a :class:`~shoal.shard.Source` of numbered samples.

``open_source`` is what ``Dataset`` calls. Each format is one function, registered under a name and its file endings;
anyone may add one with ``register_format``. ``write_format`` writes samples in those of ``WRITABLE``.

| name | what it is | recognised by |
| --- | --- | --- |
| webdataset | tar shards | ``.tar``, ``.tgz``, ``.tar.gz`` and so on, or a manifest |
| raw | any files, one a sample | ``format="raw"`` only |
| imagefolder | images in a folder for each class | a folder with nothing else in it |
| npz | NumPy's archives, a file or a row a sample | ``.npz`` |
| hdf5 | rows of HDF5 datasets (``shoal[hdf5]``) | ``.h5``, ``.hdf5`` |
| tfrecord | TFRecord files of ``tf.train.Example`` | ``.tfrecord``, ``.tfrecords``, ``.tfrecord-00000-of-00010`` |
| parquet, arrow | tables | ``.parquet``, ``.pq``; ``.arrow``, ``.feather`` |
| csv, jsonl | lines of text | ``.csv``, ``.tsv``; ``.jsonl``, ``.ndjson``; these with ``.gz``, ``.zst``; ``.json.gz`` |
| mds | MosaicML Streaming's shards, read only | an ``index.json`` of its kind |
| litdata | litData's chunks, read only | an ``index.json`` of its kind |
"""

from . import webdataset
from ._builtin import register_all as _register_all
from ._member_values import as_member, member_key, member_name
from ._registry import Format, SourceOptions, detect, detect_name, formats, has_format, open_source, register_format
from ._writers import WRITABLE, write_format

__all__ = [
    "WRITABLE",
    "Format",
    "SourceOptions",
    "as_member",
    "detect",
    "detect_name",
    "formats",
    "has_format",
    "member_key",
    "member_name",
    "open_source",
    "register_format",
    "webdataset",
    "write_format",
]

_register_all()
