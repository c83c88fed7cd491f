"""JAX: a loader whose batches are ``jax.Array``, on their devices before they are asked for."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from shoal import load
from shoal.adapt import map_arrays
from shoal.errors import MissingExtraError, OptionError
from shoal.load import BoundPipeline, LoaderOptions, Map, PipelineSpec, build

if TYPE_CHECKING:
    from jax.sharding import Sharding

__all__ = ["DataLoader", "as_jax", "batch_sharding"]


def as_jax(batch: Any, sharding: Sharding | None = None) -> Any:
    """The batch with its arrays, and its lists of numbers, as ``jax.Array``; see :func:`shoal.adapt.map_arrays`.

    With a sharding an array is this process's part of one that lies over the devices of all processes. 64-bit numbers
    become 32-bit ones unless JAX was told to use 64 bits.

    Raises:
        OptionError: An array cannot be shared out so.

    Example:
        >>> batch = as_jax({"x": np.zeros((2, 3), np.float32), "name": ["a", "b"]})
        >>> batch["x"].shape, batch["name"]
        ((2, 3), ['a', 'b'])
    """
    return map_arrays(batch, lambda array: _array(array, sharding))


def batch_sharding() -> Sharding:
    """The sharding that cuts arrays along their first axis, over all devices of all processes.

    Example:
        >>> tuple(batch_sharding().spec)
        ('batch',)
    """
    jax = _jax()
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("batch",))
    made: Sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("batch"))
    return made


class DataLoader(load.DataLoader):
    """Batches of ``jax.Array``: :class:`shoal.DataLoader`, with batches sent to devices from its worker threads.

    While a batch is in use the next ones are on their way; ``prefetch`` says how many. ``sharding`` says over which
    devices arrays lie: None for JAX's default device, ``"batch"`` for all devices along the first axis, or a sharding
    of JAX's. With several processes each gives its part of the batch, and ``batch_size`` is that of a process. The rank
    is that of the JAX process where there are several, else the environment's.

    Raises:
        OptionError: An option is not one, or is out of range; on iterating, when batches cannot be shared out so.

    Example:
        >>> loader = DataLoader([{"x": np.full(2, number)} for number in range(4)], batch_size=2, sharding="batch")
        >>> [batch["x"].sum().item() for batch in loader]
        [2, 10]
    """

    def __init__(
        self, dataset: Any, options: LoaderOptions | None = None, *, sharding: Any = None, **changes: Any
    ) -> None:
        if isinstance(sharding, str) and sharding != "batch":
            raise OptionError("no such sharding", expected="'batch', or a jax.sharding.Sharding", found=repr(sharding))
        self._sharding = sharding
        super().__init__(dataset, options, **changes)

    def _with(self, spec: PipelineSpec) -> load.DataLoader:
        made = super()._with(spec)
        assert isinstance(made, DataLoader)  # noqa: S101 - of this one's own class
        made._sharding = self._sharding  # noqa: SLF001
        return made

    @functools.cached_property
    def _built(self) -> BoundPipeline:
        jax, spec = _jax(), self._spec
        if spec.options.rank is None and jax.process_count() > 1:
            ranks = {"rank": jax.process_index(), "world_size": jax.process_count()}
            spec = replace(spec, options=spec.options.with_options(**ranks))
        sharding: Any = batch_sharding() if self._sharding == "batch" else self._sharding
        return build(spec.then(Map(functools.partial(as_jax, sharding=sharding))))

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "sharding": self._sharding}

    def __setstate__(self, kept: dict[str, Any]) -> None:
        self._sharding = kept["sharding"]
        super().__setstate__(kept)


def _array(array: npt.NDArray[Any], sharding: Any) -> Any:
    jax = _jax()
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    if sharding is None:
        return jax.device_put(array)
    try:
        return jax.make_array_from_process_local_data(sharding, array)
    except ValueError as error:
        raise OptionError(
            "the batch cannot be shared out over the devices",
            expected="a size that the devices divide",
            found=f"shape {array.shape}",
            hint="choose such a batch_size, and drop_last=True",
        ) from error


def _jax() -> Any:
    try:
        import jax
    except ImportError as error:
        raise MissingExtraError(
            "the package jax cannot be imported", found=error, hint="pip install 'shoal[jax]'"
        ) from error
    return jax
