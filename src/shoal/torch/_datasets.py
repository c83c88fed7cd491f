"""`TorchMapDataset` and `TorchIterableDataset`, for PyTorch's own DataLoader."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
import torch.utils.data

from shoal import load
from shoal.adapt import every_nth
from shoal.errors import LoaderStateError, OptionError
from shoal.load._sources import StreamSource, describe_source

from ._loader import as_tensors, distributed_ranks

__all__ = ["TorchIterableDataset", "TorchMapDataset"]

_MAX_ITERATIONS, _TAG_BITS, _NUMBER_BITS = 8, 20, 23


class TorchMapDataset(torch.utils.data.Dataset[Any]):
    """A map-style dataset with tensors, for ``torch.utils.data.DataLoader`` and PyTorch's samplers.

    ``dataset`` is a :class:`shoal.Dataset`, or anything with a length and indices. Samples with fields become dicts.
    The samples of a batch are read together.

    Raises:
        OptionError: The dataset has no length: use ``TorchIterableDataset``.

    Examples:
        >>> dataset = TorchMapDataset([{"x": np.arange(2)}, {"x": np.ones(2, np.int64)}])
        >>> len(dataset), dataset[1]["x"]
        (2, tensor([1, 1]))
    """

    def __init__(self, dataset: Any) -> None:
        try:
            len(dataset)
        except TypeError as error:
            hint = "TorchIterableDataset(DataLoader(dataset)) needs none"
            raise OptionError("a map-style dataset has a length", found=str(error), hint=hint) from error
        self.dataset = dataset
        self._gives_batches = bool(getattr(dataset, "gives_batches", False))

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        return as_tensors(self.dataset[int(index)], is_batch=self._gives_batches)

    def __getitems__(self, indices: list[int]) -> list[Any]:
        """Return the samples at these indices; PyTorch's loader calls this for a batch."""
        source = describe_source(self.dataset)
        if source.steps or isinstance(source.source, StreamSource):
            return [self[index] for index in indices]
        count = len(self)
        numbers = np.array([index + count if index < 0 else index for index in indices], np.int64)
        return [as_tensors(sample, is_batch=self._gives_batches) for sample in source.source.read(numbers)]


class TorchIterableDataset(torch.utils.data.IterableDataset[Any]):
    """A loader's batches as tensors, for ``torch.utils.data.DataLoader(dataset, batch_size=None)``.

    Worker ``w`` of ``n`` makes every ``n``-th batch from the ``w``-th on, so that all workers together yield each batch
    once, in the loader's order. Each iteration is the next epoch. The loader's rank is that of torch.distributed, if
    initialised. ``StatefulDataLoader`` of torchdata calls ``state_dict`` and ``load_state_dict`` in each worker.

    Forked workers cannot use object stores that their parent has used: give PyTorch's loader
    ``multiprocessing_context="forkserver"``. With ``num_workers="auto"`` the loader has one thread in each worker. A
    random sampler of PyTorch needs a seeded ``generator``, so that all workers draw the same list: OptionError.

    Examples:
        >>> dataset = TorchIterableDataset(load.DataLoader(range(6), batch_size=2, seed=1, shuffle=True))
        >>> batches = torch.utils.data.DataLoader(dataset, batch_size=None)
        >>> len(batches), sorted(number for batch in batches for number in batch.tolist())
        (3, [0, 1, 2, 3, 4, 5])
    """

    def __init__(self, loader: load.DataLoader) -> None:
        if not isinstance(loader, load.DataLoader):
            raise OptionError("this is no loader", expected="shoal.DataLoader", found=repr(loader))
        self.loader = _with_distributed_rank(loader)
        self._parent_state: dict[str, Any] | None = None
        """In a worker: the state of the parent's loader."""
        self._worker_state: dict[str, Any] | None = None
        """In a worker: the state at the beginning of its iteration, and how many batches it has yielded since."""
        self._loaded: dict[str, Any] | None = None
        self._count = 0
        self._iterations = torch.zeros(_MAX_ITERATIONS, dtype=torch.int64).share_memory_()  # type: ignore[no-untyped-call]

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        worker = torch.utils.data.get_worker_info()
        if worker is not None:
            return self._worker_batches(worker.id, worker.num_workers, worker.seed - worker.id)
        self.loader = _with_distributed_rank(self.loader)
        return (as_tensors(batch, is_batch=self.loader.gives_batches) for batch in self.loader)

    def set_epoch(self, epoch: int) -> None:
        """Start the next iteration at this epoch. Call it in the parent process."""
        self.loader.set_epoch(epoch)
        self._iterations.zero_()

    def state_dict(self) -> dict[str, Any]:
        """Return the state of this process; in a worker, that of its own batches."""
        return (
            {"loader": self.loader.state_dict(), "given": 0} if self._worker_state is None else dict(self._worker_state)
        )

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume the next iteration from a state. Raises LoaderStateError for a state of another worker."""
        if torch.utils.data.get_worker_info() is not None:
            self._loaded = dict(state)
        elif state["given"]:
            raise LoaderStateError(
                "the state is of one of several workers", expected="a state of the whole", found=state.get("share")
            )
        else:
            self.loader.load_state_dict(state["loader"])
            self._iterations.zero_()

    def _worker_batches(self, worker: int, workers: int, seed: int) -> Iterator[Any]:
        """Return every ``workers``-th batch; ``seed`` is the same in all workers and new in each iteration."""
        loader = self._worker_loader()
        if workers > 1:
            spec = loader._spec  # noqa: SLF001 - samplers have no public property
            _refuse_unseeded(spec.sampler or spec.batch_sampler)
        given = self._set_position(loader, [worker, workers], seed)
        # Set before the first batch: the state may be requested before it.
        at = self._worker_state = {"loader": loader.state_dict(), "given": given, "share": [worker, workers]}
        return self._count_batches(every_nth(loader, worker + given * workers, workers), at)

    def _count_batches(self, batches: Iterator[Any], at: dict[str, Any]) -> Iterator[Any]:
        for batch in batches:
            at["given"] += 1
            yield as_tensors(batch, is_batch=self.loader.gives_batches)
        self._worker_state = {**at, "loader": self.loader.state_dict(), "given": 0}

    def _worker_loader(self) -> load.DataLoader:
        if self._parent_state is None:
            self._parent_state = self.loader.state_dict()
            options = self.loader.settings
            # Workers run in parallel; one thread in each reads while a batch is sent to the parent.
            changes = {"num_workers": 1, "prefetch": 2} if options.num_workers == "auto" else {}
            self.loader = _with_distributed_rank(self.loader).with_options(**changes)
        return self.loader

    def _set_position(self, loader: load.DataLoader, share: list[int], seed: int) -> int:
        """Set the loader to the beginning of this iteration; return how many of its batches were yielded before."""
        loaded, self._loaded = self._loaded, None
        begun, self._count = self._parent_state or {}, self._count + 1
        iteration = IterationCounter(self._iterations, json.dumps(begun), f"{seed} {self._count}")
        if loaded is not None:
            if loaded["given"] and loaded["share"] != share:
                raise LoaderStateError("the state is of another worker", expected=share, found=loaded["share"])
            loader.load_state_dict(loaded["loader"])
            iteration.claim(max(0, loader.epoch - begun["epoch"]))
            return int(loaded["given"])
        number = iteration.number()
        loader.load_state_dict(begun)
        if number:
            loader.set_epoch(begun["epoch"] + number)
        return 0


def _refuse_unseeded(sampler: Any) -> None:
    """Raise OptionError for a sampler of PyTorch that would draw another list in each worker."""
    for part in (sampler, getattr(sampler, "sampler", None)):  # a BatchSampler has one inside
        if part is not None and getattr(part, "generator", part) is None:
            raise OptionError(
                f"{type(part).__name__} draws another list in each of several workers",
                expected="generator=torch.Generator().manual_seed(...)",
                found="generator=None",
                hint="or pass shuffle=True and seed= to shoal.DataLoader instead of a sampler",
            )


def _with_distributed_rank(loader: load.DataLoader) -> load.DataLoader:
    """Return the loader, or a copy with the rank of torch.distributed."""
    ranks = distributed_ranks()
    current = {"rank": loader.split.rank, "world_size": loader.split.world_size}
    if loader.settings.rank is not None or not ranks or ranks == current:
        return loader
    copy = loader.with_options(**ranks)
    copy.load_state_dict(loader.state_dict())
    return copy


class IterationCounter:
    """Number of the iteration of PyTorch's loader, the same in all of its workers, which do not communicate.

    Workers have a seed that is new in each iteration, and share a few numbers in memory. The first worker with a new
    seed stores it with the next number; another that does so at the same time stores the same. An entry is one 64-bit
    word, so it is written atomically: a tag of the parent's state, a tag of the seed, and the number plus one.
    """

    def __init__(self, shared: Any, parent_state: str, seed: str) -> None:
        self._shared = shared
        self._parent_tag = zlib.crc32(parent_state.encode()) >> (32 - _TAG_BITS)
        self._seed_tag = zlib.crc32(seed.encode()) >> (32 - _TAG_BITS)

    def number(self) -> int:
        """Return the number of this iteration, counted from the state of the parent's loader."""
        entries = [self._parts(entry) for entry in self._shared.tolist()]
        mine = {seed: number for parent, seed, number in entries if parent == self._parent_tag and number >= 0}
        if self._seed_tag not in mine:
            return self.claim(max(mine.values(), default=-1) + 1)
        return mine[self._seed_tag]

    def claim(self, number: int) -> int:
        """Store the number of this iteration."""
        self._shared[number % _MAX_ITERATIONS] = (
            (self._parent_tag << (_TAG_BITS + _NUMBER_BITS)) | (self._seed_tag << _NUMBER_BITS) | (number + 1)
        )
        return number

    @staticmethod
    def _parts(entry: int) -> tuple[int, int, int]:
        tag = (1 << _TAG_BITS) - 1
        return (
            entry >> (_TAG_BITS + _NUMBER_BITS),
            (entry >> _NUMBER_BITS) & tag,
            (entry & ((1 << _NUMBER_BITS) - 1)) - 1,
        )
