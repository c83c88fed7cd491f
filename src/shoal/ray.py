"""Ray Data: a dataset as a Datasource, read in parallel by Ray's workers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from shoal.adapt import map_arrays
from shoal.dataset import Dataset
from shoal.errors import MissingExtraError, OptionError
from shoal.load import StreamSource, collate

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
_MOST_ROWS = 4096
_UNKNOWN_BYTES = 4096.0
"""What a sample is taken to be where nobody knows."""


def to_ray_dataset(dataset: Dataset[Any], *, override_num_blocks: int | None = None) -> ray.data.Dataset:
    """The samples as a ``ray.data.Dataset``, a column for each field, arrays as tensors.

    ``iter_torch_batches`` and the rest of Ray Data follow; ``override_num_blocks`` says how many tasks read.

    Raises:
        OptionError: The dataset has no length, as after a filter; ``dataset.materialize()`` has one.

    Example:
        >>> import shoal
        >>> ds = shoal.write_samples([{"__key__": "a", "cls": 1}], "memory://doc/ray")
        >>> ShoalDatasource(ds).get_read_tasks(4)[0].metadata.num_rows
        1
    """
    made: ray.data.Dataset = ray.data.read_datasource(ShoalDatasource(dataset), override_num_blocks=override_num_blocks)
    return made


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
        rows = int(max(1, min(_MOST_ROWS, _BLOCK_BYTES // max(mean, 1.0))))
        made = []
        for task in range(tasks):
            start, stop = self._count * task // tasks, self._count * (task + 1) // tasks
            facts = BlockMetadata(
                num_rows=stop - start, size_bytes=int((stop - start) * mean), exec_stats=None, input_files=None
            )
            read = _Read(self._dataset, start, stop, rows, per_task_row_limit)
            made.append(ReadTask(read, facts, per_task_row_limit=per_task_row_limit))
        return made

    def _mean_bytes(self) -> float:
        source = self._dataset.__load__().source
        known = None if isinstance(source, StreamSource) else source.geometry().mean_bytes
        return known or _UNKNOWN_BYTES


class _Read:
    """One task: what Ray sends to a worker and calls there."""

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
            yield BlockAccessor.batch_to_block({name: _column(values) for name, values in columns.items()})


def _column(values: Any) -> Any:
    """An array, or an array of objects: what Ray makes a column of."""
    if isinstance(values, np.ndarray):
        return values
    made = np.empty(len(values), object)
    made[:] = values
    return made
