"""`ShardWriter`: divide samples into shards, write each with its index, and add them to the manifest at the end."""

from __future__ import annotations

import os
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Any, Literal, Self

import msgspec

from shoal.codec._codec import EncodeOptions
from shoal.errors import OptionError, ShoalError, ShoalWarning, WriteError
from shoal.sample._annotations import is_record, schema_of
from shoal.sample._packable import pack
from shoal.schema._json_schema import schema_to_json
from shoal.store._pattern import numbered_name
from shoal.store._url import base_name, join_url, parent_url, relative_url

from ._compression import check_compression, fitting_compression
from ._dataset_write import DatasetWrite, SchemaDocument, ShardCommits
from ._journaled_write import JournaledWrite
from ._manifest import ShardRecord, manifest_metadata
from ._member_names import META_MEMBER, check_key
from ._shard_file import SampleEncoder, ShardFile
from ._shard_rows import ShardRows
from ._split_names import split_of
from ._stored_rows import save_rows
from ._tar_header import BLOCK, padded

__all__ = ["ShardWriter", "WriteOptions", "write_shard"]

FieldOrder = Literal["given", "sorted"]
_COMMITS: type[DatasetWrite | JournaledWrite] = JournaledWrite
"""How shards become part of a dataset. `DatasetWrite` writes segments; it takes over once everything reads them."""


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """How shards are cut and stored. Raises OptionError for what cannot be."""

    max_samples: int = 10_000
    max_bytes: int = 1 << 30
    compression: str | None = None
    level: int | None = None
    field_order: FieldOrder = "given"
    mtime: int = 0
    hashed: bool = False
    """Whether to keep each shard's sha256. It costs a third of the disk's speed, so only when asked."""
    durable: bool = False
    """Whether to wait until each shard would survive a power cut."""
    allow_pickle: bool = False

    def __post_init__(self) -> None:
        if self.max_samples < 1 or self.max_bytes < 1:
            raise OptionError(
                "a shard holds something",
                expected="max_samples and max_bytes of at least 1",
                found=(self.max_samples, self.max_bytes),
            )
        if self.compression is not None:
            check_compression(self.compression, self.level)
        elif self.level is not None:
            raise OptionError("a level needs a compression", expected="compression='gzip' or another", found=self.level)
        if self.field_order not in ("given", "sorted"):
            raise OptionError("no such field_order", expected="'given' or 'sorted'", found=repr(self.field_order))
        # Not `in range(...)`: for a float that looks at every number of it.
        if type(self.mtime) is not int or not 0 <= self.mtime < 8**11:
            raise OptionError("mtime is a whole number of seconds", expected=f"0 to {8**11 - 1}", found=self.mtime)


class ShardWriter:
    """Write samples into numbered tar shards, each with its index, and a manifest at the end.

    ``pattern`` names the shards, with one ``%06d`` or ``{:06d}``, and perhaps ``{split}``; a name with neither a number
    nor an ending is a folder for them. A shard is closed when the next sample would go over ``max_samples`` or
    ``max_bytes``. A sample is a mapping from field to value, bytes or anything the field's codec takes; ``__key__``
    names it, and a running number is used where there is none. The same samples give the same bytes. ``compression`` is
    ``"gzip"``, ``"bz2"``, ``"xz"`` or ``"zstd"``; without one, a name such as ``x.tar.gz`` says it.

    Leaving the ``with`` block by an exception leaves no half shard and no manifest; finished shards stay, and a rerun
    with ``resume=True`` goes on after them: it passes over as many samples as they hold.

    A folder that has shards of the same split (with other fields, where ``pattern`` names one tar), samples of another
    schema, or tars that no manifest lists, is refused, unless ``append=True`` or ``overwrite=True`` is given.
    ``overwrite=True`` replaces the split and no shard of another one, all at once when the new shards are complete;
    ``append=True`` adds shards after those that are there, tars that no manifest lists included, and they belong to the
    dataset when all of them are complete. ``root`` is the dataset's folder where shards are in a folder below it.

    Examples:
        >>> import shoal
        >>> with shoal.ShardWriter("memory://doc/animals/cats-%06d.tar", max_samples=2) as writer:
        ...     for number in range(3):
        ...         writer.write({"__key__": f"{number:03d}", "txt": "a cat", "json": {"legs": 4}})
        >>> [shard.path for shard in writer.shards]
        ['cats-000000.tar', 'cats-000001.tar']
    """

    def __init__(
        self,
        pattern: str | os.PathLike[str],
        *,
        max_samples: int = 10_000,
        max_bytes: int = 1 << 30,
        compression: str | None = None,
        level: int | None = None,
        field_order: FieldOrder = "given",
        mtime: int = 0,
        metadata: Mapping[str, Any] | None = None,
        schema: Mapping[str, Any] | None = None,
        split: str | None = None,
        hashed: bool = False,
        durable: bool = False,
        overwrite: bool = False,
        resume: bool = False,
        append: bool = False,
        root: str | None = None,
        allow_pickle: bool = False,
    ) -> None:
        if append and (overwrite or resume):
            raise OptionError("append stands alone", expected="append=True without overwrite and resume")
        pattern = _shard_pattern(os.fspath(pattern), split)
        compression = fitting_compression(pattern, compression)
        self.options = WriteOptions(
            max_samples, max_bytes, compression, level, field_order, mtime, hashed, durable, allow_pickle
        )
        self.metadata = manifest_metadata(metadata)
        self._meta = msgspec.json.encode(self.metadata) if self.metadata else b""
        self._max_sample_bytes = max_bytes - (padded(len(self._meta)) + BLOCK if self._meta else 0)
        self.root = parent_url(pattern) if root is None else root
        self.samples = 0
        """How many samples were taken, those passed over on resuming included."""
        self._name = base_name(pattern) if root is None else relative_url(pattern, root)
        first_name = numbered_name(self._name, 0)  # a bad pattern is refused now, not when the first shard is full
        self._schema = None if schema is None else dict(schema)
        self._commits: ShardCommits = _COMMITS(
            self.root,
            self._name,
            split_of(first_name) if split is None else split,
            {**asdict(self.options), "metadata": self.metadata, "split": split},
            overwrite=overwrite,
            resume=resume,
            append=append,
        )
        self._append = append
        self._state: Literal["new", "open", "failed", "closed"] = "new"
        self._file: ShardFile | None = None
        self._keys: set[str] = set()
        self._encoder = SampleEncoder(EncodeOptions(allow_pickle=allow_pickle), sort_fields=field_order == "sorted")
        self._typed = _TypedSamples()
        self._payload: bytes | None = None
        """Of the first sample."""
        self._samples_to_skip = 0
        self._resumed_keys = _edge_keys([])

    @property
    def shards(self) -> list[ShardRecord]:
        """The finished shards."""
        return self._commits.shards

    @property
    def samples_before(self) -> int:
        """With ``append=True``, how many samples the split has before those that are written."""
        return self._commits.samples_before

    def __enter__(self) -> Self:
        self._open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()

    def _open(self) -> None:
        """Look at what exists, and refuse before anything is written. This is the first I/O."""
        if self._state != "new":
            return
        try:
            self._commits.begin(self._schema)
        except BaseException:
            self._commits.close()
            raise
        finished = list(self.shards)
        self._samples_to_skip = sum(record.samples for record in finished)
        self._resumed_keys = _edge_keys(finished)
        self._state = "open"

    def write(self, sample: Mapping[str, Any] | tuple[str, Mapping[str, Any]] | Any) -> None:
        """Write one sample: a mapping, a ``(key, mapping)`` pair, or a typed one: a packable, a dataclass...

        Keys that are not given are numbers. Samples that are all of one type give the manifest its schema.

        Raises UnsafeNameError, EncodeError or WriteError, and then nothing of the sample is written and the writer goes
        on. When the store fails, the open shard vanishes and the writer is closed.
        """
        if self._state != "open":
            if self._state != "new":
                raise WriteError("the writer is closed", hint="open another one")
            self._open()
        key, fields = self._key_and_fields(sample)
        self.samples += 1
        if self._samples_to_skip:
            self._skip_finished(key)
            return
        encoded = self._encoder.encode(key, fields)
        try:
            file = self._room_for(encoded[3])
            is_new = key not in self._keys
            if is_new:
                file.write(encoded)
                if self._payload is None and file.samples == 1 and not self.shards:
                    self._payload = dict(zip(encoded[1], encoded[2], strict=True)).get("msgpack")
        except BaseException:
            self._fail()
            raise
        if not is_new:
            raise WriteError("the key is in this shard already", key=key, hint="readers would take both for one sample")
        self._keys.add(key)

    def _key_and_fields(self, sample: Any) -> tuple[str, Mapping[str, Any]]:
        """The key and the fields of a mapping, a pair or a typed sample."""
        key, fields = sample if isinstance(sample, tuple) and len(sample) == 2 else (None, sample)
        if type(fields) is not dict and not isinstance(fields, Mapping):  # the first is the quick answer to the second
            fields = self._typed.stored(fields, self.samples)
            if not isinstance(fields, Mapping):
                raise WriteError(
                    "this is no sample",
                    expected="a mapping, a (key, mapping) pair or a packable",
                    found=type(sample).__name__,
                )
        key = fields.get("__key__") if key is None else key
        key = f"{self.samples_before + self.samples:09d}" if key is None else key
        if not isinstance(key, str):
            raise WriteError("a key is text", expected="str", found=f"{type(key).__name__} {key!r}")
        check_key(key)
        return key, fields

    def _skip_finished(self, key: str) -> None:
        """Skip a sample that a finished shard holds; its key must be the one that was written."""
        expected, path = next(self._resumed_keys)
        if expected is not None and key != expected:
            raise WriteError(
                "the samples are not those of the interrupted run",
                expected=f"key {expected}",
                found=key,
                shard=path,
                hint="start over without resume",
            )
        self._samples_to_skip -= 1

    def _room_for(self, size: int) -> ShardFile:
        """The open shard, or a new one when the sample would overfill it."""
        file = self._file
        if file is not None and (file.samples >= self.options.max_samples or file.size + size > self._max_sample_bytes):
            self._finish_shard()
            file = None
        if file is None:
            file = self._file = self._new_file()
        return file

    def _new_file(self) -> ShardFile:
        options = self.options
        self._path = self._commits.next_path()
        file = ShardFile(
            self._commits.url(self._path),
            compression=options.compression,
            level=options.level,
            mtime=options.mtime,
            hashed=options.hashed,
        )
        self._keys.clear()
        return file

    def _finish_shard(self) -> None:
        file = self._file
        if file is None:
            return
        if self._meta:
            # Last, so that a shard's first header names its first sample: an index tells by it when a tar was replaced.
            file.write_extra(META_MEMBER, self._meta)
        written = file.commit(durable=self.options.durable)
        self._file = None
        keys = written.index.keys
        record = ShardRecord(
            self._path,
            len(keys),
            written.size,
            keys[0].as_py(),
            keys[-1].as_py(),
            self.options.compression,
            written.sha256,
            written.fields,
        )
        self._commits.add(record, written.index, self._schema_so_far(), self._payload, durable=self.options.durable)

    def _schema_so_far(self) -> SchemaDocument | None:
        return self._schema or self._typed.schema(self.samples)

    def close(self) -> None:
        """Finish the last shard and write the manifest: from now on the dataset is there."""
        if self._state == "closed":
            return
        if self._state == "failed":
            raise WriteError("the dataset is not finished: an earlier write failed", hint="rerun with resume=True")
        try:
            self._open()
            self._finish_shard()
            self._check_all_skipped()
            self._commits.commit(self._schema_so_far(), self.metadata)
        except BaseException:
            self._fail()
            raise
        self._state = "closed"

    def _check_all_skipped(self) -> None:
        if self._samples_to_skip:
            raise WriteError(
                "the samples ended before those of the interrupted run",
                expected=f"{self._samples_to_skip} more",
                hint="start over without resume",
            )

    def abort(self) -> None:
        """Give up: the open shard vanishes, finished ones stay for a resumed run, no manifest is written.

        What was to be appended vanishes as a whole.
        """
        is_open = self._state == "open"
        self._drop_file()
        self._state = "closed"
        if is_open:
            self._commits.abort()

    def _fail(self) -> None:
        self._state = "failed"
        try:
            self._drop_file()
        finally:
            self._commits.close()

    def _drop_file(self) -> None:
        """Drop the open shard, which may be incomplete."""
        file, self._file = self._file, None
        if file is not None:
            file.abort()

    def __repr__(self) -> str:
        return f"<ShardWriter {join_url(self.root, self._name)}: {self.samples} samples, {self._state}>"

    def __del__(self) -> None:
        if getattr(self, "_state", "new") == "open" and self.samples:
            text = f"a ShardWriter was never closed, so there is no dataset in {self.root}; write in a `with` block"
            warnings.warn(text, ShoalWarning, stacklevel=2, source=self)

    @property
    def urls(self) -> list[str]:
        """Where the finished shards are, once closed."""
        return [join_url(self.root, record.path) for record in self.shards]


def write_shard(
    url: str,
    samples: Iterable[tuple[str, Mapping[str, Any]]],
    *,
    compression: str | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> ShardRows:
    """Write one shard with its index beside it, as `ShardWriter` writes it, and no manifest. Raises WriteError."""
    encoder, file, keys = SampleEncoder(EncodeOptions()), ShardFile(url, compression=compression), set[str]()
    try:
        for key, fields in samples:
            check_key(key)
            if key in keys:
                raise WriteError("the key is in this shard already", key=key)
            keys.add(key)
            file.write(encoder.encode(key, fields))
        if metadata:
            file.write_extra(META_MEMBER, msgspec.json.encode(manifest_metadata(metadata)))
        index = file.commit().index
    except BaseException:
        file.abort()
        raise
    if _COMMITS is JournaledWrite:
        save_rows(index, parent_url(url), base_name(url))
    return index


def _edge_keys(records: Sequence[ShardRecord]) -> Iterator[tuple[str | None, str]]:
    """For each sample of ``records`` its key, where it is known (the first and last of a shard), and its shard."""
    for record in records:
        for position in range(record.samples):
            last = position == record.samples - 1
            yield record.first_key if position == 0 else record.last_key if last else None, record.path


def _shard_pattern(pattern: str, split: str | None) -> str:
    """The pattern of shard names; a name without number and ending is the folder they go to."""
    pattern = pattern.replace("{split}", split or "train")
    if not pattern.endswith("/") and ("." in base_name(pattern) or numbered_name(pattern, 0) != pattern):
        return pattern
    return join_url(pattern, f"{split or 'shard'}-%06d.tar")


class _TypedSamples:
    """Packs typed samples and counts their types, for the schema of the manifest."""

    def __init__(self) -> None:
        self._counts: Counter[type] = Counter()

    def stored(self, sample: Any, number: int) -> Any:
        """The mapping that is written; None for what is no sample. What does not fit is told with its number as key.

        It has no key of its own where the type is packed here, so the writer numbers it: keys that are unique in all
        the world would make other bytes each time.
        """
        kind = type(sample)
        try:
            if not is_record(kind) or (hasattr(kind, "as_wds") and not hasattr(kind, "__schema__")):
                return getattr(sample, "as_wds", None)
            fields = {"msgpack": pack(sample)}
        except ShoalError as error:
            raise error.at(key=f"{number:09d}") from error.__cause__
        self._counts[kind] += 1
        return fields

    def schema(self, samples: int) -> dict[str, Any] | None:
        """The schema of this many samples, where all were of one type."""
        found = [kind for kind, count in self._counts.items() if count == samples]
        return schema_to_json(schema_of(found[0])) if found else None
