"""From what a user names to the files of a format, in order."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from shoal.errors import FieldError, ObjectNotFoundError
from shoal.shard import split_alias, split_of
from shoal.store import ObjectInfo, base_name, expand_pattern, local_path, relative_url, scheme_of, store_for

__all__ = ["Files", "PathLike", "identity_of", "is_hidden", "place_of"]

_PART_OF = re.compile(r"-\d+-of-\d+$")
PathLike = str | os.PathLike[str]


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
