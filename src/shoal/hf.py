"""Conversion between `shoal.Dataset` and Hugging Face's ``datasets.Dataset``, as Arrow columns.

To load a Hugging Face dataset without converting it, pass it to a loader: ``shoal.DataLoader(hf_dataset)``.
"""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from shoal.dataset._dataset import Dataset
from shoal.errors import MissingExtraError
from shoal.schema._types import Image

if TYPE_CHECKING:
    import datasets  # type: ignore[import-untyped]

__all__ = ["from_hf_dataset", "to_hf_dataset"]

_IMAGE_EXTENSIONS = {"jpg", "jpeg", "png", "webp", "gif", "bmp", "tif", "tiff", "ppm", "pgm"}


def to_hf_dataset(dataset: Dataset[Any], columns: Sequence[str] | None = None) -> datasets.Dataset:
    """The samples as a ``datasets.Dataset``: ``__key__`` and a column for each field, or those named.

    Arrays of one shape are ``Array2D`` and its like, or lists of a length; images are ``Image``, with their bytes as
    stored; anything else as ``Dataset.to_arrow`` gives it. All of it is in memory; for more, write Parquet with
    ``Dataset.to_parquet`` and let ``datasets`` load that.

    Raises:
        MissingExtraError: ``datasets`` is not installed.

    Examples:
        >>> import numpy as np, shoal
        >>> ds = shoal.write_samples([{"__key__": "a", "x.npy": np.ones((2, 2)), "cls": 3}], "memory://doc/to-hf")
        >>> to_hf_dataset(ds)[0]
        {'__key__': 'a', 'x.npy': [[1.0, 1.0], [1.0, 1.0]], 'cls': 3}
    """
    hf, table = _datasets(), dataset.to_arrow(columns).replace_schema_metadata(None)
    images = _image_columns(dataset, table)
    table = pa.table({name: _to_hf_column(table[name], name in images) for name in table.column_names})
    features = hf.Features.from_arrow_schema(table.schema)
    features |= {name: hf.Image() for name in images}
    return hf.Dataset(table, info=hf.DatasetInfo(features=hf.Features(features)))


def _image_columns(dataset: Dataset[Any], table: pa.Table) -> set[str]:
    typed = set() if dataset.schema is None else {f.name for f in dataset.schema.fields if isinstance(f.type, Image)}
    named = {name for name in table.column_names if name.rpartition(".")[2].lower() in _IMAGE_EXTENSIONS}
    binary = {field.name for field in table.schema if pa.types.is_binary(field.type)}
    return (typed | named) & (binary | {f.name for f in table.schema if pa.types.is_large_binary(f.type)})


def _to_hf_column(column: pa.ChunkedArray, is_image: bool) -> pa.ChunkedArray:
    if is_image:
        files = [
            pa.StructArray.from_arrays([chunk.cast(pa.binary()), pa.nulls(len(chunk), pa.string())], ["bytes", "path"])
            for chunk in column.chunks
        ]
        return pa.chunked_array(files, pa.struct({"bytes": pa.binary(), "path": pa.string()}))
    if not isinstance(column.type, pa.FixedShapeTensorType):
        return column
    kind, shape = column.type.value_type, tuple(column.type.shape)
    chunks = [_nested_lists(chunk.storage.flatten(), len(chunk), shape) for chunk in column.chunks]
    if not 2 <= len(shape) <= 5:
        return pa.chunked_array(chunks, None if chunks else pa.list_(kind))
    extension = getattr(_datasets().features.features, f"Array{len(shape)}DExtensionType")(
        shape, np.dtype(kind.to_pandas_dtype()).name
    )
    return pa.chunked_array([pa.ExtensionArray.from_storage(extension, chunk) for chunk in chunks], extension)


def _nested_lists(values: pa.Array, count: int, shape: tuple[int, ...]) -> pa.Array:
    """Return ``count`` arrays of ``shape`` as nested lists; those of one dimension as fixed-size lists."""
    if len(shape) == 1:
        return pa.FixedSizeListArray.from_arrays(values, shape[0])
    for at in range(len(shape) - 1, -1, -1):
        size, rows = shape[at], count
        for outer in shape[:at]:
            rows *= outer
        values = pa.ListArray.from_arrays(pa.array(range(0, (rows + 1) * size, size) if size else [0] * (rows + 1),
                                                   pa.int32()), values)  # fmt: skip
    return values


def from_hf_dataset(
    dataset: datasets.Dataset | datasets.IterableDataset,
    output: str | os.PathLike[str],
    *,
    columns: Sequence[str] | Mapping[str, str] | None = None,
    key: str | None = None,
    sample_type: type[Any] | None = None,
    max_samples: int | None = None,
    overwrite: bool = False,
    batch_size: int = 1000,
) -> Dataset[Any]:
    """Write shards of a ``datasets.Dataset``, or of a streamed one, and open them.

    Each row is a sample with a field for each column. Images and sounds keep the bytes of their files, arrays of one
    shape are arrays. ``columns`` chooses some; as a mapping (``{"image": "jpg", "label": "cls"}``) it makes plain
    WebDataset samples. ``key`` names the column with the keys, ``sample_type`` the class of the samples; see
    ``Dataset.from_parquet``. Rows go through a temporary file, so a dataset may be larger than memory.

    Raises:
        MissingExtraError: ``datasets`` is not installed.
        ObjectExistsError: There is a dataset already.

    Examples:
        >>> import datasets
        >>> hf = datasets.Dataset.from_dict({"text": ["one", "two"], "label": [0, 1]})
        >>> ds = from_hf_dataset(hf, "memory://doc/from-hf")
        >>> ds[1].text, ds.where("label = 0").keys()
        ('two', ['000000000'])
    """
    import pyarrow.parquet as pq

    with tempfile.TemporaryDirectory(prefix="shoal-hf-") as folder:
        path, writer = os.path.join(folder, "rows.parquet"), None
        try:
            for table in _arrow_tables(dataset, batch_size):
                writer = writer or pq.ParquetWriter(path, table.schema)
                writer.write_table(table.cast(writer.schema))
        finally:
            if writer is not None:
                writer.close()
        return Dataset.from_parquet(
            path if writer is not None else [],
            output,
            columns=columns,
            key=key,
            sample_type=sample_type,
            max_samples=max_samples,
            overwrite=overwrite,
        )


def _arrow_tables(dataset: Any, batch_size: int) -> Iterator[pa.Table]:
    for table in dataset.with_format("arrow").iter(batch_size):
        yield pa.table({name: _from_hf_column(table[name]) for name in table.column_names})


def _from_hf_column(column: pa.ChunkedArray) -> pa.ChunkedArray:
    kind = column.type
    if pa.types.is_struct(kind) and {field.name for field in kind} == {"bytes", "path"}:
        return pa.chunked_array([_file_bytes(chunk) for chunk in column.chunks], pa.binary())
    if not hasattr(kind, "value_type") or not hasattr(kind, "shape") or isinstance(kind, pa.FixedShapeTensorType):
        return column
    if None in kind.shape:  # Hugging Face lets the first size differ
        return pa.chunked_array([chunk.storage for chunk in column.chunks])
    tensor, size = pa.fixed_shape_tensor(_number_type(kind), kind.shape), math.prod(kind.shape)
    return pa.chunked_array(
        [_tensor_array(chunk.storage, len(kind.shape), tensor, size) for chunk in column.chunks], tensor
    )


def _number_type(kind: Any) -> pa.DataType:
    inner = kind.storage_type
    while pa.types.is_list(inner):
        inner = inner.value_type
    return inner


def _tensor_array(values: pa.Array, depth: int, tensor: Any, size: int) -> pa.Array:
    for _ in range(depth):
        values = values.flatten()
    return pa.ExtensionArray.from_storage(tensor, pa.FixedSizeListArray.from_arrays(values, size))


def _file_bytes(chunk: pa.StructArray) -> pa.Array:
    """The files' bytes, read from their paths where they are not in the dataset."""
    rows = zip(chunk.field("bytes").to_pylist(), chunk.field("path").to_pylist(), strict=True)
    files = [Path(path).read_bytes() if data is None and path is not None else data for data, path in rows]
    return pa.array(files, pa.binary())


def _datasets() -> Any:
    try:
        import datasets
        import datasets.features  # type: ignore[import-untyped]
    except ImportError as error:
        raise MissingExtraError(
            "the package datasets cannot be imported", found=error, hint="pip install datasets"
        ) from error
    return datasets
