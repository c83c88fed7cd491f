"""The file layout of a PLAID dataset, the names of its members, and the record of a sample.

::

    data/<split>/shard-000000.tar                      sample_000000000.json, sample_000000000.0000_pressure.npy, ...
    .shoal/manifest.json                               the splits, their shards, their features
    .shoal/index/data/<split>/shard-000000.tar.arrow   the extents of all members

A feature is known by its path in the CGNS tree, such as ``Base_2_2/Zone/VertexFields/Pressure``. As a member it is
called ``0003_pressure.npy``: WebDataset lower-cases member names and takes a slash for a folder, so the number tells
features apart and the word is for people. The sample's ``.json`` holds the paths.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from shoal.codec._arrays import decode_npy
from shoal.errors import DecodeError, ManifestError, ShoalError, TarError, UnsafeNameError
from shoal.shard._journal import commit
from shoal.shard._manifest import Manifest, ShardRecord, check_schema_fits, manifest_url

__all__ = [
    "ARRAY_ENDING",
    "DATA_FOLDER",
    "RECORD_FIELD",
    "SampleRecord",
    "Values",
    "check_split",
    "decode_features",
    "decode_record",
    "decode_sample",
    "describe_splits",
    "encode_record",
    "field_names",
    "fields_by_name",
    "is_raw",
    "number_in_key",
    "sample_key",
    "shard_path",
    "split_metadata",
    "staging_folder",
]

Values = dict[str, npt.NDArray[Any] | None]
"""The features of a sample by path; None for one that the sample has not."""
DATA_FOLDER = "data"
_METADATA = "plaid"
RECORD_FIELD = "json"
ARRAY_ENDING = ".npy"
_KEY = re.compile(r"(?:.*/)?sample_(\d+)")
_UNFIT = re.compile(r"[^a-z0-9]+")
_MAX_WORD = 40  # with the key and the number, well under the 100 bytes of a plain tar header


@dataclass(frozen=True, slots=True)
class SplitMetadata:
    """What the manifest says of a split beside its shards."""

    samples: int
    features: dict[str, str] = field(default_factory=dict)
    """The member field of each variable feature's path."""


def shard_path(split: str, number: int) -> str:
    """The path of a shard below the dataset's folder."""
    return f"{DATA_FOLDER}/{split}/shard-{number:06d}.tar"


def staging_folder(root: Path) -> Path:
    """Where shards are written before they have their names."""
    return root / ".shoal" / "writing"


def describe_splits(root: Path, splits: Mapping[str, tuple[Sequence[ShardRecord], dict[str, str]]]) -> None:
    """Write the manifest: what is said of other splits stays. From now on these splits are there."""
    facts = {
        name: msgspec.to_builtins(SplitMetadata(sum(record.samples for record in records), features))
        for name, (records, features) in splits.items()
    }
    # A split without samples has no shards, and is there all the same: the metadata names it.
    shards = {name: tuple(records) for name, (records, _) in splits.items() if records}

    def described(before: Manifest) -> Manifest:
        new = [record for records in shards.values() for record in records]
        check_schema_fits(before, None, new, hint="Choose another folder")
        metadata = {**before.metadata, _METADATA: {**before.metadata.get(_METADATA, {}), **facts}}
        return replace(before, splits={**before.splits, **shards}, metadata=metadata)

    commit(str(root), described)


def split_metadata(manifest: Manifest, root: str) -> dict[str, SplitMetadata]:
    """What the manifest says of each split; nothing where no PLAID dataset was written. Raises ManifestError."""
    said: Any = manifest.metadata.get(_METADATA, {})
    try:
        return msgspec.convert(said, dict[str, SplitMetadata])
    except msgspec.ValidationError as error:
        raise ManifestError(
            "this is not the manifest of a PLAID dataset", found=error, shard=manifest_url(root)
        ) from error


@dataclass(frozen=True, slots=True)
class SampleRecord:
    """What a sample's ``.json`` says."""

    number: int
    """Of the sample in its split."""
    features: tuple[tuple[str, str], ...]
    """Every variable feature of the dataset: its member's field, and its path."""
    none: tuple[str, ...] = ()
    """The paths that have no value in this sample, and so no member."""


def sample_key(number: int) -> str:
    """The key of a sample.

    Examples:
        >>> sample_key(7), number_in_key("sample_000000007"), number_in_key("cat")
        ('sample_000000007', 7, None)
    """
    return f"sample_{number:09d}"


def number_in_key(key: str) -> int | None:
    """The number that a key holds."""
    found = _KEY.fullmatch(key)
    return int(found[1]) if found else None


def field_names(paths: Iterable[str]) -> dict[str, str]:
    """The member field of each feature path.

    Examples:
        >>> field_names(["Global/Mach", "Global/mach", "Global/Mach_times"])
        {'Global/Mach': '0000_mach.npy', 'Global/mach': '0001_mach.npy', 'Global/Mach_times': '0002_mach_times.npy'}
    """
    return {path: f"{number:04d}{_word(path)}{ARRAY_ENDING}" for number, path in enumerate(paths)}


def _word(path: str) -> str:
    word = _UNFIT.sub("_", path.rpartition("/")[2].lower()).strip("_")[:_MAX_WORD]
    return f"_{word}" if word else ""


def fields_by_name(fields: Iterable[str]) -> dict[str, str]:
    """The member field of each path, in tars without records, where ``Global__Mach.npy`` stands for ``Global/Mach``.

    Examples:
        >>> fields_by_name(["Global__Mach.npy", "png"])
        {'Global/Mach': 'Global__Mach.npy'}
    """
    return {
        field.removesuffix(ARRAY_ENDING).replace("__", "/"): field for field in fields if field.endswith(ARRAY_ENDING)
    }


def encode_record(number: int, fields: Mapping[str, str], none: Iterable[str]) -> bytes:
    """The bytes of a sample's ``.json``; ``fields`` gives the member field of each path."""
    # Pairs in a list, not a mapping: scalars in mappings become columns of the shard's index, one for each feature.
    pairs = tuple((field, path) for path, field in fields.items())
    return msgspec.json.encode(SampleRecord(number, pairs, tuple(none)))


def decode_record(data: bytes | bytearray | memoryview) -> SampleRecord:
    """Read a sample's ``.json``. Raises DecodeError.

    Examples:
        >>> decode_record(encode_record(3, {"Global/Mach": "0000_mach.npy"}, ["Global/Mach"]))
        SampleRecord(number=3, features=(('0000_mach.npy', 'Global/Mach'),), none=('Global/Mach',))
    """
    try:
        return msgspec.json.decode(data, type=SampleRecord)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise DecodeError(
            "this is not the record of a PLAID sample", expected="number, features, none", found=error
        ) from error


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

    Examples:
        >>> record = encode_record(0, {"Global/Mach": "0000_mach.npy"}, ["Global/Mach"])
        >>> decode_sample({"__key__": "sample_000000000", "json": record})
        {'Global/Mach': None}
    """
    try:
        if RECORD_FIELD not in sample:
            return decode_features(sample, fields_by_name(sample), lambda: None)
        record = _record(sample[RECORD_FIELD])
        return decode_features(sample, {path: field for field, path in record.features}, lambda: record)
    except ShoalError as error:
        raise error.at(shard=sample.get("__url__"), key=sample.get("__key__")) from error.__cause__


def decode_features(
    sample: Mapping[str, Any], fields: Mapping[str, str], record: Callable[[], SampleRecord | None]
) -> Values:
    """Decode the features of a sample, whose member fields ``fields`` gives by path; arrays are views of the members.

    A member that is missing is None if the sample's record says so; ``record`` is called only then.

    Raises:
        DecodeError: A member is not an array.
        TarError: A member is missing that the record does not call None.
    """
    found = {path: _array(sample[field], path) if field in sample else None for path, field in fields.items()}
    missing = [path for path, value in found.items() if value is None]
    known = record() if missing else None
    lost = [] if known is None else [path for path in missing if path not in known.none]
    if lost:
        raise TarError("a member is missing", expected=fields[lost[0]], field=lost[0], hint="restore the shard")
    return found


def _record(value: Any) -> SampleRecord:
    if isinstance(value, (bytes, bytearray, memoryview)):
        return decode_record(value)
    try:
        return SampleRecord(value["number"], tuple(map(tuple, value["features"])), tuple(value["none"]))
    except (KeyError, TypeError) as error:
        raise DecodeError("this is not the record of a PLAID sample", found=error, field=RECORD_FIELD) from error


def _array(value: Any, path: str) -> npt.NDArray[Any]:
    if isinstance(value, np.ndarray):
        return value
    try:
        return decode_npy(value)
    except DecodeError as error:
        raise error.at(field=path) from error.__cause__


def check_split(name: str) -> None:
    """Raise UnsafeNameError for a split that cannot be a folder."""
    if not name or name.startswith(".") or re.search(r"[/\\\x00]", name):
        raise UnsafeNameError("a split names a folder", expected="letters, digits, - and _", found=repr(name))
