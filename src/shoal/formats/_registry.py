"""Registered formats, their detection, and the files that a user names."""

from __future__ import annotations

import hashlib
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from shoal.errors import FieldError, FormatError, ManifestError, ObjectNotFoundError, OptionError
from shoal.shard import (
    SHARD_ENDINGS,
    WEBDATASET_RULE,
    KeyRule,
    ShardSource,
    Source,
    is_dataset_folder,
    load_manifest,
    locate_shards,
    sniff,
    split_alias,
    split_of,
    unfinished_writes,
)
from shoal.store import (
    ObjectInfo,
    base_name,
    expand_pattern,
    local_path,
    no_such_path,
    parent_url,
    relative_url,
    scheme_of,
    store_for,
)

__all__ = [
    "Files",
    "Format",
    "PathLike",
    "SourceOptions",
    "detect",
    "formats",
    "identity_of",
    "open_source",
    "place_of",
    "register_format",
]

PathLike = str | os.PathLike[str]


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
_IMAGES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".avif")
_PART_OF = re.compile(r"-\d+-of-\d+$")
"""What TensorFlow writes after the ending: ``train.tfrecord-00000-of-00010``."""


def register_built_in(found: Format) -> None:
    """Add a format that comes with shoal."""
    _FORMATS[found.name] = _BUILT_IN[found.name] = found


def register_format(name: str, extensions: Sequence[str], opener: Opener, *, replace: bool = False) -> None:
    """Let ``Dataset(path)`` open files with these endings through ``opener(path, options) -> Source``.

    Raises OptionError when the name or an ending is taken, unless ``replace``; then the ending changes hands.

    Example:
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
    if isinstance(path, (str, os.PathLike)):
        text = os.fspath(path)
        if _is_manifest(text):
            return "webdataset"
        if base_name(text) == "index.json" and (indexed := _by_index(text)) is not None:
            return indexed
        if is_dataset_folder(text):
            return "webdataset" if load_manifest(text) is not None else _of_folder(text)
    urls = expand_pattern(path)
    if not urls:
        raise ObjectNotFoundError("no files were named", found=str(path))
    return _by_ending(urls[0]) or _by_content(urls[0])


def _is_manifest(url: str) -> bool:
    return base_name(url) == "manifest.json" and base_name(parent_url(url)) == ".shoal"


def detect_name(url: str) -> str | None:
    """The format that a name ends in; None where it says nothing."""
    return _by_ending(url)


def _by_ending(url: str) -> str | None:
    endings = [(ending, found.name) for found in _FORMATS.values() for ending in found.extensions]
    lower = _PART_OF.sub("", url.lower())
    fitting = [(len(ending), name) for ending, name in endings if lower.endswith(ending)]
    return max(fitting)[1] if fitting else None


def _of_folder(root: str) -> str:
    """What most files of a folder are; tar shards win over whatever lies beside them."""
    counts: Counter[str] = Counter()
    only_images, is_empty = True, True
    for info in store_for(root).list(root):
        path = relative_url(info.url, root)
        if any(part.startswith(".") for part in path.split("/")):
            continue
        is_empty = False
        if path == "index.json" and (indexed := _by_index(info.url)) is not None:
            return indexed
        found = _by_ending(info.url)
        if found == "webdataset":
            return found
        counts.update([] if found is None else [found])
        only_images = only_images and "/" in path and path.lower().endswith(_IMAGES)
    if is_empty and unfinished_writes(root):
        hint = "run it again: it does the rest"
        raise ManifestError("a dataset is being written here, or its writing was interrupted", found=root, hint=hint)
    if is_empty:
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


_MAGICS = ((b"PAR1", "parquet"), (b"ARROW1", "arrow"), (b"\x89HDF\r\n\x1a\n", "hdf5"))


def _by_content(url: str) -> str:
    try:
        reader = store_for(url).open(url)
    except ObjectNotFoundError:
        if scheme_of(url) != "file":  # a store says more: that a repository is private, that a bucket is another's
            raise
        raise no_such_path(url) from None
    try:
        head = reader.read(0, 512)
    finally:
        reader.close()
    for magic, name in _MAGICS:
        if head.startswith(magic):
            return name
    if head[257:262] == b"ustar" or sniff(head) is not None:
        return "webdataset"
    raise FormatError("the file is of no known format", expected=_known(), found=url)


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
    name = detect(path) if format is None else format
    if name not in _FORMATS:
        raise FormatError("no such format", expected=" or ".join(formats()), found=name)
    return _FORMATS[name].opener(path, options)


def _open_webdataset(path: PathLike | Iterable[PathLike], options: SourceOptions) -> ShardSource:
    located = locate_shards(path, options.split)
    rule = located.manifest.rule if located.manifest is not None and options.rule == WEBDATASET_RULE else options.rule
    return ShardSource(located.shards, rule=rule, verify=options.verify, manifest=located.manifest, cache=options.cache)


register_built_in(Format("webdataset", SHARD_ENDINGS, _open_webdataset))


@dataclass(frozen=True, slots=True)
class Files:
    """Names of files, which are looked up when they are first needed."""

    path: PathLike | tuple[PathLike, ...]
    endings: tuple[str, ...] | None = None
    """What the names of files in a folder end in; None for all files."""
    split: str | None = None

    @property
    def folder(self) -> str | None:
        """The folder that was named; None where files were."""
        if not isinstance(self.path, (str, os.PathLike)):
            return None
        text = os.fspath(self.path)
        return text if store_for(text).is_folder(text) else None

    def find(self) -> tuple[ObjectInfo, ...]:
        """The files. Raises ObjectNotFoundError when there are none, FieldError when none is of the split."""
        root = self.folder
        found = self._below(root) if root is not None else self._named()
        if not found:
            wanted = "any file" if self.endings is None else " or ".join(self.endings)
            raise ObjectNotFoundError("there are no such files", expected=wanted, found=str(self.path))
        return found if self.split is None else _of_split(found, self.split, root)

    def _below(self, root: str) -> tuple[ObjectInfo, ...]:
        infos = (info for info in store_for(root).list(root) if not is_hidden(relative_url(info.url, root)))
        return tuple(info for info in infos if self.endings is None or _ends(info.url, self.endings))

    def _named(self) -> tuple[ObjectInfo, ...]:
        return tuple(store_for(url).info(url) for url in expand_pattern(self.path))


def _ends(url: str, endings: tuple[str, ...]) -> bool:
    return _PART_OF.sub("", url.lower()).endswith(endings)


def is_hidden(path: str) -> bool:
    """Whether a file, or a folder it is in, has a name that begins with a dot."""
    return any(part.startswith(".") for part in path.split("/"))


def _of_split(infos: Sequence[ObjectInfo], split: str, root: str | None) -> tuple[ObjectInfo, ...]:
    wanted = split_alias(split) or split
    names = [relative_url(info.url, root) if root is not None else base_name(info.url) for info in infos]
    splits = [split_of(name) for name in names]
    found = tuple(info for info, of in zip(infos, splits, strict=True) if of == wanted)
    if not found:
        raise FieldError("no such split", expected=" or ".join(dict.fromkeys(splits)), found=split)
    return found


def identity_of(parts: Iterable[object], infos: Sequence[ObjectInfo]) -> str:
    """A digest that differs where the files, their order or their sizes do; where they lie is no part of it."""
    first, last = min(info.url for info in infos), max(info.url for info in infos)
    same = next((at for at, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first))
    cut = first.rfind("/", 0, same) + 1  # the folder of the first and the last is that of all
    facts = [repr(part) for part in parts] + [repr((info.url[cut:], info.size)) for info in infos]
    return hashlib.sha256("\0".join(facts).encode("utf-8", "surrogatepass")).hexdigest()


def place_of(info: ObjectInfo) -> str:
    """Where an object is, told the same way from every working folder."""
    return os.path.abspath(local_path(info.url)) if scheme_of(info.url) == "file" else info.url
