"""Ray Data: a dataset as a Datasource, read in parallel by Ray's workers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from shoal.adapt import map_arrays
from shoal.dataset._dataset import Dataset
from shoal.errors import MissingExtraError, OptionError
from shoal.load._collate import collate
from shoal.load._sources import StreamSource

try:
    import ray.data
    from ray.data.block import Block, BlockAccessor, BlockMetadata
    from ray.data.datasource import Datasource, ReadTask
except ImportError as error:
    raise MissingExtraError(
        "the package ray cannot be imported", found=error, hint="pip install 'shoal[ray]'"
    ) from error

__all__ = ["ShoalDatasource", "to_ray_dataset"]

_BLOCK_BYTES = 32 << 20
_MAX_BLOCK_ROWS = 4096
_DEFAULT_SAMPLE_BYTES = 4096.0
"""Size of a sample where the source does not know its mean."""


def to_ray_dataset(dataset: Dataset[Any], *, override_num_blocks: int | None = None) -> ray.data.Dataset:
    """The samples as a ``ray.data.Dataset``, a column for each field, arrays as tensors.

    ``iter_torch_batches`` and the rest of Ray Data follow; ``override_num_blocks`` says how many tasks read.

    Raises:
        OptionError: The dataset has no length, as after a filter; ``dataset.materialize()`` has one.

    Examples:
        >>> import shoal
        >>> ds = shoal.write_samples([{"__key__": "a", "cls": 1}], "memory://doc/ray")
        >>> ShoalDatasource(ds).get_read_tasks(4)[0].metadata.num_rows
        1
    """
    read: ray.data.Dataset = ray.data.read_datasource(ShoalDatasource(dataset), override_num_blocks=override_num_blocks)
    return read


class ShoalDatasource(Datasource):
    """Reads a dataset for ``ray.data.read_datasource``: each task a run of neighbouring samples.

    Raises:
        OptionError: The dataset has no length.
    """

    def __init__(self, dataset: Dataset[Any]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        try:
            self._count = len(dataset)
        except TypeError as error:
            hint = "dataset.materialize() has one"
            raise OptionError("Ray shares samples out by number", found=str(error), hint=hint) from error
        self._dataset = dataset

    def get_name(self) -> str:
        """What Ray calls its tasks."""
        return "Shoal"

    def estimate_inmemory_data_size(self) -> int:
        """Bytes of all samples, by the mean of those stored."""
        return int(self._count * self._mean_bytes())

    def get_read_tasks(
        self, parallelism: int, per_task_row_limit: int | None = None, data_context: Any = None
    ) -> list[ReadTask]:
        """At most ``parallelism`` tasks, each of as many samples as the others, or one fewer."""
        tasks = max(1, min(parallelism, self._count))
        mean = self._mean_bytes()
        rows = int(max(1, min(_MAX_BLOCK_ROWS, _BLOCK_BYTES // max(mean, 1.0))))
        read_tasks = []
        for task in range(tasks):
            start, stop = self._count * task // tasks, self._count * (task + 1) // tasks
            metadata = BlockMetadata(
                num_rows=stop - start, size_bytes=int((stop - start) * mean), exec_stats=None, input_files=None
            )
            read = _ReadTaskFunction(self._dataset, start, stop, rows, per_task_row_limit)
            read_tasks.append(ReadTask(read, metadata, per_task_row_limit=per_task_row_limit))
        return read_tasks

    def _mean_bytes(self) -> float:
        source = self._dataset.__load__().source
        known = None if isinstance(source, StreamSource) else source.geometry().mean_bytes
        return known or _DEFAULT_SAMPLE_BYTES


class _ReadTaskFunction:
    """The function of one read task, which Ray pickles and calls in a worker."""

    def __init__(self, dataset: Dataset[Any], start: int, stop: int, rows: int, limit: int | None) -> None:
        self._dataset = dataset
        self._start = start
        self._stop = stop if limit is None else min(stop, start + limit)
        self._rows = rows

    def __call__(self) -> Iterator[Block]:
        for start in range(self._start, self._stop, self._rows):
            stop = min(start + self._rows, self._stop)
            samples = self._dataset.samples_at(np.arange(start, stop, dtype=np.int64))
            columns = map_arrays(collate(samples), lambda array: array)
            yield BlockAccessor.batch_to_block({name: _to_column(values) for name, values in columns.items()})


def _to_column(values: Any) -> Any:
    """Return the values as an array, of objects where they are none: Ray makes a column of it."""
    if isinstance(values, np.ndarray):
        return values
    column = np.empty(len(values), object)
    for at, value in enumerate(values):  # assigning all at once would make an array of lists of one length
        column[at] = value
    return column
