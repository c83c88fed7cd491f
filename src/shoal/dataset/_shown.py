"""How a dataset shows itself: its path, how many samples are in view, and the verbs that led there."""

from __future__ import annotations

import functools
import os
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.sample import Lens
from shoal.shard import ShardSource

from ._description import Description, Opened, PathLike, Step

__all__ = ["shown_dataset", "shown_function", "with_step"]

Int64 = npt.NDArray[np.int64]
_MOST = 60


def with_step(changed: Description, before: Description, step: Step | None, rows: Int64 | None) -> Description:
    """The description of a view, with the verb that made it noted.

    Samples chosen by position end what came before: doing that again could not change the choice.
    """
    step = step or _told(changed, before, rows)
    if step is None:
        return changed
    earlier = before.steps
    if step.rows is not None:
        earlier = tuple(Step(each.shown) for each in earlier)
    return replace(changed, steps=(*earlier, step))


def _told(changed: Description, before: Description, rows: Int64 | None) -> Step | None:
    """The verb, told from what it changed."""
    if rows is not None:
        return Step("materialize()" if len(changed.stages) < len(before.stages) else "select(...)", rows=rows)
    if len(changed.stages) > len(before.stages):
        stage = changed.stages[-1]
        return Step(f"{stage.kind}({shown_function(stage.function)})")
    if changed.fields != before.fields:
        return Step(f"columns({_cut(list(changed.fields or ()))})")
    return None


def shown_function(function: Any) -> str:
    """A function by the name it was given."""
    if isinstance(function, functools.partial):
        return shown_function(function.func)
    if isinstance(function, Lens):
        return getattr(function.get, "__name__", "lens")
    return str(getattr(function, "__name__", type(function).__name__))


def _cut(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _MOST else f"{text[: _MOST - 3]}..."


def shown_dataset(description: Description, opened: Opened, chosen: Int64 | None) -> str:
    """``Dataset('data', 120 of 1,000 samples, where(width >= 512), map(f))``."""
    count = [] if chosen is None else [_count(len(chosen), opened)]
    return f"Dataset({', '.join([_shown_path(description.path), *count, *(step.shown for step in description.steps)])})"


def _shown_path(path: object) -> str:
    if isinstance(path, (str, os.PathLike)):
        return repr(os.fspath(path))
    if not isinstance(path, tuple):
        return repr(path)
    names: list[PathLike] = list(path)
    return repr(names) if len(names) <= 4 else f"[{names[0]!r}, ... {len(names) - 2} more ..., {names[-1]!r}]"


def _count(shown: int, opened: Opened) -> str:
    total = opened.source.known_length if opened.is_open and isinstance(opened.source, ShardSource) else None
    return f"{shown:,} samples" if total is None else f"{shown:,} of {total:,} samples"
