"""CSV and JSONL: where each line begins is found once, then lines are read by number."""

from __future__ import annotations

import csv
import functools
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from shoal.errors import DecodeError, OptionError
from shoal.store import ObjectReader

from ._sources import Values, kept_offsets, runs_of

__all__ = ["ColumnType", "CsvOptions", "CsvPart", "JsonlPart"]

Int64 = npt.NDArray[np.int64]
ColumnType = Literal["str", "int", "float", "bool"]
_CHUNK = 8 << 20
_GAP = 64 << 10
_LOOKED_AT = 1000
"""How many rows are asked what a column holds."""
_BOM = b"\xef\xbb\xbf"
_NEWLINE, _RETURN = 10, 13


class _LinePart:
    """A file of lines."""

    def __init__(self, reader: ObjectReader) -> None:
        self._reader = reader

    def _found(self) -> Int64:
        raise NotImplementedError

    @functools.cached_property
    def _starts(self) -> Int64:
        """Where each row begins, and where the last one ends."""
        return self._found()

    @functools.cached_property
    def _filled(self) -> Int64:
        """The numbers of the lines that have something on them."""
        spans = np.diff(self._starts)
        short = np.flatnonzero(spans <= 2)
        empty = [at for at, line in zip(short.tolist(), self.lines(short), strict=True) if not line.strip(b"\r\n")]
        return np.delete(np.arange(len(spans)), empty)

    @property
    def _rows(self) -> Int64:
        """The numbers of the lines that are samples."""
        return self._filled

    def __len__(self) -> int:
        return len(self._rows)

    def lines(self, rows: Int64) -> list[bytes]:
        """These rows' bytes: those near each other are read at once."""
        order = np.argsort(rows, kind="stable")
        starts, stops = self._starts[:-1][rows[order]], self._starts[1:][rows[order]]
        far = np.flatnonzero(starts[1:] > np.maximum.accumulate(stops)[:-1] + _GAP) + 1
        found = [b""] * len(rows)
        for run in np.split(np.arange(len(rows)), far) if len(rows) else ():
            base = int(starts[run[0]])
            data = self._reader.read(base, int(stops[run].max()))
            for place, at in zip(order[run].tolist(), run.tolist(), strict=True):
                found[place] = data[int(starts[at]) - base : int(stops[at]) - base]
        return found


def _row_starts(reader: ObjectReader, quote: bytes | None) -> Int64:
    """Where rows begin, and where the last one ends: empty lines are none, and quoted line ends belong to the text."""
    ends, inside, size = [], False, reader.info.size
    for base in range(0, size, _CHUNK):
        data = np.frombuffer(reader.read(base, base + _CHUNK), np.uint8)
        breaks = data == _NEWLINE
        if quote is not None:
            quoted = np.logical_xor.accumulate(data == quote[0]) ^ inside
            inside = bool(quoted[-1])
            breaks &= ~quoted
        ends.append(np.flatnonzero(breaks) + base + 1)
    marks = np.concatenate([np.zeros(1, np.int64), *ends, np.array([size], np.int64)])
    return np.unique(marks)


class JsonlPart(_LinePart):
    """One open file with a JSON object on each line."""

    def _found(self) -> Int64:
        return kept_offsets(self._reader, "jsonl", lambda reader: _row_starts(reader, None))

    @property
    def fields(self) -> tuple[str, ...]:
        """The names on the first lines."""
        return self._names

    @functools.cached_property
    def _names(self) -> tuple[str, ...]:
        some = self.read(np.arange(min(_LOOKED_AT, len(self))), None)
        return tuple(dict.fromkeys(name for values in some for name in values))

    def read(self, rows: Int64, fields: Sequence[str] | None) -> list[Values]:
        """These lines' objects."""
        numbers = self._rows[rows]
        return [
            self._parsed(int(number), line, fields) for number, line in zip(numbers, self.lines(numbers), strict=True)
        ]

    def _parsed(self, number: int, line: bytes, fields: Sequence[str] | None) -> Values:
        try:
            found = _decode_json(line.removeprefix(_BOM) if number == 0 else line)
        except msgspec.DecodeError as error:
            raise self._bad(number, error) from error
        if not isinstance(found, dict):
            raise self._bad(number, f"{type(found).__name__}, not an object")
        return found if fields is None else {name: found[name] for name in fields if name in found}

    def _bad(self, number: int, why: object) -> DecodeError:
        return DecodeError(f"line {number + 1} is no JSON object", found=why, offset=int(self._starts[number]))

    def runs(self, fields: Sequence[str] | None) -> Iterator[list[Values]]:
        """All lines in order."""
        return runs_of(self, fields, 1024)


_decode_json = msgspec.json.Decoder().decode


@dataclass(frozen=True, slots=True)
class CsvOptions:
    """How a CSV is written down."""

    delimiter: str = ","
    quote: str = '"'
    header: bool = True
    """Whether the first row names the columns; else they are ``0``, ``1`` and so on."""
    types: tuple[tuple[str, ColumnType], ...] | None = ()
    """What columns hold, where that is said; the rest is told by the first rows. None: all of them are text."""

    def __post_init__(self) -> None:
        if len(self.delimiter) != 1 or len(self.quote) != 1 or not self.quote.isascii():
            raise OptionError("delimiter and quote are one letter", found=f"{self.delimiter!r} and {self.quote!r}")
        for name, kind in self.types or ():
            if kind not in _PARSERS:
                raise OptionError("no such type", expected=" or ".join(_PARSERS), found=repr(kind), field=name)


class CsvPart(_LinePart):
    """One open CSV file."""

    def __init__(self, reader: ObjectReader, options: CsvOptions) -> None:
        super().__init__(reader)
        self._options = options

    def _found(self) -> Int64:
        quote = self._options.quote.encode()
        return kept_offsets(self._reader, f"csv {quote!r}", lambda reader: _row_starts(reader, quote))

    @property
    def _rows(self) -> Int64:
        return self._filled[1:] if self._options.header else self._filled

    @property
    def fields(self) -> tuple[str, ...]:
        """The columns."""
        return self._names

    @functools.cached_property
    def _names(self) -> tuple[str, ...]:
        if not len(self._filled):
            return ()
        first = self._cells(0, self.lines(self._filled[:1])[0].removeprefix(_BOM))
        names = first if self._options.header else [str(number) for number in range(len(first))]
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise DecodeError("the header names one column twice", found=twice)
        return tuple(names)

    @functools.cached_property
    def _parsers(self) -> Mapping[str, Callable[[str], Any]]:
        """How the texts of each column become values."""
        if self._options.types is None:
            return {}
        said = dict(self._options.types)
        rows = self._rows[:_LOOKED_AT]
        some = [self._cells(int(number), line) for number, line in zip(rows, self.lines(rows), strict=True)]
        columns = zip(*some, strict=False) if some else [()] * len(self.fields)
        return {
            name: _PARSERS[said.get(name) or _kind_of(texts)] for name, texts in zip(self.fields, columns, strict=False)
        }

    def read(self, rows: Int64, fields: Sequence[str] | None) -> list[Values]:
        """These rows."""
        numbers = self._rows[rows]
        return [
            self._parsed(int(number), line, fields) for number, line in zip(numbers, self.lines(numbers), strict=True)
        ]

    def _parsed(self, number: int, line: bytes, fields: Sequence[str] | None) -> Values:
        cells, names = self._cells(number, line), self.fields
        if len(cells) != len(names):
            raise DecodeError(
                "a row has another number of cells",
                expected=len(names),
                found=len(cells),
                offset=int(self._starts[number]),
            )
        found: Values = {}
        for name, text in zip(names, cells, strict=True):
            if fields is None or name in fields:
                try:
                    found[name] = self._parsers[name](text) if name in self._parsers else text
                except ValueError as error:
                    hint = f"say what it holds: types={{{name!r}: 'str'}}"
                    raise DecodeError(
                        "a cell does not fit its column",
                        found=repr(text),
                        field=name,
                        offset=int(self._starts[number]),
                        hint=hint,
                    ) from error
        return found

    def _cells(self, number: int, line: bytes) -> list[str]:
        options = self._options
        try:
            text = io.StringIO(line.decode("utf-8"), newline="")
            return next(csv.reader(text, delimiter=options.delimiter, quotechar=options.quote, strict=True), [])
        except (csv.Error, UnicodeDecodeError) as error:
            raise DecodeError("a row cannot be read", found=error, offset=int(self._starts[number])) from error

    def runs(self, fields: Sequence[str] | None) -> Iterator[list[Values]]:
        """All rows in order."""
        return runs_of(self, fields, 1024)


def _kind_of(texts: Sequence[str]) -> ColumnType:
    """What all of these texts are; nothing says nothing."""
    filled = [text for text in texts if text]
    if filled and all(_is_int(text) for text in filled):
        return "int"
    if filled and all(_is_float(text) for text in filled):
        return "float"
    if filled and all(text in _TRUTHS for text in filled):
        return "bool"
    return "str"


def _is_int(text: str) -> bool:
    """Whether a text is a whole number that would be written the same way again: 007 is a name."""
    digits = text.removeprefix("-")
    return digits.isascii() and digits.isdigit() and (digits == "0" or digits[0] != "0") and text != "-0"


def _is_float(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    whole = text.lstrip("+-").partition(".")[0]
    return "_" not in text and text == text.strip() and (len(whole) < 2 or whole[0] != "0")


_TRUTHS = {"true": True, "false": False, "True": True, "False": False, "TRUE": True, "FALSE": False}


def _truth(text: str) -> bool | None:
    if not text:
        return None
    if text not in _TRUTHS:
        raise ValueError(text)
    return _TRUTHS[text]


_PARSERS: dict[ColumnType, Callable[[str], Any]] = {
    "str": str,
    "int": lambda text: int(text) if text else None,
    "float": lambda text: float(text) if text else None,
    "bool": _truth,
}
