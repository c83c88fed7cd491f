"""New shards: of an existing dataset for `Dataset.append`, and the names and stored form of samples for all writers."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute

from shoal.errors import FormatError, ManifestError, OptionError, SchemaMismatchError, ShoalError, WriteError
from shoal.sample._annotations import is_record, schema_of
from shoal.sample._dict_sample import DictSample
from shoal.sample._packable import pack
from shoal.schema._compatibility import compare
from shoal.schema._json_schema import schema_from_json, schema_hash
from shoal.shard._discovery import SHARD_ENDINGS
from shoal.shard._manifest import Manifest, load_manifest
from shoal.shard._source import ShardSource, Source
from shoal.shard._split_names import find_split
from shoal.shard._writer import ShardWriter
from shoal.store._registry import store_for
from shoal.store._url import base_name, join_url, parent_url, relative_url

from ._decoding import PAYLOAD
from ._splits import hash_strings

if TYPE_CHECKING:
    from ._dataset import Dataset

__all__ = ["append_samples", "find_target", "is_numbered", "shard_pattern", "stored_form"]

pc: Any = pyarrow.compute  # its functions are created at import, so type checkers do not see them
_KEYS_PER_LOOKUP = 256
_NUMBER = re.compile(r"\d+(?=\D*$)")


@dataclass(frozen=True, slots=True)
class Target:
    """The split of a dataset that grows."""

    root: str
    manifest: Manifest
    split: str

    @property
    def pattern(self) -> str:
        """The pattern of its shard names: the name of the last one, with its number as a format."""
        paths = [record.path for record in self.manifest.splits[self.split]]
        folder, name = paths[-1].rpartition("/")[::2]
        ending = next((end for end in sorted(SHARD_ENDINGS, key=len, reverse=True) if name.endswith(end)), "")
        stem = name.removesuffix(ending)
        found = _NUMBER.search(stem)
        called = (
            f"{stem}-%06d" if found is None else f"{stem[: found.start()]}{_number_format(paths)}{stem[found.end() :]}"
        )
        return join_url(self.root, *([folder] if folder else []), called + ending)


def _number_format(paths: Iterable[str]) -> str:
    """``%06d`` where numbers have zeros in front, else ``%d``."""
    stems = (re.sub(r"(\.[a-z]\w*)+$", "", base_name(path).lower()) for path in paths)
    numbers = [found[0] for stem in stems if (found := _NUMBER.search(stem))]
    widths = [len(number) for number in numbers if number.startswith("0") and len(number) > 1]
    return f"%0{max(widths)}d" if widths else "%d"


def find_target(source: Source, path: object, split: str | None) -> Target:
    """Find the dataset and split of a source. Raises ManifestError if no manifest lists its shards."""
    if not isinstance(source, ShardSource):
        raise FormatError("only tar shards can be added to", found=type(source).__name__)
    root, manifest = _find_root(source, path)
    paths = {relative_url(ref.url, root) for ref in source.shards}
    fitting = [
        name for name, records in manifest.splits.items() if not paths or paths & {record.path for record in records}
    ]
    names = [find_split(split, manifest.splits)] if split is not None else fitting
    if len(names) != 1:
        raise OptionError(
            "samples are added to one split",
            expected=" or ".join(manifest.splits) or "a split",
            found=f"{len(names)} splits",
            hint=f"open one: Dataset({root!r}, split={next(iter(manifest.splits), 'train')!r})",
        )
    return Target(root, manifest, names[0])


def _find_root(source: ShardSource, path: object) -> tuple[str, Manifest]:
    for root in _candidate_roots(source, path):
        manifest = load_manifest(root)
        paths = set() if manifest is None else {record.path for record in manifest.shards}
        if manifest is not None and all(relative_url(ref.url, root) in paths for ref in source.shards):
            return root, manifest
    raise ManifestError(
        "there is no manifest to add to",
        found=repr(path),
        hint="make one with `shoal index FOLDER`; new tars in a folder without one are seen by `refresh`",
    )


def _candidate_roots(source: ShardSource, path: object) -> Iterator[str]:
    if isinstance(path, (str, os.PathLike)):
        text = os.fspath(path)
        if base_name(text) == "manifest.json":
            yield parent_url(parent_url(text))
        elif store_for(text).is_folder(text):
            yield text
    if source.shards:
        folder = parent_url(source.shards[0].url)
        yield from (folder, parent_url(folder))


def append_samples(
    samples: Iterable[Any], target: Target, whole: Dataset[Any], max_samples: int | None, max_bytes: int | None
) -> list[str]:
    """Write samples after those of ``whole``, the target with its deleted samples. Returns the new shards."""
    rest = iter(samples)
    first = next(rest, None)
    if first is None:
        return []
    kind = type(first[1] if isinstance(first, tuple) and len(first) == 2 else first)
    _check_type(kind, target.manifest, whole)
    records = target.manifest.splits[target.split]
    writer = ShardWriter(
        target.pattern,
        root=target.root,
        append=True,
        split=target.split,
        compression=records[-1].compression,
        metadata=target.manifest.metadata,
        max_samples=10_000 if max_samples is None else max_samples,
        max_bytes=1 << 30 if max_bytes is None else max_bytes,
    )
    keys = whole.key_column()
    with writer:
        for sample in _keyed_samples(itertools.chain([first], rest), kind, keys, whole):
            writer.write(sample)
    return writer.urls


def _check_type(kind: type[Any], manifest: Manifest, whole: Dataset[Any]) -> None:
    """Raise SchemaMismatchError unless the samples are what the manifest says."""
    if manifest.schema is None:
        if is_record(kind) and whole.fields != ("msgpack",):
            found = f"{kind.__name__}, a typed sample"
            raise SchemaMismatchError("the dataset has plain fields", expected=", ".join(whole.fields), found=found)
        return
    stored = schema_from_json(manifest.schema)
    if not is_record(kind):
        raise SchemaMismatchError("the dataset has typed samples", expected=stored.name, found=kind.__name__)
    given = schema_of(kind)
    if schema_hash(stored) != schema_hash(given):
        changes = "; ".join(str(change) for change in compare(stored, given) if change.kind != "words")
        found = f"{given.name}: {changes or 'another order'}"
        raise SchemaMismatchError("samples of another type than the dataset's", expected=str(stored), found=found)


def _keyed_samples(
    samples: Iterator[Any], kind: type[Any], keys: pa.ChunkedArray, whole: Dataset[Any]
) -> Iterator[tuple[str, Any]]:
    """Each sample as it is stored, under a key that no other has. Raises WriteError for one that exists."""
    existing = np.sort(hash_strings(keys))
    number = _next_number(keys)
    new: set[str] = set()
    while batch := list(itertools.islice(samples, _KEYS_PER_LOOKUP)):
        pairs = [stored_form(number + at, sample, kind) for at, sample in enumerate(batch)]
        number += len(batch)
        keys_of_batch = [key for key, _ in pairs]
        for key, may_exist in zip(keys_of_batch, _may_exist(keys_of_batch, existing), strict=True):
            if key in new or (may_exist and key in whole):
                hint = "delete the old sample with `tombstone` and give the new one another key"
                raise WriteError("the key is there already", key=key, hint=hint)
            new.add(key)
        yield from pairs


def _may_exist(keys: list[str], existing: npt.NDArray[np.uint64]) -> list[bool]:
    """Which keys may exist, by their hashes; a set of all keys would take much memory."""
    hashes = hash_strings(pa.array(keys, pa.large_string()))
    at = np.searchsorted(existing, hashes)
    found: list[bool] = (
        (np.append(existing, np.uint64(0))[at] == hashes).tolist() if len(existing) else [False] * len(keys)
    )
    return found


def _next_number(keys: pa.ChunkedArray) -> int:
    """The number after those that are keys already."""
    numbered = keys.filter(pc.match_substring_regex(keys, "^[0-9]{9,18}$"))
    highest = pc.max(numbered.cast(pa.int64())).as_py()
    return 0 if highest is None else int(highest) + 1


def shard_pattern(path: str, max_samples: int | None, max_bytes: int | None, split: str | None = None) -> str:
    """The pattern of shards: of a folder, of one tar, or of numbered ones where shards have a limit.

    Examples:
        >>> (
        ...     shard_pattern("data", None, None),
        ...     shard_pattern("data", None, None, "val"),
        ...     shard_pattern("x.tar", None, None),
        ... )
        ('data/shard-%06d.tar', 'data/val-%06d.tar', 'x.tar')
        >>> shard_pattern("x.tar.gz", 100, None)
        'x-%06d.tar.gz'
    """
    ending = max((ending for ending in SHARD_ENDINGS if path.lower().endswith(ending)), key=len, default=None)
    if ending is None:
        return f"{path.rstrip('/')}/{split or 'shard'}-%06d.tar"
    if is_numbered(path) or (max_samples is None and max_bytes is None):
        return path
    return f"{path[: -len(ending)]}-%06d{path[-len(ending) :]}"


def is_numbered(pattern: str) -> bool:
    """Whether a pattern names more than one shard."""
    return "%" in pattern or "{" in pattern


def stored_form(number: int, sample: Any, kind: type[Any]) -> tuple[str, Any]:
    """The key and the fields of a sample: of a dict its own, of a typed one its number and its payload.

    A pair of a key and a sample is under that key. Raises SchemaMismatchError for a sample of another type.
    """
    key, value = sample if isinstance(sample, tuple) and len(sample) == 2 else (None, sample)
    if not is_record(kind) and not issubclass(kind, DictSample):
        return _plain_sample(number, key, value)
    key = f"{number:09d}" if key is None else key
    if type(value) is not kind:
        found = type(value).__name__
        raise SchemaMismatchError(f"sample {number} is of another type", expected=kind.__name__, found=found, key=key)
    try:
        return key, {PAYLOAD: value.packed if isinstance(value, DictSample) else pack(value)}
    except ShoalError as error:
        raise error.at(key=key) from error.__cause__


def _plain_sample(number: int, key: Any, value: Any) -> tuple[str, Any]:
    fields = value if isinstance(value, Mapping) else getattr(value, "as_wds", None)
    if not isinstance(fields, Mapping):
        raise WriteError("this is no sample", expected="a mapping or a typed sample", found=type(value).__name__)
    key = fields.get("__key__") if key is None else key
    key = f"{number:09d}" if key is None else key
    if not isinstance(key, str):
        raise WriteError("a key is text", expected="str", found=f"{type(key).__name__} {key!r}")
    return key, fields
