"""`TokenWindows`: fixed-length windows over long token arrays, each read without the rest of its document."""

from __future__ import annotations

import functools
import hashlib
import io
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from shoal._typing import IntArray
from shoal.errors import DecodeError, FieldError, OptionError, PositionError
from shoal.load._columns import Ragged
from shoal.load._sources import SourceDescription, SourceLayout
from shoal.shard._shard import Shard
from shoal.shard._source import ShardSource

from ._loader_source import DatasetSource

if TYPE_CHECKING:
    from ._dataset import Dataset

__all__ = ["TokenWindows"]

Tokens = npt.NDArray[Any]
_HEADER_BYTES = 128
"""Size of the ``.npy`` header that NumPy writes for an array with one axis."""
_MAX_CACHED_DOCUMENTS = 8


class TokenWindows:
    """Windows of ``length`` tokens over the arrays of a field, ``stride`` apart; a sequence, and what a loader reads.

    Windows do not cross documents. What is left at a document's end is dropped, or with ``drop_last=False`` padded.
    Of ``.npy`` fields only a window's own bytes are read; of others the documents are, a few of which are held.

    Examples:
        >>> import shoal
        >>> with shoal.ShardWriter("memory://doc/windows/t-%06d.tar") as writer:
        ...     for number, size in enumerate((10, 3, 8)):
        ...         writer.write({"__key__": f"k{number}", "npy": np.arange(size, dtype=np.uint16) + 100 * number})
        >>> windows = shoal.Dataset("memory://doc/windows").token_windows("npy", 4)
        >>> len(windows), windows[2]["npy"].tolist(), windows[2]["__key__"], windows[2]["start"]
        (4, [200, 201, 202, 203], 'k2', 0)
    """

    def __init__(
        self, dataset: Dataset[Any], field: str, length: int, stride: int | None, drop_last: bool, pad: int
    ) -> None:
        for name, value in (("length", length), ("stride", 1 if stride is None else stride)):
            if type(value) is not int or value < 1:
                raise OptionError(f"{name} is out of range", expected="a whole number of at least 1", found=repr(value))
        self._dataset = dataset
        self._field = field
        self._length = length
        self._stride = length if stride is None else stride
        self._drop_last = drop_last
        self._pad = pad

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def __getitem__(self, number: int) -> dict[str, Any]:
        if not -len(self) <= number < len(self):
            raise PositionError("no such window", expected=f"0 to {len(self) - 1}", found=number)
        return self.read(np.array([number % len(self)]))[0]

    def __load__(self) -> SourceDescription:
        """Windows are what a loader numbers."""
        return SourceDescription(self)

    @functools.cached_property
    def _documents(self) -> _NpyDocuments | _WholeDocuments:
        source, plain = self._dataset.source, not self._dataset.described.stages
        if isinstance(source, ShardSource) and plain and self._field.endswith("npy") and self._field in source.fields:
            return _NpyDocuments(self._dataset, source, self._field)
        return _WholeDocuments(self._dataset, self._field)

    @functools.cached_property
    def _counts(self) -> IntArray:
        """Windows of each document."""
        lengths = self._documents.lengths
        whole = np.maximum(0, (lengths - self._length) // self._stride + 1)
        if self._drop_last:
            return whole
        covered = np.where(whole > 0, (whole - 1) * self._stride + self._length, 0)
        return whole + (covered < lengths)

    @functools.cached_property
    def _ends(self) -> IntArray:
        return np.cumsum(self._counts)

    @property
    def fingerprint(self) -> str:
        """That of the documents and how they are cut."""
        how = (self._dataset.fingerprint, self._field, self._length, self._stride, self._drop_last)
        return hashlib.sha256(repr(how).encode()).hexdigest()[:16]

    @property
    def setting_digests(self) -> dict[str, Any]:
        """Those of the documents, and how they are cut."""
        windows = [self._field, self._length, self._stride, self._drop_last]
        return {**DatasetSource(self._dataset).setting_digests, "windows": windows}

    def _place(self, number: int) -> tuple[int, int]:
        """The document of a window, and where in it the window starts."""
        document = int(np.searchsorted(self._ends, number, "right"))
        within = number - (int(self._ends[document - 1]) if document else 0)
        return document, within * self._stride

    def read(self, numbers: IntArray) -> list[dict[str, Any]]:
        """The windows with these numbers."""
        places = [self._place(number) for number in numbers.tolist()]
        keys = self._dataset.source.keys(self._dataset.rows.rows_at(np.array([place[0] for place in places], np.int64)))
        return [
            {"__key__": key, self._field: self._tokens(document, start), "start": start}
            for key, (document, start) in zip(keys, places, strict=True)
        ]

    def _tokens(self, document: int, start: int) -> Tokens:
        found = self._documents.tokens(document, start, start + self._length)
        if len(found) == self._length:
            return found
        return np.concatenate([found, np.full(self._length - len(found), self._pad, found.dtype)])

    def read_batch(self, numbers: IntArray, ragged: Ragged) -> dict[str, Any]:
        """Windows as one array, with their keys and where they start."""
        del ragged
        samples = self.read(numbers)
        return {
            "__key__": [sample["__key__"] for sample in samples],
            self._field: np.stack([sample[self._field] for sample in samples]) if samples else np.empty((0, 0)),
            "start": np.array([sample["start"] for sample in samples], np.int64),
        }

    def locate(self, number: int) -> tuple[str | None, str | None]:
        """The key of the document."""
        document, start = self._place(number)
        key = self._dataset.source.keys(np.array([self._dataset.rows.row_at(document)]))[0]
        return None, f"{key} from token {start}"

    def geometry(self) -> SourceLayout:
        """One document after the other."""
        return SourceLayout(np.array([0, len(self)], np.int64), float(self._length * 4))

    def __repr__(self) -> str:
        return f"TokenWindows({self._dataset!r}, {self._field!r}, length={self._length}, stride={self._stride})"


class _WholeDocuments:
    """Documents read as samples; how long they are is found by reading all of them once."""

    def __init__(self, dataset: Dataset[Any], field: str) -> None:
        self._dataset = dataset
        self._field = field
        self._held: OrderedDict[int, Tokens] = OrderedDict()

    @functools.cached_property
    def lengths(self) -> IntArray:
        return np.array([len(self._array(sample)) for sample in self._dataset], np.int64)

    def _array(self, sample: Any) -> Tokens:
        try:
            value = sample[self._field] if isinstance(sample, dict) else getattr(sample, self._field)
        except (KeyError, AttributeError):
            raise FieldError("samples have no such field", found=self._field) from None
        return np.asarray(value)

    def tokens(self, document: int, start: int, stop: int) -> Tokens:
        found = self._held.get(document)
        if found is None:
            found = self._held[document] = self._array(self._dataset.samples_at(np.array([document]))[0])
            while len(self._held) > _MAX_CACHED_DOCUMENTS:
                self._held.popitem(last=False)
        return found[start:stop]


class _NpyDocuments:
    """Documents stored as ``.npy`` members: lengths are in the index, and parts can be read by themselves."""

    def __init__(self, dataset: Dataset[Any], source: ShardSource, field: str) -> None:
        self._rows = dataset.rows
        self._source = source
        self._field = field
        self._checked: set[int] = set()

    @functools.cached_property
    def _dtype(self) -> np.dtype[Any]:
        return self._header(0)[0] if len(self._rows) else np.dtype(np.uint8)

    def _member(self, document: int) -> tuple[Shard, int]:
        row = self._rows.row_at(document)
        number = int(np.searchsorted(self._source.starts, row, "right")) - 1
        return self._source.shard(number), row - int(self._source.starts[number])

    def _header(self, document: int) -> tuple[np.dtype[Any], int]:
        """The type and the number of tokens, as the document itself says."""
        shard, row = self._member(document)
        head = io.BytesIO(shard.read_part(row, self._field, 0, _HEADER_BYTES))
        try:
            np.lib.format.read_magic(head)
            shape, _, dtype = np.lib.format.read_array_header_1_0(head)
        except ValueError as error:
            raise DecodeError("this is not an array", found=str(error), shard=shard.url, field=self._field) from error
        if len(shape) != 1 or head.tell() != _HEADER_BYTES or dtype.hasobject:
            raise DecodeError(
                "tokens are an array with one axis", found=f"{shape} of {dtype}", shard=shard.url, field=self._field
            )
        return dtype, shape[0]

    @functools.cached_property
    def lengths(self) -> IntArray:
        sizes = np.concatenate([self._sizes(number) for number in range(len(self._source.shards))])
        chosen = sizes if self._rows.is_whole(len(sizes)) else sizes[self._rows.as_array()]
        return (chosen.astype(np.int64) - _HEADER_BYTES) // self._dtype.itemsize

    def _sizes(self, number: int) -> IntArray:
        first, last = self._source.starts[number : number + 2].tolist()
        if first == last:
            return np.empty(0, np.int64)
        extents = self._source.extents(slice(first, last), [self._field])
        if self._field not in extents.fields or extents.sparse[0]:
            raise FieldError("not every sample has the field", found=self._field, shard=extents.first_shard.url)
        sizes: IntArray = extents.stops[0] - extents.starts[0]
        return sizes

    def tokens(self, document: int, start: int, stop: int) -> Tokens:
        shard, row = self._member(document)
        if document not in self._checked:
            found = self._header(document)
            if found != (self._dtype, int(self.lengths[document])):
                expected = f"{self.lengths[document]} of {self._dtype}"
                raise DecodeError(
                    "a document is not like the first",
                    expected=expected,
                    found=f"{found[1]} of {found[0]}",
                    shard=shard.url,
                )
            self._checked.add(document)
        stop = min(stop, int(self.lengths[document]))
        size = self._dtype.itemsize
        data = shard.read_part(row, self._field, _HEADER_BYTES + start * size, _HEADER_BYTES + stop * size)
        return np.frombuffer(data, self._dtype)
