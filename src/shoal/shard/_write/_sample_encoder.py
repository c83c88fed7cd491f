"""Samples as the bytes of their members."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shoal.codec import EncodeOptions, Encoder, encoders
from shoal.errors import CodecError, WriteError
from shoal.shard._tar import BLOCK, MOST_PLAIN_NAME, MOST_PLAIN_SIZE, check_field, member_bytes

__all__ = ["EncodedSample", "SampleEncoder"]

EncodedSample = tuple[str, tuple[str, ...], list[bytes], int]
"""A key, the fields, the bytes of each, and how many bytes of a tar they take. A plain tuple: one is made a sample."""

_MOST_SETS = 1024  # remembered: samples that each have other fields must not fill the memory


class SampleEncoder:
    """Turns samples into bytes. What must be known of field names is found out once for each set of them."""

    def __init__(self, options: EncodeOptions, *, sort_fields: bool = False) -> None:
        self._options = options
        self._sort_fields = sort_fields
        self._sets: dict[tuple[object, ...], tuple[str, ...]] = {}
        self._encoders: dict[str, Encoder] = {}
        self._longest = 0

    def encode(self, key: str, sample: Mapping[str, Any]) -> EncodedSample:
        """Encode one sample. Raises UnsafeNameError, EncodeError, or WriteError when it has no fields.

        Names that start with two underscores speak of the sample and are no fields.
        """
        names = tuple(sample)
        fields = self._sets.get(names) or self._checked(key, names)
        contents, size, field = [], 0, ""
        try:
            for field in fields:
                value = sample[field]
                if type(value) is not bytes:
                    value = (self._encoders.get(field) or self._encoder(field))(value)
                    value = value if type(value) is bytes else bytes(value)
                contents.append(value)
                size += (len(value) + 2 * BLOCK - 1) & -BLOCK  # a header, the data and its padding
        except CodecError as error:
            raise error.at(key=key, field=field) from error.__cause__
        if 4 * (len(key) + 1 + self._longest) > MOST_PLAIN_NAME or size > MOST_PLAIN_SIZE:  # four bytes a letter
            size = _exact_bytes(key, fields, contents)
        return key, fields, contents, size

    def _encoder(self, field: str) -> Encoder:
        encode = self._encoders[field] = encoders(self._options, [field])[field]
        return encode

    def _checked(self, key: str, names: tuple[object, ...]) -> tuple[str, ...]:
        """The fields among ``names``, in the order in which they are written."""
        fields = [name for name in names if not (isinstance(name, str) and name.startswith("__"))]
        for field in fields:
            check_field(key, field)
        if not fields:
            raise WriteError("a sample needs at least one field", key=key)
        texts = [str(field) for field in fields]
        if len(self._sets) >= _MOST_SETS:
            self._sets.clear()
        found = self._sets[names] = tuple(sorted(texts) if self._sort_fields else texts)
        self._longest = max(self._longest, *map(len, found))
        return found


def _exact_bytes(key: str, fields: tuple[str, ...], contents: list[bytes]) -> int:
    """Where a member may need more than one header."""
    names = (f"{key}.{field}".encode() for field in fields)
    return sum(member_bytes(name, len(data)) for name, data in zip(names, contents, strict=True))
