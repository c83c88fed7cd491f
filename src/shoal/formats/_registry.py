"""The registry of formats: which there are, which one a path has, and how it is opened."""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from shoal.errors import FormatError, ManifestError, ObjectNotFoundError, OptionError, TarError
from shoal.shard import _writing
from shoal.shard._compression import decompressed, reader_stream, sniff
from shoal.shard._discovery import (
    SHARD_ENDINGS,
    ShardList,
    dataset_root,
    is_hidden,
    locate_dataset,
    locate_shards,
    nested_datasets,
    own_files,
)
from shoal.shard._journal import unfinished_writes
from shoal.shard._manifest import is_manifest_url
from shoal.shard._member_names import WEBDATASET_RULE, KeyRule
from shoal.shard._source import ShardSource, Source
from shoal.store._pattern import expand_pattern
from shoal.store._registry import no_such_path, store_for
from shoal.store._url import base_name, join_url, relative_url, scheme_of

from ._sources import PathLike, strip_part_number

__all__ = [
    "IMAGE_ENDINGS",
    "Format",
    "SourceOptions",
    "detect",
    "formats",
    "has_format",
    "open_source",
    "register_format",
]

_MAX_NAMES = 3


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """What a user may say about opening a dataset."""

    split: str | None = None
    rule: KeyRule = WEBDATASET_RULE
    verify: bool = True
    reading: tuple[tuple[str, Any], ...] = ()
    """What the format itself is told, by name."""
    cache: str | None = None
    """What of far shards is kept on the local disk: ``"blocks"`` or ``"shards"``; None is as the store says."""
    generation: str | None = None
    """The id of a generation of the dataset; None is the newest."""


_DEFAULT = SourceOptions()

Opener = Callable[[PathLike | Iterable[PathLike], SourceOptions], Source]


@dataclass(frozen=True, slots=True)
class Format:
    """A registered format."""

    name: str
    extensions: tuple[str, ...]
    opener: Opener


_FORMATS: dict[str, Format] = {}
_BUILT_IN: dict[str, Format] = {}
IMAGE_ENDINGS = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".avif")


def register_built_in(found: Format) -> None:
    """Add a format that comes with shoal."""
    _FORMATS[found.name] = _BUILT_IN[found.name] = found


def register_format(name: str, extensions: Sequence[str], opener: Opener, *, replace: bool = False) -> None:
    """Let ``Dataset(path)`` open files with these endings through ``opener(path, options) -> Source``.

    A dataset with a manifest is always opened by shoal. Raises OptionError when the name or an ending is taken, unless
    ``replace``; then the ending changes hands.

    Examples:
        >>> from shoal.formats import formats, register_format
        >>> def open_notes(path, options): ...
        >>> register_format("notes", [".notes"], open_notes, replace=True)
        >>> "notes" in formats()
        True
    """
    endings = tuple("." + extension.lower().removeprefix(".") for extension in extensions)
    taken = [found.name for found in _FORMATS.values() if found.name == name or set(found.extensions) & set(endings)]
    if taken and not replace:
        hint = "pass replace=True to take its place"
        raise OptionError("the format is registered already", found=", ".join(taken), hint=hint)
    for other in list(_FORMATS.values()):  # an ending belongs to one format
        kept = tuple(ending for ending in other.extensions if ending not in endings)
        _FORMATS[other.name] = Format(other.name, kept, other.opener)
    _FORMATS[name] = Format(name, endings, opener)


def formats() -> tuple[str, ...]:
    """The names of all registered formats."""
    return tuple(_FORMATS)


def detect(path: PathLike | Iterable[PathLike]) -> str:
    """The name of the format of what ``path`` names: by a manifest, by its ending, or else by its first bytes.

    Raises ObjectNotFoundError when nothing is there, FormatError when nothing here knows it.
    """
    if isinstance(path, (str, os.PathLike)) and locate_dataset(os.fspath(path)) is not None:
        return "webdataset"
    return _detect_files(path)


def _detect_files(path: PathLike | Iterable[PathLike]) -> str:
    """The format of what is no dataset with a manifest."""
    if isinstance(path, (str, os.PathLike)):
        text = os.fspath(path)
        if base_name(text) == "index.json" and (indexed := _by_index(text)) is not None:
            return indexed
        if (root := dataset_root(text)) is not None:
            return "webdataset" if is_manifest_url(text) else _of_folder(root)
    urls = expand_pattern(path)
    if not urls:
        raise ObjectNotFoundError("no files were named", found=str(path))
    return detect_name(urls[0]) or _by_content(urls[0])


def detect_name(url: str) -> str | None:
    """The format that a name ends in; None where it says nothing."""
    endings = [(ending, found.name) for found in _FORMATS.values() for ending in found.extensions]
    lower = strip_part_number(url)
    fitting = [(len(ending), name) for ending, name in endings if lower.endswith(ending)]
    return max(fitting)[1] if fitting else None


def _of_folder(root: str) -> str:
    """What most files of a folder are; tar shards win over whatever lies beside them."""
    counts: Counter[str] = Counter()
    only_images, is_empty = True, True
    infos = []
    for info in store_for(root).list(root):
        path = relative_url(info.url, root)
        if "/" not in path and not is_hidden(path) and detect_name(path) == "webdataset":
            return "webdataset"  # in most folders of shards the first file tells, so a long listing is not waited for
        infos.append(info)
    for info in own_files(root, infos):
        path = relative_url(info.url, root)
        is_empty = False
        if path == "index.json" and (indexed := _by_index(info.url)) is not None:
            return indexed
        found = detect_name(info.url)
        if found == "webdataset":
            return found
        counts.update([] if found is None else [found])
        only_images = only_images and "/" in path and path.lower().endswith(IMAGE_ENDINGS)
    if is_empty and (unfinished_writes(root) or _writing.unfinished_writes(root)):
        hint = "run it again: it does the rest"
        raise ManifestError("a dataset is being written here, or its writing was interrupted", found=root, hint=hint)
    if is_empty:
        nested = nested_datasets(relative_url(info.url, root) for info in infos)
        if nested:
            hint = f"open one of them: {join_url(root, nested[0]).rstrip('/')!r}"
            found = ", ".join(nested[:_MAX_NAMES]) + (", ..." if len(nested) > _MAX_NAMES else "")
            raise ObjectNotFoundError("the folder holds nothing but other datasets", found=found, hint=hint)
        raise ObjectNotFoundError("the folder is empty", found=root, hint="check the path")
    if counts:
        return counts.most_common(1)[0][0]
    if only_images and "imagefolder" in _FORMATS:
        return "imagefolder"
    hint = "pack a folder of samples with `shoal pack`, or open it with format='raw'"
    raise FormatError("no file in the folder is of a known format", expected=_known(), found=root, hint=hint)


def _by_index(url: str) -> str | None:
    """Which format the ``index.json`` of a folder is of, where it is one of a folder of chunks."""
    try:
        index = msgspec.json.decode(store_for(url).read_all(url))
    except msgspec.DecodeError:
        return None
    if not isinstance(index, dict):
        return None
    return "mds" if "shards" in index else "litdata" if "chunks" in index and "config" in index else None


_HEAD_BYTES = 1 << 18
_MAGICS = ((b"PAR1", "parquet"), (b"ARROW1", "arrow"), (b"\x89HDF\r\n\x1a\n", "hdf5"))


def _by_content(url: str) -> str:
    try:
        reader = store_for(url).open(url)
    except ObjectNotFoundError:
        if scheme_of(url) != "file":  # a store says more: that a repository is private, that a bucket is another's
            raise
        raise no_such_path(url) from None
    try:
        head = reader.read(0, _HEAD_BYTES)
        compression = sniff(head)
        if compression is not None:
            with contextlib.suppress(TarError):  # damaged: reading will tell
                head = decompressed(reader_stream(reader), compression).read(_HEAD_BYTES) or b""
    finally:
        reader.close()
    for magic, name in _MAGICS:
        if head.startswith(magic):
            return name
    if _is_json_lines(head):
        return "jsonl"
    if head[257:262] == b"ustar" or compression is not None:
        return "webdataset"
    raise FormatError("the file is of no known format", expected=_known(), found=url)


def _is_json_lines(head: bytes) -> bool:
    """Whether a file begins with two lines that are JSON objects; a document of one line may be anything."""
    first, newline, rest = head.removeprefix(b"\xef\xbb\xbf").partition(b"\n")
    if not newline or not first.startswith(b"{") or not rest.lstrip().startswith(b"{"):
        return False
    try:
        return isinstance(msgspec.json.decode(first), dict)
    except msgspec.DecodeError:
        return False


def has_format(url: str, format: str) -> bool:  # noqa: A002 - the word users expect
    """Whether a file in a folder of this format is part of it.

    Examples:
        >>> has_format("memory://data/a.jsonl.gz", "jsonl"), has_format("memory://data/info.json", "jsonl")
        (True, False)
    """
    name, known = detect_name(url), _FORMATS.get(format)
    if name is not None or (known is not None and known.extensions):
        return name == format
    try:
        return detect([url]) == format
    except FormatError:
        return False


def _known() -> str:
    return "one of " + ", ".join(sorted(ending for found in _FORMATS.values() for ending in found.extensions))


def open_source(
    path: PathLike | Iterable[PathLike],
    options: SourceOptions = _DEFAULT,
    *,
    format: str | None = None,  # noqa: A002 - the word users expect
) -> Source:
    """Open what ``path`` names as a source of samples; ``format`` names the format where the path does not tell.

    Raises FormatError for a format nobody registered.
    """
    path = path if isinstance(path, (str, os.PathLike)) else tuple(path)  # it is read twice
    if format is None and isinstance(path, (str, os.PathLike)):
        located = locate_dataset(os.fspath(path), options.split, generation=options.generation)
        if located is not None:
            return _source_of(located, options)
    name = _detect_files(path) if format is None else format
    if name not in _FORMATS:
        raise FormatError("no such format", expected=" or ".join(formats()), found=name)
    return _FORMATS[name].opener(path, options)


def _open_webdataset(path: PathLike | Iterable[PathLike], options: SourceOptions) -> ShardSource:
    return _source_of(locate_shards(path, options.split, generation=options.generation), options)


def _source_of(located: ShardList, options: SourceOptions) -> ShardSource:
    if located.table is not None:
        if options.rule not in (WEBDATASET_RULE, located.table.rule):
            problem = "A dataset with an index is read by the key rule by which it was written"
            raise OptionError(problem, expected=repr(located.table.rule), found=repr(options.rule))
        table, splits = located.table, located.table.urls_by_split
        return ShardSource(table, verify=options.verify, cache=options.cache, urls_by_split=splits)
    rule = located.manifest.rule if located.manifest is not None and options.rule == WEBDATASET_RULE else options.rule
    return ShardSource(
        located.shards,
        rule=rule,
        verify=options.verify,
        manifest=located.manifest,
        cache=options.cache,
        urls_by_split=located.urls_by_split,
    )


register_built_in(Format("webdataset", SHARD_ENDINGS, _open_webdataset))
