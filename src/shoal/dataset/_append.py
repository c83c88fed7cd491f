"""New shards: of an existing dataset for `Dataset.append`, and the names and stored form of samples for all writers."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache, partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute

from shoal.codec._codec import EncodeOptions
from shoal.errors import (
    FormatError,
    ManifestError,
    ObjectChangedError,
    OptionError,
    SchemaMismatchError,
    ShoalError,
    WriteError,
)
from shoal.sample._annotations import is_record, schema_of
from shoal.sample._dict_sample import DictSample
from shoal.sample._packable import pack
from shoal.schema._compatibility import compare
from shoal.schema._json_schema import schema_from_json, schema_hash
from shoal.shard._changes import add_tars
from shoal.shard._commit import is_committed, load_generation
from shoal.shard._discovery import SHARD_ENDINGS
from shoal.shard._generation import Generation, locate
from shoal.shard._manifest import Manifest, load_manifest, record_of
from shoal.shard._member_names import META_MEMBER, check_key
from shoal.shard._new_segments import shard_paths
from shoal.shard._records import OpenFiles
from shoal.shard._rows_file import RowsFile
from shoal.shard._segment_table import SegmentTable, SplitPart
from shoal.shard._shard_file import SampleEncoder, ShardFile
from shoal.shard._source import ShardSource, Source
from shoal.shard._split_names import find_split
from shoal.shard._split_table import SplitTable
from shoal.shard._tar_header import BLOCK, padded
from shoal.shard._writer import ShardWriter, WriteOptions
from shoal.shard._writing import WriteHead, Writing
from shoal.store._concurrency import run_all
from shoal.store._pattern import number_in_name, numbered_name
from shoal.store._registry import is_remote, store_for
from shoal.store._url import base_name, join_url, parent_url, relative_url

from ._decoding import PAYLOAD
from ._splits import hash_strings

if TYPE_CHECKING:
    from ._dataset import Dataset

__all__ = [
    "append_samples",
    "append_to_split",
    "find_split_part",
    "find_target",
    "is_numbered",
    "shard_pattern",
    "stored_form",
]

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
        return join_url(self.root, _pattern_after([record.path for record in self.manifest.splits[self.split]]))


def _pattern_after(paths: Sequence[str]) -> str:
    """Return the pattern of the names of shards that follow these: the name of the last one, its number as a format."""
    folder, name = paths[-1].rpartition("/")[::2]
    ending = next((end for end in sorted(SHARD_ENDINGS, key=len, reverse=True) if name.endswith(end)), "")
    stem = name.removesuffix(ending)
    found = _NUMBER.search(stem)
    called = f"{stem}-%06d" if found is None else f"{stem[: found.start()]}{_number_format(paths)}{stem[found.end() :]}"
    return f"{folder}/{called}{ending}" if folder else f"{called}{ending}"


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
    kind = _type_of(first)
    _check_type(kind, target.manifest.schema, whole)
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
        existing = np.sort(hash_strings(keys))

        def find(batch: list[str]) -> list[bool]:
            may_exist = _may_exist(batch, existing)
            return [may and key in whole for key, may in zip(batch, may_exist, strict=True)]

        for sample in _keyed_samples(itertools.chain([first], rest), kind, partial(_next_number, keys), find):
            writer.write(sample)
    return writer.urls


def find_split_part(table: SegmentTable) -> SplitPart:
    """Return the split that grows. Raises OptionError where the table has several."""
    if len(table.parts) != 1:
        names = [part.name for part in table.parts]
        roots = {part.opened.root for part in table.parts}
        hint = f"open one: Dataset({roots.pop()!r}, split={names[0]!r})" if len(roots) == 1 else "open one dataset"
        raise OptionError(
            "samples are added to one split",
            expected=" or ".join(names) or "a split",
            found=f"{len(names)} splits",
            hint=hint,
        )
    return table.parts[0]


def append_to_split(
    samples: Iterable[Any], part: SplitPart, whole: Dataset[Any], max_samples: int | None, max_bytes: int | None
) -> None:
    """Add samples to a split in new shards, all at once; ``whole`` is the split with its deleted samples.

    Others may append at the same time. Raises WriteError where they have added a key of these samples.
    """
    rest = iter(samples)
    first = next(rest, None)
    if first is None:
        return
    kind, schema = _type_of(first), part.opened.generation.schema
    _check_type(kind, schema, whole)
    keys = set[str]()
    known = {segment.id for segment in part.table.segments}
    root, lineage, split = part.identity

    def check(parent: Generation) -> None:
        """Compare the keys with those that others have added meanwhile, which are in other segments."""
        if parent.id and parent.lineage != lineage:
            raise ObjectChangedError("The dataset was replaced", shard=root, hint="Call refresh()")
        segments = parent.splits[split].segments if split in parent.splits else ()
        table = SplitTable(root, [segment for segment in segments if segment.id not in known], OpenFiles())
        if len(table):
            new = sorted(keys)
            for key, exists in zip(new, _exist(table, new), strict=True):
                if exists:
                    hint = "Append again; samples without a key then get other numbers"
                    raise WriteError("Another writer has added a sample with this key meanwhile", key=key, hint=hint)

    find = partial(_exist, part.table)
    pairs = _keyed_samples(itertools.chain([first], rest), kind, lambda: _next_number(whole.key_column()), find, keys)
    limits = 10_000 if max_samples is None else max_samples, 1 << 30 if max_bytes is None else max_bytes
    with _NewTars(part, *limits) as tars:
        for key, fields in pairs:
            tars.write(key, fields)
        tars.commit(schema, check)


def _exist(table: SplitTable, keys: Sequence[str]) -> list[bool]:
    """Which keys a split has."""
    if not is_remote(table.root):
        return [table.first(key) is not None for key in keys]
    return [row is not None for row in run_all([partial(table.first, key) for key in keys])]


class _NewTars:
    """New tars of a split, named and compressed as the last one is, under names that no other writer takes.

    They are part of the dataset when they are committed; without that, all of them vanish at the end of the block.
    """

    def __init__(self, part: SplitPart, max_samples: int, max_bytes: int) -> None:
        self._root, _, self._split = part.identity
        shards = part.table.shards()
        self._paths: list[str] = shards["path"].to_pylist() or [f"{self._split}-%06d.tar"]
        self._pattern = _pattern_after(self._paths)
        compression = shards["compression"][-1].as_py() if len(shards) else None
        self._options = WriteOptions(max_samples, max_bytes, compression)
        metadata = part.opened.generation.metadata
        self._extra = [(META_MEMBER, msgspec.json.encode(metadata))] if metadata else []
        self._extra_bytes = sum(padded(len(data)) + BLOCK for _, data in self._extra)
        self._encoder = SampleEncoder(EncodeOptions())
        self._file: ShardFile | None = None
        self._path = ""
        self._finished: list[str] = []
        self._is_committed = False

    def __enter__(self) -> Self:
        head = WriteHead("append", self._pattern, self._split, asdict(self._options))
        self._writing = Writing.begin(self._root, head, is_named=_named_paths(self._root))
        numbers = [number for path in self._paths if (number := number_in_name(self._pattern, path)) is not None]
        self._number = max(numbers, default=-1) + 1
        return self

    def write(self, key: str, fields: Mapping[str, Any]) -> None:
        check_key(key)
        sample = self._encoder.encode(key, fields)
        options, file = self._options, self._file
        size = sample[3] + self._extra_bytes
        if file is not None and (file.samples >= options.max_samples or file.size + size > options.max_bytes):
            self._finish_tar(file)
        if self._file is None:
            self._path = self._reserve()
            self._file = ShardFile(locate(self._root, self._path), compression=options.compression)
        self._file.write(sample)

    def _reserve(self) -> str:
        while not self._writing.reserve(path := numbered_name(self._pattern, self._number)):
            self._number += 1
        self._number += 1
        return path

    def _finish_tar(self, file: ShardFile) -> None:
        for name, data in self._extra:
            file.write_extra(name, data)
        written = file.commit()
        self._finished.append(self._path)
        self._file = None
        self._writing.add(record_of(self._path, written.index), written.index)

    def commit(self, schema: dict[str, Any] | None, check: Callable[[Generation], None]) -> None:
        """Add all tars to the dataset."""
        if self._file is not None:
            self._finish_tar(self._file)
        rows = [RowsFile(self._writing.rows_url(number)) for number in range(len(self._finished))]
        add_tars(self._root, {self._split: rows}, self._writing, schema=schema, check=check)
        self._is_committed = True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._writing:
            if self._is_committed:
                return
            if self._file is not None:
                self._file.abort()
            newest = load_generation(self._root)
            if newest is None or not is_committed(self._root, newest, self._writing.id):
                for path in self._finished:
                    url = locate(self._root, path)
                    store_for(url).delete(url)
            self._writing.discard()


def _named_paths(root: str) -> Callable[[str], bool]:
    """Return what tells whether the newest generation, when it is first asked, names a tar."""

    @cache
    def paths() -> set[str]:
        generation = load_generation(root)
        splits = () if generation is None else generation.splits.values()
        return {path for split in splits for path in shard_paths(root, split.segments)}

    return lambda path: path in paths()


def _type_of(sample: Any) -> type[Any]:
    return type(sample[1] if isinstance(sample, tuple) and len(sample) == 2 else sample)


def _check_type(kind: type[Any], schema: dict[str, Any] | None, whole: Dataset[Any]) -> None:
    """Raise SchemaMismatchError unless the samples are what the schema of the dataset says."""
    if schema is None:
        if is_record(kind) and whole.fields != ("msgpack",):
            found = f"{kind.__name__}, a typed sample"
            raise SchemaMismatchError("the dataset has plain fields", expected=", ".join(whole.fields), found=found)
        return
    stored = schema_from_json(schema)
    if not is_record(kind):
        raise SchemaMismatchError("the dataset has typed samples", expected=stored.name, found=kind.__name__)
    given = schema_of(kind)
    if schema_hash(stored) != schema_hash(given):
        changes = "; ".join(str(change) for change in compare(stored, given) if change.kind != "words")
        found = f"{given.name}: {changes or 'another order'}"
        raise SchemaMismatchError("samples of another type than the dataset's", expected=str(stored), found=found)


def _keyed_samples(
    samples: Iterator[Any],
    kind: type[Any],
    first_number: Callable[[], int],
    find: Callable[[list[str]], list[bool]],
    keys: set[str] | None = None,
) -> Iterator[tuple[str, Any]]:
    """Each sample as it is stored, under a key that no other has. Raises WriteError for one that exists.

    ``first_number`` is the number of the first sample, and is only asked for where samples have no keys. ``find`` says
    which keys exist. New ones are added to ``keys``.
    """
    new = set[str]() if keys is None else keys
    first, done = None, 0
    while batch := list(itertools.islice(samples, _KEYS_PER_LOOKUP)):
        if first is None and any(_lacks_key(sample, kind) for sample in batch):
            first = first_number()
        pairs = [stored_form((first or 0) + done + at, sample, kind) for at, sample in enumerate(batch)]
        done += len(batch)
        keys_of_batch = [key for key, _ in pairs]
        for key, exists in zip(keys_of_batch, find(keys_of_batch), strict=True):
            if key in new or exists:
                hint = "delete the old sample with `tombstone` and give the new one another key"
                raise WriteError("the key is there already", key=key, hint=hint)
            new.add(key)
        yield from pairs


def _lacks_key(sample: Any, kind: type[Any]) -> bool:
    """Whether a sample is numbered, as far as that can be told without packing it."""
    if isinstance(sample, tuple) and len(sample) == 2:
        return sample[0] is None and not (isinstance(sample[1], Mapping) and sample[1].get("__key__") is not None)
    return is_record(kind) or not isinstance(sample, Mapping) or sample.get("__key__") is None


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
