"""``from_parquet``: a Parquet file in, a dataset out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from shoal.dataset._dataset import Dataset
from shoal.dataset._description import PathLike

__all__ = ["from_parquet"]


def from_parquet(
    path: PathLike | Iterable[PathLike],
    output: PathLike | None = None,
    *,
    sample_type: type[Any] | None = None,
    key: str | None = None,
    columns: Sequence[str] | Mapping[str, str] | None = None,
    max_samples: int | None = None,
    max_bytes: int | None = None,
    compression: str | None = None,
    overwrite: bool = False,
    batch_size: int = 1024,
) -> Dataset[Any]:
    """Write shards of what Parquet files hold, and open them, or only open them: `Dataset.from_parquet`, as a function.

    Example:
        >>> import pyarrow as pa, pyarrow.parquet as pq, tempfile
        >>> import shoal
        >>> folder = tempfile.mkdtemp()
        >>> pq.write_table(pa.table({"name": ["a", "b"], "size": [1, 2]}), f"{folder}/table.parquet")
        >>> ds = shoal.dataset.from_parquet(f"{folder}/*.parquet", f"{folder}/shards", key="name")
        >>> ds.get("b").size, ds.where("size > 1").keys()
        (2, ['b'])
    """
    return Dataset.from_parquet(
        path,
        output,
        sample_type=sample_type,
        key=key,
        columns=columns,
        max_samples=max_samples,
        max_bytes=max_bytes,
        compression=compression,
        overwrite=overwrite,
        batch_size=batch_size,
    )
