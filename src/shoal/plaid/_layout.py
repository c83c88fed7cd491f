"""The file layout of a PLAID dataset, and the names of its members.

A feature is known by its path in the CGNS tree, such as ``Base_2_2/Zone/VertexFields/Pressure``. As a member it is
called ``0003_pressure.npy``: WebDataset lower-cases member names and takes a slash for a folder, so the number tells
features apart and the word is for people. The sample's ``.json`` holds the paths.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from shoal.errors import DecodeError, ManifestError, UnsafeNameError
from shoal.shard import Manifest, ShardRecord, manifest_url, update_manifest

__all__ = [
    "ARRAY_ENDING",
    "DATA_FOLDER",
    "RECORD_FIELD",
    "SampleRecord",
    "check_split",
    "decode_record",
    "describe_splits",
    "encode_record",
    "facts_of",
    "field_names",
    "number_in_key",
    "path_of_field",
    "sample_key",
    "shard_path",
    "staging_folder",
]

DATA_FOLDER = "data"
_METADATA = "plaid"
RECORD_FIELD = "json"
ARRAY_ENDING = ".npy"
_KEY = re.compile(r"(?:.*/)?sample_(\d+)")
_UNFIT = re.compile(r"[^a-z0-9]+")
_LONGEST_WORD = 40  # with the key and the number, well under the 100 bytes of a plain tar header


# ::
#
#     data/<split>/shard-000000.tar                      sample_000000000.json, sample_000000000.0000_pressure.npy, ...
#     .shoal/manifest.json                               the splits, their shards, their features
#     .shoal/index/data/<split>/shard-000000.tar.arrow   where every member lies


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
        metadata = {**before.metadata, _METADATA: {**before.metadata.get(_METADATA, {}), **facts}}
        return replace(before, splits={**before.splits, **shards}, metadata=metadata)

    update_manifest(str(root), described)


def facts_of(manifest: Manifest, root: str) -> dict[str, SplitMetadata]:
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

    Example:
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

    Example:
        >>> field_names(["Global/Mach", "Global/mach", "Global/Mach_times"])
        {'Global/Mach': '0000_mach.npy', 'Global/mach': '0001_mach.npy', 'Global/Mach_times': '0002_mach_times.npy'}
    """
    return {path: f"{number:04d}{_word(path)}{ARRAY_ENDING}" for number, path in enumerate(paths)}


def _word(path: str) -> str:
    word = _UNFIT.sub("_", path.rpartition("/")[2].lower()).strip("_")[:_LONGEST_WORD]
    return f"_{word}" if word else ""


def path_of_field(field: str) -> str | None:
    """The path that a member's own name stands for, in tars without records: ``Global__Mach.npy`` is ``Global/Mach``.

    Example:
        >>> path_of_field("Global__Mach.npy"), path_of_field("png")
        ('Global/Mach', None)
    """
    return field.removesuffix(ARRAY_ENDING).replace("__", "/") if field.endswith(ARRAY_ENDING) else None


def encode_record(number: int, fields: Mapping[str, str], none: Iterable[str]) -> bytes:
    """The bytes of a sample's ``.json``; ``fields`` gives the member field of each path."""
    # Pairs in a list, not a mapping: scalars in mappings become columns of the shard's index, one for each feature.
    pairs = tuple((field, path) for path, field in fields.items())
    return msgspec.json.encode(SampleRecord(number, pairs, tuple(none)))


def decode_record(data: bytes | bytearray | memoryview) -> SampleRecord:
    """Read a sample's ``.json``. Raises DecodeError.

    Example:
        >>> decode_record(encode_record(3, {"Global/Mach": "0000_mach.npy"}, ["Global/Mach"]))
        SampleRecord(number=3, features=(('0000_mach.npy', 'Global/Mach'),), none=('Global/Mach',))
    """
    try:
        return msgspec.json.decode(data, type=SampleRecord)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise DecodeError(
            "this is not the record of a PLAID sample", expected="number, features, none", found=error
        ) from error


def check_split(name: str) -> None:
    """Raise UnsafeNameError for a split that cannot be a folder."""
    if not name or name.startswith(".") or re.search(r"[/\\\x00]", name):
        raise UnsafeNameError("a split names a folder", expected="letters, digits, - and _", found=repr(name))
