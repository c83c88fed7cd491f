"""Keys as a user may give them: a list, a set, an array, or another dataset."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypeAlias, Union

import pyarrow as pa
import pyarrow.compute

from shoal.dataset._core import Core
from shoal.errors import OptionError

if TYPE_CHECKING:
    from shoal.dataset._dataset import Dataset

__all__ = ["Keys", "is_one_of", "key_array"]

pc: Any = pyarrow.compute  # its functions are made as it is imported, out of a checker's sight

Keys: TypeAlias = Union[Iterable[str], "Dataset[Any]", pa.Array, pa.ChunkedArray]
_EXPECTED = "a list, set or array of keys, or a dataset"


def key_array(keys: Any) -> pa.Array:
    """The keys as one Arrow array of text. Raises OptionError for what are no keys."""
    if isinstance(keys, Core):
        return _one_chunk(keys.key_column())
    if isinstance(keys, (pa.Array, pa.ChunkedArray)):
        column: Any = keys
        if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
            return _one_chunk(column)
        raise OptionError("keys are text", expected="str", found=str(column.type))
    if isinstance(keys, (str, bytes)) or not isinstance(keys, Iterable):
        raise OptionError("keys are a list", expected=_EXPECTED, found=repr(keys))
    names = list(keys)
    wrong = next((name for name in names if not isinstance(name, str)), None)
    if wrong is not None or None in names:
        raise OptionError("keys are text", expected="str", found=f"{type(wrong).__name__} {wrong!r}")
    return pa.array([str(name) for name in names], pa.large_string())  # NumPy's own text is no str to Arrow


def _one_chunk(keys: pa.Array | pa.ChunkedArray) -> pa.Array:
    """As large strings: all keys of a large dataset may be over the 2 GiB that one array of strings holds."""
    found = keys.cast(pa.large_string())
    return found.combine_chunks() if isinstance(found, pa.ChunkedArray) else found


def is_one_of(column: pa.ChunkedArray, keys: pa.Array) -> Any:
    """Which rows of a column of keys are among these, as a NumPy mask."""
    return pc.is_in(column.cast(keys.type), value_set=keys).to_numpy()
