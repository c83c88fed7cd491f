"""`ShardWriter` and `ShardingService`."""

from __future__ import annotations

import os
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from types import TracebackType
from typing import Any, Literal, Self

import msgspec

from shoal.codec import EncodeOptions
from shoal.errors import ObjectExistsError, OptionError, ShoalError, ShoalWarning, WriteError
from shoal.sample import is_record, pack, schema_of
from shoal.schema import schema_to_json
from shoal.store import base_name, join_url, number_in_name, numbered_name, parent_url, relative_url

from ._compression import check_compression, fitting_compression
from ._foreign_formats import WidsShard, export_wids
from ._index import save_index
from ._journal import Journal, commit_staged, edge_keys, recover, remove_shards, shards_there, staging_url, still_there
from ._manifest import (
    Manifest,
    ShardRecord,
    joined_schema,
    load_manifest,
    manifest_metadata,
    manifest_url,
    merge_shards,
    split_of,
    update_manifest,
)
from ._member_names import META_MEMBER, check_key
from ._open_shards import index_url
from ._shard_file import SampleEncoder, ShardFile
from ._tar_header import BLOCK, padded

__all__ = ["ShardWriter", "ShardingService", "WriteOptions"]

FieldOrder = Literal["given", "sorted"]


# ---------------------------------------------------------------------------------------------------------- ShardWriter


class ShardWriter:
    """Write samples into numbered tar shards, each with its index, and a manifest at the end.

    ``pattern`` names the shards, with one ``%06d`` or ``{:06d}``; a name with neither a number nor an ending is a
    folder for them. A shard is closed when the next sample would go over ``max_samples`` or ``max_bytes``. A sample is
    a mapping from field to value, bytes or anything the field's codec takes; ``__key__`` names it, and a running number
    is used where there is none. The same samples give the same bytes. ``compression`` is ``"gzip"``, ``"bz2"``,
    ``"xz"`` or ``"zstd"``; without one, a name such as ``x.tar.gz`` says it.

    Leaving the ``with`` block by an exception leaves no half shard and no manifest; finished shards stay, and a rerun
    with ``resume=True`` goes on after them: it passes over as many samples as they hold. ``overwrite=True`` replaces
    a dataset that is there, all at once when the new one is whole; ``append=True`` adds shards after those that are
    there, and they belong to the dataset when all of them are whole. ``root`` is the dataset's folder where shards lie
    in a folder below it.

    Example:
        >>> import shoal
        >>> with shoal.ShardWriter("memory://doc/animals-%06d.tar", max_samples=2) as writer:
        ...     for number in range(3):
        ...         writer.write({"__key__": f"{number:03d}", "txt": "a cat", "json": {"legs": 4}})
        >>> [shard.path for shard in writer.shards]
        ['animals-000000.tar', 'animals-000001.tar']
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
        pattern = _named(os.fspath(pattern), split)
        compression = fitting_compression(pattern, compression)
        self.options = WriteOptions(
            max_samples, max_bytes, compression, level, field_order, mtime, hashed, durable, allow_pickle
        )
        self.metadata = manifest_metadata(metadata)
        self._meta = msgspec.json.encode(self.metadata) if self.metadata else b""
        self._most_bytes = max_bytes - (padded(len(self._meta)) + BLOCK if self._meta else 0)
        self.root = parent_url(pattern) if root is None else root
        self.shards: list[ShardRecord] = []
        """The finished shards."""
        self.samples = 0
        """How many samples were taken, those passed over on resuming included."""
        self._name = base_name(pattern) if root is None else relative_url(pattern, root)
        numbered_name(self._name, 0)  # a bad pattern is refused now, not when the first shard is full
        self._split = split
        self._schema = None if schema is None else dict(schema)
        self._overwrite = overwrite
        self._resume = resume
        self._append = append
        self._first = 0
        """The number of the first shard that is written."""
        self._there = 0
        """How many samples are in the shards before it."""
        asked = {**asdict(self.options), "metadata": self.metadata, "split": split}
        self._journal = Journal(self.root, self._name, {**asked, "append": True} if append else asked)
        self._state: Literal["new", "open", "failed", "closed"] = "new"
        self._file: ShardFile | None = None
        self._keys: set[str] = set()
        self._encoder = SampleEncoder(EncodeOptions(allow_pickle=allow_pickle), sort_fields=field_order == "sorted")
        self._typed = TypedSamples()
        self._passing = 0
        self._passed = edge_keys([])

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
        """The first I/O: see what is there, and refuse before anything is written."""
        if self._state != "new":
            return
        recover(self.root)
        finished = self._journal.read() if self._resume else []
        listed = [
            record for record in self._manifest_before().shards if number_in_name(self._name, record.path) is not None
        ]
        if self._append:
            self._first = 1 + max((number_in_name(self._name, record.path) or 0 for record in listed), default=-1)
            self._there = sum(record.samples for record in listed)
            listed = []  # which stay
        if finished and finished == listed:  # killed after the manifest was written: nothing is left to do
            listed = []
        else:
            finished = still_there(finished, (staging_url(self.root), self.root))
        self._replaced = [record.path for record in listed] or self._foreign()
        if self._replaced and not self._overwrite:
            raise ObjectExistsError(
                "a dataset is there already",
                found=join_url(self.root, self._replaced[0]),
                hint="write elsewhere, or pass overwrite=True to replace it",
            )
        self._folder = staging_url(self.root) if self._replaced else self.root
        self._start(finished)
        self._state = "open"

    def _manifest_before(self) -> Manifest:
        return load_manifest(self.root) or Manifest({})

    def _foreign(self) -> list[str]:
        """Shards that stand under our names and are not left over from a run of ours."""
        return [] if self._journal.left_in_place() else list(shards_there(self.root, self._name, self._first))

    def _start(self, finished: list[ShardRecord]) -> None:
        """Take away what an interrupted run left behind its finished shards, and begin the journal."""
        remove_shards(self._folder, list(shards_there(self._folder, self._name, self._first + len(finished))))
        self.shards = finished
        self._passing = sum(record.samples for record in finished)
        self._passed = edge_keys(list(finished))
        self._journal.start(finished, staged=bool(self._replaced))

    def write(self, sample: Mapping[str, Any] | tuple[str, Mapping[str, Any]] | Any) -> None:
        """Write one sample: a mapping, a ``(key, mapping)`` pair, or a typed one: a packable, a dataclass...

        Keys that are not given are numbers. Samples that are all of one type give the manifest its schema.

        Raises UnsafeNameError, EncodeError or WriteError, and then nothing of the sample is written and the writer goes
        on. When the store fails, the open shard vanishes and the writer is closed.
        """
        if self._state != "open":
            self._start_or_refuse()
        key, fields = self._taken(sample)
        self.samples += 1
        if self._passing:
            self._pass_over(key)
            return
        encoded = self._encoder.encode(key, fields)
        try:
            file = self._room_for(encoded[3])
            is_new = key not in self._keys
            if is_new:
                file.write(encoded)
        except BaseException:
            self._fail()
            raise
        if not is_new:
            raise WriteError("the key is in this shard already", key=key, hint="readers would take both for one sample")
        self._keys.add(key)

    def _start_or_refuse(self) -> None:
        if self._state != "new":
            raise WriteError("the writer is closed", hint="open another one")
        self._open()

    def _taken(self, sample: Any) -> tuple[str, Mapping[str, Any]]:
        """The key and the mapping of whatever came in."""
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
        key = f"{self._there + self.samples:09d}" if key is None else key
        if not isinstance(key, str):
            raise WriteError("a key is text", expected="str", found=f"{type(key).__name__} {key!r}")
        check_key(key)
        return key, fields

    def _pass_over(self, key: str) -> None:
        """On resuming: the sample is in a finished shard. Its key must be the one that was written."""
        expected, path = next(self._passed)
        if expected is not None and key != expected:
            raise WriteError(
                "the samples are not those of the interrupted run",
                expected=f"key {expected}",
                found=key,
                shard=path,
                hint="start over without resume",
            )
        self._passing -= 1

    def _room_for(self, size: int) -> ShardFile:
        """The open shard, or a new one when the sample would overfill it."""
        file = self._file
        if file is not None and (file.samples >= self.options.max_samples or file.size + size > self._most_bytes):
            self._finish_shard()
            file = None
        if file is None:
            file = self._file = self._new_file()
        return file

    def _new_file(self) -> ShardFile:
        options = self.options
        self._path = numbered_name(self._name, self._first + len(self.shards))
        url = join_url(self._folder, self._path)
        file = ShardFile(
            url, compression=options.compression, level=options.level, mtime=options.mtime, hashed=options.hashed
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
        save_index(written.index, index_url(self._folder, self._path))
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
        self.shards.append(record)
        self._journal.add(record)

    def close(self) -> None:
        """Finish the last shard and write the manifest: from now on the dataset is there."""
        if self._state == "closed":
            return
        if self._state == "failed":
            raise WriteError("the dataset is not finished: an earlier write failed", hint="rerun with resume=True")
        try:
            self._open()
            self._finish_shard()
            self._check_all_passed()
            self._publish()
        except BaseException:
            self._fail()
            raise
        self._state = "closed"

    def _publish(self) -> None:
        if self._replaced:
            commit_staged(self.root, self._manifest, [record.path for record in self.shards], self._replaced)
        else:
            update_manifest(self.root, self._manifest)
        self._journal.remove()

    def _check_all_passed(self) -> None:
        if self._passing:
            raise WriteError(
                "the samples ended before those of the interrupted run",
                expected=f"{self._passing} more",
                hint="start over without resume",
            )

    def _manifest(self, before: Manifest) -> Manifest:
        """The new manifest, of the one that is there now: another writer may have ended in this folder meanwhile."""
        others = {
            name: tuple(record for record in records if self._stays(record)) for name, records in before.splits.items()
        }
        if not any(others.values()):
            before = Manifest({})  # nothing of it stays
        metadata = {**before.metadata, **self.metadata}
        schema = joined_schema(
            replace(before, splits=others), self._schema or self._typed.schema(self.samples), self.shards
        )
        manifest = Manifest(others, metadata, schema, before.rule)
        for split in sorted({self._split_of(record) for record in self.shards}):
            records = [record for record in self.shards if self._split_of(record) == split]
            if self._append:  # behind all others, whatever their names: positions stay what they were
                splits = {**manifest.splits, split: (*manifest.splits.get(split, ()), *records)}
                manifest = replace(manifest, splits=splits)
            else:
                manifest = merge_shards(manifest, split, records)
        return manifest

    def _stays(self, record: ShardRecord) -> bool:
        """Whether a shard that was there is none of those that are written now."""
        number = number_in_name(self._name, record.path)
        return number is None or number < self._first

    def _split_of(self, record: ShardRecord) -> str:
        return self._split if self._split is not None else split_of(record.path)

    def abort(self) -> None:
        """Give up: the open shard vanishes, finished ones stay for a resumed run, no manifest is written.

        What was to be appended vanishes as a whole.
        """
        whole = self._state == "open"
        self._fail()
        self._state = "closed"
        if self._append and whole:
            remove_shards(self._folder, [record.path for record in self.shards])
            self._journal.remove()
            self.shards = []

    def _fail(self) -> None:
        """What the open shard holds can no longer be trusted."""
        file, self._file = self._file, None
        self._state = "failed"
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


def _named(pattern: str, split: str | None) -> str:
    """The names of shards: what says nothing of a shard's own name is the folder they go to."""
    if not pattern.endswith("/") and ("." in base_name(pattern) or numbered_name(pattern, 0) != pattern):
        return pattern
    return join_url(pattern, f"{split or 'shard'}-%06d.tar")


# ---------------------------------------------------------------------------------------- how shards are cut and stored


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


# ------------------------------------------------------------------------------------------------------ ShardingService


class ShardingService:
    """Create WebDataset shards from an iterable of samples.

    ``output_dir`` is a folder or a URL. Shards are called ``shard-000000.tar`` and so on whatever the ``compression``:
    readers go by content. ``shard_size`` is the number of samples in a shard.

    Example:
        >>> import shoal
        >>> service = shoal.ShardingService("memory://doc/service", shard_size=2)
        >>> samples = [{"image.jpg": b"...", "label.txt": "cat", "metadata": {"source": "web"}} for _ in range(3)]
        >>> service.create_shards_from_data(samples, metadata={"dataset": "pets"})
        ['memory://doc/service/shard-000000.tar', 'memory://doc/service/shard-000001.tar']
        >>> len(shoal.load_shards("memory://doc/service"))
        3
    """

    def __init__(
        self,
        output_dir: str | os.PathLike[str],
        shard_size: int = 1000,
        compression: str | None = None,
        *,
        max_bytes: int = 1 << 30,
        level: int | None = None,
        hashed: bool = False,
        wids: bool = False,
    ) -> None:
        if type(shard_size) is not int or shard_size < 1:
            raise OptionError(
                "a shard holds at least one sample", expected="shard_size of at least 1", found=repr(shard_size)
            )
        WriteOptions(shard_size, max_bytes, compression, level)  # what cannot be is refused now
        self.output_dir = os.fspath(output_dir)
        self.shard_size = shard_size
        self.compression = compression
        self._max_bytes = max_bytes
        self._level = level
        self._hashed = hashed
        self._wids = wids

    @property
    def index_path(self) -> str:
        """Where the JSON index of all shards is: the manifest."""
        return manifest_url(self.output_dir)

    def create_shards_from_data(
        self,
        samples: Iterable[Any],
        metadata: Mapping[str, Any] | None = None,
        *,
        overwrite: bool = False,
        resume: bool = False,
    ) -> list[str]:
        """Write the samples and return the shards' paths.

        Samples are taken one at a time, so any iterable will do: mappings, packables or ``(key, mapping)`` pairs. A
        field called ``metadata`` becomes ``{key}.json``. ``metadata`` describes the whole: it goes into the index,
        into a ``__meta__`` member of each shard, and its ``split`` names the split.

        ``resume`` goes on after the finished shards of an interrupted call with the same samples; ``overwrite``
        replaces shards that are there, all at once when the new ones are whole.
        """
        writer = ShardWriter(
            join_url(self.output_dir, "shard-%06d.tar"),
            max_samples=self.shard_size,
            max_bytes=self._max_bytes,
            compression=self.compression,
            level=self._level,
            metadata=metadata,
            split=_split_in(metadata),
            hashed=self._hashed,
            overwrite=overwrite,
            resume=resume,
        )
        with writer:
            for sample in _with_json(samples):
                writer.write(sample)
        if self._wids:
            self._export_wids(writer)
        return writer.urls

    def _export_wids(self, writer: ShardWriter) -> None:
        """Beside the manifest, not beside the shards: a hub would take another file there for data."""
        urls = zip(writer.urls, writer.shards, strict=True)
        shards = [WidsShard(url, record.samples, record.bytes) for url, record in urls]
        export_wids(shards, join_url(parent_url(self.index_path), "wids.json"))


def _split_in(metadata: Mapping[str, Any] | None) -> str | None:
    split = (metadata or {}).get("split")
    return split if isinstance(split, str) and split else None


def _with_json(samples: Iterable[Any]) -> Iterator[Any]:
    """``metadata`` of a sample is stored under the name that readers know."""
    for sample in samples:
        key, fields = sample if isinstance(sample, tuple) and len(sample) == 2 else (None, sample)
        if isinstance(fields, Mapping) and "metadata" in fields:
            if "json" in fields:
                raise WriteError(
                    "a sample has both metadata and json, which would be one member", key=key or fields.get("__key__")
                )
            fields = {("json" if name == "metadata" else name): value for name, value in fields.items()}
            yield fields if key is None else (key, fields)
        else:
            yield sample


# ------------------------------------------------------------------------------- typed samples on their way into shards


class TypedSamples:
    """Packs what is no mapping, and remembers of which types it was."""

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
