"""`LoaderOptions` and `ThreadingOptions`, checked when they are created, and the checks that methods share."""

from __future__ import annotations

import difflib
import operator
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from shoal.errors import OptionError
from shoal.shard._stream import check_error_budget

__all__ = ["Auto", "LoaderOptions", "OnSampleError", "TailOption", "ThreadingOptions", "check_choice", "check_int"]

Auto = Literal["auto"]
TailOption = Literal["pad", "carry", "drop", "uneven"]
OnSampleError = Literal["raise", "skip", "quarantine"]


@dataclass(frozen=True, slots=True)
class LoaderOptions:
    """How a dataset is ordered, cut into batches and read. A given integer is a fixed setting.

    Examples:
        >>> options = LoaderOptions(batch_size=128, shuffle=True, seed=7)
        >>> options.with_options(num_workers=0).num_workers
        0
        >>> LoaderOptions(batch_size=0)
        Traceback (most recent call last):
        ...
        shoal.errors.OptionError: batch_size is out of range: expected a whole number of at least 1 or None, found 0
    """

    batch_size: int | None = 32
    """Number of samples per batch on each rank. None yields single samples. If not given, ``.batch(n)`` sets it."""
    drop_last: bool = False
    """Whether to leave out an epoch's last batch if it is short."""
    shuffle: bool = False
    """Whether samples come in random order, a new one each epoch."""
    seed: int = 0
    """Seed of every order and every ``rng``."""
    num_workers: int | Auto = "auto"
    """Threads that read and decode; 0 does everything in the caller's thread."""
    prefetch: int | Auto = "auto"
    """Number of batches prefetched beyond the one in use."""
    auto_tune: bool = True
    """Whether settings that are ``"auto"`` change while the loader runs."""
    window: int | None = None
    """Minimum number of samples mixed at a time; None uses what ``memory_budget`` allows, which is often all."""
    block_samples: int | None = None
    """Neighbouring samples that are read together when shuffling; None uses about a mebibyte."""
    lanes: int = 192
    """Number of partitions of the data that ranks own; a world size that divides it reads nothing twice."""
    tail: TailOption = "pad"
    """What to do with the last global batch when ranks do not divide the data."""
    rank: int | None = None
    """Rank of this process; None takes it from torch.distributed or the environment (torchrun, SLURM, MPI), else 0."""
    world_size: int | None = None
    """How many processes share the data; None takes it from the environment, else 1."""
    replication: int = 1
    """How many neighbouring ranks get the same data, for tensor and pipeline parallelism."""
    steps_per_epoch: int | None = None
    """Batches per epoch, where the data's own number is unknown or not suitable; the rest goes to the next epoch."""
    memory_budget: int = 1 << 30
    """Bytes that prefetched batches may take. Local shards of up to half of it are kept in memory where one rank reads
    them shuffled."""
    max_in_flight: int | None = None
    """Maximum number of batches in progress at a time; None leaves it to ``prefetch``."""
    on_error: OnSampleError | None = None
    """What to do with a sample that cannot be read, decoded or mapped; None is what the dataset says, else "raise"."""
    error_budget: float | None = None
    """How many samples each rank may skip in an epoch: an int, or a share as a float below 1; None is what the dataset
    says, else a hundredth of the data, at least 1."""
    quarantine: str | None = None
    """The JSON-lines file for ``on_error="quarantine"``; None is the dataset's, else one in shoal's cache folder."""
    ragged: Literal["list", "pad", "error"] = "list"
    """What to do with arrays of different shapes in one batch."""

    def __post_init__(self) -> None:
        for name, (minimum, alternative) in _INTEGERS.items():
            value = getattr(self, name)
            if alternative is None or repr(value) != alternative:
                # Stored as Python's int, not NumPy's: it goes into states, which are JSON.
                object.__setattr__(self, name, check_int(name, value, minimum, alternative))
        for name, choices in _CHOICES.items():
            check_choice(name, getattr(self, name), choices)
        for name in ("drop_last", "shuffle", "auto_tune"):
            if not isinstance(getattr(self, name), bool):
                raise OptionError(f"{name} is yes or no", expected="True or False", found=repr(getattr(self, name)))
        if self.seed >> 64:
            raise OptionError("seed is out of range", expected="a whole number of 64 bits", found=repr(self.seed))
        check_error_budget(self.error_budget)
        if self.quarantine is not None and not isinstance(self.quarantine, str):
            raise OptionError("quarantine is a path or URL", expected="a str", found=repr(self.quarantine))
        if (self.rank is None) != (self.world_size is None):
            raise OptionError("rank and world_size are given together", found=f"{self.rank} of {self.world_size}")
        if self.rank is not None and self.world_size is not None and self.rank >= self.world_size:
            raise OptionError("there is no such rank", expected=f"0 to {self.world_size - 1}", found=self.rank)

    def said(self) -> dict[str, Any]:
        """Return the options that differ from their defaults.

        Examples:
            >>> LoaderOptions(batch_size=8, shuffle=True).said()
            {'batch_size': 8, 'shuffle': True}
        """
        return {
            option.name: value for option in fields(self) if (value := getattr(self, option.name)) != option.default
        }

    def with_options(self, **changes: Any) -> LoaderOptions:
        """Return a copy with some options changed. Raises OptionError for an unknown one."""
        known = self.__dataclass_fields__
        for name in changes:
            if name not in known:
                suggestions = difflib.get_close_matches(name, known, n=1)
                raise OptionError("no such option", expected=" or ".join(suggestions or known), found=name)
        return replace(self, **changes)


@dataclass(frozen=True, slots=True)
class ThreadingOptions:
    """How many threads a pipeline may use, with the names of ``tf.data``.

    ``private_threadpool_size`` is the number of worker threads; ``max_inter_op_parallelism`` limits how many of them
    work at a time; ``max_intra_op_parallelism`` limits the threads that one decoder may start itself.

    Examples:
        >>> ThreadingOptions(private_threadpool_size=4).workers("auto")
        4
        >>> ThreadingOptions(private_threadpool_size=8, max_inter_op_parallelism=2).workers("auto")
        2
    """

    max_intra_op_parallelism: int | None = None
    max_inter_op_parallelism: int | None = None
    private_threadpool_size: int | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value is not None:
                minimum = 0 if "pool" in field.name else 1
                object.__setattr__(self, field.name, check_int(field.name, value, minimum, "None"))

    def workers(self, num_workers: int | Auto) -> int | Auto:
        """The number of worker threads within these limits."""
        size = num_workers if self.private_threadpool_size is None else self.private_threadpool_size
        limit = self.max_inter_op_parallelism
        return size if limit is None or size == "auto" else min(size, limit)


_INTEGERS: dict[str, tuple[int, str | None]] = {
    "batch_size": (1, "None"),
    "seed": (0, None),
    "window": (1, "None"),
    "block_samples": (1, "None"),
    "lanes": (1, None),
    "rank": (0, "None"),
    "world_size": (1, "None"),
    "replication": (1, None),
    "steps_per_epoch": (1, "None"),
    "memory_budget": (1, None),
    "max_in_flight": (1, "None"),
    "num_workers": (0, "'auto'"),
    "prefetch": (0, "'auto'"),
}
"""The least value of each option that is a whole number, and what it may be instead, as messages show it."""
_CHOICES: dict[str, Sequence[str | None]] = {
    "tail": ("pad", "carry", "drop", "uneven"),
    "on_error": (None, "raise", "skip", "quarantine"),
    "ragged": ("list", "pad", "error"),
}


def check_int(name: str, value: Any, minimum: int = 1, alternative: str | None = None) -> int:
    """Return the value as Python's int. Raises OptionError for anything else and for a smaller one.

    ``alternative`` is what the message offers besides; the caller has accepted it already.

    Examples:
        >>> import numpy as np
        >>> check_int("batch_size", np.int64(3))
        3
    """
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None or number < minimum:
        expected = f"a whole number of at least {minimum}{'' if alternative is None else f' or {alternative}'}"
        raise OptionError(f"{name} is out of range", expected=expected, found=repr(value))
    return number


def check_choice(name: str, value: Any, choices: Sequence[Any]) -> None:
    """Raise OptionError unless the value is one of ``choices``."""
    for choice in choices:
        if value is choice or (isinstance(value, str) and value == choice):
            return
    raise OptionError(f"{name} is not one of its values", expected=" or ".join(map(repr, choices)), found=repr(value))
