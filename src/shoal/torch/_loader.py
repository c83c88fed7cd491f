"""`DataLoader`, which yields tensors, optionally pinned or on a device, and `decode_jpegs`."""

from __future__ import annotations

import functools
import importlib
import itertools
import threading
import warnings
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed

from shoal import load
from shoal._typing import IntArray
from shoal.adapt import map_arrays, map_leaves
from shoal.codec._dispatch import decode, decode_spec
from shoal.codec._image_spec import ImageSpec
from shoal.errors import MissingExtraError, OptionError, ShoalWarning
from shoal.load._options import LoaderOptions
from shoal.load._pipeline import BoundPipeline, PipelineSpec, build
from shoal.load._sources import SourceDescription, StreamSource, describe_source
from shoal.load._stages import Map

__all__ = ["DataLoader", "as_tensors", "decode_jpegs", "distributed_ranks"]

Size = int | tuple[int, int]


@dataclass(frozen=True, slots=True)
class _TransferredBatch:
    """A batch that is being transferred to a device, and the event that signals its arrival."""

    batch: Any
    event: Any
    device: Any

    def arrived(self) -> Any:
        """Return the batch; the caller's CUDA stream waits until it has arrived, the caller does not."""
        current = torch.cuda.current_stream(self.device)
        current.wait_event(self.event)

        def record_use(tensor: Any) -> Any:
            tensor.record_stream(current)
            return tensor

        return map_tensors(self.batch, record_use)


class DataLoader(load.DataLoader):
    """:class:`shoal.DataLoader` that yields batches of tensors, with further options of PyTorch's loader.

    ``pin_memory`` copies batches to page-locked memory. ``device`` is where worker threads transfer batches, on a CUDA
    stream of their own, before they are requested; ``prefetch`` says how many. ``decode_jpeg`` has fields with encoded
    JPEGs and the size of each, as for :func:`shoal.torch.decode_jpegs`: they are decoded on the device, also before
    they are requested. ``worker_init_fn`` is called with its number in each worker thread before its first task.
    ``generator`` gives the seed, unless ``seed`` is given. The rank is that of torch.distributed once it is
    initialised, else that of the environment.

    Raises:
        OptionError: An option is unknown or out of range.

    Examples:
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
        decode_jpeg: Mapping[str, Size | None] | None = None,
        **changes: Any,
    ) -> None:
        if worker_init_fn is not None and not callable(worker_init_fn):
            raise OptionError("worker_init_fn is a function", expected="a callable", found=repr(worker_init_fn))
        if generator is not None:
            changes.setdefault("seed", int(generator.initial_seed()) & (2**63 - 1))
        self._delivery = _Delivery(pin_memory, device, worker_init_fn, dict(decode_jpeg or {}))
        super().__init__(dataset, options, **changes)

    def _with(self, spec: PipelineSpec) -> load.DataLoader:
        loader = super()._with(spec)
        assert isinstance(loader, DataLoader)  # noqa: S101 - the base class makes one of this class
        loader._delivery = self._delivery  # noqa: SLF001
        return loader

    @functools.cached_property
    def _pipeline(self) -> BoundPipeline:
        spec, init = self._spec, self._delivery.worker_init_fn
        if init is not None:
            spec = replace(spec, data=_WorkerInitData(spec.data, init))
        return build(spec.then(Map(functools.partial(self._delivery, is_batch=spec.gives_batches))))

    def _epochs(self) -> Generator[Any, None, None]:
        inner = super()._epochs()
        try:
            for batch in inner:
                yield batch.arrived() if isinstance(batch, _TransferredBatch) else batch
        finally:
            inner.close()

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "delivery": self._delivery}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._delivery = state["delivery"]
        super().__setstate__(state)


class _Delivery:
    """The last stage, run by workers: convert a batch to tensors, pin them, and transfer them to the device.

    Not a method of the loader, so that waiting threads do not keep the loader alive.
    """

    def __init__(
        self,
        pin_memory: bool,
        device: Any,
        worker_init_fn: Callable[[int], object] | None,
        decode_jpeg: dict[str, Size | None],
    ) -> None:
        self.pin_memory = pin_memory
        self.device = None if device is None else torch.device(device)
        self.worker_init_fn = worker_init_fn
        self.decode_jpeg = decode_jpeg
        self._stream: Any = None
        self._lock = threading.Lock()

    def __call__(self, batch: Any, *, is_batch: bool) -> Any:
        encoded, rest = self._split_encoded(batch)
        tensors, device = as_tensors(rest, is_batch=is_batch), self.device
        is_cuda = device is not None and device.type == "cuda"
        if self.pin_memory or is_cuda:
            tensors = pin_tensors(tensors)
        if not is_cuda:
            tensors = tensors if device is None else map_tensors(tensors, lambda tensor: tensor.to(device))
            return self._with_images(tensors, encoded)
        with torch.cuda.stream(self._side_stream()):
            transferred = map_tensors(tensors, lambda tensor: tensor.to(device, non_blocking=True))
            transferred = self._with_images(transferred, encoded)
            return _TransferredBatch(transferred, torch.cuda.current_stream(device).record_event(), device)

    def _split_encoded(self, batch: Any) -> tuple[dict[str, Any], Any]:
        """Return the columns to decode, and the others."""
        if not self.decode_jpeg:
            return {}, batch
        columns = batch.to_dict() if isinstance(batch, load.SampleBatch) else batch
        missing = [name for name in self.decode_jpeg if not isinstance(columns, dict) or name not in columns]
        if missing:
            found = ", ".join(columns) if isinstance(columns, dict) else type(columns).__name__
            raise OptionError("decode_jpeg names a field that batches do not have", expected=missing[0], found=found)
        return {name: columns[name] for name in self.decode_jpeg}, columns

    def _with_images(self, batch: Any, encoded: dict[str, Any]) -> Any:
        device = self.device or "cpu"
        images = {name: decode_jpegs(column, self.decode_jpeg[name], device) for name, column in encoded.items()}
        return {**batch, **images} if images else batch

    def _side_stream(self) -> Any:
        with self._lock:
            if self._stream is None:
                self._stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
            return self._stream

    def __reduce__(self) -> tuple[Any, ...]:
        return _Delivery, (self.pin_memory, self.device, self.worker_init_fn, self.decode_jpeg)


class _WorkerInitData:
    """Data that calls a function once in each worker thread that reads it."""

    def __init__(self, data: Any, function: Callable[[int], object]) -> None:
        self._data = data
        self._function = function
        self._local = threading.local()
        self._numbers = itertools.count()
        self._caller = threading.get_ident()

    def __load__(self) -> SourceDescription:
        described = describe_source(self._data)
        if isinstance(described.source, StreamSource):
            return replace(described, steps=(Map(self._init_and_pass), *described.steps))
        return replace(described, source=_WorkerInitSource(described.source, self._init_worker))

    def _init_and_pass(self, value: Any) -> Any:
        self._init_worker()
        return value

    def _init_worker(self) -> None:
        if not hasattr(self._local, "number") and threading.get_ident() != self._caller:
            self._local.number = next(self._numbers)
            self._function(self._local.number)


class _WorkerInitSource:
    """An indexed source that initializes each thread that reads it."""

    def __init__(self, source: Any, init_worker: Callable[[], None]) -> None:
        self._source = source
        self._init_worker = init_worker

    def __len__(self) -> int:
        return len(self._source)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)

    def read(self, numbers: IntArray) -> list[Any]:
        self._init_worker()
        samples: list[Any] = self._source.read(numbers)
        return samples

    def read_batch(self, numbers: IntArray, ragged: Any) -> Any:
        self._init_worker()
        return self._source.read_batch(numbers, ragged)


def as_tensors(batch: Any, *, is_batch: bool = True) -> Any:
    """Return the batch with its arrays, and its columns of numbers, as tensors; see :func:`shoal.adapt.map_arrays`.

    With ``is_batch=False`` it is a sample, whose lists are documents.

    Examples:
        >>> as_tensors({"x": np.zeros((2, 3), np.float32), "label": [1, 2], "name": ["a", "b"]})
        {'x': tensor([[0., 0., 0.],
            [0., 0., 0.]]), 'label': tensor([1, 2]), 'name': ['a', 'b']}
    """
    return map_arrays(batch, _tensor, is_batch=is_batch)


def _tensor(array: npt.NDArray[Any]) -> Any:
    if array.dtype.name == "bfloat16":
        return _tensor(array.view(np.uint16)).view(torch.bfloat16)
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    if not array.flags.writeable or any(stride < 0 for stride in array.strides):
        array = array.copy()
    return torch.from_numpy(array)


def distributed_ranks() -> dict[str, int]:
    """Return rank and world size of torch.distributed; nothing before it is initialised."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return {}
    return {"rank": torch.distributed.get_rank(), "world_size": torch.distributed.get_world_size()}


def map_tensors(batch: Any, change: Callable[[Any], Any]) -> Any:
    return map_leaves(batch, lambda leaf: change(leaf) if isinstance(leaf, torch.Tensor) else leaf)


def pin_tensors(batch: Any) -> Any:
    if not torch.cuda.is_available():
        warnings.warn("pin_memory does nothing here: there is no CUDA device", ShoalWarning, stacklevel=2)
        return batch
    return map_tensors(batch, lambda tensor: tensor.pin_memory() if tensor.device.type == "cpu" else tensor)


def decode_jpegs(images: Sequence[bytes], size: int | tuple[int, int] | None = None, device: Any = "cpu") -> Any:
    """Decode JPEGs to one uint8 tensor of n x 3 x height x width on the device, in RGB.

    Each is resized to ``size``, height and width or one number for both, with antialiasing. Without a size, images of
    different sizes are returned as a list. For a GPU, torchvision decodes the bytes on the GPU.

    Raises:
        MissingExtraError: torchvision, which decodes on GPUs, or a decoder for the CPU is not installed.
        OptionError: The size is invalid.

    Examples:
        >>> import simplejpeg
        >>> image = simplejpeg.encode_jpeg(np.full((40, 60, 3), 200, np.uint8))
        >>> decode_jpegs([image, image], size=(20, 30)).shape
        torch.Size([2, 3, 20, 30])
    """
    spec = ImageSpec("rgb8", size)
    device = torch.device(device)
    decoded = _decode_on_gpu(images, device) if device.type == "cuda" else _decode_on_cpu(images, spec, device)
    if spec.shape is not None:
        return _resize_all(decoded, spec.shape[:2], device)
    return torch.stack(decoded) if len({image.shape for image in decoded}) == 1 else decoded


def _decode_on_gpu(images: Sequence[bytes], device: Any) -> list[Any]:
    try:
        vision: Any = importlib.import_module("torchvision.io")
    except ImportError as error:
        hint = "pip install torchvision, of the release that goes with your torch"
        raise MissingExtraError("the package torchvision cannot be imported", found=error, hint=hint) from error
    data = [torch.from_numpy(np.frombuffer(image, np.uint8).copy()) for image in images]
    decoded: list[Any] = vision.decode_jpeg(data, mode=vision.ImageReadMode.RGB, device=device) if data else []
    return decoded


def _decode_on_cpu(images: Sequence[bytes], spec: ImageSpec, device: Any) -> list[Any]:
    decoders = decode_spec({"jpg": spec})
    arrays = (np.ascontiguousarray(decode("jpg", image, decoders)) for image in images)
    return [torch.from_numpy(array).permute(2, 0, 1).to(device) for array in arrays]


def _resize_all(images: list[Any], size: tuple[int, ...], device: Any) -> Any:
    if not images:
        return torch.empty((0, 3, *size), dtype=torch.uint8, device=device)
    groups: dict[Any, list[int]] = {}
    for at, image in enumerate(images):
        groups.setdefault(image.shape, []).append(at)
    # Images of one size together: a call on the device costs more than a small image.
    resized = torch.cat([_resize(torch.stack([images[at] for at in group]), size) for group in groups.values()])
    if len(groups) == 1:
        return resized
    order = np.argsort([at for group in groups.values() for at in group])
    return resized.index_select(0, torch.from_numpy(order).to(device, non_blocking=True))


def _resize(images: Any, size: tuple[int, ...]) -> Any:
    if images.shape[2:] == size:
        return images
    resized = torch.nn.functional.interpolate(images.float(), size, mode="bilinear", antialias=True)
    return resized.round_().clamp_(0, 255).to(torch.uint8)
