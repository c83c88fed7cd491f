"""The manifest of a dataset, the lock on it, and its records of shards."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import numpy as np

from shoal.errors import FieldError, ManifestError, ObjectNotFoundError, SchemaError, StoreTimeoutError
from shoal.schema import reading_problems, schema_from_json
from shoal.store import UpdatingStore, join_url, local_path, scheme_of, store_for

from ._index import LongExtents, ShardIndex
from ._member_names import WEBDATASET_RULE, KeyRule
from ._open_shards import SIDECAR_FOLDER

__all__ = [
    "Manifest",
    "Member",
    "ShardRecord",
    "check_inside",
    "decode_manifest",
    "encode_manifest",
    "field_totals",
    "find_split",
    "joined_schema",
    "load_manifest",
    "manifest_url",
    "members_of",
    "merge_shards",
    "record_of",
    "save_manifest",
    "split_alias",
    "split_of",
    "turn",
    "update_manifest",
]

VERSION = 1
_LONGEST_WAIT = 60.0
_LONGEST_PAUSE = 0.05


@dataclass(frozen=True, slots=True)
class ShardRecord:
    """What the manifest says of one shard. ``path`` is relative to the dataset's root."""

    path: str
    samples: int
    bytes: int
    first_key: str | None = None
    last_key: str | None = None
    compression: str | None = None
    sha256: str | None = None
    fields: dict[str, tuple[int, int]] = field(default_factory=dict)
    """For each field, how many samples have it and its bytes in all."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """A dataset: its splits, each a list of shards, and what was said of it when it was written."""

    splits: dict[str, tuple[ShardRecord, ...]]
    metadata: dict[str, Any] = field(default_factory=dict)
    schema: dict[str, Any] | None = None
    rule: KeyRule = WEBDATASET_RULE

    @property
    def shards(self) -> tuple[ShardRecord, ...]:
        """The shards of all splits."""
        return tuple(record for records in self.splits.values() for record in records)

    @property
    def samples(self) -> int:
        """How many samples there are in all."""
        return sum(record.samples for record in self.shards)

    @property
    def bytes(self) -> int:
        """How many bytes the shards take."""
        return sum(record.bytes for record in self.shards)


# The words that name a split, as Hugging Face reads them: delimited by anything but letters.
_SPLITS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("validation", "valid", "dev", "val"), "validation"),
    **dict.fromkeys(("test", "testing", "eval", "evaluation"), "test"),
}
_WORD = re.compile(r"(?<![a-z])(" + "|".join(sorted(_SPLITS, key=len, reverse=True)) + r")(?![a-z])")


def split_of(path: str) -> str:
    """The split a shard's path names; ``train`` when it names none.

    Example:
        >>> split_of("val-000001.tar"), split_of("test/a.tar"), split_of("shard-000000.tar")
        ('validation', 'test', 'train')
    """
    words = _WORD.findall(path.lower())
    return _SPLITS[words[-1]] if words else "train"


def split_alias(word: str) -> str | None:
    """The split that a word by itself stands for; None when it names none.

    Example:
        >>> split_alias("val"), split_alias("testing"), split_alias("gold")
        ('validation', 'test', None)
    """
    return _SPLITS.get(word.lower())


def find_split(name: str, present: Iterable[str]) -> str:
    """The split that is meant: it, or the only one that is another word for it. Raises FieldError, naming all.

    Example:
        >>> find_split("val", ["train", "validation"])
        'validation'
    """
    names = list(present)
    if name in names:
        return name
    meant = split_alias(name)
    fitting = [other for other in names if meant is not None and split_alias(other) == meant]
    if len(fitting) != 1:
        raise FieldError("no such split", expected=" or ".join(names) or "none: it is empty", found=name)
    return fitting[0]


def manifest_url(root: str) -> str:
    """Where a dataset's manifest is kept."""
    return join_url(root, SIDECAR_FOLDER, "manifest.json")


def merge_shards(manifest: Manifest, split: str, records: Iterable[ShardRecord]) -> Manifest:
    """The manifest with ``records`` in ``split``: a shard of the same path is replaced wherever it was."""
    added = tuple(records)
    paths = {record.path for record in added}
    splits = {
        name: tuple(record for record in kept if record.path not in paths) for name, kept in manifest.splits.items()
    }
    splits[split] = tuple(sorted((*splits.get(split, ()), *added), key=_in_number_order))
    return replace(manifest, splits={name: kept for name, kept in splits.items() if kept})


def joined_schema(
    before: Manifest, schema: dict[str, Any] | None, records: Iterable[ShardRecord]
) -> dict[str, Any] | None:
    """The schema of a dataset to which ``records`` with this schema come: of the two the one that reads both.

    None where neither does: the samples are of several types then, and each is asked for by name.
    """
    if not any(before.splits.values()) or schema == before.schema:
        return schema
    if schema is None:  # writers of packed samples need not say of which type
        return before.schema if all(set(record.fields) == {"msgpack"} for record in records) else None
    if before.schema is None:
        return None
    return next((new for old, new in ((before.schema, schema), (schema, before.schema)) if _reads(new, old)), None)


def _reads(new: dict[str, Any], old: dict[str, Any]) -> bool:
    try:
        return not reading_problems(schema_from_json(old), schema_from_json(new))
    except SchemaError:
        return False


def _in_number_order(record: ShardRecord) -> tuple[tuple[str, int], ...]:
    """As written: ``2.tar`` before ``10.tar``."""
    return tuple((text, int(digits or 0)) for text, digits in re.findall(r"(\D*)(\d*)", record.path))


def check_inside(path: str, url: str) -> None:
    """Raise ManifestError for a path that leads out of the dataset; ``url`` is the document that holds it."""
    parts = re.split(r"[/\\]", path)
    if not parts[0] or ".." in parts:
        raise ManifestError(
            "a path leads out of the dataset", expected="one below its folder", found=repr(path), shard=url
        )


def encode_manifest(manifest: Manifest) -> bytes:
    """The manifest as JSON: fields that say nothing are left out, since there may be many shards."""
    document = {
        "shoal": VERSION,
        "totals": {
            "samples": manifest.samples,
            "bytes": manifest.bytes,
            "shards": len(manifest.shards),
            "fields": _field_totals(manifest),
        },
        "metadata": manifest.metadata,
        "splits": {
            name: [_said(msgspec.to_builtins(record)) for record in records]
            for name, records in manifest.splits.items()
        },
    }
    if manifest.schema is not None:
        document["schema"] = manifest.schema
    if manifest.rule != WEBDATASET_RULE:
        document["rule"] = msgspec.to_builtins(manifest.rule)
    return msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n"


def _said(record: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in record.items() if value not in (None, {})}


def _field_totals(manifest: Manifest) -> dict[str, list[int]]:
    totals: dict[str, list[int]] = {}
    for record in manifest.shards:
        for name, (samples, size) in record.fields.items():
            total = totals.setdefault(name, [0, 0])
            total[0] += samples
            total[1] += size
    return totals


def decode_manifest(data: bytes, url: str) -> Manifest:
    """Read a manifest. Raises ManifestError when it is not one, or is of a newer version."""
    try:
        document = msgspec.json.decode(data)
        version = document["shoal"]
        if version > VERSION:
            raise ManifestError(
                "the manifest is of a newer shoal",
                expected=f"version {VERSION}",
                found=version,
                shard=url,
                hint="upgrade shoal",
            )
        splits = msgspec.convert(document["splits"], dict[str, tuple[ShardRecord, ...]])
        rule = msgspec.convert(document.get("rule", {}), KeyRule)
        metadata = msgspec.convert(document.get("metadata", {}), dict[str, Any])
        manifest = Manifest(splits, metadata, document.get("schema"), rule)
    except (msgspec.DecodeError, msgspec.ValidationError, KeyError, TypeError) as error:
        raise ManifestError(
            "this is not a manifest",
            found=str(error),
            shard=url,
            hint="write the dataset again, or index it with `shoal index`",
        ) from error
    for record in manifest.shards:
        check_inside(record.path, url)
    return manifest


def load_manifest(root: str) -> Manifest | None:
    """The manifest of the dataset at ``root``; None when there is none."""
    url = manifest_url(root)
    data = _read(url)
    return None if data is None else decode_manifest(data, url)


def save_manifest(manifest: Manifest, root: str) -> str:
    """Write the manifest in one step, whatever was there; returns its URL. `update_manifest` changes one."""
    url = manifest_url(root)
    store_for(url).write_all(url, encode_manifest(manifest))
    return url


def update_manifest(root: str, change: Callable[[Manifest], Manifest]) -> Manifest:
    """Write what ``change`` makes of the manifest, an empty one where there is none, and return it.

    Safe while others do the same, in this process and elsewhere: each change is made to what the one before it wrote.
    ``change`` may be called several times, and must not change this dataset itself. Raises what it raises, and
    StoreTimeoutError when it is not our turn within a minute.

    Example:
        >>> record = ShardRecord("a.tar", 1, 1536, "k", "k")
        >>> changed = update_manifest("memory://doc/update", lambda before: merge_shards(before, "train", [record]))
        >>> changed.samples, load_manifest("memory://doc/update") == changed
        (1, True)
    """
    url, made = manifest_url(root), Manifest({})

    def changed(data: bytes | None) -> bytes:
        nonlocal made
        made = change(Manifest({}) if data is None else decode_manifest(data, url))
        return encode_manifest(made)

    store = store_for(url)
    with turn(root):
        if isinstance(store, UpdatingStore):
            store.update(url, changed)
        else:
            store.write_all(url, changed(_read(url)))
    return made


def _read(url: str) -> bytes | None:
    try:
        return store_for(url).read_all(url)
    except ObjectNotFoundError:
        return None


def manifest_metadata(metadata: Mapping[str, Any] | None) -> dict[str, Any]:
    """Metadata as JSON would give it back. Raises ManifestError when it cannot be JSON."""
    try:
        encoded: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(dict(metadata or {})))
    except (TypeError, ValueError, msgspec.EncodeError) as error:
        raise ManifestError("metadata must be JSON", found=str(error)) from error
    return encoded


@dataclass(frozen=True, slots=True)
class Member:
    """One field of one sample, and where its bytes lie in the (unpacked) tar."""

    field: str
    offset: int
    size: int


def members_of(index: ShardIndex, row: int) -> list[Member]:
    """The members of one sample, in the archive's order."""
    fields = index.fields
    if isinstance(fields, LongExtents):
        span = fields.span(row, row + 1)
        columns = (fields.codes[span].tolist(), fields.offset[span].tolist(), fields.size[span].tolist())
        found = [Member(fields.names[code], offset, size) for code, offset, size in zip(*columns, strict=True)]
    else:
        parts = ((name, int(part.offset[row]), int(part.size[row])) for name, part in fields.items())
        found = [Member(name, offset, size) for name, offset, size in parts if offset]
    return sorted(found, key=lambda member: member.offset)


def field_totals(index: ShardIndex) -> dict[str, tuple[int, int]]:
    """For each field, how many samples have it and its bytes in all."""
    fields = index.fields
    if isinstance(fields, LongExtents):
        counts = np.bincount(fields.codes, minlength=len(fields.names)).tolist()
        sizes = np.zeros(len(fields.names), np.int64)
        np.add.at(sizes, fields.codes, fields.size.astype(np.int64))
        return dict(zip(fields.names, zip(counts, sizes.tolist(), strict=True), strict=True))
    return {name: (int((part.offset > 0).sum()), int(part.size.sum())) for name, part in fields.items()}


def record_of(path: str, index: ShardIndex) -> ShardRecord:
    """The record of the shard ``path``, relative to the dataset's root."""
    first, last = (index.keys[at].as_py() for at in (0, -1)) if len(index) else (None, None)
    facts = index.facts
    return ShardRecord(path, len(index), facts.size, first, last, facts.compression, None, field_totals(index))


# A manifest is read, changed and written again: two writers that end at the same time in one folder would each write
# one without the other's shards. On a local disk they take turns, by a lock that the system holds on the folder of
# sidecars and gives back when a process dies, however it does; nobody waits for longer than a minute, and no file is
# left. An object store has no such lock: there the manifest is replaced on condition that it is still the one that was
# read (see `update_manifest`).
@contextlib.contextmanager
def turn(root: str) -> Iterator[None]:
    """Wait until no other process or thread changes the dataset at ``root``, and keep them waiting meanwhile.

    It cannot be taken twice by one thread. Where there are no such locks (an object store, some network disks) it does
    nothing. Raises StoreTimeoutError when it is not our turn within a minute: who holds it was stopped in the middle.
    """
    folder = local_path(join_url(root, SIDECAR_FOLDER)) if scheme_of(root) == "file" else None
    descriptor = None if folder is None else _opened(folder)
    if folder is None or descriptor is None:
        yield
        return
    try:
        _lock(descriptor, folder)
        yield
    finally:
        os.close(descriptor)  # and with it the lock


def _opened(folder: str) -> int | None:
    """None where it cannot be: nothing can be changed there either, and the store says so in its own words."""
    try:
        os.makedirs(folder, exist_ok=True)
        return os.open(folder, os.O_RDONLY)
    except OSError:
        return None


def _lock(descriptor: int, folder: str) -> None:
    try:
        import fcntl
    except ImportError:  # not on Windows
        return
    deadline, pause = time.monotonic() + _LONGEST_WAIT, 0.001
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise _too_long(folder) from None
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
        except OSError:  # the file system has none
            return
        else:
            return


def _too_long(folder: str) -> StoreTimeoutError:
    return StoreTimeoutError(
        "another process is changing the dataset, and does not come to an end",
        found=folder,
        hint="see what became of it; when it has ended, run this again",
    )
