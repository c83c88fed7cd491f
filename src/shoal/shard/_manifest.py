"""The manifest: the root document of a dataset, which lists its splits and shards.

It is read, changed and written again. `update_manifest` does so safely while other writers do the same.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from shoal.errors import ManifestError, ObjectNotFoundError, StoreTimeoutError
from shoal.store._base import UpdatingStore
from shoal.store._registry import store_for
from shoal.store._url import join_url, local_path, scheme_of

from . import _dataset_schema
from ._dataset_schema import join_schemas
from ._member_names import WEBDATASET_RULE, KeyRule
from ._shard_rows import ShardRows, field_totals
from ._stored_rows import SIDECAR_FOLDER

__all__ = [
    "Manifest",
    "ShardRecord",
    "check_inside",
    "check_schema_fits",
    "decode_manifest",
    "encode_manifest",
    "is_manifest_url",
    "joined_schema",
    "load_manifest",
    "lock_manifest",
    "manifest_url",
    "merge_shards",
    "record_of",
    "update_manifest",
]

VERSION = 1
_LOCK_TIMEOUT_S = 60.0
_MAX_LOCK_PAUSE_S = 0.05
_PARTIAL_DOCUMENT = re.compile(r"\.(manifest|commit)\.json\.[0-9a-f]{16}\.partial")


@dataclass(frozen=True, slots=True)
class ShardRecord:
    """A shard's entry in the manifest. ``path`` is relative to the dataset's root."""

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


def manifest_url(root: str) -> str:
    """Where a dataset's manifest is kept."""
    return join_url(root, SIDECAR_FOLDER, "manifest.json")


def is_manifest_url(url: str) -> bool:
    """Whether a URL is that of a dataset's manifest, by its name."""
    return f"/{url}".endswith(f"/{SIDECAR_FOLDER}/manifest.json")


def merge_shards(manifest: Manifest, split: str, records: Iterable[ShardRecord]) -> Manifest:
    """The manifest with ``records`` in ``split``: a shard of the same path is replaced wherever it was."""
    added = tuple(records)
    paths = {record.path for record in added}
    splits = {
        name: tuple(record for record in kept if record.path not in paths) for name, kept in manifest.splits.items()
    }
    splits[split] = tuple(sorted((*splits.get(split, ()), *added), key=_natural_order))
    return replace(manifest, splits={name: kept for name, kept in splits.items() if kept})


def joined_schema(
    before: Manifest, schema: dict[str, Any] | None, records: Iterable[ShardRecord]
) -> dict[str, Any] | None:
    """The schema of a dataset to which ``records`` with this schema come: as `join_schemas` joins them."""
    if not any(before.splits.values()):
        return schema
    return join_schemas(before.schema, schema, {name for record in records for name in record.fields})


def check_schema_fits(
    before: Manifest, schema: dict[str, Any] | None, records: Iterable[ShardRecord], *, hint: str
) -> None:
    """Raise SchemaMismatchError unless shards with this schema can join the dataset without changing how it is read."""
    if any(before.splits.values()):
        fields = {name for record in records for name in record.fields}
        _dataset_schema.check_schema_fits(before.schema, schema, fields, hint=hint)


def _natural_order(record: ShardRecord) -> tuple[tuple[str, int], ...]:
    """Sort key that puts ``2.tar`` before ``10.tar``."""
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
            name: [_without_defaults(msgspec.to_builtins(record)) for record in records]
            for name, records in manifest.splits.items()
        },
    }
    if manifest.schema is not None:
        document["schema"] = manifest.schema
    if manifest.rule != WEBDATASET_RULE:
        document["rule"] = msgspec.to_builtins(manifest.rule)
    return msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n"


def _without_defaults(record: dict[str, Any]) -> dict[str, Any]:
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


def update_manifest(root: str, change: Callable[[Manifest], Manifest]) -> Manifest:
    """Write what ``change`` makes of the manifest, an empty one where there is none, and return it.

    Safe while others do the same, in this process and elsewhere: each change is made to what the one before it wrote.
    ``change`` may be called several times, and must not change this dataset itself. Raises what it raises, and
    StoreTimeoutError when the lock is not free within a minute.

    Examples:
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
    with lock_manifest(root):
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


def record_of(path: str, index: ShardRows) -> ShardRecord:
    """The record of the shard ``path``, relative to the dataset's root."""
    first, last = (index.keys[at].as_py() for at in (0, -1)) if len(index) else (None, None)
    facts = index.facts
    return ShardRecord(path, len(index), facts.size, first, last, facts.compression, None, field_totals(index))


@contextlib.contextmanager
def lock_manifest(root: str) -> Iterator[None]:
    """Lock the manifest of the dataset at ``root`` against other processes and threads.

    The lock is ``flock`` on the sidecar folder, so the system releases it when a process dies, and no file is left. It
    is not reentrant. On object stores and network disks without locks it does nothing; there `update_manifest` replaces
    the manifest only if it is still the one that was read. Raises StoreTimeoutError after waiting for a minute.

    Half-written documents that a killed process left in the folder are removed: nobody else may be writing them now.
    """
    folder = local_path(join_url(root, SIDECAR_FOLDER)) if scheme_of(root) == "file" else None
    descriptor = None if folder is None else _open_folder(folder)
    if folder is None or descriptor is None:
        yield
        return
    try:
        if _lock(descriptor, folder):
            _remove_partial_documents(folder)
        yield
    finally:
        os.close(descriptor)  # and with it the lock


def _open_folder(folder: str) -> int | None:
    """Return None where that is impossible: nothing can be written there either, and the store raises its own error."""
    try:
        os.makedirs(folder, exist_ok=True)
        return os.open(folder, os.O_RDONLY)
    except OSError:
        return None


def _remove_partial_documents(folder: str) -> None:
    for name in os.listdir(folder):
        if _PARTIAL_DOCUMENT.fullmatch(name):
            with contextlib.suppress(OSError):
                os.unlink(os.path.join(folder, name))


def _lock(descriptor: int, folder: str) -> bool:
    """Wait for the lock; False where the system or the file system has none."""
    try:
        import fcntl
    except ImportError:  # not on Windows
        return False
    deadline, pause = time.monotonic() + _LOCK_TIMEOUT_S, 0.001
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise StoreTimeoutError(
                    "another process is changing the dataset, and does not come to an end",
                    found=folder,
                    hint="see what became of it; when it has ended, run this again",
                ) from None
            time.sleep(pause)
            pause = min(2 * pause, _MAX_LOCK_PAUSE_S)
        except OSError:  # the file system has none
            return False
        else:
            return True
