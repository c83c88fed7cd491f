"""A sample as webdataset gives it, members by name, into features by path."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from shoal.codec import decode_npy
from shoal.errors import DecodeError, ShoalError, TarError

from ._record import ARRAY_ENDING, RECORD_FIELD, SampleRecord, decode_record, path_of_field

__all__ = ["decode_sample", "is_raw"]


def is_raw(sample: Mapping[str, Any]) -> bool:
    """Whether this is a sample as webdataset reads it, members by name.

    One that is decoded names its key as well, where it went through a pipeline of webdataset.
    """
    names = [name for name in sample if not name.startswith("__")]
    return "__key__" in sample and (RECORD_FIELD in names or all(name.endswith(ARRAY_ENDING) for name in names))


def decode_sample(sample: Mapping[str, Any]) -> dict[str, Any]:
    """The features of a sample that webdataset read, decoded already or not.

    Raises:
        DecodeError: A member is not what its name says.
        TarError: A member is missing that the sample's record does not call None.

    Example:
        >>> from shoal.plaid._record import encode_record
        >>> record = encode_record(0, {"Global/Mach": "0000_mach.npy"}, ["Global/Mach"])
        >>> decode_sample({"__key__": "sample_000000000", "json": record})
        {'Global/Mach': None}
    """
    try:
        if RECORD_FIELD not in sample:
            named = ((path_of_field(field), field) for field in sample)
            return {path: _array(sample[field], field) for path, field in named if path is not None}
        record = _record(sample[RECORD_FIELD])
        return {path: _value(sample, record, field, path) for field, path in record.features}
    except ShoalError as error:
        raise error.at(shard=sample.get("__url__"), key=sample.get("__key__")) from error.__cause__


def _record(value: Any) -> SampleRecord:
    if isinstance(value, (bytes, bytearray, memoryview)):
        return decode_record(value)
    try:
        return SampleRecord(value["number"], tuple(map(tuple, value["features"])), tuple(value["none"]))
    except (KeyError, TypeError) as error:
        raise DecodeError("this is not the record of a PLAID sample", found=error, field=RECORD_FIELD) from error


def _value(sample: Mapping[str, Any], record: SampleRecord, field: str, path: str) -> Any:
    if field in sample:
        return _array(sample[field], field)
    if path in record.none:
        return None
    raise TarError("a member is missing", expected=field, field=path, hint="restore the shard")


def _array(value: Any, field: str) -> Any:
    if isinstance(value, np.ndarray):
        return value
    try:
        return decode_npy(value)
    except DecodeError as error:
        raise error.at(field=field) from error.__cause__
