"""Ways to a dataset: `load_dataset`, `load_shards`, `write_samples`, `from_parquet`, and resolvers."""

from __future__ import annotations

import functools
import itertools
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, overload

import numpy as np
import numpy.typing as npt

from shoal.errors import (
    CatalogError,
    CatalogKeyError,
    FormatError,
    ObjectNotFoundError,
    OptionError,
    StoreError,
    WriteError,
)
from shoal.formats import detect
from shoal.protocols import DataFiles, DataSource, Resolved, Resolver
from shoal.sample import DictSample, is_record, schema_of
from shoal.schema import schema_to_json
from shoal.shard import ShardList, ShardRef, ShardWriter, find_split, is_dataset_folder, locate_shards, shards_by_split
from shoal.store import base_name, expand_pattern, join_url, parent_url, relative_url, scheme_of, store_for

from ._append import is_numbered, shard_pattern, stored_form
from ._data_source import urls_of
from ._dataset import Dataset
from ._splits import DatasetDict

__all__ = [
    "SplitPart",
    "from_parquet",
    "load_dataset",
    "load_shards",
    "parse_split",
    "register_resolver",
    "resolvers",
    "rows_of",
    "write_samples",
]

T = TypeVar("T")
PathLike = str | os.PathLike[str]
FilesBySplit = DataFiles | Mapping[str, DataFiles]


# ---------------------------------------------------------------------------------------------------- ways to a Dataset


def load_shards(dir_or_url: str | os.PathLike[str], split: str | None = None, **options: Any) -> Dataset[Any]:
    """Load the shards of a folder or URL, as ``ShardingService`` wrote them, or any tars.

    ``options`` are those of :class:`Dataset`.

    Example:
        >>> import shoal
        >>> paths = shoal.ShardingService("memory://doc/load").create_shards_from_data([{"txt": "hello"}])
        >>> shoal.load_shards("memory://doc/load")[0]["txt"]
        'hello'
    """
    return Dataset(dir_or_url, split=split, **options)


# ----------------------------------------------------------------------- load_dataset: from a path, a pattern, a folder


_NAME = re.compile(r"[^\W_][\w.\-]*(?:/[^\W_][\w.\-]*)*(?:@[0-9A-Za-z.+\-]+)?")


@dataclass(frozen=True, slots=True)
class _Found:
    """The shards of each split."""

    files: dict[str, list[str]]
    folder: str | None = None
    """The folder whose manifest names them: opened as a whole, so that all that the manifest says is kept."""
    sample_type: type[Any] | None = None


@overload
def load_dataset(
    path: DataFiles | DataSource,
    *,
    split: str,
    sample_type: type[T],
    data_files: FilesBySplit | None = None,
    **options: Any,
) -> Dataset[T]: ...
@overload
def load_dataset(
    path: DataFiles | DataSource,
    *,
    split: str,
    sample_type: None = None,
    data_files: FilesBySplit | None = None,
    **options: Any,
) -> Dataset[dict[str, Any]]: ...
@overload
def load_dataset(
    path: DataFiles | DataSource,
    *,
    split: None = None,
    sample_type: type[T],
    data_files: FilesBySplit | None = None,
    **options: Any,
) -> DatasetDict[T]: ...
@overload
def load_dataset(
    path: DataFiles | DataSource,
    *,
    split: None = None,
    sample_type: None = None,
    data_files: FilesBySplit | None = None,
    **options: Any,
) -> DatasetDict[dict[str, Any]]: ...
@overload
def load_dataset(
    path: DataFiles | DataSource,
    *,
    split: str | None,
    sample_type: type[Any] | None = None,
    data_files: FilesBySplit | None = None,
    **options: Any,
) -> Dataset[Any] | DatasetDict[Any]: ...
def load_dataset(
    path: DataFiles | DataSource,
    *misplaced: Any,
    split: str | None = None,
    sample_type: type[Any] | None = None,
    data_files: FilesBySplit | None = None,
    **options: Any,
) -> Dataset[Any] | DatasetDict[Any]:
    """Load a split, or all splits, of what ``path`` names.

    ``path`` is a file, a pattern, a list, a folder, a URL (``s3://...``, ``hf://datasets/...``), a reference that a
    resolver understands (``@local/name``), a name in the local index where no file has it, or a
    :class:`~shoal.protocols.DataSource`. A folder's manifest says what the splits are; without one, and for files, the
    names do: ``train``, ``validation``, ``test`` and other words for them, in the file's name or its folder's. A name
    without such a word is ``train``. ``data_files`` says it instead: files relative to ``path``, all of them ``train``,
    or a dict of them by split.

    With ``split`` this is a Dataset, without it always a DatasetDict. ``split`` may be another word for a split
    (``"val"``), a slice (``"train[:10%]"``, ``"train[100:]"``), a sum (``"train+test"``), or ``"all"``.
    ``sample_type`` is the class of the samples, ``options`` are those of :class:`Dataset`. ``streaming`` is taken for
    those who are used to it and changes nothing: a sample is always read when it is asked for.

    Raises FieldError for a split that is not there, with those that are; ObjectNotFoundError when there is nothing;
    FormatError for a reference that nothing installed understands; OptionError for what cannot be meant.

    Example:
        >>> import shoal
        >>> for name, count in (("train", 10), ("test", 3)):
        ...     with shoal.ShardWriter(f"memory://doc/load_dataset/{name}-%06d.tar") as writer:
        ...         for number in range(count):
        ...             writer.write({"__key__": f"{name}{number}", "txt": "hi"})
        >>> splits = shoal.load_dataset("memory://doc/load_dataset")
        >>> list(splits), len(splits["test"])
        (['train', 'test'], 3)
        >>> len(shoal.load_dataset("memory://doc/load_dataset", split="train[:20%]+test"))
        5
    """
    _check_arguments(misplaced, split, sample_type)
    options.pop("streaming", None)
    found = _find(path, split, data_files, options.get("format"))
    kind = sample_type if sample_type is not None else found.sample_type
    options = options if kind is None else {**options, "sample_type": kind}
    if split is not None:
        return _chosen(found, parse_split(split, found.files), options)
    return DatasetDict({name: _open(found, name, options) for name in found.files}, sample_type=kind)


def _check_arguments(misplaced: tuple[Any, ...], split: object, sample_type: object) -> None:
    if misplaced:
        name = "split" if isinstance(misplaced[0], str) else "sample_type"
        raise TypeError(f"load_dataset takes one positional argument, the path; write {name}={_shown(misplaced[0])}")
    if split is not None and not isinstance(split, str):
        raise OptionError("split is a text", expected="'train', 'train[:10%]' or 'train+test'", found=repr(split))
    if sample_type is not None and not isinstance(sample_type, type):
        raise OptionError("sample_type is a class", found=repr(sample_type))


def _shown(value: object) -> str:
    return value.__name__ if isinstance(value, type) else repr(value)


# ------------------------------------------------------------------------------------------------------- what is there


def _find(path: object, split: str | None, data_files: FilesBySplit | None, format: str | None) -> _Found:  # noqa: A002
    if isinstance(path, str) and is_reference(path):
        resolved = resolve_reference(path, _single(split), data_files)
        found = _at(resolved.files, format)
        return _Found(found.files, found.folder, resolved.sample_type)
    if data_files is not None:
        return _of_data_files(path, data_files, format)
    try:
        return _at(path, format)
    except ObjectNotFoundError as nothing:
        named = _named(path, split, format, nothing)
        if named is None:
            raise
        return named


def _named(path: object, split: str | None, format: str | None, nothing: ObjectNotFoundError) -> _Found | None:  # noqa: A002
    """Where nothing lies, a plain name may be that of a dataset in the local index; None when it is not."""
    if not isinstance(path, str) or not _NAME.fullmatch(path):
        return None
    try:
        resolved = resolve_reference(f"@local/{path}", _single(split), None)
    except (CatalogError, FormatError, OptionError) as error:
        if not isinstance(error, CatalogKeyError):
            nothing.__cause__ = error  # told with it: the index may be meant, and be out of reach
        return None
    found = _at(resolved.files, format)
    return _Found(found.files, found.folder, resolved.sample_type)


def _single(split: str | None) -> str | None:
    """The one split that is asked for, under the name that the user wrote."""
    if split is None or split == "all" or "+" in split:
        return None
    return split.partition("[")[0]


def _at(path: object, format: str | None) -> _Found:  # noqa: A002
    if isinstance(path, Mapping):
        return _Found({str(name): _files(part, format) for name, part in path.items()})
    if isinstance(path, (str, os.PathLike)):
        located = _of_folder(os.fspath(path), format)
        if located is not None and located.manifest is not None and located.root is not None:
            splits = located.manifest.splits.items()
            files = {name: [join_url(located.root, record.path) for record in records] for name, records in splits}
            return _Found(files, located.root)
        root = None if located is None else located.root
        return _Found(shards_by_split(_files(path, format), root))
    if isinstance(path, DataSource):
        urls = urls_of(path)
        return _Found({name: [urls[shard] for shard in ids] for name, ids in shards_by_split(urls).items()})
    return _Found(shards_by_split(_files(path, format)))


def _of_data_files(path: object, data_files: FilesBySplit, format: str | None) -> _Found:  # noqa: A002
    if not isinstance(path, (str, os.PathLike)):
        raise OptionError("data_files are relative to a folder", expected="a path", found=type(path).__name__)
    base = os.fspath(path)
    by_split = data_files if isinstance(data_files, Mapping) else {"train": data_files}
    return _Found({name: _files(_below(base, part), format) for name, part in by_split.items()})


def _below(base: str, files: DataFiles) -> list[str]:
    return [join_url(base, name) if _is_relative(name) else name for item in _items(files) for name in item.split("::")]


def _is_relative(name: str) -> bool:
    return scheme_of(name) == "file" and not name.startswith("file://") and not os.path.isabs(os.path.expanduser(name))


def _files(path: object, format: str | None) -> list[str]:  # noqa: A002
    """Every file that is named: patterns are expanded, folders are what is in them."""
    if isinstance(path, DataSource):
        return list(urls_of(path).values())
    items = _items(path)
    found: list[str] = []
    for item in items:
        located = _of_folder(item, format)
        found += expand_pattern(item) if located is None else [ref.url for ref in located.shards]
    if not found:
        raise ObjectNotFoundError("no files were named", found=repr(path))
    if len(found) == 1:  # one name is looked at now, so that a typo is told here; many are not asked for one by one
        store_for(found[0]).info(found[0])
    return found


def _items(path: object) -> list[str]:
    if isinstance(path, (str, os.PathLike)):
        return [os.fspath(path)]
    if isinstance(path, Iterable) and not isinstance(path, (bytes, Mapping)):
        items = list(path)
        if all(isinstance(item, (str, os.PathLike)) for item in items):
            return [os.fspath(item) for item in items]
    raise OptionError(
        "no dataset can be loaded from this",
        expected="a path, a pattern, a URL, a list of these, or a DataSource",
        found=repr(path),
    )


def _of_folder(url: str, format: str | None) -> ShardList | None:  # noqa: A002
    """What is in a folder, or named by its manifest; None when this is neither."""
    is_manifest = base_name(url) == "manifest.json" and base_name(parent_url(url)) == ".shoal"
    if not is_manifest and not is_dataset_folder(url):
        return None
    name = detect(url) if format is None else format
    return locate_shards(url) if name == "webdataset" else _of_format(url, name)


def _of_format(root: str, format: str) -> ShardList:  # noqa: A002
    infos = store_for(root).list(root)
    shown = [info.url for info in infos if not any(part[:1] == "." for part in relative_url(info.url, root).split("/"))]
    refs = tuple(ShardRef(url) for url in shown if _is_of(url, format))
    if not refs:
        raise ObjectNotFoundError(f"the folder has no {format} files", found=root)
    return ShardList(refs, None, root)


def _is_of(url: str, format: str) -> bool:  # noqa: A002
    try:
        return detect([url]) == format
    except FormatError:
        return False


# ------------------------------------------------------------------------------------------------------- what is chosen


def _open(found: _Found, split: str, options: Mapping[str, Any]) -> Dataset[Any]:
    if found.folder is not None:
        return Dataset(found.folder, split=split, **options)
    return Dataset(found.files[split], **options)


def _chosen(found: _Found, parts: Sequence[SplitPart], options: Mapping[str, Any]) -> Dataset[Any]:
    if len(parts) == 1:
        dataset = _open(found, parts[0].split, options)
        return dataset if parts[0].whole else dataset.select(_numbers(rows_of(parts[0], len(dataset))))
    return _joined(found, parts, options)


def _joined(found: _Found, parts: Sequence[SplitPart], options: Mapping[str, Any]) -> Dataset[Any]:
    """Several parts as one dataset: all their shards, and of these the samples meant."""
    named = list(dict.fromkeys(part.split for part in parts))
    present = list(found.files) if found.folder is not None else named
    every = [url for name in present for url in found.files[name]]
    dataset: Dataset[Any] = Dataset(every if found.folder is None else found.folder, **options)
    if all(part.whole for part in parts) and [part.split for part in parts] == present:
        return dataset
    lengths = {name: len(_open(found, name, options)) for name in present}
    starts = dict(zip(present, itertools.accumulate(lengths.values(), initial=0), strict=False))
    rows = [starts[part.split] + _numbers(rows_of(part, lengths[part.split])) for part in parts]
    return dataset.select(np.concatenate(rows))


def _numbers(rows: range) -> npt.NDArray[np.int64]:
    return np.arange(rows.start, rows.stop, dtype=np.int64)


# -------------------------------------------------------------------------------------------------- what split= may say


_NUMBER = r"-?[0-9]+(?:_[0-9]+)*%?"
_PART = re.compile(
    r"(?P<split>[^\[\]()+]*[^\[\]()+\s])"
    rf"(?P<slice>\[(?P<start>{_NUMBER})?:(?P<stop>{_NUMBER})?\](?:\((?P<rounding>closest|pct1_dropremainder)\))?)?"
)


@dataclass(frozen=True, slots=True)
class SplitPart:
    """One split, or a slice of it."""

    split: str
    start: int | None = None
    stop: int | None = None
    percent: bool = False
    drop_remainder: bool = False
    """Whether a percent is the same number of samples everywhere, so that what is left at the end is in none."""

    @property
    def whole(self) -> bool:
        """Whether it is all of the split."""
        return self.start is None and self.stop is None


def parse_split(spec: str, present: Iterable[str]) -> tuple[SplitPart, ...]:
    """The parts that ``spec`` names of the splits there are. Raises FieldError, or OptionError when it makes no sense.

    Example:
        >>> parse_split("train[:10%]", ["train", "test"])
        (SplitPart(split='train', start=None, stop=10, percent=True, drop_remainder=False),)
    """
    names = list(present)
    if spec in names:  # whatever is in it
        return (SplitPart(spec),)
    if spec == "all" and names:
        return tuple(SplitPart(name) for name in names)
    return tuple(_part(text.strip(), spec, names) for text in spec.split("+"))


def _part(text: str, spec: str, names: list[str]) -> SplitPart:
    found = _PART.fullmatch(text)
    if found is None:
        raise OptionError(
            "a split cannot be read", expected="'train', 'train[:10%]', 'train[5:20]' or 'train+test'", found=repr(spec)
        )
    split = find_split(found["split"], names)
    bounds = [bound for bound in (found["start"], found["stop"]) if bound is not None]
    percents = [bound for bound in bounds if bound.endswith("%")]
    if len(percents) not in (0, len(bounds)):
        raise OptionError("a slice mixes percents and samples", expected="both with % or none", found=repr(spec))
    start, stop = (None if found[side] is None else int(found[side].rstrip("%")) for side in ("start", "stop"))
    if percents and any(abs(bound) > 100 for bound in (start, stop) if bound is not None):
        raise OptionError("a percent is outside the split", expected="-100% to 100%", found=repr(spec))
    if found["rounding"] is not None and not percents:
        raise OptionError("only percents are rounded", expected="% in the slice", found=repr(spec))
    return SplitPart(split, start, stop, bool(percents), found["rounding"] == "pct1_dropremainder")


def rows_of(part: SplitPart, length: int) -> range:
    """Which samples of a split of this length are meant; what lies outside is left out, as in a list's slice.

    Example:
        >>> rows_of(SplitPart("train", None, 10, percent=True), 25), rows_of(SplitPart("train", -5), 25)
        (range(0, 2), range(20, 25))
    """
    start = 0 if part.start is None else _bound(part.start, part, length)
    stop = length if part.stop is None else _bound(part.stop, part, length)
    return range(start, max(start, stop))


def _bound(bound: int, part: SplitPart, length: int) -> int:
    if part.percent and part.drop_remainder and length < 100:
        raise OptionError(
            "a split too short for pct1_dropremainder",
            expected="100 samples or more",
            found=length,
            hint="leave it out",
        )
    if part.percent:
        bound = length // 100 * bound if part.drop_remainder else round(bound * length / 100)
    return min(bound if bound >= 0 else max(length + bound, 0), length)


# -------------------------------------------------------------------------------------------- references of other kinds


RESOLVER_GROUP = "shoal.resolvers"
"""The entry point group by which a package brings a resolver."""

_REGISTERED: dict[str, Resolver] = {}
_EXTRAS = {"at": "atmosphere", "@": "atmosphere"}


def register_resolver(name: str, resolver: Resolver, *, replace: bool = False) -> None:
    """Let ``load_dataset`` of this process understand what ``resolver`` matches, before installed ones are asked.

    Raises OptionError when the name is taken, unless ``replace``, or when the object is no :class:`Resolver`.

    Example:
        >>> from shoal.protocols import Resolved
        >>> class Mirror:
        ...     def matches(self, reference):
        ...         return reference.startswith("mirror://")
        ...
        ...     def resolve(self, reference, *, split=None, data_files=None):
        ...         return Resolved("/mnt/mirror/" + reference.removeprefix("mirror://"))
        >>> register_resolver("mirror", Mirror(), replace=True)
        >>> "mirror" in resolvers()
        True
    """
    _check_resolver(name, resolver)
    if name in _REGISTERED and not replace:
        hint = "pass replace=True to take its place"
        raise OptionError("the resolver is registered already", found=name, hint=hint)
    _REGISTERED[name] = resolver


def resolvers() -> tuple[str, ...]:
    """The names of all resolvers, registered and installed, in the order they are asked."""
    return tuple(_every())


def _every() -> dict[str, Resolver]:
    return {**_REGISTERED, **{name: found for name, found in _installed().usable.items() if name not in _REGISTERED}}


def is_reference(text: str) -> bool:
    """Whether a text is for resolvers: it begins with ``@``, or no store serves its scheme."""
    if text.startswith("@"):
        return True
    try:
        store_for(text)
    except StoreError:
        return True
    return False


def resolve_reference(
    reference: str, split: str | None, data_files: DataFiles | Mapping[str, DataFiles] | None
) -> Resolved:
    """What the first resolver that matches says. Raises FormatError when none does, with what could be installed."""
    for name, resolver in _every().items():
        if resolver.matches(reference):
            return _checked(name, resolver.resolve(reference, split=split, data_files=data_files))
    raise _unknown(reference, _installed().broken)


def _checked(name: str, resolved: Resolved) -> Resolved:
    if not isinstance(resolved, Resolved):
        raise OptionError(f"the resolver {name} broke its promise", expected="a Resolved", found=_kind(resolved))
    return resolved


def _check_resolver(name: str, resolver: object) -> None:
    if isinstance(resolver, type) or not isinstance(resolver, Resolver):
        raise OptionError(
            "this is no resolver", expected="an object with matches and resolve", found=f"{name}: {_kind(resolver)}"
        )


def _kind(value: object) -> str:
    return f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__


@dataclass(frozen=True, slots=True)
class _Installed:
    usable: dict[str, Resolver]
    broken: dict[str, str]
    """Why a resolver that is installed cannot be used."""


@functools.cache  # what is installed stays so, and to look is slow
def _installed() -> _Installed:
    import importlib.metadata  # only a reference needs it, and it takes longer to import than most of shoal

    usable: dict[str, Resolver] = {}
    broken: dict[str, str] = {}
    for point in sorted(importlib.metadata.entry_points(group=RESOLVER_GROUP), key=lambda point: point.name):
        try:
            resolver = point.load()
            _check_resolver(point.name, resolver)
        except Exception as error:  # noqa: BLE001 - one broken package must not hide the others; it is told of below
            broken[point.name] = f"{type(error).__name__}: {error}"
        else:
            usable[point.name] = resolver
    return _Installed(usable, broken)


def _unknown(reference: str, unusable: Mapping[str, str]) -> FormatError:
    scheme = "@" if reference.startswith("@") else scheme_of(reference)
    names = ", ".join(resolvers()) or "none"
    broken = "".join(f", {name} (cannot be loaded: {why})" for name, why in unusable.items())
    hint = (
        f"pip install 'shoal[{_EXTRAS[scheme]}]'"
        if scheme in _EXTRAS
        else f"install a package with an entry point in the group {RESOLVER_GROUP}, or call register_resolver"
    )
    return FormatError(
        f"no resolver understands {'@' if scheme == '@' else scheme + '://'} references",
        expected=f"a path, a URL that a store serves, or a reference for a resolver; installed are {names}{broken}",
        found=repr(reference),
        hint=hint,
    )


# ------------------------------------------------------------------------------- samples in, a dataset out, in one call


def write_samples(
    samples: Iterable[T],
    path: str | os.PathLike[str],
    *,
    max_samples: int | None = None,
    max_bytes: int | None = None,
    compression: str | None = None,
    metadata: Mapping[str, Any] | None = None,
    split: str | None = None,
    overwrite: bool = False,
    resume: bool = False,
    hashed: bool = False,
    durable: bool = False,
) -> Dataset[T]:
    """Write typed samples, or dicts, and open what was written.

    ``path`` names one tar (``data.tar``), numbered ones (``data-%06d.tar``), or a folder, which gets
    ``shard-%06d.tar``. A single tar becomes numbered ones when ``max_samples`` or ``max_bytes`` is given. Samples are
    taken one at a time and their keys are their numbers, so the same samples give the same bytes. All must be of one
    type, which the manifest keeps. Dicts keep their ``__key__``. ``compression`` is ``"gzip"`` or ``"zstd"``,
    ``metadata`` goes into the manifest and each shard, ``split`` names the part of the dataset this is,
    ``overwrite`` replaces a dataset that is there, once the new one is whole, and ``resume`` goes on after the finished
    shards of a run that was interrupted. ``hashed`` keeps each shard's sha256 in the manifest, ``durable`` waits until
    each shard would survive a power cut.

    Raises:
        WriteError: There are no samples.
        SchemaMismatchError: A sample does not fit its type, or is of another; ``key`` is its number, ``field`` the
            path. Nothing of it is written, and no manifest.
        ObjectExistsError: A dataset is there already.

    Example:
        >>> import numpy as np, shoal
        >>> from numpy.typing import NDArray
        >>> @shoal.packable
        ... class Point:
        ...     at: NDArray[np.float32]
        ...     name: str
        >>> points = [Point(np.zeros(2, np.float32), "origin"), Point(np.ones(2, np.float32), "corner")]
        >>> ds = shoal.write_samples(points, "memory://doc/points")
        >>> len(ds), ds[1].name
        (2, 'corner')
    """
    first, rest = _peeked(samples)
    kind = type(first)
    typed = is_record(kind)
    packed = typed or issubclass(kind, DictSample)
    pattern = shard_pattern(os.fspath(path), max_samples, max_bytes)
    writer = ShardWriter(
        pattern,
        max_samples=(10_000 if is_numbered(pattern) else 1 << 62) if max_samples is None else max_samples,
        max_bytes=(1 << 30 if is_numbered(pattern) else 1 << 62) if max_bytes is None else max_bytes,
        compression=compression,
        metadata=metadata,
        schema=schema_to_json(schema_of(kind)) if typed else None,
        split=split,
        overwrite=overwrite,
        resume=resume,
        hashed=hashed,
        durable=durable,
    )
    with writer:
        for number, sample in enumerate(itertools.chain([first], rest)):
            writer.write(stored_form(number, sample, kind) if packed else sample)
    return Dataset(writer.urls, sample_type=kind if typed else None)


def _peeked(samples: Iterable[T]) -> tuple[T, Iterator[T]]:
    rest = iter(samples)
    try:
        return next(rest), rest
    except StopIteration:
        raise WriteError("there are no samples to write", expected="at least one") from None


# ----------------------------------------------------------------------- from_parquet: a Parquet file in, a dataset out


def from_parquet(
    path: PathLike | Iterable[PathLike],
    output: PathLike | None = None,
    *,
    sample_type: type[Any] | None = None,
    key: str | None = None,
    columns: Sequence[str] | Mapping[str, str] | None = None,
    max_samples: int | None = None,
    max_bytes: int | None = None,
    compression: str | None = None,
    overwrite: bool = False,
    batch_size: int = 1024,
) -> Dataset[Any]:
    """Write shards of what Parquet files hold, and open them, or only open them: `Dataset.from_parquet`, as a function.

    Example:
        >>> import pyarrow as pa, pyarrow.parquet as pq, tempfile
        >>> import shoal
        >>> folder = tempfile.mkdtemp()
        >>> pq.write_table(pa.table({"name": ["a", "b"], "size": [1, 2]}), f"{folder}/table.parquet")
        >>> ds = shoal.dataset.from_parquet(f"{folder}/*.parquet", f"{folder}/shards", key="name")
        >>> ds.get("b").size, ds.where("size > 1").keys()
        (2, ['b'])
    """
    return Dataset.from_parquet(
        path,
        output,
        sample_type=sample_type,
        key=key,
        columns=columns,
        max_samples=max_samples,
        max_bytes=max_bytes,
        compression=compression,
        overwrite=overwrite,
        batch_size=batch_size,
    )
