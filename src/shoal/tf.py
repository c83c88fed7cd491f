"""TensorFlow: a loader as a ``tf.data.Dataset``, and ``TFRecordDataset`` for files in any store.

The loader prefetches batches on its own threads, and TensorFlow takes them one at a time. So the loader's
``state_dict()`` is that of the batch in use, also inside ``model.fit``, as long as no ``prefetch`` is put after it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from shoal._optional import require
from shoal.adapt import map_arrays, map_leaves, to_number_array
from shoal.dataset import _format_datasets
from shoal.errors import DecodeError, OptionError
from shoal.load._loader import DataLoader

if TYPE_CHECKING:
    import tensorflow as tf

__all__ = ["TFRecordDataset", "as_arrays", "generator_signature", "output_signature", "to_tf_dataset"]

_DEFAULT_BUFFER_BYTES = 1 << 18
_RECORDS_PER_BATCH = 64
_BATCHING_STAGES = {"Batch", "Bucket", "Pack", "Window"}


def to_tf_dataset(loader: DataLoader, signature: Any = None) -> tf.data.Dataset:
    """The loader's batches as a ``tf.data.Dataset``, for loops and for ``model.fit``.

    Each iteration is the loader's next epoch. ``signature`` says types and shapes where the first batch is not like all
    others; see ``output_signature``. For training have the loader give pairs: ``loader.map(lambda batch: (batch["x"],
    batch["y"]))``.

    Raises:
        DecodeError: A batch holds what TensorFlow has no tensor for.
        MissingExtraError: TensorFlow is not installed.

    Examples:
        >>> loader = DataLoader(
        ...     [{"x": np.full(2, number, np.float32), "y": number} for number in range(3)], batch_size=2
        ... )
        >>> dataset = to_tf_dataset(loader)
        >>> dataset.element_spec["x"]
        TensorSpec(shape=(None, 2), dtype=tf.float32, name=None)
        >>> [batch["y"].numpy().tolist() for batch in dataset]
        [[0, 1], [2]]
    """
    tensorflow = _tensorflow()
    batches = tensorflow.data.Dataset.from_generator(
        generator_signature(loader), output_signature=output_signature(loader) if signature is None else signature
    )
    options = tensorflow.data.Options()
    options.experimental_optimization.inject_prefetch = False  # it would run ahead of the loader's state
    return batches.with_options(options)


def TFRecordDataset(  # noqa: N802 - TensorFlow's name for it, with its arguments
    filenames: str | PathLike[str] | Sequence[str | PathLike[str]],
    compression_type: Literal["", "GZIP", "ZLIB"] | None = None,
    buffer_size: int | None = None,
    num_parallel_reads: int | None = None,
) -> tf.data.Dataset:
    """The records of TFRecord files, one string each, as ``tf.data.TFRecordDataset`` gives them.

    Files are paths, patterns or URLs of any store (``s3://`` for one), and every record's checksums are checked.
    ``buffer_size`` is how many bytes are handed to TensorFlow at a time. ``num_parallel_reads`` threads read ahead;
    unlike TensorFlow's, records stay in the order of the files whatever it is. ``compression_type=None`` goes by a
    file's first bytes.

    Raises:
        ObjectNotFoundError: A file is not there.
        OptionError: A number is not above zero.

    Examples:
        >>> from shoal.formats import write_format
        >>> _ = write_format("memory://doc/tf/a.tfrecord", [{"label": 3}, {"label": 4}])
        >>> records = TFRecordDataset("memory://doc/tf/a.tfrecord")
        >>> [_tensorflow().train.Example.FromString(one.numpy()).features.feature["label"] for one in records][1]
        int64_list {
          value: 4
        }
    """
    tensorflow = _tensorflow()
    for name, value in (("buffer_size", buffer_size), ("num_parallel_reads", num_parallel_reads)):
        if value is not None and value < 1:
            raise OptionError(f"{name} is above zero", expected="1 or more, or None", found=value)
    names = [filenames] if isinstance(filenames, (str, PathLike)) else list(filenames)
    records = _format_datasets.TFRecordDataset(
        [str(name) for name in names], compression_type=compression_type, example=False
    )
    loader = DataLoader(
        records, batch_size=_RECORDS_PER_BATCH, num_workers=num_parallel_reads or 0, rank=0, world_size=1
    )
    spec = tensorflow.TensorSpec([None], tensorflow.string)
    arrays = tensorflow.data.Dataset.from_generator(
        lambda: _group_records(loader.with_options(), buffer_size or _DEFAULT_BUFFER_BYTES), output_signature=spec
    )
    return arrays.unbatch()


def _group_records(batches: DataLoader, buffer_size: int) -> Iterator[Any]:
    """Yield arrays of records, each of at least ``buffer_size`` bytes but for the last."""
    records: list[bytes] = []
    size = 0
    for batch in batches:
        for record in batch["record"]:
            records.append(record)
            size += len(record)
            if size >= buffer_size:
                yield np.array(records, object)
                records, size = [], 0
    if records:
        yield np.array(records, object)


def generator_signature(loader: DataLoader) -> Callable[[], Iterator[Any]]:
    """What ``tf.data.Dataset.from_generator`` calls: a function without arguments that begins an epoch.

    Examples:
        >>> next(generator_signature(DataLoader([1.5, 2.5]))())
        array([1.5, 2.5])
    """
    return lambda: map(functools.partial(as_arrays, is_batch=loader.gives_batches), loader)


def output_signature(loader: DataLoader) -> Any:
    """Types and shapes of the loader's batches, as ``from_generator`` takes them.

    They are those of the first batch of the loader's epoch, which is made for it by a copy; the loader stays where it
    is. The number of samples is left open, and so are all sizes where batches are padded; arrays of different shapes
    become ragged tensors.

    Raises:
        DecodeError: A batch holds what TensorFlow has no tensor for.
        OptionError: There is no batch.

    Examples:
        >>> output_signature(DataLoader([{"x": np.zeros((4, 4), np.uint8), "name": "a"}]))
        {'x': TensorSpec(shape=(None, 4, 4), dtype=tf.uint8, name=None), 'name': TensorSpec(shape=(None,), ...)}
    """
    with loader.with_options(num_workers=0, prefetch=0) as copy:
        first = next(iter(copy), None)
    if first is None:
        raise OptionError("there is no batch to take types and shapes from", hint="give signature=")
    stages = loader._spec.steps  # noqa: SLF001 - the stages decide which sizes may vary
    batched = loader.settings.batch_size is not None or any(
        type(stage).__name__ in _BATCHING_STAGES for stage in stages
    )
    padded = "pad" in (loader.settings.ragged, *(getattr(stage, "ragged", None) for stage in stages))
    return map_leaves(as_arrays(first, is_batch=loader.gives_batches), lambda leaf: _spec_of(leaf, batched, padded))


def _spec_of(leaf: Any, batched: bool, padded: bool) -> Any:
    tensorflow = _tensorflow()
    if isinstance(leaf, tensorflow.RaggedTensor):
        shape = [None, *leaf.shape[1:]]
        return tensorflow.RaggedTensorSpec(shape, leaf.dtype, leaf.ragged_rank, leaf.row_splits.dtype)
    array = np.asarray(leaf)
    kind = tensorflow.string if array.dtype.kind in "OSU" else tensorflow.as_dtype(array.dtype)
    sizes = [None] * array.ndim if padded else list(array.shape)
    return tensorflow.TensorSpec([None, *sizes[1:]] if batched and sizes else sizes, kind)


def as_arrays(batch: Any, *, is_batch: bool = True) -> Any:
    """The batch as TensorFlow takes it: arrays of numbers, arrays of texts, and ragged tensors.

    With ``is_batch=False`` it is a sample; see :func:`shoal.adapt.map_arrays`.

    Raises:
        DecodeError: It holds what TensorFlow has no tensor for.

    Examples:
        >>> as_arrays({"y": [1, 2], "name": ["a", "b"]})
        {'y': array([1, 2]), 'name': array(['a', 'b'], dtype=object)}
    """
    return _to_tensors(map_arrays(batch, lambda array: array, is_batch=is_batch), ())


def _to_tensors(value: Any, path: tuple[str, ...]) -> Any:
    if isinstance(value, dict):
        return {name: _to_tensors(inner, (*path, str(name))) for name, inner in value.items()}
    if isinstance(value, tuple):
        return tuple(_to_tensors(inner, (*path, str(at))) for at, inner in enumerate(value))
    if isinstance(value, list):
        return _to_column(value, path)
    if isinstance(value, (str, bytes, int, float, np.generic)):
        return value
    if isinstance(value, np.ndarray) and value.dtype.kind in "biufcSUO":
        return value.astype(object) if value.dtype.kind in "SU" else value
    raise _no_tensor(value, path)


def _to_column(values: list[Any], path: tuple[str, ...]) -> Any:
    if all(isinstance(value, (str, bytes)) for value in values):
        return np.array(values, object)
    if all(isinstance(value, list) for value in values):  # lists of numbers, which are ragged arrays to TensorFlow
        arrays = [to_number_array(value) for value in values]
        values = values if any(array is None for array in arrays) else arrays
    kinds = {(value.dtype, value.ndim) for value in values if isinstance(value, np.ndarray)}
    if len(kinds) == 1 and all(isinstance(value, np.ndarray) and value.ndim for value in values):
        return _ragged(values)
    raise _no_tensor(next(value for value in values if not isinstance(value, (str, bytes))), path)


def _ragged(arrays: list[npt.NDArray[Any]]) -> Any:
    """One ragged tensor: the first size may differ, and the others where they do."""
    tensorflow = _tensorflow()
    if len({array.shape[1:] for array in arrays}) == 1:
        lengths = [len(array) for array in arrays]
        return tensorflow.RaggedTensor.from_row_lengths(np.concatenate(arrays), lengths)
    return tensorflow.ragged.constant([array.tolist() for array in arrays], dtype=arrays[0].dtype)


def _no_tensor(value: Any, path: tuple[str, ...]) -> DecodeError:
    hint = "leave it out, or make numbers of it, with .map()"
    found, field = type(value).__name__, ".".join(path)
    return DecodeError("TensorFlow has no tensor for this", found=found, field=field or None, hint=hint)


def _tensorflow() -> Any:
    return require("tensorflow", extra="tf")
