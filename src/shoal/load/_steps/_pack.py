"""Token sequences of any length -> rows of one length, for training without padding."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.errors import FieldError, OptionError
from shoal.order import Pending

from ._elements import Element, Mark, fed_again
from ._steps import Pack

__all__ = ["packed"]

Tokens = npt.NDArray[Any]


@dataclass(slots=True, eq=False)
class _Row:
    """A row that is being filled: pieces of samples, one after the other."""

    pieces: list[tuple[Element, Tokens]] = field(default_factory=list)
    used: int = 0

    def add(self, element: Element, tokens: Tokens) -> None:
        self.pieces.append((element, tokens))
        self.used += len(tokens)

    @property
    def pending(self) -> tuple[Pending, ...]:
        return tuple(element.key for element, _ in self.pieces)


def packed(elements: Iterable[Element], step: Pack, held: list[list[Element]]) -> Iterator[Element]:
    """Rows of ``step.length`` tokens: whole samples by first fit, or all tokens in line, cut where a row is full."""
    return _first_fit(elements, step, held) if step.how == "first_fit" else _in_line(elements, step, held)


def _first_fit(elements: Iterable[Element], step: Pack, held: list[list[Element]]) -> Iterator[Element]:
    rows = [_restored(group, step) for group in held]
    last: Mark | None = None
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


def _with_rows(mark: Mark, rows: list[_Row]) -> Mark:
    return replace(mark, pending=tuple(row.pending for row in rows))


def _before(element: Element, rows: list[_Row]) -> Mark:
    position, part, _ = element.key
    return Mark(position, part, tuple(row.pending for row in rows))


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


def _made(row: _Row, step: Pack, mark: Mark) -> Element:
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
