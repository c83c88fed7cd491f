"""`TorchIterableDataset` and `TorchMapDataset`."""

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
from shoal.load import StreamSource, describe_source

from ._loader import as_tensors, ranks

__all__ = ["TorchIterableDataset", "TorchMapDataset"]

TURNS, _TAG, _NUMBER = 8, 20, 23


class TorchMapDataset(torch.utils.data.Dataset[Any]):
    """A dataset by position, its samples with tensors: for ``torch.utils.data.DataLoader`` and samplers of PyTorch's.

    ``dataset`` is a :class:`shoal.Dataset`, or anything with a length and positions. Samples with fields become dicts.
    Several samples are read at once where PyTorch asks for several.

    Raises:
        OptionError: The dataset has no length: use ``TorchIterableDataset``.

    Example:
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

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        return as_tensors(self.dataset[int(index)])

    def __getitems__(self, indices: list[int]) -> list[Any]:
        """The samples at these positions; PyTorch's loader calls this for a batch."""
        source = describe_source(self.dataset)
        if source.steps or isinstance(source.source, StreamSource):
            return [self[index] for index in indices]
        count = len(self)
        wanted = np.array([index + count if index < 0 else index for index in indices], np.int64)
        return [as_tensors(sample) for sample in source.source.read(wanted)]


class TorchIterableDataset(torch.utils.data.IterableDataset[Any]):
    """A loader's batches with tensors, under ``torch.utils.data.DataLoader(dataset, batch_size=None)``.

    Worker ``w`` of ``n`` makes every ``n``-th batch from the ``w``-th on, so that all workers together give each batch
    once, in the loader's order. Each iteration is the next epoch. The loader's rank is torch.distributed's where that
    was initialised. ``state_dict`` and ``load_state_dict`` are those that ``StatefulDataLoader`` of torchdata calls, in
    each worker.

    Workers that are forked cannot use object stores that their parent has used: give PyTorch's loader
    ``multiprocessing_context="forkserver"``. A loader that chooses its threads itself has one in each worker.

    Example:
        >>> dataset = TorchIterableDataset(load.DataLoader(range(6), batch_size=2, seed=1, shuffle=True))
        >>> batches = torch.utils.data.DataLoader(dataset, batch_size=None)
        >>> len(batches), sorted(number for batch in batches for number in batch.tolist())
        (3, [0, 1, 2, 3, 4, 5])
    """

    def __init__(self, loader: load.DataLoader) -> None:
        if not isinstance(loader, load.DataLoader):
            raise OptionError("this is no loader", expected="shoal.DataLoader", found=repr(loader))
        self.loader = _ranked(loader)
        self._begun: dict[str, Any] | None = None
        """In a worker: where the parent's loader stood."""
        self._at: dict[str, Any] | None = None
        """In a worker: where its iteration began, and how many batches it gave since."""
        self._loaded: dict[str, Any] | None = None
        self._count = 0
        self._turns = torch.zeros(TURNS, dtype=torch.int64).share_memory_()  # type: ignore[no-untyped-call]

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        worker = torch.utils.data.get_worker_info()
        if worker is not None:
            return self._share(worker.id, worker.num_workers, worker.seed - worker.id)
        self.loader = _ranked(self.loader)
        return (as_tensors(batch) for batch in self.loader)

    def set_epoch(self, epoch: int) -> None:
        """Have the next iteration be this epoch, and those after it the next ones. Call it in the parent."""
        self.loader.set_epoch(epoch)
        self._turns.zero_()

    def state_dict(self) -> dict[str, Any]:
        """Where this process stands: its share of the batches, in a worker."""
        return {"loader": self.loader.state_dict(), "given": 0} if self._at is None else dict(self._at)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Have the next iteration go on from a state. Raises LoaderStateError for one of another share."""
        if torch.utils.data.get_worker_info() is not None:
            self._loaded = dict(state)
        elif state["given"]:
            raise LoaderStateError(
                "the state is of one of several workers", expected="a state of the whole", found=state.get("share")
            )
        else:
            self.loader.load_state_dict(state["loader"])
            self._turns.zero_()

    def _share(self, worker: int, workers: int, seed: int) -> Iterator[Any]:
        """Every ``workers``-th batch; ``seed`` is the same in all workers of an iteration and another in the next."""
        loader = self._of_worker()
        given = self._go_to(loader, [worker, workers], seed)
        # Now, not with the first batch: the state of a worker that has given none is asked for, too.
        at = self._at = {"loader": loader.state_dict(), "given": given, "share": [worker, workers]}
        return self._counted(every_nth(loader, worker + given * workers, workers), at)

    def _counted(self, batches: Iterator[Any], at: dict[str, Any]) -> Iterator[Any]:
        for batch in batches:
            at["given"] += 1
            yield as_tensors(batch)
        self._at = {**at, "loader": self.loader.state_dict(), "given": 0}

    def _of_worker(self) -> load.DataLoader:
        if self._begun is None:
            self._begun = self.loader.state_dict()
            options = self.loader.settings
            # The workers are what works side by side; a thread in each reads on while a batch is sent to the parent.
            one = {"num_workers": 1, "prefetch": 2} if options.num_workers == "auto" else {}
            self.loader = _ranked(self.loader).with_options(**one)
        return self.loader

    def _go_to(self, loader: load.DataLoader, share: list[int], seed: int) -> int:
        """Have the loader stand where this iteration begins; returns how many batches were given of it already."""
        loaded, self._loaded = self._loaded, None
        begun, self._count = self._begun or {}, self._count + 1
        turn = IterationCounter(self._turns, json.dumps(begun), f"{seed} {self._count}")
        if loaded is not None:
            if loaded["given"] and loaded["share"] != share:
                raise LoaderStateError("the state is of another worker", expected=share, found=loaded["share"])
            loader.load_state_dict(loaded["loader"])
            turn.claim(max(0, loader.epoch - begun["epoch"]))
            return int(loaded["given"])
        number = turn.number()
        loader.load_state_dict(begun)
        if number:
            loader.set_epoch(begun["epoch"] + number)
        return 0


def _ranked(loader: load.DataLoader) -> load.DataLoader:
    """The loader, or one like it that has torch.distributed's rank."""
    found = ranks()
    known = {"rank": loader.split.rank, "world_size": loader.split.world_size}
    if loader.settings.rank is not None or not found or found == known:
        return loader
    made = loader.with_options(**found)
    made.load_state_dict(loader.state_dict())
    return made


class IterationCounter:
    """Which iteration of PyTorch's loader this is: all its workers must come to the same number, without a word.

    They know a seed that is new in each iteration, and share a few numbers in memory. The first worker with a new seed
    writes it down beside the next number; one that does so at the same time writes the same. An entry is one word of
    64 bits, so it is never seen half: the place where the parent's loader stood, the seed, the number plus one.
    """

    def __init__(self, shared: Any, begun: str, seed: str) -> None:
        self._shared = shared
        self._begun = zlib.crc32(begun.encode()) >> (32 - _TAG)
        self._seed = zlib.crc32(seed.encode()) >> (32 - _TAG)

    def number(self) -> int:
        """The number of this iteration, counted from where the parent's loader stood."""
        entries = [self._parts(entry) for entry in self._shared.tolist()]
        mine = {seed: number for begun, seed, number in entries if begun == self._begun and number >= 0}
        if self._seed not in mine:
            return self.claim(max(mine.values(), default=-1) + 1)
        return mine[self._seed]

    def claim(self, number: int) -> int:
        """Say that this iteration has this number."""
        self._shared[number % TURNS] = (self._begun << (_TAG + _NUMBER)) | (self._seed << _NUMBER) | (number + 1)
        return number

    @staticmethod
    def _parts(entry: int) -> tuple[int, int, int]:
        tag = (1 << _TAG) - 1
        return entry >> (_TAG + _NUMBER), (entry >> _NUMBER) & tag, (entry & ((1 << _NUMBER) - 1)) - 1
