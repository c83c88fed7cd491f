"""CSV and JSON Lines files, plain or compressed."""

from __future__ import annotations

import csv
import functools
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from shoal._typing import IntArray
from shoal.codec._documents import decode_json
from shoal.errors import DecodeError, OptionError
from shoal.store._base import ObjectReader

from ._sources import Values
from ._text_lines import LineFile, is_tab_separated

__all__ = ["ColumnType", "CsvOptions", "CsvPart", "JsonlPart"]

ColumnType = Literal["str", "int", "float", "bool"]
_SCHEMA_ROWS = 1000
"""How many rows are asked what a column holds."""
_RUN_ROWS = 1024
_BOM = b"\xef\xbb\xbf"


class JsonlPart:
    """One open file with a JSON object on each line."""

    def __init__(self, reader: ObjectReader) -> None:
        self._file = LineFile(reader)

    def __len__(self) -> int:
        return len(self._file.numbers)

    @property
    def fields(self) -> tuple[str, ...]:
        """The names on the first lines."""
        return self._names

    @functools.cached_property
    def _names(self) -> tuple[str, ...]:
        some = [self._parsed(*row, None) for row in self._file.head(_SCHEMA_ROWS)]
        return tuple(dict.fromkeys(name for values in some for name in values))

    def read(self, rows: IntArray, fields: Sequence[str] | None) -> list[Values]:
        """These lines' objects."""
        return [self._parsed(*row, fields) for row in _numbered(self._file, self._file.numbers[rows])]

    def _parsed(self, number: int, offset: int, line: bytes, fields: Sequence[str] | None) -> Values:
        try:
            found = decode_json(line.removeprefix(_BOM) if number == 0 else line)
        except ValueError as error:
            raise _bad_line(number, offset, error) from error
        if not isinstance(found, dict):
            raise _bad_line(number, offset, f"{type(found).__name__}, not an object")
        return found if fields is None else {name: found[name] for name in fields if name in found}

    def runs(self, fields: Sequence[str] | None) -> Iterator[list[Values]]:
        """All lines in order."""
        for rows in _row_runs(self._file):
            yield [self._parsed(*row, fields) for row in rows]


def _bad_line(number: int, offset: int, why: object) -> DecodeError:
    hint = None if number else "JSON Lines have one object on each line; a list or an indented object is another format"
    return DecodeError(f"line {number + 1} is no JSON object", found=why, offset=offset, hint=hint)


def _numbered(file: LineFile, numbers: IntArray) -> Iterator[tuple[int, int, bytes]]:
    """The number, offset and text of these lines."""
    return zip(numbers.tolist(), file.offsets(numbers).tolist(), file.lines(numbers), strict=True)


def _row_runs(file: LineFile) -> Iterator[list[tuple[int, int, bytes]]]:
    """The number, offset and text of all lines that are not blank, in order."""
    for first, offsets, lines in file.stream():
        for start in range(0, len(lines), _RUN_ROWS):
            some = slice(start, start + _RUN_ROWS)
            numbers = range(first + start, first + start + len(lines[some]))
            rows = zip(numbers, offsets[some].tolist(), lines[some], strict=True)
            yield [row for row in rows if row[2].strip(b"\r\n")]


@dataclass(frozen=True, slots=True)
class CsvOptions:
    """How a CSV is written down."""

    delimiter: str | None = None
    """None: a tab where the file's name ends in ``.tsv``, else a comma."""
    quote: str = '"'
    header: bool = True
    """Whether the first row names the columns; else they are ``0``, ``1`` and so on."""
    types: tuple[tuple[str, ColumnType], ...] | None = ()
    """What columns hold, where that is said; the rest is told by the first rows. None: all of them are text."""

    def __post_init__(self) -> None:
        if (
            (self.delimiter is not None and len(self.delimiter) != 1)
            or len(self.quote) != 1
            or not self.quote.isascii()
        ):
            raise OptionError("delimiter and quote are one letter", found=f"{self.delimiter!r} and {self.quote!r}")
        for name, kind in self.types or ():
            if kind not in _PARSERS:
                raise OptionError("no such type", expected=" or ".join(_PARSERS), found=repr(kind), field=name)


class CsvPart:
    """One open CSV file; ``first`` is the first one of the dataset, whose columns have the same types."""

    def __init__(self, reader: ObjectReader, options: CsvOptions, first: CsvPart | None = None) -> None:
        self._first = first
        self._file = LineFile(reader, options.quote.encode())
        self._options = options
        self._delimiter = options.delimiter or ("\t" if is_tab_separated(reader.info.url) else ",")

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def _rows(self) -> IntArray:
        """The numbers of the lines that are samples."""
        return self._file.numbers[1:] if self._options.header else self._file.numbers

    @functools.cached_property
    def _head(self) -> list[tuple[int, int, bytes]]:
        return self._file.head(_SCHEMA_ROWS + 1)

    @property
    def fields(self) -> tuple[str, ...]:
        """The columns."""
        return self._names

    @functools.cached_property
    def _names(self) -> tuple[str, ...]:
        if not self._head:
            return ()
        _, offset, line = self._head[0]
        first = self._cells(offset, line.removeprefix(_BOM))
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
        before = {} if self._first is None else self._first._kinds  # noqa: SLF001 - one class
        kinds: dict[str, ColumnType | None] = {name: kind or before.get(name) for name, kind in self._kinds.items()}
        for name, kind in kinds.items():
            expected = before.get(name) or kind
            if expected != kind and {expected, kind} != {"int", "float"}:
                hint = f"say what it holds: types={{{name!r}: 'str'}}"
                raise DecodeError(
                    "a column has another type than in the first file",
                    expected=expected,
                    found=kind,
                    field=name,
                    hint=hint,
                )
        return {name: _text_or_none if kind is None else _PARSERS[kind] for name, kind in kinds.items()}

    @functools.cached_property
    def _kinds(self) -> dict[str, ColumnType | None]:
        """What each column holds; None where the first rows have no value in it."""
        said = dict(self._options.types or ())
        rows = self._head[1:] if self._options.header else self._head[:_SCHEMA_ROWS]
        some = [self._cells(offset, line) for _, offset, line in rows]
        columns = zip(*some, strict=False) if some else [()] * len(self.fields)
        return {name: said.get(name) or _kind_of(texts) for name, texts in zip(self.fields, columns, strict=False)}

    def read(self, rows: IntArray, fields: Sequence[str] | None) -> list[Values]:
        """These rows."""
        return [self._parsed(*row, fields) for row in _numbered(self._file, self._rows[rows])]

    def _parsed(self, number: int, offset: int, line: bytes, fields: Sequence[str] | None) -> Values:
        cells, names = self._cells(offset, line.removeprefix(_BOM) if number == 0 else line), self.fields
        if len(cells) != len(names):
            raise DecodeError("a row has another number of cells", expected=len(names), found=len(cells), offset=offset)
        found: Values = {}
        parsers = self._parsers
        for name, text in zip(names, cells, strict=True):
            if fields is None or name in fields:
                try:
                    found[name] = parsers[name](text) if name in parsers else text
                except ValueError as error:
                    hint = f"say what it holds: types={{{name!r}: 'str'}}"
                    raise DecodeError(
                        "a cell does not fit its column", found=repr(text), field=name, offset=offset, hint=hint
                    ) from error
        return found

    def _cells(self, offset: int, line: bytes) -> list[str]:
        try:
            text = io.StringIO(line.decode("utf-8"), newline="")
            return next(csv.reader(text, delimiter=self._delimiter, quotechar=self._options.quote, strict=True), [])
        except (csv.Error, UnicodeDecodeError) as error:
            raise DecodeError("a row cannot be read", found=error, offset=offset) from error

    def runs(self, fields: Sequence[str] | None) -> Iterator[list[Values]]:
        """All rows in order."""
        is_header = self._options.header
        for rows in _row_runs(self._file):
            if is_header and rows:
                is_header, rows = False, rows[1:]  # noqa: PLW2901 - without the header
            yield [self._parsed(*row, fields) for row in rows]


def _kind_of(texts: Sequence[str]) -> ColumnType | None:
    """What all of these texts are; None where all are empty."""
    filled = [text for text in texts if text]
    if not filled:
        return None
    if all(_is_int(text) for text in filled):
        return "int"
    if all(_is_float(text) for text in filled):
        return "float"
    return "bool" if all(text in _TRUTHS for text in filled) else "str"


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


def _text_or_none(text: str) -> str | None:
    """A cell of a column of which nothing is known, since its first cells are empty."""
    return text or None


_PARSERS: dict[ColumnType, Callable[[str], Any]] = {
    "str": str,
    "int": lambda text: int(text) if text else None,
    "float": lambda text: float(text) if text else None,
    "bool": _truth,
}
