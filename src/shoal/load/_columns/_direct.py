"""Batches of large arrays, read straight into place.

Where samples are alike, the index and one of them say where in the file the numbers of each array lie. So they are
read into their rows of the batch, and only what stands around them is looked at, afterwards: were the samples not
alike after all, the batch is read anew, whole. Checksums are made of the pieces.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from shoal.errors import ShoalError
from shoal.schema import Array
from shoal.shard import Cuts, ShardSource

from ._buffers import BufferPool
from ._typed import ArrayLayout, Learnt, PayloadRun, TypedColumns
from ._walk import Step, Walk, steps_of

__all__ = ["DirectPlan", "direct_columns", "direct_plan"]

T = TypeVar("T")
Int64 = npt.NDArray[np.int64]

LARGE_BYTES = 32 << 10
"""Arrays from this size on are read into place; smaller ones are quicker copied from their block."""
_CACHE_LINE = 64
_FIXED_KINDS = ("float", "bool")


@dataclass(frozen=True, slots=True)
class DirectPlan:
    """How samples are cut, by the fields of one of them: which arrays are taken out, and what is left."""

    cuts: Cuts
    steps: tuple[Step, ...]
    layouts: dict[str, ArrayLayout]


def direct_plan(source: ShardSource, number: int, field: str, learnt: Learnt[Any]) -> DirectPlan | None:
    """What sample ``number`` says of how to read others; None where it has no large array, or none can be found so."""
    if not learnt.as_stored or not source.shard_of(number).scatters:
        return None
    run = PayloadRun(source.raw_rows(np.array([number]), field), learnt)
    try:
        steps = steps_of(memoryview(run.raw.data)[int(run.raw.starts[0]) :][: int(run.raw.sizes[0])])
        layouts = {step.name: run.layout(step.name) for step in steps if isinstance(learnt.types.get(step.name), Array)}
    except ShoalError:  # whoever reads it says so
        return None
    large = {name: layout for name, layout in layouts.items() if layout is not None and layout.nbytes >= LARGE_BYTES}
    cuts = _cuts(steps, large) if large else None
    return None if cuts is None else DirectPlan(cuts, steps, large)


def _cuts(steps: tuple[Step, ...], large: dict[str, ArrayLayout]) -> Cuts | None:
    """None where more than one gap may be of another size in other samples."""
    gaps, taken, varying = [0], [], set()
    for step in steps:
        gaps[-1] += len(step.key) + len(step.header)
        if step.name in large:
            gaps[-1] += len(step.head)
            taken.append(large[step.name].nbytes)
            gaps.append(0)
        else:
            gaps[-1] += step.size
            if step.kind not in _FIXED_KINDS and not step.head:
                varying.add(len(gaps) - 1)
    return Cuts(tuple(gaps), tuple(taken), varying.pop() if varying else len(taken)) if len(varying) < 2 else None


def direct_columns(
    source: ShardSource,
    numbers: Int64,
    field: str,
    learnt: Learnt[T],
    plan: DirectPlan,
    buffers: BufferPool,
    threads: int = 1,
) -> TypedColumns[T] | None:
    """Columns of the samples with these numbers, in this order; None where ``plan`` is not right for all of them."""
    layouts, count = plan.layouts, len(numbers)
    starts = np.cumsum([gap + size for gap, size in zip(plan.cuts.gaps, (0, *plan.cuts.taken), strict=True)]).tolist()
    outs = [
        buffers.empty(count * layout.nbytes, _offset(layout, start))
        for layout, start in zip(layouts.values(), starts, strict=False)
    ]
    raw = source.raw_cut(numbers, field, plan.cuts, [out.data for out in outs], threads)
    if raw is None:
        return None
    elided = {name: layout.nbytes for name, layout in layouts.items()}
    walk = Walk(raw.data, raw.starts, raw.sizes, plan.steps, elided)
    walked = walk.fields()
    if not walk.ended:
        return None
    run = PayloadRun(raw, learnt, walked=walked, whole=lambda: source.raw_rows(numbers, field))
    arrays = {
        name: out.view(layout.dtype).reshape(count, *layout.shape)
        for (name, layout), out in zip(layouts.items(), outs, strict=True)
    }
    return TypedColumns([(run, slice(None))], arrays)


def _offset(layout: ArrayLayout, start: int) -> int:
    """Where in a cache line rows begin: where they begin in the file, which makes the system's copy a fifth faster."""
    within = start % _CACHE_LINE
    return within if layout.nbytes % _CACHE_LINE == 0 and within % layout.dtype.alignment == 0 else 0
