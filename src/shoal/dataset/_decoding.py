"""Each field's decoder, found when the field is first met: shards need not all have the same fields."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from shoal.codec import Decoder, DecodeSpec, SizedDecoder, decoders, unmatched
from shoal.errors import OptionError, ShardIndexError, ShoalWarning, TarError
from shoal.shard import Decoders, ShardSource, Source

__all__ = ["LazyDecoders", "WithoutSized", "refuse_unmatched", "writable_copy"]


class LazyDecoders(dict[str, Any]):
    """Decoders by field, of those fields that are decoded at all; ``but`` names one that stays bytes.

    Arrays are views of the bytes, and read-only; where ``writable``, they are copies.
    """

    def __init__(self, spec: DecodeSpec, but: str | None = None, *, writable: bool = False) -> None:
        super().__init__()
        self._spec = spec
        self._known: set[object] = {but}
        self._writable = writable

    def __contains__(self, field: object) -> bool:
        if field not in self._known and isinstance(field, str):
            found = decoders(self._spec, [field])
            self.update({name: _copying(found[name]) for name in found} if self._writable else found)
            self._known.add(field)  # last: another thread takes a known field without a decoder for bytes
        return super().__contains__(field)


class WithoutSized(Mapping[str, Any]):
    """The same decoders but for those that fill arrays: those fields stay bytes, to be decoded to where they belong."""

    def __init__(self, decoders: Decoders) -> None:
        self._decoders = decoders

    def __contains__(self, field: object) -> bool:
        return field in self._decoders and not isinstance(self._decoders[str(field)], SizedDecoder)

    def __getitem__(self, field: str) -> Any:
        if field not in self:
            raise KeyError(field)
        return self._decoders[field]

    def __iter__(self) -> Iterator[str]:
        return (field for field in self._decoders if field in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)


def _copying(decode: Decoder) -> Decoder:
    if isinstance(decode, SizedDecoder):  # it makes an array of its own
        return decode
    return lambda data: writable_copy(decode(data))


def writable_copy(value: Any) -> Any:
    """The same value, with a copy of each array in it that may not be written to."""
    if isinstance(value, np.ndarray):
        return value if value.flags.writeable else value.copy()
    if isinstance(value, dict):
        return {name: writable_copy(part) for name, part in value.items()}
    return type(value)(map(writable_copy, value)) if type(value) in (list, tuple) else value


def refuse_unmatched(spec: DecodeSpec, source: Source) -> None:
    """Raise OptionError for a field that is to be decoded and that no shard has.

    Where only opening all shards would tell, a ShoalWarning says that the first one has it not.
    """
    try:
        first = source.first_fields if isinstance(source, ShardSource) else source.fields
    except (TarError, ShardIndexError):  # reading says what is wrong, or passes it over
        return
    missing = unmatched(spec, first) if first else ()
    if not missing:
        return
    if not isinstance(source, ShardSource) or len(source.shards) == 1 or all(ref.fields for ref in source.shards):
        missing = unmatched(spec, source.fields)
        if missing:
            expected = " or ".join(source.fields)
            raise OptionError("decode names a field that no sample has", expected=expected, found=missing[0])
        return
    told = f"decode names {missing[0]!r}, which the first shard has not; it has {', '.join(first)}"
    warnings.warn(told, ShoalWarning, stacklevel=2)
