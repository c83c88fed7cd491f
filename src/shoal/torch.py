"""PyTorch: a loader as an IterableDataset, a dataset as a Dataset, and a loader of our own that gives tensors.

Arrays become tensors without a copy where they may be written to; PyTorch has no read-only tensors, so others are
copied. ``DataLoader`` here works on threads. ``TorchIterableDataset`` is for programs that want PyTorch's own
``torch.utils.data.DataLoader`` around it: with any number of workers the batches, and their order, are the same.
"""

from __future__ import annotations

import functools
import itertools
import json
import threading
import warnings
import zlib
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal import load
from shoal.adapt import every_nth, map_arrays, map_leaves
from shoal.errors import LoaderStateError, MissingExtraError, OptionError, ShoalWarning
from shoal.load import Described, LoaderOptions, Map, StreamSource
from shoal.load._build import Built, build
from shoal.load._source import describe_source
from shoal.load._spec import PipelineSpec

try:
    import torch
    import torch.distributed
    import torch.utils.data
except ImportError as error:
    raise MissingExtraError(
        "the package torch cannot be imported", found=error, hint="pip install 'shoal[torch]'"
    ) from error

__all__ = ["DataLoader", "TorchIterableDataset", "TorchMapDataset", "as_tensors"]

Int64 = npt.NDArray[np.int64]


def as_tensors(batch: Any) -> Any:
    """The batch with its arrays, and its lists of numbers, as tensors; see :func:`shoal.adapt.map_arrays`.

    Example:
        >>> as_tensors({"x": np.zeros((2, 3), np.float32), "label": [1, 2], "name": ["a", "b"]})
        {'x': tensor([[0., 0., 0.],
            [0., 0., 0.]]), 'label': tensor([1, 2]), 'name': ['a', 'b']}
    """
    return map_arrays(batch, _tensor)


def _tensor(array: npt.NDArray[Any]) -> Any:
    if array.dtype.name == "bfloat16":
        return _tensor(array.view(np.uint16)).view(torch.bfloat16)
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    if not array.flags.writeable or any(stride < 0 for stride in array.strides):
        array = array.copy()
    return torch.from_numpy(array)


def _ranks() -> dict[str, int]:
    """This process among all as torch.distributed knows it; nothing before it is initialised."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return {}
    return {"rank": torch.distributed.get_rank(), "world_size": torch.distributed.get_world_size()}


# --------------------------------------------------------------------------------------------------------- ours


@dataclass(frozen=True, slots=True)
class _Sent:
    """A batch that is on its way to a device, and what says that it has arrived."""

    batch: Any
    event: Any
    device: Any

    def arrived(self) -> Any:
        """The batch, for the caller's stream, which waits until it is there; the caller itself does not wait."""
        current = torch.cuda.current_stream(self.device)
        current.wait_event(self.event)

        def used_by_caller(tensor: Any) -> Any:
            tensor.record_stream(current)
            return tensor

        return _map_tensors(self.batch, used_by_caller)


class DataLoader(load.DataLoader):
    """Batches of tensors: :class:`shoal.DataLoader`, with what PyTorch's loader has besides.

    ``pin_memory`` puts batches into page-locked memory; ``device`` sends them there from the worker threads, on a
    stream of its own, so that they have arrived when they are asked for, and ``prefetch`` says how many may wait there.
    ``worker_init_fn`` is called with its number in each worker thread before its first work. ``generator`` gives the
    seed, unless ``seed`` is given. The rank is torch.distributed's once that is initialised, else the environment's.

    Raises:
        OptionError: An option is not one, or is out of range.

    Example:
        >>> samples = [{"x": np.full(2, number, np.float32), "label": number} for number in range(5)]
        >>> loader = DataLoader(samples, batch_size=2)
        >>> [batch["label"].tolist() for batch in loader]
        [[0, 1], [2, 3], [4]]
        >>> next(iter(loader))["x"].dtype
        torch.float32
    """

    def __init__(
        self,
        dataset: Any,
        options: LoaderOptions | None = None,
        *,
        pin_memory: bool = False,
        device: Any = None,
        worker_init_fn: Callable[[int], object] | None = None,
        generator: Any = None,
        **changes: Any,
    ) -> None:
        if worker_init_fn is not None and not callable(worker_init_fn):
            raise OptionError("worker_init_fn is a function", expected="a callable", found=repr(worker_init_fn))
        if generator is not None:
            changes.setdefault("seed", int(generator.initial_seed()) & (2**63 - 1))
        self._delivery = _Delivery(pin_memory, device, worker_init_fn)
        super().__init__(dataset, options, **changes)

    def _with(self, spec: PipelineSpec) -> load.DataLoader:
        made = super()._with(spec)
        assert isinstance(made, DataLoader)  # noqa: S101 - of this one's own class
        made._delivery = self._delivery  # noqa: SLF001
        return made

    @functools.cached_property
    def _built(self) -> Built:
        spec, init = self._spec, self._delivery.worker_init_fn
        if spec.options.rank is None:
            spec = replace(spec, options=spec.options.with_options(**_ranks()))
        if init is not None:
            spec = replace(spec, data=_Prepared(spec.data, init))
        return build(spec.then(Map(self._delivery)))

    def _epochs(self) -> Generator[Any, None, None]:
        inner = super()._epochs()
        try:
            for batch in inner:
                yield batch.arrived() if isinstance(batch, _Sent) else batch
        finally:
            inner.close()

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "delivery": self._delivery}

    def __setstate__(self, kept: dict[str, Any]) -> None:
        self._delivery = kept["delivery"]
        super().__setstate__(kept)


class _Delivery:
    """What is done to a batch at the end, in a worker's thread: made tensors, pinned, and sent to the device.

    Not a part of the loader, so that threads that wait for work do not keep the loader alive.
    """

    def __init__(self, pin_memory: bool, device: Any, worker_init_fn: Callable[[int], object] | None) -> None:
        self.pin_memory = pin_memory
        self.device = None if device is None else torch.device(device)
        self.worker_init_fn = worker_init_fn
        self._stream: Any = None
        self._starting = threading.Lock()

    def __call__(self, batch: Any) -> Any:
        made, device = as_tensors(batch), self.device
        sends = device is not None and device.type == "cuda"
        if self.pin_memory or sends:
            made = _pinned(made)
        if not sends:
            return made if device is None else _map_tensors(made, lambda tensor: tensor.to(device))
        with torch.cuda.stream(self._side_stream()):
            sent = _map_tensors(made, lambda tensor: tensor.to(device, non_blocking=True))
            return _Sent(sent, torch.cuda.current_stream(device).record_event(), device)

    def _side_stream(self) -> Any:
        with self._starting:
            if self._stream is None:
                self._stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
            return self._stream

    def __reduce__(self) -> tuple[Any, ...]:
        return _Delivery, (self.pin_memory, self.device, self.worker_init_fn)


def _map_tensors(batch: Any, change: Callable[[Any], Any]) -> Any:
    return map_leaves(batch, lambda leaf: change(leaf) if isinstance(leaf, torch.Tensor) else leaf)


def _pinned(batch: Any) -> Any:
    if not torch.cuda.is_available():
        warnings.warn("pin_memory does nothing here: there is no CUDA device", ShoalWarning, stacklevel=2)
        return batch
    return _map_tensors(batch, lambda tensor: tensor.pin_memory() if tensor.device.type == "cpu" else tensor)


class _Prepared:
    """Data whose readers call a function once in each worker thread."""

    def __init__(self, data: Any, function: Callable[[int], object]) -> None:
        self._data = data
        self._function = function
        self._local = threading.local()
        self._numbers = itertools.count()
        self._caller = threading.get_ident()

    def __load__(self) -> Described:
        described = describe_source(self._data)
        if isinstance(described.source, StreamSource):
            return replace(described, steps=(Map(self._first), *described.steps))
        return replace(described, source=_PreparedSource(described.source, self._prepare))

    def _first(self, value: Any) -> Any:
        self._prepare()
        return value

    def _prepare(self) -> None:
        if not hasattr(self._local, "number") and threading.get_ident() != self._caller:
            self._local.number = next(self._numbers)
            self._function(self._local.number)


class _PreparedSource:
    """Numbered samples, read by threads that were prepared."""

    def __init__(self, source: Any, prepare: Callable[[], None]) -> None:
        self._source = source
        self._prepare = prepare

    def __len__(self) -> int:
        return len(self._source)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)

    def read(self, numbers: Int64) -> list[Any]:
        self._prepare()
        samples: list[Any] = self._source.read(numbers)
        return samples

    def read_batch(self, numbers: Int64, ragged: Any) -> Any:
        self._prepare()
        return self._source.read_batch(numbers, ragged)


# --------------------------------------------------------------------------------------------------------- PyTorch's


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
        self._turns = torch.zeros(_TURNS, dtype=torch.int64).share_memory_()  # type: ignore[no-untyped-call]

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
        turn = _Turn(self._turns, json.dumps(begun), f"{seed} {self._count}")
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
    ranks = _ranks()
    known = {"rank": loader.split.rank, "world_size": loader.split.world_size}
    if loader.settings.rank is not None or not ranks or ranks == known:
        return loader
    made = loader.with_options(**ranks)
    made.load_state_dict(loader.state_dict())
    return made


_TURNS, _TAG, _NUMBER = 8, 20, 23


class _Turn:
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
        self._shared[number % _TURNS] = (self._begun << (_TAG + _NUMBER)) | (self._seed << _NUMBER) | (number + 1)
        return number

    @staticmethod
    def _parts(entry: int) -> tuple[int, int, int]:
        tag = (1 << _TAG) - 1
        return entry >> (_TAG + _NUMBER), (entry >> _NUMBER) & tag, (entry & ((1 << _NUMBER) - 1)) - 1
