"""Stages on the stream of elements: batch, bucket, pack and shuffle.

An element that a step gives carries the mark from which everything after it can be made again. Where a step holds
elements back (``bucketed``, ``mixed``) they stand in the mark as pending: read again, they are held again.
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
from shoal.order import PendingElement, key_of

from ._collate import SampleBatch, collate
from ._stages import (
    Batch,
    Bucket,
    Element,
    ElementPosition,
    Enumerate,
    Held,
    Interleave,
    Pack,
    Shuffle,
    Skip,
    Step,
    Take,
    TakeWhile,
    Unbatch,
    Window,
    fed_again,
    name_of,
)

__all__ = ["applied_to_line", "holds_back", "is_marked"]

Tokens = npt.NDArray[Any]


# ------------------------------------------------------------------------- the steps that look at more than one element


_SHUFFLE = 8
"""The purpose of a buffer's random numbers."""
_MOST_SHOWN = 100
"""Letters of a value in a message."""


def holds_back(step: Step) -> bool:
    """Whether the step keeps elements while later ones go on."""
    return isinstance(step, (Bucket, Shuffle, Pack))


def is_marked(step: Step) -> bool:
    """Whether what the step gives can be gone on from by its mark, without replaying the line."""
    return isinstance(step, Batch) or holds_back(step)


def applied_to_line(
    step: Step, elements: Iterator[Element], epoch: int, held: Held, marked: bool = False
) -> Iterator[Element]:
    """The line after one step. ``epoch`` fixes what is random in it; ``held`` is what it held back before.

    ``marked`` says whether it is gone on with from anywhere, so that what is random must not depend on what was before.
    """
    if isinstance(step, Pack):
        return packed(elements, step, held)
    elements = itertools.chain(fed_again(held), elements)
    if isinstance(step, Batch):
        return batched(elements, step)
    if isinstance(step, Bucket):
        return bucketed(elements, step)
    if isinstance(step, Shuffle):
        return mixed(elements if marked else _numbered(elements), step, 0 if marked else epoch)
    if isinstance(step, Unbatch):
        return (part for element in elements for part in parts_of(element))
    if isinstance(step, Window):
        return windowed(elements, step)
    if isinstance(step, Interleave):
        return interleaved(elements, step)
    return _counted(step, elements)


def _counted(step: Step, elements: Iterator[Element]) -> Iterator[Element]:
    if isinstance(step, Take):
        return itertools.islice(elements, step.count)
    if isinstance(step, Skip):
        return itertools.islice(elements, step.count, None)
    if isinstance(step, TakeWhile):
        return itertools.takewhile(lambda element: _called("take_while", step.function, element.value), elements)
    if isinstance(step, Enumerate):
        return (replace(element, value=(number, element.value)) for number, element in enumerate(elements, step.start))
    raise OptionError("no such step", found=repr(step))


def batched(elements: Iterable[Element], step: Batch) -> Iterator[Element]:
    """Elements gathered ``size`` at a time; after each batch nothing is held back."""
    held: list[Element] = []
    for element in elements:
        held.append(element)
        if len(held) == step.size:
            yield _together(held, step)
            held = []
    if held and not step.drop_last:
        yield _together(held, step)


def _together(held: list[Element], step: Batch | Bucket, mark: ElementPosition | None = None) -> Element:
    values = [element.value for element in held]
    made = collate(values, step.ragged) if step.collate is None else _called("collate", step.collate, values)
    samples, repeated = sum(element.samples for element in held), sum(element.repeated for element in held)
    size = sum(element.size for element in held)
    return Element(made, samples, held[-1].mark if mark is None else mark, repeated=repeated, size=size)


def _called(what: str, function: Callable[[Any], Any], value: Any) -> Any:
    """What a function of the user's gives; an error is told with where the function is."""
    try:
        return function(value)
    except StopIteration as error:  # it would end the line as if all were done
        raise RuntimeError(f"{what}({name_of(function)}) raised StopIteration") from error
    except Exception as error:
        error.add_note(f"in {what}({name_of(function)})")
        raise


def bucketed(elements: Iterable[Element], step: Bucket) -> Iterator[Element]:
    """Batches of about one length: each bucket is held until it is full; what is left at the end comes by length."""
    held: list[list[Element]] = [[] for _ in step.sizes]
    last = ElementPosition(0)
    for element in elements:
        last = element.mark
        length = _called("bucket", step.length_of, element.value)
        bucket = int(np.searchsorted(step.boundaries, length, "right"))
        held[bucket].append(element)
        if len(held[bucket]) == step.sizes[bucket]:
            full, held[bucket] = held[bucket], []
            yield _together(full, step, _holding(element.mark, held))
    for bucket, rest in enumerate(held):
        if rest and not step.drop_last:
            held[bucket] = []
            yield _together(rest, step, _holding(last, held))


def _holding(mark: ElementPosition, held: Iterable[Iterable[Element]]) -> ElementPosition:
    """A mark at which these elements are still to come, beside those that it has already."""
    pending: tuple[tuple[PendingElement, ...], ...] = tuple(tuple(element.key for element in group) for group in held)
    return replace(mark, pending=(*(group for group in pending if group), *mark.pending))


def mixed(elements: Iterable[Element], step: Shuffle, epoch: int) -> Iterator[Element]:
    """Elements through a buffer: each that comes takes the place of one that goes, drawn by who comes.

    Not by a counter, where a run may begin anywhere: what follows depends on the buffer and on what comes, and the mark
    has both.
    """
    buffer: list[Element] = []
    assert step.buffer is not None  # noqa: S101 - refused when the pipeline was laid out
    for element in elements:
        if len(buffer) < step.buffer:
            buffer.append(element)
            continue
        at = _drawn(element, step, epoch) % len(buffer)
        leaving, buffer[at] = buffer[at], element
        yield replace(leaving, mark=_holding(element.mark, [buffer]))
    last = max((element.mark for element in buffer), key=lambda mark: (mark.position, mark.part), default=None)
    rest = sorted(buffer, key=lambda element: _drawn(element, step, epoch))
    for at, element in enumerate(rest):
        yield replace(element, mark=_holding(replace(last or element.mark, pending=()), [rest[at + 1 :]]))


def _numbered(elements: Iterator[Element]) -> Iterator[Element]:
    """Elements known by their number in the epoch, since several may have come of one sample, or one of several."""
    return (replace(element, key=(number, 0, 0)) for number, element in enumerate(elements))


def _drawn(element: Element, step: Shuffle, epoch: int) -> int:
    return int(key_of(step.seed, epoch, _SHUFFLE, *element.key[:2]))


def interleaved(elements: Iterator[Element], step: Interleave) -> Iterator[Element]:
    """What several elements give, in turns of ``block`` each; one that ends makes room for the next."""
    opened: deque[tuple[Iterator[Any], ElementPosition]] = deque()
    while True:
        while len(opened) < step.cycle and (element := next(elements, None)) is not None:
            opened.append((iter(_called("interleave", step.function, element.value)), element.mark))
        if not opened:
            return
        values, mark = opened.popleft()
        block = list(itertools.islice(values, step.block))
        yield from (Element(value, 1, mark) for value in block)
        if len(block) == step.block:
            opened.append((values, mark))


def windowed(elements: Iterable[Element], step: Window) -> Iterator[Element]:
    """Lists of neighbours, each beginning ``shift`` after the one before."""
    held: deque[Element] = deque()
    passing = 0
    for element in elements:
        if passing:  # a shift wider than the window leaves elements out
            passing -= 1
            continue
        held.append(element)
        if len(held) == step.size:
            yield _listed(held)
            for _ in range(min(step.shift, step.size)):
                held.popleft()
            passing = max(0, step.shift - step.size)
    while held and not step.drop_last:
        yield _listed(held)
        for _ in range(min(step.shift, len(held))):
            held.popleft()


def _listed(held: deque[Element]) -> Element:
    return Element([element.value for element in held], sum(element.samples for element in held), held[-1].mark)


def parts_of(element: Element) -> Iterator[Element]:
    """The elements of a batch. Raises OptionError for what is none."""
    for value in _rows(element.value):
        yield Element(value, 1, element.mark)


def _rows(batch: Any) -> Iterable[Any]:
    if isinstance(batch, dict) and _are_columns(batch.values()):
        count = len(next(iter(batch.values()), ()))
        return ({name: column[at] for name, column in batch.items()} for at in range(count))
    if isinstance(batch, tuple):
        return zip(*batch, strict=True)
    if isinstance(batch, (list, np.ndarray, SampleBatch)):
        return iter(batch)
    expected = "a dict of columns of one length, a tuple, a list or an array"
    raise OptionError("only a batch can be taken apart", expected=expected, found=_shortened(repr(batch)))


def _are_columns(values: Iterable[Any]) -> bool:
    """Whether these all have as many elements; a text has none."""
    counts = {
        None if isinstance(value, (str, bytes)) or not hasattr(value, "__len__") else len(value) for value in values
    }
    return None not in counts and len(counts) <= 1


def _shortened(text: str) -> str:
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."


# ------------------------------------ token sequences of any length -> rows of one length, for training without padding


@dataclass(slots=True, eq=False)
class _Row:
    """A row that is being filled: pieces of samples, one after the other."""

    pieces: list[tuple[Element, Tokens]] = field(default_factory=list)
    used: int = 0

    def add(self, element: Element, tokens: Tokens) -> None:
        self.pieces.append((element, tokens))
        self.used += len(tokens)

    @property
    def pending(self) -> tuple[PendingElement, ...]:
        return tuple(element.key for element, _ in self.pieces)


def packed(elements: Iterable[Element], step: Pack, held: list[list[Element]]) -> Iterator[Element]:
    """Rows of ``step.length`` tokens: whole samples by first fit, or all tokens in line, cut where a row is full."""
    return _first_fit(elements, step, held) if step.how == "first_fit" else _in_line(elements, step, held)


def _first_fit(elements: Iterable[Element], step: Pack, held: list[list[Element]]) -> Iterator[Element]:
    rows = [_restored(group, step) for group in held]
    last: ElementPosition | None = None
    for element in elements:
        tokens = _tokens_of(element, step)
        last = element.mark
        if len(tokens) > step.length:
            hint = f"cut it before, with flat_map, or use how='concat', which cuts; sample {element.key[0]}"
            expected = f"at most {step.length} tokens"
            raise OptionError("a sample does not fit into a row", expected=expected, found=len(tokens), hint=hint)
        row = next((row for row in rows if row.used + len(tokens) <= step.length), None)
        if row is None:
            if len(rows) >= step.open_rows:
                leaving = max(rows, key=lambda row: row.used)
                rows.remove(leaving)
                # The element that made it leave is not in any row yet: it comes again after this one.
                yield _made(leaving, step, _before(element, rows))
            row = _Row()
            rows.append(row)
        row.add(element, tokens)
        if row.used == step.length:
            rows.remove(row)
            yield _made(row, step, _with_rows(element.mark, rows))
    while rows:
        row = rows.pop(0)
        yield _made(row, step, _with_rows(last or row.pieces[-1][0].mark, rows))


def _restored(group: list[Element], step: Pack) -> _Row:
    row = _Row()
    for element in group:
        row.add(element, _tokens_of(element, step))
    return row


def _with_rows(mark: ElementPosition, rows: list[_Row]) -> ElementPosition:
    return replace(mark, pending=tuple(row.pending for row in rows))


def _before(element: Element, rows: list[_Row]) -> ElementPosition:
    position, part, _ = element.key
    return ElementPosition(position, part, tuple(row.pending for row in rows))


def _in_line(elements: Iterable[Element], step: Pack, held: list[list[Element]]) -> Iterator[Element]:
    row = _Row()
    for element in itertools.chain(fed_again(held), elements):
        tokens, used = _tokens_of(element, step), element.key[2]
        while row.used + len(tokens) - used >= step.length:
            room = step.length - row.used
            row.add(element, tokens[used : used + room])
            used += room
            left = (((*element.key[:2], used),),) if used < len(tokens) else ()
            yield _made(row, step, replace(element.mark, pending=(*left, *element.mark.pending)))
            row = _Row()
        if used < len(tokens):
            row.add(replace(element, key=(*element.key[:2], used)), tokens[used:])
    if row.pieces:
        yield _made(row, step, replace(row.pieces[-1][0].mark, pending=()))


def _tokens_of(element: Element, step: Pack) -> Tokens:
    value = element.value
    try:
        tokens = value[step.field] if isinstance(value, dict) else getattr(value, step.field)
    except (KeyError, AttributeError):
        names = list(value) if isinstance(value, dict) else [name for name in dir(value) if not name.startswith("_")]
        raise FieldError("samples have no such field to pack", expected=" or ".join(names), found=step.field) from None
    array = np.asarray(tokens)
    if array.ndim == 0:
        found, hint = f"{type(tokens).__name__} under {step.field!r}", "make tokens of it before, with map"
        raise OptionError("this is no line of tokens", expected="an array or a list", found=found, hint=hint)
    return array


def _made(row: _Row, step: Pack, mark: ElementPosition) -> Element:
    """The row as arrays: tokens, which sample each is of (from 1, 0 is padding), and its place in that sample."""
    pieces = [tokens for _, tokens in row.pieces]
    sizes = [len(piece) for piece in pieces]
    rest = step.length - row.used
    tokens = np.concatenate([*pieces, np.full(rest, step.pad, pieces[0].dtype)])
    segments = np.repeat(np.arange(len(sizes) + 1, dtype=np.int32), [0, *sizes])
    places = np.concatenate([np.arange(size, dtype=np.int32) for size in sizes]) if sizes else segments
    padding = np.zeros(rest, np.int32)
    value = {
        step.field: tokens,
        "segment_ids": np.concatenate([segments, padding]),
        "position_ids": np.concatenate([places, padding]),
    }
    return Element(value, len({element.key[:2] for element, _ in row.pieces}), mark)
