"""Splits: assignment by hash or by size, the grammar of ``split=``, and `DatasetDict`."""

from __future__ import annotations

import math
import pickle
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeAlias, TypeVar, Union

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute

from shoal._typing import IntArray, UInt64Array
from shoal.errors import FieldError, OptionError
from shoal.shard._split_names import find_split

from ._base import DatasetBase
from ._query import Expression, Field

if TYPE_CHECKING:
    from ._dataset import Dataset

__all__ = [
    "By",
    "DatasetDict",
    "Keys",
    "ReapplySplit",
    "SplitPart",
    "assign_splits",
    "check_weights",
    "group_keys",
    "hash_strings",
    "is_one_of",
    "is_picklable",
    "key_array",
    "parse_split",
    "split_range",
    "split_sizes",
    "stratified_split",
    "to_strings",
]

By: TypeAlias = str | Field | Expression | Callable[[str], object]
"""What decides: ``"key"``, a metadata column, or a function of the key."""
Keys: TypeAlias = Union[Iterable[str], "Dataset[Any]", pa.Array, pa.ChunkedArray]
T = TypeVar("T")
V = TypeVar("V")
_WEIGHT_BITS = 53  # as many as a double holds exactly, so that a weight is what it says
_TOLERANCE = 1e-9
_FNV_BASIS, _FNV_PRIME = 0xCBF29CE484222325, 0x100000001B3
_MASK_64 = (1 << 64) - 1
pc: Any = pyarrow.compute  # its functions are created at import, so type checkers do not see them
_BOUND = r"-?[0-9]+(?:_[0-9]+)*%?"
_SPLIT_PART = re.compile(
    r"(?P<split>[^\[\]()+]*[^\[\]()+\s])"
    rf"(?P<slice>\[(?P<start>{_BOUND})?:(?P<stop>{_BOUND})?\](?:\((?P<rounding>closest|pct1_dropremainder)\))?)?"
)


def check_weights(weights: Mapping[str, Any] | None, named: Mapping[str, Any]) -> dict[str, float]:
    """The weight of each split. Raises OptionError unless they are shares of one whole."""
    if weights is not None and not isinstance(weights, Mapping):
        raise OptionError("splits have names", expected="such as split(train=0.9, val=0.1)", found=repr(weights))
    found: dict[Any, Any] = {**(weights or {}), **named}
    if not found:
        raise OptionError("a split needs weights", expected="such as split(train=0.9, val=0.1)")
    for name, weight in found.items():
        is_number = isinstance(weight, (int, float, np.integer, np.floating)) and not isinstance(weight, bool)
        if not isinstance(name, str) or not is_number or not 0 <= weight <= 1:
            raise OptionError("a weight is a share", expected="a number from 0 to 1", found=f"{name}={weight!r}")
    total = math.fsum(found.values())
    if abs(total - 1) > _TOLERANCE:
        shown = ", ".join(f"{name}={weight}" for name, weight in found.items())
        raise OptionError("the weights are not one whole", expected="a sum of 1", found=f"{total:.12g} ({shown})")
    return {name: float(weight) for name, weight in found.items()}


def assign_splits(texts: pa.ChunkedArray, weights: Mapping[str, float], seed: int) -> npt.NDArray[np.int64]:
    """The number of the split that each text falls into."""
    places = hash_strings(texts, seed) >> np.uint64(64 - _WEIGHT_BITS)
    ends = [round(end * (1 << _WEIGHT_BITS)) for end in np.cumsum(list(weights.values())).tolist()]
    # Rounding must leave no gap at the end, and nothing for a split of weight 0 there.
    last = max(number for number, weight in enumerate(weights.values()) if weight > 0)
    ends[last:] = [1 << _WEIGHT_BITS] * (len(ends) - last)
    return np.searchsorted(np.array(ends, np.uint64), places, "right")


def group_keys(keys: pa.ChunkedArray, function: Callable[[str], object]) -> pa.ChunkedArray:
    """What a function makes of each key, as text. Raises OptionError where it makes nothing."""
    found: list[str] = []
    for key in keys.to_pylist():
        group = function(key)
        if group is None:
            raise OptionError("`by` gave no group for a key", expected="a text or a number", found=f"None for {key!r}")
        found.append(str(group))
    return pa.chunked_array([pa.array(found, pa.large_string())])


@dataclass(frozen=True, slots=True)
class ReapplySplit:
    """Takes the same split of a dataset that has grown."""

    weights: Mapping[str, float]
    by: By
    seed: int
    name: str

    def __call__(self, dataset: Any) -> Any:
        """The split of this name."""
        return dataset.split(self.weights, by=self.by, seed=self.seed)[self.name]


def is_picklable(by: By) -> bool:
    """Whether what decides can go with a view to another process."""
    try:
        pickle.dumps(by)
    except Exception:  # noqa: BLE001 - a lambda raises one thing, a closure another
        return False
    return True


# FNV-1a of the UTF-8 bytes, 64 bits, then the finalizer of splitmix64, because the high bits of FNV alone are uneven.
# Splits of existing datasets depend on it, so a golden test pins it.
def hash_strings(texts: pa.Array | pa.ChunkedArray, seed: int = 0) -> UInt64Array:
    """64 bits a text, evenly spread; another seed gives other ones.

    Examples:
        >>> hash_strings(pa.array(["a", "b"])) // 10**16
        array([ 19, 448], dtype=uint64)
    """
    chunks = texts.chunks if isinstance(texts, pa.ChunkedArray) else [texts]
    start = np.uint64(_FNV_BASIS ^ _mix_int(seed & _MASK_64))
    return np.concatenate([np.empty(0, np.uint64), *(_hash_chunk(chunk, start) for chunk in chunks)])


def _hash_chunk(chunk: pa.Array, start: np.uint64) -> UInt64Array:
    chunk = chunk.cast(pa.large_string())
    _, ends, data = chunk.buffers()
    bounds = np.frombuffer(ends, np.int64)[chunk.offset : chunk.offset + len(chunk) + 1]
    letters = np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)
    found = np.full(len(chunk), start, np.uint64)
    sizes = np.diff(bounds)
    order = np.argsort(-sizes, kind="stable")  # long texts first: those still unfinished are a shrinking head
    begins, hashes = bounds[:-1][order], found[order]
    alive = np.searchsorted(-sizes[order], -np.arange(int(sizes.max(initial=0))), "left")
    for at, count in enumerate(alive.tolist()):
        head = hashes[:count]
        np.bitwise_xor(head, letters[begins[:count] + at], out=head)
        np.multiply(head, np.uint64(_FNV_PRIME), out=head)
    found[order] = hashes
    return _mix(found)


def _mix(words: UInt64Array) -> UInt64Array:
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def _mix_int(word: int) -> int:
    """One word, so that seeds 1 and 2 begin far apart; 0 stays 0."""
    return int(_mix(np.array([word], np.uint64))[0])


def to_strings(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """A column as text. A whole number has one text, whether a shard holds it as an integer or as a double."""
    if not pa.types.is_floating(values.type):
        return values.cast(pa.large_string())
    return pa.chunked_array([pa.array(_number_strings(chunk), pa.large_string()) for chunk in values.chunks])


def _number_strings(chunk: Any) -> list[str | None]:
    numbers: list[float | None] = chunk.to_pylist()
    return [None if each is None else str(int(each)) if each == each // 1 else repr(each) for each in numbers]


def key_array(keys: Any) -> pa.Array:
    """The keys as one Arrow array of text. Raises OptionError for what are no keys."""
    if isinstance(keys, DatasetBase):
        keys._refuse_filtered("keys")  # noqa: SLF001 - of the base of this package's datasets
        return _to_large_string(keys.key_column())
    if isinstance(keys, (pa.Array, pa.ChunkedArray)):
        column: Any = keys
        if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
            return _to_large_string(column)
        raise OptionError("keys are text", expected="str", found=str(column.type))
    if isinstance(keys, (str, bytes)) or not isinstance(keys, Iterable):
        raise OptionError("keys are a list", expected="a list, set or array of keys, or a dataset", found=repr(keys))
    names = list(keys)
    wrong = next((name for name in names if not isinstance(name, str)), None)
    if wrong is not None or None in names:
        raise OptionError("keys are text", expected="str", found=f"{type(wrong).__name__} {wrong!r}")
    return pa.array([str(name) for name in names], pa.large_string())  # NumPy's own text is no str to Arrow


def _to_large_string(keys: pa.Array | pa.ChunkedArray) -> pa.Array:
    """As large strings: all keys of a large dataset may be over the 2 GiB that one array of strings holds."""
    found = keys.cast(pa.large_string())
    return found.combine_chunks() if isinstance(found, pa.ChunkedArray) else found


def is_one_of(column: pa.ChunkedArray, keys: pa.Array) -> Any:
    """Which rows of a column of keys are among these, as a NumPy mask."""
    return pc.is_in(column.cast(keys.type), value_set=keys).to_numpy()


def split_sizes(count: int, test_size: float | None, train_size: float | None) -> tuple[int, int]:
    """How many samples train and test have: fractions, whole numbers, or the rest. Raises OptionError.

    Examples:
        >>> split_sizes(10, 0.25, None), split_sizes(10, None, 6), split_sizes(10, 2, 0.5)
        ((7, 3), (6, 4), (5, 2))
    """
    if test_size is None and train_size is None:
        test_size = 0.25
    for name, size in (("test_size", test_size), ("train_size", train_size)):
        _check_size(name, size, count)
    test, train = _sample_count(test_size, count, math.ceil), _sample_count(train_size, count, math.floor)
    train = count - (test or 0) if train is None else train
    test = count - train if test is None else test
    both = isinstance(test_size, float) and isinstance(train_size, float)
    if train + test > count or (both and (test_size or 0) + (train_size or 0) > 1):
        raise OptionError("both parts are more than there is", expected=f"at most {count}", found=f"{train} + {test}")
    if train == 0:
        raise OptionError("nothing is left to train on", expected="at least one of them", found=f"{count} samples")
    return train, test


def _sample_count(size: Any, count: int, rounded: Callable[[float], int]) -> int | None:
    return rounded(size * count) if isinstance(size, float) else size


def _check_size(name: str, size: Any, count: int) -> None:
    if size is None:
        return
    if not isinstance(size, (int, float)):
        raise OptionError(f"{name} is a number", expected="a whole number or a fraction", found=repr(size))
    if not 0 < size < (1 if isinstance(size, float) else count):
        expected = f"a fraction above 0 and below 1, or 1 to {count - 1}"
        raise OptionError(f"{name} is out of range", expected=expected, found=size)


def stratified_split(values: Any, train: int, test: int, rng: np.random.Generator) -> tuple[IntArray, IntArray]:
    """Positions that train and test, each value with its share in both, in a random order.

    Raises:
        OptionError: A value occurs once, or there are more values than places in a part.
    """
    encoded = pa.chunked_array([values]).combine_chunks() if isinstance(values, pa.Array) else values.combine_chunks()
    codes: IntArray = encoded.dictionary_encode(null_encoding="encode").indices.to_numpy(zero_copy_only=False)
    counts = np.bincount(codes.astype(np.int64))
    if counts.min() < 2:
        raise OptionError("a value occurs once, and cannot be in both parts", expected="each value twice or more")
    if min(train, test) < len(counts):
        expected = f"at least {len(counts)}, one a value"
        raise OptionError("a part has too few places", expected=expected, found=min(train, test))
    in_train = _shares(counts, train, rng)
    in_test = _shares(counts - in_train, test, rng)
    parts: tuple[list[IntArray], list[IntArray]] = ([], [])
    for code, (first, second) in enumerate(zip(in_train.tolist(), in_test.tolist(), strict=True)):
        members = rng.permutation(np.flatnonzero(codes == code))
        parts[0].append(members[:first])
        parts[1].append(members[first : first + second])
    return rng.permutation(np.concatenate(parts[0])), rng.permutation(np.concatenate(parts[1]))


def _shares(counts: IntArray, total: int, rng: np.random.Generator) -> IntArray:
    """``total`` in proportion to the counts: rounded down, and the largest remainders up, ties by chance."""
    exact = counts * (total / counts.sum())
    shares: IntArray = np.floor(exact).astype(np.int64)
    left = total - int(shares.sum())
    order = np.lexsort((rng.random(len(counts)), shares - exact))
    able = [at for at in order.tolist() if shares[at] < counts[at]]
    shares[able[:left]] += 1
    return shares


@dataclass(frozen=True, slots=True)
class SplitPart:
    """One split, or a slice of it."""

    split: str
    start: int | None = None
    stop: int | None = None
    percent: bool = False
    drop_remainder: bool = False
    """Whether a percent is the same number of samples everywhere, so that what is left at the end is in none."""

    @property
    def whole(self) -> bool:
        """Whether it is all of the split."""
        return self.start is None and self.stop is None


def parse_split(spec: str, present: Iterable[str]) -> tuple[SplitPart, ...]:
    """The parts that ``spec`` names of the splits there are. Raises FieldError, or OptionError when it makes no sense.

    Examples:
        >>> parse_split("train[:10%]", ["train", "test"])
        (SplitPart(split='train', start=None, stop=10, percent=True, drop_remainder=False),)
    """
    names = list(present)
    if spec in names:  # whatever is in it
        return (SplitPart(spec),)
    if spec == "all" and names:
        return tuple(SplitPart(name) for name in names)
    return tuple(_parse_part(text.strip(), spec, names) for text in spec.split("+"))


def _parse_part(text: str, spec: str, names: list[str]) -> SplitPart:
    found = _SPLIT_PART.fullmatch(text)
    if found is None:
        raise OptionError(
            "a split cannot be read", expected="'train', 'train[:10%]', 'train[5:20]' or 'train+test'", found=repr(spec)
        )
    split = find_split(found["split"], names)
    bounds = [bound for bound in (found["start"], found["stop"]) if bound is not None]
    percents = [bound for bound in bounds if bound.endswith("%")]
    if len(percents) not in (0, len(bounds)):
        raise OptionError("a slice mixes percents and samples", expected="both with % or none", found=repr(spec))
    start, stop = (None if found[side] is None else int(found[side].rstrip("%")) for side in ("start", "stop"))
    if percents and any(abs(bound) > 100 for bound in (start, stop) if bound is not None):
        raise OptionError("a percent is outside the split", expected="-100% to 100%", found=repr(spec))
    if found["rounding"] is not None and not percents:
        raise OptionError("only percents are rounded", expected="% in the slice", found=repr(spec))
    return SplitPart(split, start, stop, bool(percents), found["rounding"] == "pct1_dropremainder")


def split_range(part: SplitPart, length: int) -> range:
    """The positions in a split of this length that a part names; bounds outside it are cut off, as in a list's slice.

    Examples:
        >>> split_range(SplitPart("train", None, 10, percent=True), 25), split_range(SplitPart("train", -3), 25)
        (range(0, 2), range(22, 25))
    """
    start = 0 if part.start is None else _bound(part.start, part, length)
    stop = length if part.stop is None else _bound(part.stop, part, length)
    return range(start, max(start, stop))


def _bound(bound: int, part: SplitPart, length: int) -> int:
    if part.percent and part.drop_remainder and length < 100:
        raise OptionError(
            "a split too short for pct1_dropremainder",
            expected="100 samples or more",
            found=length,
            hint="leave it out",
        )
    if part.percent:
        bound = length // 100 * bound if part.drop_remainder else round(bound * length / 100)
    return min(bound if bound >= 0 else max(length + bound, 0), length)


class DatasetDict(dict[str, "Dataset[T]"], Generic[T]):
    """Datasets by the name of their split; a dict, in the order of the data.

    Where there is one split only, its dataset's verbs work here too: ``ordered``, ``shuffled``, ``as_type``, ``head``,
    ``select`` and ``where``. With several they raise OptionError; ``each`` applies any verb to all of them.

    Examples:
        >>> import shoal
        >>> for name in ("train", "val"):
        ...     with shoal.ShardWriter(f"memory://doc/dict/{name}-%06d.tar") as writer:
        ...         for number in range(4):
        ...             writer.write({"__key__": f"{name}{number}", "json": {"width": number}})
        >>> splits = shoal.load_dataset("memory://doc/dict")
        >>> splits.num_samples
        {'train': 4, 'validation': 4}
        >>> splits.each(lambda ds: ds.where("width >= 1")).num_samples
        {'train': 3, 'validation': 3}
        >>> splits["test"]
        Traceback (most recent call last):
        ...
        shoal.errors.FieldError: no such split: expected train or validation, found test
    """

    def __init__(self, splits: Mapping[str, Dataset[T]] | None = None, *, sample_type: type[T] | None = None) -> None:
        super().__init__(splits or {})
        self._sample_type = sample_type

    @property
    def sample_type(self) -> type[T] | None:
        """The type of the samples, if one was asked for; each dataset's own ``sample_type`` says what its data says."""
        return self._sample_type

    @property
    def num_samples(self) -> dict[str, int]:
        """How many samples each split has."""
        return {split: len(dataset) for split, dataset in self.items()}

    @property
    def num_shards(self) -> dict[str, int]:
        """How many shards each split has."""
        return {split: len(dataset.shards) for split, dataset in self.items()}

    def __missing__(self, split: str) -> NoReturn:
        raise FieldError("no such split", expected=" or ".join(self) or "none: it is empty", found=split)

    def __repr__(self) -> str:
        """One line a split; nothing is opened or counted for it."""
        width = max(map(len, self), default=0)
        kind = "" if self._sample_type is None else f"[{self._sample_type.__name__}]"
        lines = "".join(f"\n  {split:<{width}}  {dataset!r}" for split, dataset in self.items())
        return f"DatasetDict{kind}{lines or ' without splits'}"

    def each(self, verb: Callable[[Dataset[T]], Dataset[V]]) -> DatasetDict[V]:
        """A verb of Dataset applied to every split: ``splits.each(lambda ds: ds.where("width > 10"))``."""
        changed = {split: verb(dataset) for split, dataset in self.items()}
        return DatasetDict(changed)

    @property
    def only(self) -> Dataset[T]:
        """The dataset of the one split there is. Raises OptionError when there are several, or none."""
        if len(self) != 1:
            raise OptionError(
                "this needs one split",
                expected="one",
                found=", ".join(self) or "none",
                hint="choose one: splits['train']" if self else None,
            )
        return next(iter(self.values()))

    def ordered(self, batch_size: int | None = None, **options: Any) -> Iterator[Any]:
        """``Dataset.ordered`` of the only split."""
        return self.only.ordered(batch_size, **options)

    def shuffled(self, batch_size: int | None = None, **options: Any) -> Iterator[Any]:
        """``Dataset.shuffled`` of the only split."""
        return self.only.shuffled(batch_size, **options)

    def as_type(self, kind: type[V]) -> Dataset[V]:
        """``Dataset.as_type`` of the only split."""
        return self.only.as_type(kind)

    def head(self, count: int = 5) -> list[T]:
        """``Dataset.head`` of the only split."""
        return self.only.head(count)

    def select(self, indices: Sequence[int] | npt.NDArray[Any]) -> Dataset[T]:
        """``Dataset.select`` of the only split."""
        return self.only.select(indices)

    def where(self, expression: str | Expression | Field) -> Dataset[T]:
        """``Dataset.where`` of the only split."""
        return self.only.where(expression)
