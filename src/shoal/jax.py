"""JAX: a loader whose batches are ``jax.Array``, transferred to their devices by its worker threads."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from shoal import load
from shoal._optional import require
from shoal.adapt import map_arrays
from shoal.codec._frameworks import refuse_wide_ints
from shoal.errors import OptionError
from shoal.load._options import LoaderOptions
from shoal.load._pipeline import BoundPipeline, PipelineSpec, build
from shoal.load._stages import Map

if TYPE_CHECKING:
    from jax.sharding import Sharding

__all__ = ["DataLoader", "as_jax", "batch_sharding"]


def as_jax(batch: Any, sharding: Sharding | None = None, *, is_batch: bool = True) -> Any:
    """The batch with its arrays, and its columns of numbers, as ``jax.Array``; see :func:`shoal.adapt.map_arrays`.

    With a sharding an array is this process's part of one that lies over the devices of all processes. 64-bit numbers
    become 32-bit ones unless JAX was told to use 64 bits (``jax_enable_x64``).

    Raises:
        OptionError: An array cannot be shared out so, or has ints that need 64 bits while JAX uses 32.

    Examples:
        >>> batch = as_jax({"x": np.zeros((2, 3), np.float32), "name": ["a", "b"]})
        >>> batch["x"].shape, batch["name"]
        ((2, 3), ['a', 'b'])
    """
    return map_arrays(batch, lambda array: _to_jax_array(array, sharding), is_batch=is_batch)


def _to_jax_array(array: npt.NDArray[Any], sharding: Any) -> Any:
    jax = require("jax", extra="jax")
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    if array.dtype.kind in "iu" and not jax.config.jax_enable_x64:
        narrow = np.int32 if array.dtype.kind == "i" else np.uint32
        refuse_wide_ints(array, narrow, "JAX", 'call jax.config.update("jax_enable_x64", True) first')
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


def batch_sharding() -> Sharding:
    """The sharding that cuts arrays along their first axis, over all devices of all processes.

    Examples:
        >>> tuple(batch_sharding().spec)
        ('batch',)
    """
    jax = require("jax", extra="jax")
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("batch",))
    sharding: Sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("batch"))
    return sharding


class DataLoader(load.DataLoader):
    """Batches of ``jax.Array``: :class:`shoal.DataLoader`, with batches sent to devices from its worker threads.

    While a batch is in use the next ones are on their way; ``prefetch`` says how many. ``sharding`` says over which
    devices arrays lie: None for JAX's default device, ``"batch"`` for all devices along the first axis, or a sharding
    of JAX's. With several processes each gives its part of the batch, and ``batch_size`` is that of a process. The rank
    is that of the JAX process where there are several, else the environment's.

    Raises:
        OptionError: An option is not one, or is out of range; on iterating, when batches cannot be shared out so.

    Examples:
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
        loader = super()._with(spec)
        assert isinstance(loader, DataLoader)  # noqa: S101 - the base class makes one of this class
        loader._sharding = self._sharding  # noqa: SLF001
        return loader

    @functools.cached_property
    def _pipeline(self) -> BoundPipeline:
        jax, spec = require("jax", extra="jax"), self._spec
        if spec.options.rank is None and jax.process_count() > 1:
            ranks = {"rank": jax.process_index(), "world_size": jax.process_count()}
            spec = replace(spec, options=spec.options.with_options(**ranks))
        sharding: Any = batch_sharding() if self._sharding == "batch" else self._sharding
        return build(spec.then(Map(functools.partial(as_jax, sharding=sharding, is_batch=spec.gives_batches))))

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "sharding": self._sharding}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._sharding = state["sharding"]
        super().__setstate__(state)
