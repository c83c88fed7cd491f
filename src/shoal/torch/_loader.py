"""A loader of tensors, pinned or on a device, and JPEGs decoded there."""

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
from shoal.adapt import map_arrays, map_leaves
from shoal.codec import ImageSpec, decode, decode_spec
from shoal.errors import MissingExtraError, OptionError, ShoalWarning
from shoal.load import (
    BoundPipeline,
    LoaderOptions,
    Map,
    PipelineSpec,
    SourceDescription,
    StreamSource,
    build,
    describe_source,
)

__all__ = ["DataLoader", "as_tensors", "decode_jpegs", "ranks"]

Int64 = npt.NDArray[np.int64]
Size = int | tuple[int, int]


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

        return map_tensors(self.batch, used_by_caller)


class DataLoader(load.DataLoader):
    """Batches of tensors: :class:`shoal.DataLoader`, with what PyTorch's loader has besides.

    ``pin_memory`` puts batches into page-locked memory; ``device`` sends them there from the worker threads, on a
    stream of its own, so that they have arrived when they are asked for, and ``prefetch`` says how many may wait there.
    ``decode_jpeg`` names fields that are JPEGs, not yet decoded, with the size each is to have, as
    :func:`shoal.torch.decode_jpegs` takes it: they are decoded on the device, likewise ahead of time.
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
        made = super()._with(spec)
        assert isinstance(made, DataLoader)  # noqa: S101 - of this one's own class
        made._delivery = self._delivery  # noqa: SLF001
        return made

    @functools.cached_property
    def _built(self) -> BoundPipeline:
        spec, init = self._spec, self._delivery.worker_init_fn
        if spec.options.rank is None:
            spec = replace(spec, options=spec.options.with_options(**ranks()))
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
        self._starting = threading.Lock()

    def __call__(self, batch: Any) -> Any:
        encoded, rest = self._parted(batch)
        made, device = as_tensors(rest), self.device
        sends = device is not None and device.type == "cuda"
        if self.pin_memory or sends:
            made = pinned(made)
        if not sends:
            made = made if device is None else map_tensors(made, lambda tensor: tensor.to(device))
            return self._with_images(made, encoded)
        with torch.cuda.stream(self._side_stream()):
            sent = map_tensors(made, lambda tensor: tensor.to(device, non_blocking=True))
            sent = self._with_images(sent, encoded)
            return _Sent(sent, torch.cuda.current_stream(device).record_event(), device)

    def _parted(self, batch: Any) -> tuple[dict[str, Any], Any]:
        """The columns that are to be decoded, and the others."""
        if not self.decode_jpeg:
            return {}, batch
        columns = batch.to_dict() if isinstance(batch, load.SampleBatch) else batch
        missing = [name for name in self.decode_jpeg if not isinstance(columns, dict) or name not in columns]
        if missing:
            found = ", ".join(columns) if isinstance(columns, dict) else type(columns).__name__
            raise OptionError("decode_jpeg names a field that batches do not have", expected=missing[0], found=found)
        return {name: columns[name] for name in self.decode_jpeg}, columns

    def _with_images(self, batch: Any, encoded: dict[str, Any]) -> Any:
        where = self.device or "cpu"
        images = {name: decode_jpegs(column, self.decode_jpeg[name], where) for name, column in encoded.items()}
        return {**batch, **images} if images else batch

    def _side_stream(self) -> Any:
        with self._starting:
            if self._stream is None:
                self._stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
            return self._stream

    def __reduce__(self) -> tuple[Any, ...]:
        return _Delivery, (self.pin_memory, self.device, self.worker_init_fn, self.decode_jpeg)


class _Prepared:
    """Data whose readers call a function once in each worker thread."""

    def __init__(self, data: Any, function: Callable[[int], object]) -> None:
        self._data = data
        self._function = function
        self._local = threading.local()
        self._numbers = itertools.count()
        self._caller = threading.get_ident()

    def __load__(self) -> SourceDescription:
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


def ranks() -> dict[str, int]:
    """This process among all as torch.distributed knows it; nothing before it is initialised."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return {}
    return {"rank": torch.distributed.get_rank(), "world_size": torch.distributed.get_world_size()}


# --------------------------------------------------------------------------------------------------------- ours


def map_tensors(batch: Any, change: Callable[[Any], Any]) -> Any:
    return map_leaves(batch, lambda leaf: change(leaf) if isinstance(leaf, torch.Tensor) else leaf)


def pinned(batch: Any) -> Any:
    if not torch.cuda.is_available():
        warnings.warn("pin_memory does nothing here: there is no CUDA device", ShoalWarning, stacklevel=2)
        return batch
    return map_tensors(batch, lambda tensor: tensor.pin_memory() if tensor.device.type == "cpu" else tensor)


def decode_jpegs(images: Sequence[bytes], size: int | tuple[int, int] | None = None, device: Any = "cpu") -> Any:
    """JPEGs as one uint8 tensor of n x 3 x height x width on the device, in RGB.

    Each is resized to ``size``, height and width or one number for both, as the mean of what a pixel covers. Without a
    size, images that are not all of one come as a list. A GPU decodes by itself, by torchvision: the processor only
    hands it the bytes.

    Raises:
        MissingExtraError: torchvision, which decodes on GPUs, or a decoder of the processor's is not installed.
        OptionError: The size is not one.

    Example:
        >>> import simplejpeg
        >>> picture = simplejpeg.encode_jpeg(np.full((40, 60, 3), 200, np.uint8))
        >>> decode_jpegs([picture, picture], size=(20, 30)).shape
        torch.Size([2, 3, 20, 30])
    """
    spec = ImageSpec("rgb8", size)
    where = torch.device(device)
    made = _on_gpu(images, where) if where.type == "cuda" else _on_processor(images, spec, where)
    if spec.shape is not None:
        return _sized(made, spec.shape[:2], where)
    return torch.stack(made) if len({image.shape for image in made}) == 1 else made


def _on_gpu(images: Sequence[bytes], device: Any) -> list[Any]:
    vision = _torchvision()
    data = [torch.from_numpy(np.frombuffer(image, np.uint8).copy()) for image in images]
    decoded: list[Any] = vision.decode_jpeg(data, mode=vision.ImageReadMode.RGB, device=device) if data else []
    return decoded


def _on_processor(images: Sequence[bytes], spec: ImageSpec, device: Any) -> list[Any]:
    chosen = decode_spec({"jpg": spec})
    arrays = (np.ascontiguousarray(decode("jpg", image, chosen)) for image in images)
    return [torch.from_numpy(array).permute(2, 0, 1).to(device) for array in arrays]


def _sized(images: list[Any], size: tuple[int, ...], device: Any) -> Any:
    if not images:
        return torch.empty((0, 3, *size), dtype=torch.uint8, device=device)
    groups: dict[Any, list[int]] = {}
    for at, image in enumerate(images):
        groups.setdefault(image.shape, []).append(at)
    # Those of one size at once: a call on the device costs more than a small image.
    together = torch.cat([_resized(torch.stack([images[at] for at in places]), size) for places in groups.values()])
    if len(groups) == 1:
        return together
    order = np.argsort([at for places in groups.values() for at in places])
    return together.index_select(0, torch.from_numpy(order).to(device, non_blocking=True))


def _resized(images: Any, size: tuple[int, ...]) -> Any:
    if images.shape[2:] == size:
        return images
    resized = torch.nn.functional.interpolate(images.float(), size, mode="bilinear", antialias=True)
    return resized.round_().clamp_(0, 255).to(torch.uint8)


def _torchvision() -> Any:
    try:
        io: Any = importlib.import_module("torchvision.io")
    except ImportError as error:
        hint = "pip install torchvision, of the release that goes with your torch"
        raise MissingExtraError("the package torchvision cannot be imported", found=error, hint=hint) from error
    return io
