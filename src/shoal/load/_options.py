"""What may be said about loading, as frozen values, checked when they are made."""

from __future__ import annotations

import difflib
import operator
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from shoal.errors import OptionError

__all__ = ["Auto", "LoaderOptions", "OnSampleError", "TailOption", "ThreadingOptions", "whole_number"]

Auto = Literal["auto"]
TailOption = Literal["pad", "carry", "drop", "uneven"]
OnSampleError = Literal["raise", "skip"]


@dataclass(frozen=True, slots=True)
class LoaderOptions:
    """How a dataset is ordered, cut into batches and read. A given integer is a fixed setting.

    Example:
        >>> options = LoaderOptions(batch_size=128, shuffle=True, seed=7)
        >>> options.with_options(num_workers=0).num_workers
        0
        >>> LoaderOptions(batch_size=0)
        Traceback (most recent call last):
        ...
        shoal.errors.OptionError: batch_size is out of range: expected a whole number of at least 1 or None, found 0
    """

    batch_size: int | None = 32
    """Samples a batch on each rank; None for samples, not batches. Where nobody says it, ``.batch(n)`` may."""
    drop_last: bool = False
    """Whether an epoch's last batch is left out when it is short."""
    shuffle: bool = False
    """Whether samples come in a random order, a new one each epoch."""
    seed: int = 0
    """Fixes every order and every ``rng``."""
    num_workers: int | Auto = "auto"
    """Threads that read and decode; 0 does it all in the caller's thread."""
    prefetch: int | Auto = "auto"
    """Batches that are made ready ahead of the one in use."""
    auto_tune: bool = True
    """Whether settings that are ``"auto"`` change while the loader runs."""
    window: int | None = None
    """Samples that are mixed at a time, at least; None takes what ``memory_budget`` allows, which is often all."""
    block_samples: int | None = None
    """Neighbouring samples that are read together when shuffling; None takes about a mebibyte."""
    lanes: int = 192
    """Shares of the data that ranks own; a world size that divides it reads nothing twice."""
    tail: TailOption = "pad"
    """What becomes of the last global batch when ranks do not divide the data."""
    rank: int | None = None
    """Which of the processes this is; None asks the environment (torchrun, SLURM, MPI), else 0."""
    world_size: int | None = None
    """How many processes share the data; None asks the environment, else 1."""
    replication: int = 1
    """How many neighbouring ranks see the same data: tensor- and pipeline-parallel ones."""
    steps_per_epoch: int | None = None
    """Batches an epoch, where the data's own number is unknown or unwanted; the rest is the next epoch's."""
    memory_budget: int = 1 << 30
    """Bytes that batches made ahead may take. Local shards of up to half of it are kept in memory where one rank reads
    them shuffled."""
    max_in_flight: int | None = None
    """Batches worked on at a time, at most; None leaves it to prefetch."""
    on_error: OnSampleError = "raise"
    """What to do about a sample that cannot be read, decoded or mapped."""
    error_budget: int | None = None
    """How many samples may be skipped before it is an error after all; None is a hundredth of the data, at least 1."""
    ragged: Literal["list", "pad", "error"] = "list"
    """What becomes of arrays of different shapes in one batch."""

    def __post_init__(self) -> None:
        for name, least in _LEAST.items():
            self._check(name, least, optional=name in _OPTIONAL)
        for name in ("num_workers", "prefetch"):
            if getattr(self, name) != "auto":
                self._check(name, 0, also="'auto'")
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                expected = " or ".join(map(repr, choices))
                raise OptionError(
                    f"{name} is not one of its values", expected=expected, found=repr(getattr(self, name))
                )
        for name in ("drop_last", "shuffle", "auto_tune"):
            if not isinstance(getattr(self, name), bool):
                raise OptionError(f"{name} is yes or no", expected="True or False", found=repr(getattr(self, name)))
        if self.seed >> 64:
            raise OptionError("seed is out of range", expected="a whole number of 64 bits", found=repr(self.seed))
        self._check_ranks()

    def _check(self, name: str, least: int, **allowed: Any) -> None:
        """A number of NumPy's becomes Python's: it goes into states, which are JSON."""
        number = _checked_number(name, getattr(self, name), least, **allowed)
        object.__setattr__(self, name, number)

    def _check_ranks(self) -> None:
        if (self.rank is None) != (self.world_size is None):
            raise OptionError("rank and world_size are given together", found=f"{self.rank} of {self.world_size}")
        if self.rank is not None and self.world_size is not None and self.rank >= self.world_size:
            raise OptionError("there is no such rank", expected=f"0 to {self.world_size - 1}", found=self.rank)

    def said(self) -> dict[str, Any]:
        """The settings that are not what they are by default.

        Example:
            >>> LoaderOptions(batch_size=8, shuffle=True).said()
            {'batch_size': 8, 'shuffle': True}
        """
        return {each.name: value for each in fields(self) if (value := getattr(self, each.name)) != each.default}

    def with_options(self, **changes: Any) -> LoaderOptions:
        """The same with some settings changed. Raises OptionError for one that there is not."""
        known = [field.name for field in fields(self)]
        for name in changes:
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1)
                raise OptionError("no such option", expected=" or ".join(near or known), found=name)
        return replace(self, **changes)


@dataclass(frozen=True, slots=True)
class ThreadingOptions:
    """How many threads a pipeline may use, under the names that ``tf.data`` gives them.

    ``private_threadpool_size`` is the number of worker threads; ``max_inter_op_parallelism`` bounds how many of them
    work at a time; ``max_intra_op_parallelism`` bounds the threads that one decoder may start of its own.

    Example:
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
            least = 0 if "pool" in field.name else 1
            number = _checked_number(field.name, getattr(self, field.name), least, optional=True)
            object.__setattr__(self, field.name, number)

    def workers(self, asked: int | Auto) -> int | Auto:
        """The number of worker threads under these bounds."""
        size = asked if self.private_threadpool_size is None else self.private_threadpool_size
        most = self.max_inter_op_parallelism
        return size if most is None or size == "auto" else min(size, most)


_LEAST = {
    "batch_size": 1, "seed": 0, "window": 1, "block_samples": 1, "lanes": 1, "rank": 0, "world_size": 1,
    "replication": 1, "steps_per_epoch": 1, "memory_budget": 1, "max_in_flight": 1, "error_budget": 0,
}  # fmt: skip
_OPTIONAL = {
    "batch_size", "window", "block_samples", "rank", "world_size", "steps_per_epoch", "max_in_flight", "error_budget",
}  # fmt: skip
_CHOICES: dict[str, Sequence[str]] = {
    "tail": ("pad", "carry", "drop", "uneven"),
    "on_error": ("raise", "skip"),
    "ragged": ("list", "pad", "error"),
}


def _checked_number(
    name: str, value: Any, least: int, *, optional: bool = False, also: str | None = None
) -> int | None:
    if value is None and optional:
        return None
    number = whole_number(value)
    if number is None or number < least:
        other = " or None" if optional else f" or {also}" if also else ""
        expected = f"a whole number of at least {least}{other}"
        raise OptionError(f"{name} is out of range", expected=expected, found=repr(value))
    return number


def whole_number(value: Any) -> int | None:
    """The number as an int, NumPy's too; None for what is none, such as True and 1.0.

    Example:
        >>> import numpy as np
        >>> whole_number(np.int64(3)), whole_number(True), whole_number(1.0)
        (3, None, None)
    """
    try:
        return None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        return None
