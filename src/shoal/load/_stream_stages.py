"""Stages that look at more than one element: batch, bucket, pack, shuffle through a buffer, window and their like.

Each element has a resume point, from which everything after it can be made again. Elements that a stage has buffered
are listed there as pending: on resume they are read again, and buffered again.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.errors import FieldError, OptionError
from shoal.order._permutation import key_of
from shoal.order._state import PendingElement

from ._collate import SampleBatch, collate
from ._stages import (
    Batch,
    Bucket,
    Element,
    Enumerate,
    Interleave,
    Pack,
    PendingGroups,
    ResumePoint,
    Shuffle,
    Skip,
    Stage,
    Take,
    TakeWhile,
    Unbatch,
    Window,
    function_location,
    replay_pending,
)

__all__ = ["apply_to_stream", "buffers_elements", "is_seekable"]

Tokens = npt.NDArray[Any]

_PURPOSE = 8
"""Keeps the random numbers of a shuffle buffer apart from others."""
_MAX_REPR_CHARACTERS = 100


def buffers_elements(stage: Stage) -> bool:
    """Whether the stage delays elements while later ones pass."""
    return isinstance(stage, (Bucket, Shuffle, Pack))


def is_seekable(stage: Stage) -> bool:
    """Whether the stage's elements can be resumed from their resume points, without replaying the stream."""
    return isinstance(stage, Batch) or buffers_elements(stage)


def apply_to_stream(
    stage: Stage, elements: Iterator[Element], epoch: int, pending: PendingGroups, seekable: bool = False
) -> Iterator[Element]:
    """Apply a stage to a stream of elements.

    ``epoch`` determines random numbers, and ``pending`` is what the stage had buffered. If ``seekable``, the stream may
    start anywhere, so random numbers must not depend on elements before.
    """
    if isinstance(stage, Pack):
        return pack_elements(elements, stage, pending)
    elements = itertools.chain(replay_pending(pending), elements)
    if isinstance(stage, Batch):
        return batch_elements(elements, stage)
    if isinstance(stage, Bucket):
        return bucket_elements(elements, stage)
    if isinstance(stage, Shuffle):
        return shuffle_elements(elements if seekable else _number_elements(elements), stage, 0 if seekable else epoch)
    if isinstance(stage, Unbatch):
        return (part for element in elements for part in unbatch_element(element))
    if isinstance(stage, Window):
        return window_elements(elements, stage)
    if isinstance(stage, Interleave):
        return interleave_elements(elements, stage)
    return _count_elements(stage, elements)


def _count_elements(stage: Stage, elements: Iterator[Element]) -> Iterator[Element]:
    if isinstance(stage, Take):
        return itertools.islice(elements, stage.count)
    if isinstance(stage, Skip):
        return itertools.islice(elements, stage.count, None)
    if isinstance(stage, TakeWhile):
        return itertools.takewhile(lambda element: _call("take_while", stage.function, element.value), elements)
    if isinstance(stage, Enumerate):
        return (replace(element, value=(number, element.value)) for number, element in enumerate(elements, stage.start))
    raise OptionError("no such step", found=repr(stage))


def batch_elements(elements: Iterable[Element], stage: Batch) -> Iterator[Element]:
    """Combine every ``size`` elements into a batch; after each batch nothing is buffered."""
    open_batch: list[Element] = []
    for element in elements:
        open_batch.append(element)
        if len(open_batch) == stage.size:
            yield _combine(open_batch, stage, element.resume_point)
            open_batch = []
    if open_batch and not stage.drop_last:
        yield _combine(open_batch, stage, open_batch[-1].resume_point)


def _combine(elements: list[Element], stage: Batch | Bucket, resume_point: ResumePoint) -> Element:
    values = [element.value for element in elements]
    batch = collate(values, stage.ragged) if stage.collate is None else _call("collate", stage.collate, values)
    samples, repeated = sum(element.samples for element in elements), sum(element.repeated for element in elements)
    return Element(batch, samples, resume_point, repeated=repeated, size=sum(element.size for element in elements))


def _call(method: str, function: Callable[[Any], Any], value: Any) -> Any:
    """Call a function of the user; errors get a note with its name and location."""
    try:
        return function(value)
    except StopIteration as error:  # raised again, it would end the stream silently
        raise RuntimeError(f"{method}({function_location(function)}) raised StopIteration") from error
    except Exception as error:
        error.add_note(f"in {method}({function_location(function)})")
        raise


def bucket_elements(elements: Iterable[Element], stage: Bucket) -> Iterator[Element]:
    """Batch elements of similar length; partly filled buckets are delivered at the end, shortest first."""
    buckets: list[list[Element]] = [[] for _ in stage.sizes]
    last = ResumePoint(0)
    for element in elements:
        last = element.resume_point
        length = _call("bucket", stage.length_of, element.value)
        number = int(np.searchsorted(stage.boundaries, length, "right"))
        buckets[number].append(element)
        if len(buckets[number]) == stage.sizes[number]:
            full, buckets[number] = buckets[number], []
            yield _combine(full, stage, _with_pending(element.resume_point, buckets))
    for number, rest in enumerate(buckets):
        if rest and not stage.drop_last:
            buckets[number] = []
            yield _combine(rest, stage, _with_pending(last, buckets))


def _with_pending(resume_point: ResumePoint, groups: Iterable[Iterable[Element]]) -> ResumePoint:
    """Return the resume point with these elements added to those that are pending."""
    pending: tuple[tuple[PendingElement, ...], ...] = tuple(tuple(element.key for element in group) for group in groups)
    return replace(resume_point, pending=(*(group for group in pending if group), *resume_point.pending))


def shuffle_elements(elements: Iterable[Element], stage: Shuffle, epoch: int) -> Iterator[Element]:
    """Shuffle through a buffer: each new element replaces one at a random index, which is delivered.

    Random numbers come from the new element's key, not from a counter. So what follows depends only on the buffer and
    the elements to come, which the resume point has.
    """
    buffer: list[Element] = []
    assert stage.buffer is not None  # noqa: S101 - checked with the layout of the pipeline
    for element in elements:
        if len(buffer) < stage.buffer:
            buffer.append(element)
            continue
        index = _random_number(element, stage, epoch) % len(buffer)
        leaving, buffer[index] = buffer[index], element
        yield replace(leaving, resume_point=_with_pending(element.resume_point, [buffer]))
    points = (element.resume_point for element in buffer)
    last = max(points, key=lambda point: (point.position, point.part), default=ResumePoint(0))
    rest = sorted(buffer, key=lambda element: _random_number(element, stage, epoch))
    for index, element in enumerate(rest):
        yield replace(element, resume_point=_with_pending(replace(last, pending=()), [rest[index + 1 :]]))


def _number_elements(elements: Iterator[Element]) -> Iterator[Element]:
    """Use numbers in the epoch as keys, since several elements may be from one sample, or one from several."""
    return (replace(element, key=(number, 0, 0)) for number, element in enumerate(elements))


def _random_number(element: Element, stage: Shuffle, epoch: int) -> int:
    return int(key_of(stage.seed, epoch, _PURPOSE, *element.key[:2]))


def interleave_elements(elements: Iterator[Element], stage: Interleave) -> Iterator[Element]:
    """Yield the elements of several iterables in turns of ``block``; when one ends, the next is opened."""
    opened: deque[tuple[Iterator[Any], ResumePoint]] = deque()
    while True:
        while len(opened) < stage.cycle and (element := next(elements, None)) is not None:
            opened.append((iter(_call("interleave", stage.function, element.value)), element.resume_point))
        if not opened:
            return
        values, resume_point = opened.popleft()
        block = list(itertools.islice(values, stage.block))
        yield from (Element(value, 1, resume_point) for value in block)
        if len(block) == stage.block:
            opened.append((values, resume_point))


def window_elements(elements: Iterable[Element], stage: Window) -> Iterator[Element]:
    """Yield lists of consecutive elements, each starting ``shift`` after the one before."""
    window: deque[Element] = deque()
    skip = 0
    for element in elements:
        if skip:  # a shift wider than the window leaves elements out
            skip -= 1
            continue
        window.append(element)
        if len(window) == stage.size:
            yield _list_elements(window)
            for _ in range(min(stage.shift, stage.size)):
                window.popleft()
            skip = max(0, stage.shift - stage.size)
    while window and not stage.drop_last:
        yield _list_elements(window)
        for _ in range(min(stage.shift, len(window))):
            window.popleft()


def _list_elements(window: deque[Element]) -> Element:
    values = [element.value for element in window]
    return Element(values, sum(element.samples for element in window), window[-1].resume_point)


def unbatch_element(element: Element) -> Iterator[Element]:
    """Yield the elements of a batch. Raises OptionError if it is not a batch."""
    for value in _rows(element.value):
        yield Element(value, 1, element.resume_point)


def _rows(batch: Any) -> Iterable[Any]:
    if isinstance(batch, dict) and _are_columns(batch.values()):
        count = len(next(iter(batch.values()), ()))
        return ({name: column[at] for name, column in batch.items()} for at in range(count))
    if isinstance(batch, tuple):
        return zip(*batch, strict=True)
    if isinstance(batch, (list, np.ndarray, SampleBatch)):
        return iter(batch)
    expected = "a dict of columns of one length, a tuple, a list or an array"
    text = repr(batch)
    shown = text if len(text) <= _MAX_REPR_CHARACTERS else f"{text[:_MAX_REPR_CHARACTERS]}..."
    raise OptionError("only a batch can be taken apart", expected=expected, found=shown)


def _are_columns(values: Iterable[Any]) -> bool:
    """Whether these all have the same number of elements; strings have none."""
    counts = {
        None if isinstance(value, (str, bytes)) or not hasattr(value, "__len__") else len(value) for value in values
    }
    return None not in counts and len(counts) <= 1


@dataclass(slots=True, eq=False)
class _Row:
    """A row that is being filled with the tokens of samples."""

    parts: list[tuple[Element, Tokens]] = field(default_factory=list)
    used: int = 0

    def add(self, element: Element, tokens: Tokens) -> None:
        self.parts.append((element, tokens))
        self.used += len(tokens)


def pack_elements(elements: Iterable[Element], stage: Pack, pending: PendingGroups) -> Iterator[Element]:
    """Yield rows of ``stage.length`` tokens: entire samples by first fit, or all tokens, cut where a row is full."""
    pack = _pack_first_fit if stage.how == "first_fit" else _pack_concatenated
    return pack(elements, stage, pending)


def _pack_first_fit(elements: Iterable[Element], stage: Pack, pending: PendingGroups) -> Iterator[Element]:
    rows = []
    for group in pending:
        row = _Row()
        for element in group:
            row.add(element, _tokens_of(element, stage))
        rows.append(row)
    last: ResumePoint | None = None
    for element in elements:
        tokens = _tokens_of(element, stage)
        last = element.resume_point
        if len(tokens) > stage.length:
            hint = f"cut it before, with flat_map, or use how='concat', which cuts; sample {element.key[0]}"
            expected = f"at most {stage.length} tokens"
            raise OptionError("a sample does not fit into a row", expected=expected, found=len(tokens), hint=hint)
        fitting = next((row for row in rows if row.used + len(tokens) <= stage.length), None)
        if fitting is None:
            if len(rows) >= stage.open_rows:
                leaving = max(rows, key=lambda row: row.used)
                rows.remove(leaving)
                # The new element is not in any row yet: it is read again after this one.
                yield _build_row(leaving, stage, _with_rows(ResumePoint(*element.key[:2]), rows))
            fitting = _Row()
            rows.append(fitting)
        fitting.add(element, tokens)
        if fitting.used == stage.length:
            rows.remove(fitting)
            yield _build_row(fitting, stage, _with_rows(element.resume_point, rows))
    while rows:
        row = rows.pop(0)
        yield _build_row(row, stage, _with_rows(last or row.parts[-1][0].resume_point, rows))


def _with_rows(resume_point: ResumePoint, rows: list[_Row]) -> ResumePoint:
    return replace(resume_point, pending=tuple(tuple(element.key for element, _ in row.parts) for row in rows))


def _pack_concatenated(elements: Iterable[Element], stage: Pack, pending: PendingGroups) -> Iterator[Element]:
    row = _Row()
    for element in itertools.chain(replay_pending(pending), elements):
        tokens, used = _tokens_of(element, stage), element.key[2]
        while row.used + len(tokens) - used >= stage.length:
            room = stage.length - row.used
            row.add(element, tokens[used : used + room])
            used += room
            left = (((*element.key[:2], used),),) if used < len(tokens) else ()
            yield _build_row(row, stage, replace(element.resume_point, pending=(*left, *element.resume_point.pending)))
            row = _Row()
        if used < len(tokens):
            row.add(replace(element, key=(*element.key[:2], used)), tokens[used:])
    if row.parts:
        yield _build_row(row, stage, replace(row.parts[-1][0].resume_point, pending=()))


def _tokens_of(element: Element, stage: Pack) -> Tokens:
    value = element.value
    try:
        tokens = value[stage.field] if isinstance(value, dict) else getattr(value, stage.field)
    except (KeyError, AttributeError):
        names = list(value) if isinstance(value, dict) else [name for name in dir(value) if not name.startswith("_")]
        raise FieldError("samples have no such field to pack", expected=" or ".join(names), found=stage.field) from None
    array = np.asarray(tokens)
    if array.ndim == 0:
        found, hint = f"{type(tokens).__name__} under {stage.field!r}", "make tokens of it before, with map"
        raise OptionError("this is no line of tokens", expected="an array or a list", found=found, hint=hint)
    return array


def _build_row(row: _Row, stage: Pack, resume_point: ResumePoint) -> Element:
    """Return a row as arrays: tokens, the sample that each is from (from 1; 0 is padding), and its index in it."""
    parts = [tokens for _, tokens in row.parts]
    sizes = [len(tokens) for tokens in parts]
    rest = stage.length - row.used
    tokens = np.concatenate([*parts, np.full(rest, stage.pad, parts[0].dtype)])
    segments = np.repeat(np.arange(len(sizes) + 1, dtype=np.int32), [0, *sizes])
    positions = np.concatenate([np.arange(size, dtype=np.int32) for size in sizes]) if sizes else segments
    padding = np.zeros(rest, np.int32)
    value = {
        stage.field: tokens,
        "segment_ids": np.concatenate([segments, padding]),
        "position_ids": np.concatenate([positions, padding]),
    }
    return Element(value, len({element.key[:2] for element, _ in row.parts}), resume_point)
