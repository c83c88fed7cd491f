"""`Dataset` subclasses for other formats, with the options of each format."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, Unpack

from ._dataset import Dataset
from ._description import DatasetOptions, PathLike

__all__ = [
    "ArrowDataset",
    "CsvDataset",
    "Hdf5Dataset",
    "ImageFolderDataset",
    "JsonlDataset",
    "LitdataDataset",
    "MdsDataset",
    "NpzDataset",
    "ParquetDataset",
    "RawDataset",
    "TFRecordDataset",
]

Paths = PathLike | Iterable[PathLike]


class _FormatDataset(Dataset[Any]):
    """A dataset whose format is known."""

    def _open_as(self, path: Paths, name: str, reading: Mapping[str, Any], options: DatasetOptions) -> None:
        options["format"] = name
        super().__init__(path, **options)
        said = tuple((key, value) for key, value in reading.items() if value is not None)
        described = self.described
        self._begin(replace(described, options=replace(described.options, reading=said)))


class RawDataset(_FormatDataset):
    """Any files: each object of a folder, prefix or pattern is a sample, whose key is its path.

    The bytes are in the field that the extension names (``jpg``; ``bin`` where there is none), and decoded as in a tar;
    ``field`` names one field for all of them. ``options`` are those of `Dataset`.

    Examples:
        >>> from shoal.store import store_for
        >>> _ = store_for("memory://doc").write_all("memory://doc/raw/a/note.txt", b"hello")
        >>> RawDataset("memory://doc/raw")[0]["txt"], RawDataset("memory://doc/raw", field="data")[0]["data"]
        ('hello', b'hello')
    """

    def __init__(self, path: Paths, *, field: str | None = None, **options: Unpack[DatasetOptions]) -> None:
        self._open_as(path, "raw", {"field": field}, options)


class ImageFolderDataset(_FormatDataset):
    """Images in a folder for each class: ``image`` (bytes, or decoded as `Dataset` is told), ``cls``, ``class_name``.

    Classes are numbered in the order of their names, as torchvision does. The key is the path without extension.

    Examples:
        >>> from shoal.store import store_for
        >>> for name in ("cat/1.jpg", "dog/1.jpg"):
        ...     _ = store_for("memory://doc").write_all(f"memory://doc/pets/{name}", b"...")
        >>> [(s["__key__"], s["cls"], s["class_name"]) for s in ImageFolderDataset("memory://doc/pets")]
        [('cat/1', 0, 'cat'), ('dog/1', 1, 'dog')]
    """

    def __init__(self, path: Paths, **options: Unpack[DatasetOptions]) -> None:
        self._open_as(path, "imagefolder", {}, options)


class NpzDataset(_FormatDataset):
    """NumPy's ``.npz``: each file a sample with its arrays as fields, or, with ``rows``, each row of its arrays.

    ``rows=True`` needs arrays that are equally long. Files that are not compressed are then read row by row; compressed
    arrays are unpacked whole. ``key`` names the array that holds the keys, for ``rows``.

    Examples:
        >>> import numpy as np, tempfile
        >>> folder = tempfile.mkdtemp()
        >>> np.savez(f"{folder}/a.npz", x=np.eye(2), y=np.array([3, 4]))
        >>> NpzDataset(folder)[0]["y"], NpzDataset(folder, rows=True)[1]["y"]
        (array([3, 4]), 4)
    """

    def __init__(
        self, path: Paths, *, rows: bool = False, key: str | None = None, **options: Unpack[DatasetOptions]
    ) -> None:
        self._open_as(path, "npz", {"rows": rows, "key": key}, options)


class Hdf5Dataset(_FormatDataset):
    """HDF5: a sample for each row of the datasets below ``group``, which must be equally long. Needs ``shoal[hdf5]``.

    UTF-8 strings are ``str``, byte strings (``S10``) and runs of uint8 of any length are ``bytes``, single numbers are
    Python's, all else are arrays.

    Examples:
        >>> import h5py, tempfile
        >>> path = f"{tempfile.mkdtemp()}/a.h5"
        >>> with h5py.File(path, "w") as file:
        ...     file["train/x"], file["train/y"] = [[1.0, 2.0], [3.0, 4.0]], [5, 6]
        >>> Hdf5Dataset(path, group="train")[1]["y"]
        6
    """

    def __init__(
        self, path: Paths, *, group: str = "/", key: str | None = None, **options: Unpack[DatasetOptions]
    ) -> None:
        self._open_as(path, "hdf5", {"group": group, "key": key}, options)


class TFRecordDataset(_FormatDataset):
    """TFRecord files of ``tf.train.Example``, read without TensorFlow; checksums are checked unless ``verify=False``.

    A feature with one value is that value (``bytes``, ``int`` or ``float``), one with several is an array of int64 or
    float32, or a list of ``bytes``. ``lists`` names features that are lists even where they have one value; True for
    all. ``example=False`` gives each record as bytes, in the field ``record``. ``compression_type`` is ``"GZIP"``,
    ``"ZLIB"`` or ``""``; by default the file's first bytes tell. Compressed files stream in bounded memory, and are
    unpacked into memory when samples are asked for by position.

    Examples:
        >>> from shoal.formats import write_format
        >>> _ = write_format("memory://doc/a.tfrecord", [{"image": b"...", "label": 3}, {"image": b"!", "label": 4}])
        >>> TFRecordDataset("memory://doc/a.tfrecord")[1]["label"]
        4
    """

    def __init__(
        self,
        path: Paths,
        *,
        compression_type: Literal["", "GZIP", "ZLIB"] | None = None,
        example: bool = True,
        lists: Sequence[str] | bool = (),
        key: str | None = None,
        **options: Unpack[DatasetOptions],
    ) -> None:
        lists = lists if isinstance(lists, bool) else tuple(lists)
        said = {"compression_type": compression_type, "example": example, "lists": lists, "key": key}
        self._open_as(path, "tfrecord", said, options)


class ParquetDataset(_FormatDataset):
    """Parquet: a sample for each row; a row group is read when one of its rows is asked for, and only wanted columns.

    Lists of numbers and tensors are arrays. ``key`` names the column that holds the keys; ``where`` and ``table`` ask
    the columns of numbers, text, truth values and times.

    Examples:
        >>> from shoal.formats import write_format
        >>> _ = write_format("memory://doc/a.parquet", [{"name": "a", "size": 1}, {"name": "b", "size": 2}])
        >>> [sample["name"] for sample in ParquetDataset("memory://doc/a.parquet").where("size > 1")]
        ['b']
    """

    def __init__(self, path: Paths, *, key: str | None = None, **options: Unpack[DatasetOptions]) -> None:
        self._open_as(path, "parquet", {"key": key}, options)


class ArrowDataset(_FormatDataset):
    """Arrow IPC files and streams, as `ParquetDataset`; local files are mapped into memory.

    Examples:
        >>> from shoal.formats import write_format
        >>> _ = write_format("memory://doc/a.arrow", [{"size": 1}, {"size": 2}])
        >>> ArrowDataset("memory://doc/a.arrow")[1]["size"]
        2
    """

    def __init__(self, path: Paths, *, key: str | None = None, **options: Unpack[DatasetOptions]) -> None:
        self._open_as(path, "arrow", {"key": key}, options)


class CsvDataset(_FormatDataset):
    r"""CSV: a sample for each row, by position without reading those before it.

    The first rows tell which columns are whole numbers, floats and truth values (an empty cell of these is None);
    ``types`` says it instead, as ``{"zip": "str"}``, and ``types={}`` only guesses. A later cell that does not fit is a
    DecodeError. A ``.tsv`` has tabs. ``header=False`` names the columns ``0``, ``1`` and so on. Files compressed with
    gzip, zstd, bz2 or xz are read too, as by `JsonlDataset`.

    Examples:
        >>> from shoal.store import store_for
        >>> _ = store_for("memory://doc").write_all("memory://doc/a.csv", b'name,size\n"a, b",1\nc,2\n')
        >>> CsvDataset("memory://doc/a.csv", key="name").get("a, b")["size"]
        1
    """

    def __init__(
        self,
        path: Paths,
        *,
        delimiter: str | None = None,
        quote: str = '"',
        header: bool = True,
        types: Mapping[str, Literal["str", "int", "float", "bool"]] | None = None,
        key: str | None = None,
        **options: Unpack[DatasetOptions],
    ) -> None:
        said = {"delimiter": delimiter, "quote": quote, "header": header, "key": key}
        self._open_as(path, "csv", {**said, "types": None if types is None else tuple(types.items())}, options)


class JsonlDataset(_FormatDataset):
    r"""JSON lines: a sample for each object, by position without reading those before it.

    Files compressed with gzip, zstd, bz2 or xz (``.jsonl.gz``, ``.jsonl.zst``, ``.json.gz``) are decompressed while
    they are read in order; access by position unpacks each into the disk cache once. zstd needs ``shoal[zstd]``.

    Examples:
        >>> from shoal.store import store_for
        >>> _ = store_for("memory://doc").write_all("memory://doc/a.jsonl", b'{"a": 1}\n{"a": [2]}\n')
        >>> JsonlDataset("memory://doc/a.jsonl")[1]["a"]
        [2]
    """

    def __init__(self, path: Paths, *, key: str | None = None, **options: Unpack[DatasetOptions]) -> None:
        self._open_as(path, "jsonl", {"key": key}, options)


class MdsDataset(_FormatDataset):
    """A folder of MosaicML Streaming's MDS shards, read without the package. ``split`` is a folder below it.

    Images are bytes (``pil`` columns are arrays); a column of pickles is refused. Shards may be compressed by zstd, gz
    or bz2.
    """

    def __init__(self, path: PathLike, *, key: str | None = None, **options: Unpack[DatasetOptions]) -> None:
        self._open_as(path, "mds", {"key": key}, options)


class LitdataDataset(_FormatDataset):
    """A folder of litData's chunks, read without the package.

    Fields are the names of a dict, or ``0``, ``1`` and so on for tuples; tensors are NumPy arrays; pickles are refused.
    """

    def __init__(self, path: PathLike, *, key: str | None = None, **options: Unpack[DatasetOptions]) -> None:
        self._open_as(path, "litdata", {"key": key}, options)
