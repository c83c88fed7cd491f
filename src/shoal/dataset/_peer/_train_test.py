"""Which samples train and which test: sizes as Hugging Face datasets and scikit-learn count them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shoal.errors import OptionError

__all__ = ["split_sizes", "stratified"]

Int64 = npt.NDArray[np.int64]


def split_sizes(count: int, test_size: float | None, train_size: float | None) -> tuple[int, int]:
    """How many samples train and test have: fractions, whole numbers, or the rest. Raises OptionError.

    Example:
        >>> split_sizes(10, 0.25, None), split_sizes(10, None, 6), split_sizes(10, 2, 0.5)
        ((7, 3), (6, 4), (5, 2))
    """
    if test_size is None and train_size is None:
        test_size = 0.25
    for name, size in (("test_size", test_size), ("train_size", train_size)):
        _check_size(name, size, count)
    test, train = _places(test_size, count, math.ceil), _places(train_size, count, math.floor)
    train = count - (test or 0) if train is None else train
    test = count - train if test is None else test
    both = isinstance(test_size, float) and isinstance(train_size, float)
    if train + test > count or (both and (test_size or 0) + (train_size or 0) > 1):
        raise OptionError("both parts are more than there is", expected=f"at most {count}", found=f"{train} + {test}")
    if train == 0:
        raise OptionError("nothing is left to train on", expected="at least one of them", found=f"{count} samples")
    return train, test


def _places(size: Any, count: int, rounded: Callable[[float], int]) -> int | None:
    return rounded(size * count) if isinstance(size, float) else size


def _check_size(name: str, size: Any, count: int) -> None:
    if size is None:
        return
    if not isinstance(size, (int, float)):
        raise OptionError(f"{name} is a number", expected="a whole number or a fraction", found=repr(size))
    if not 0 < size < (1 if isinstance(size, float) else count):
        expected = f"a fraction above 0 and below 1, or 1 to {count - 1}"
        raise OptionError(f"{name} is out of range", expected=expected, found=size)


def stratified(values: Any, train: int, test: int, rng: np.random.Generator) -> tuple[Int64, Int64]:
    """Positions that train and test, each value with its share in both, in a random order.

    Raises:
        OptionError: A value occurs once, or there are more values than places in a part.
    """
    encoded = pa.chunked_array([values]).combine_chunks() if isinstance(values, pa.Array) else values.combine_chunks()
    codes: Int64 = encoded.dictionary_encode(null_encoding="encode").indices.to_numpy(zero_copy_only=False)
    counts = np.bincount(codes.astype(np.int64))
    if counts.min() < 2:
        raise OptionError("a value occurs once, and cannot be in both parts", expected="each value twice or more")
    if min(train, test) < len(counts):
        expected = f"at least {len(counts)}, one a value"
        raise OptionError("a part has too few places", expected=expected, found=min(train, test))
    in_train = _shares(counts, train, rng)
    in_test = _shares(counts - in_train, test, rng)
    parts: tuple[list[Int64], list[Int64]] = ([], [])
    for code, (first, second) in enumerate(zip(in_train.tolist(), in_test.tolist(), strict=True)):
        members = rng.permutation(np.flatnonzero(codes == code))
        parts[0].append(members[:first])
        parts[1].append(members[first : first + second])
    return rng.permutation(np.concatenate(parts[0])), rng.permutation(np.concatenate(parts[1]))


def _shares(counts: Int64, total: int, rng: np.random.Generator) -> Int64:
    """``total`` in proportion to the counts: rounded down, and the largest remainders up, ties by chance."""
    exact = counts * (total / counts.sum())
    shares: Int64 = np.floor(exact).astype(np.int64)
    left = total - int(shares.sum())
    order = np.lexsort((rng.random(len(counts)), shares - exact))
    able = [at for at in order.tolist() if shares[at] < counts[at]]
    shares[able[:left]] += 1
    return shares
