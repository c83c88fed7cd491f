"""TensorFlow: a loader as a ``tf.data.Dataset``.

The loader makes batches ahead on threads already, and TensorFlow asks for them one at a time. So the loader's
``state_dict()`` is that of the batch in use, also inside ``model.fit``, as long as no ``prefetch`` is put after it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from shoal.adapt import map_arrays, map_leaves
from shoal.errors import DecodeError, MissingExtraError, OptionError
from shoal.load import DataLoader

if TYPE_CHECKING:
    import tensorflow as tf

__all__ = ["as_arrays", "generator_signature", "output_signature", "to_tf_dataset"]


def to_tf_dataset(loader: DataLoader, signature: Any = None) -> tf.data.Dataset:
    """The loader's batches as a ``tf.data.Dataset``, for loops and for ``model.fit``.

    Each iteration is the loader's next epoch. ``signature`` says types and shapes where the first batch is not like all
    others; see ``output_signature``. For training have the loader give pairs: ``loader.map(lambda batch: (batch["x"],
    batch["y"]))``.

    Raises:
        DecodeError: A batch holds what TensorFlow has no tensor for.
        MissingExtraError: TensorFlow is not installed.

    Example:
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
    made = tensorflow.data.Dataset.from_generator(
        generator_signature(loader), output_signature=output_signature(loader) if signature is None else signature
    )
    options = tensorflow.data.Options()
    options.experimental_optimization.inject_prefetch = False  # it would run ahead of the loader's state
    return made.with_options(options)


def generator_signature(loader: DataLoader) -> Callable[[], Iterator[Any]]:
    """What ``tf.data.Dataset.from_generator`` calls: a function without arguments that begins an epoch.

    Example:
        >>> next(generator_signature(DataLoader([1.5, 2.5]))())
        array([1.5, 2.5], dtype=float32)
    """
    return lambda: map(as_arrays, loader)


def output_signature(loader: DataLoader) -> Any:
    """Types and shapes of the loader's batches, as ``from_generator`` takes them.

    They are those of the first batch of the loader's epoch, which is made for it by a copy; the loader stays where it
    is. The number of samples is left open, and so are all sizes where batches are padded; arrays of different shapes
    become ragged tensors.

    Raises:
        DecodeError: A batch holds what TensorFlow has no tensor for.
        OptionError: There is no batch.

    Example:
        >>> output_signature(DataLoader([{"x": np.zeros((4, 4), np.uint8), "name": "a"}]))
        {'x': TensorSpec(shape=(None, 4, 4), dtype=tf.uint8, name=None), 'name': TensorSpec(shape=(None,), ...)}
    """
    with loader.with_options(num_workers=0, prefetch=0) as copy:
        first = next(iter(copy), None)
    if first is None:
        raise OptionError("there is no batch to take types and shapes from", hint="give signature=")
    batched = loader.settings.batch_size is not None or any(_is_batch(step) for step in _steps(loader))
    padded = "pad" in (loader.settings.ragged, *(getattr(step, "ragged", None) for step in _steps(loader)))
    return map_leaves(as_arrays(first), lambda leaf: _spec_of(leaf, batched, padded))


def _steps(loader: DataLoader) -> tuple[Any, ...]:
    return loader._spec.steps  # noqa: SLF001 - which steps there are is nobody else's question


def _is_batch(step: Any) -> bool:
    return type(step).__name__ in {"Batch", "Bucket", "Pack", "Window"}


def as_arrays(batch: Any) -> Any:
    """The batch as TensorFlow takes it: arrays of numbers, arrays of texts, and ragged tensors.

    Raises:
        DecodeError: It holds what TensorFlow has no tensor for.

    Example:
        >>> as_arrays({"y": [1, 2], "name": ["a", "b"]})
        {'y': array([1, 2]), 'name': array(['a', 'b'], dtype=object)}
    """
    return _ready(map_arrays(batch, lambda array: array), ())


def _ready(value: Any, path: tuple[str, ...]) -> Any:
    if isinstance(value, dict):
        return {name: _ready(inner, (*path, str(name))) for name, inner in value.items()}
    if isinstance(value, tuple):
        return tuple(_ready(inner, (*path, str(at))) for at, inner in enumerate(value))
    if isinstance(value, list):
        return _column(value, path)
    if isinstance(value, (str, bytes, int, float, np.generic)):
        return np.float32(value) if isinstance(value, float) else value
    if isinstance(value, np.ndarray) and value.dtype.kind in "biufcSUO":
        return value.astype(object) if value.dtype.kind in "SU" else value
    raise _no_tensor(value, path)


def _column(values: list[Any], path: tuple[str, ...]) -> Any:
    if all(isinstance(value, (str, bytes)) for value in values):
        return np.array(values, object)
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


def _spec_of(leaf: Any, batched: bool, padded: bool) -> Any:
    tensorflow = _tensorflow()
    if isinstance(leaf, tensorflow.RaggedTensor):
        shape = [None, *leaf.shape[1:]]
        return tensorflow.RaggedTensorSpec(shape, leaf.dtype, leaf.ragged_rank, leaf.row_splits.dtype)
    array = np.asarray(leaf)
    kind = tensorflow.string if array.dtype.kind in "OSU" else tensorflow.as_dtype(array.dtype)
    sizes = [None] * array.ndim if padded else list(array.shape)
    return tensorflow.TensorSpec([None, *sizes[1:]] if batched and sizes else sizes, kind)


def _tensorflow() -> Any:
    try:
        import tensorflow  # noqa: ICN001 - `tf` is this module
    except ImportError as error:
        raise MissingExtraError(
            "the package tensorflow cannot be imported", found=error, hint="pip install 'shoal[tf]'"
        ) from error
    return tensorflow
