"""Decoding: from stored bytes to samples of the type that the user asked for."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from shoal.codec._codec import Decoder, SizedDecoder
from shoal.codec._dispatch import DecodeSpec, decoders, unmatched
from shoal.errors import (
    DecodeError,
    OptionError,
    SchemaMismatchError,
    ShardIndexError,
    ShoalError,
    ShoalWarning,
    TarError,
)
from shoal.load._stages import takes_rng
from shoal.sample._annotations import is_record
from shoal.sample._class_factory import class_from_schema
from shoal.sample._dict_sample import DictSample
from shoal.sample._field_mapping import fields_needed, from_fields, partial_mapper, partial_unpacker
from shoal.sample._packable import unpack
from shoal.schema._json_schema import schema_from_json
from shoal.shard._shard import Sample
from shoal.shard._source import FieldSelector, ShardSource, Source

from ._description import Stage, check_sample_type

__all__ = [
    "PAYLOAD",
    "LazyDecoders",
    "Reading",
    "finished",
    "reading_for",
    "refuse_unmatched",
    "stored_type_of",
]

PAYLOAD = "msgpack"
"""The field that holds a typed sample."""


class LazyDecoders(dict[str, Any]):
    """Decoders by field, of those fields that are decoded at all; ``but`` names one that stays bytes.

    Arrays are views of the bytes, and read-only; where ``writable``, they are copies. ``digits`` is as for `decoders`.
    """

    def __init__(
        self, spec: DecodeSpec, but: str | None = None, *, writable: bool = False, digits: bool = True
    ) -> None:
        super().__init__()
        self._spec = spec
        self._digits = digits
        self._known: set[object] = {but}
        self._writable = writable

    def __contains__(self, field: object) -> bool:
        if field not in self._known and isinstance(field, str):
            found = decoders(self._spec, [field], digits=self._digits)
            self.update({name: _copy_decoded(found[name]) for name in found} if self._writable else found)
            self._known.add(field)  # last, since another thread leaves a known field without a decoder as bytes
        return super().__contains__(field)


def _copy_decoded(decode: Decoder) -> Decoder:
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
    first = _first_fields(source) if spec.fields else ()
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


@dataclass(frozen=True, slots=True)
class Reading:
    """How stored samples become objects."""

    sample_type: type[Any]
    fields: tuple[str, ...] | None
    """The fields it needs; None for all."""
    packed: bool
    """Whether it reads payloads, so that batches can be gathered from them."""
    convert: Callable[[Sample], Any] | None
    """None when the dict itself is what was asked for."""
    pick: FieldSelector | None = None
    """Says of each shard which fields it needs, where that depends on the fields that samples have."""


def stored_type_of(source: Source, asked: type[Any] | None) -> type[Any]:
    """The type asked for, else the manifest's, else DictSample where samples are payloads, else dict.

    Raises OptionError for a class that is no type of samples.
    """
    if asked is not None:
        check_sample_type(asked)
        return asked
    if isinstance(source, ShardSource) and source.dataset_schema is not None:
        return class_from_schema(schema_from_json(source.dataset_schema))
    if isinstance(source, ShardSource) and set(source.index.known_fields or ()) - {PAYLOAD}:
        return dict  # payloads among plain samples, whichever come first
    return DictSample if _first_fields(source) == (PAYLOAD,) else dict


def _first_fields(source: Source) -> tuple[str, ...]:
    """The fields of the first shard. To ask all shards would index a whole folder before the first sample."""
    try:
        return source.index.first_fields if isinstance(source, ShardSource) else source.fields
    except (TarError, ShardIndexError, DecodeError):  # reported, or skipped, when samples are read
        return ()


def reading_for(
    source: Source, sample_type: type[Any], looked_at: frozenset[str] | None = None, *, writable: bool = False
) -> Reading:
    """How this source's samples are read as ``sample_type``, of which perhaps only some fields are looked at."""
    packed = PAYLOAD in _first_fields(source)
    if sample_type is DictSample:
        return Reading(sample_type, (PAYLOAD,), packed, partial(_read_dict_sample, writable))
    if not is_record(sample_type):
        own = getattr(sample_type, "from_bytes", None) if packed and sample_type is not dict else None
        if own is not None:  # a class of the user's that packs itself
            return Reading(sample_type, (PAYLOAD,), True, partial(_unpack_payload, own))
        return Reading(sample_type, None, False, None)
    if packed:
        read = None if looked_at is None else partial_unpacker(sample_type, looked_at, writable=writable)
        whole = partial(unpack, sample_type, writable=writable)
        return Reading(sample_type, (PAYLOAD,), True, partial(_unpack_payload, read or whole))
    return _plain_reading(source, sample_type, looked_at)


def _plain_reading(source: Source, sample_type: type[Any], looked_at: frozenset[str] | None) -> Reading:
    """From fields by name: those that the type does not have are not read."""
    some = None if looked_at is None else partial_mapper(sample_type, looked_at)
    convert = partial(_map_fields, some or partial(from_fields, sample_type))
    pick: FieldSelector = partial(fields_needed, sample_type, looked_at if some else None)
    if isinstance(source, ShardSource):
        return Reading(sample_type, None, False, convert, pick)
    wanted = pick(dict.fromkeys(source.fields, False))
    return Reading(sample_type, None if wanted is None else tuple(wanted), False, convert)


def _read_dict_sample(writable: bool, sample: Sample) -> DictSample:
    found: DictSample = _unpack_payload(DictSample.from_bytes, sample)
    return DictSample(writable_copy(found.to_dict())) if writable else found


def _unpack_payload(read: Callable[[bytes], Any], sample: Sample) -> Any:
    try:
        return read(sample[PAYLOAD])
    except KeyError:
        if PAYLOAD in sample:
            raise
        raise SchemaMismatchError(
            "the sample has no payload",
            expected=f"a field {PAYLOAD}, as the first sample has",
            shard=sample["__url__"],
            key=sample["__key__"],
            hint="open such data as Dataset[dict]",
        ) from None
    except ShoalError as error:
        raise error.at(shard=sample["__url__"], key=sample["__key__"]) from error.__cause__


def _map_fields(read: Callable[[Sample], Any], sample: Sample) -> Any:
    try:
        return read(sample)
    except ShoalError as error:
        raise error.at(shard=sample["__url__"], key=sample["__key__"]) from error.__cause__


def finished(samples: Sequence[Sample], reading: Reading, stages: tuple[Stage, ...]) -> list[Any]:
    """Samples as the user sees them: converted, then through each stage in the order written."""
    values = list(samples) if reading.convert is None else [reading.convert(sample) for sample in samples]
    for stage in stages:
        try:
            if stage.kind == "map":
                values = [stage.function(value) for value in values]
            else:
                values = [value for value in values if stage.function(value)]
        except TypeError as error:
            if "'rng'" in str(error) and takes_rng(stage.function):
                problem = "this function takes an rng, which comes from a loader"
                raise OptionError(problem, hint="read the dataset with .loader(...)") from error
            raise
    return values
