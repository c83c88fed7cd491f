"""What is in the folder that a writer writes into, and whether the writer may join it.

A writer joins a folder without shards, or a dataset that does not have the split yet and whose schema fits. Everything
else needs ``append=True``, which adds to what is there, or ``overwrite=True``, which replaces the split; other splits
are never replaced. Tars that no manifest lists would be hidden by the one that the writer makes, so they are an error
too, unless ``append=True`` makes them part of the dataset. Every writer asks here, before it writes anything.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from shoal.errors import ObjectExistsError
from shoal.store._url import join_url, relative_url

from ._commit import is_committed, load_generation
from ._discovery import SHARD_ENDINGS, files_below
from ._generation import NO_GENERATION, Generation
from ._new_segments import shard_paths
from ._split_names import same_split
from ._writing import UnfinishedWrite, unfinished_writes

__all__ = ["OTHER_ENDINGS", "WriteTarget", "enumerate_names", "fits_pattern", "load_target", "paths_to_replace"]

_NAMES_SHOWN = 3
_NUMBER_OR_SPLIT = re.compile(r"(\{split\}|%0?\d*d|\{:0?\d*d?\})")
_TEXT_ENDINGS = (".jsonl", ".ndjson", ".csv", ".tsv")
OTHER_ENDINGS = (
    *(f"{ending}{packed}" for ending in _TEXT_ENDINGS for packed in ("", ".gz", ".zst", ".bz2", ".xz")),
    *(
        ".parquet",
        ".pq",
        ".arrow",
        ".feather",
        ".tfrecord",
        ".tfrecords",
        ".tfrecord.gz",
        ".h5",
        ".hdf5",
        ".npz",
        ".mds",
    ),
)
"""What the files end in that would be the dataset in a folder without shards."""


@dataclass(frozen=True, slots=True)
class WriteTarget:
    """The folder of a write, as it is before the write."""

    root: str
    generation: Generation
    """`NO_GENERATION` where there is no dataset."""
    unlisted: tuple[str, ...]
    """Tars that are a dataset without a manifest. Where there is a manifest they are seen by nobody, and not listed."""
    unfinished: tuple[UnfinishedWrite, ...]
    """Other writes into the folder, which have finished shards that are not part of the dataset yet."""
    own: tuple[UnfinishedWrite, ...]
    """Writes of the same pattern that have not ended; of those that are committed only the folder is left."""
    others: tuple[str, ...] = ()
    """Files of other formats that are a dataset now, where the folder has no shard."""


def load_target(root: str, pattern: str) -> WriteTarget:
    """Look at the folder ``root`` before shards that are named by ``pattern`` are written into it."""
    generation = load_generation(root)
    paths = [] if generation is not None else [relative_url(info.url, root) for info in files_below(root)]
    tars = [path for path in paths if path.lower().endswith(SHARD_ENDINGS)]
    # In this order: a tar that was listed is one of an unfinished write, unless its writer has committed it since.
    writes = unfinished_writes(root, committed=True)
    own = tuple(write for write in writes if write.head.pattern == pattern)
    unfinished = tuple(write for write in writes if write.head.pattern != pattern and not write.head.staged)
    generation = load_generation(root) if tars or writes else generation
    is_written = [write.head.pattern for write in unfinished]
    unlisted = () if generation is not None else [path for path in tars if not _fits_any(is_written, path)]
    if generation is not None:
        unfinished = tuple(write for write in unfinished if not is_committed(root, generation, write.id))
    beside = () if tars or writes or generation is not None else [path for path in paths if "/" not in path]
    others = tuple(path for path in beside if path.lower().endswith(OTHER_ENDINGS))
    return WriteTarget(root, generation or NO_GENERATION, tuple(unlisted), unfinished, own, others)


def paths_to_replace(
    target: WriteTarget,
    splits: Collection[str],
    is_written: Callable[[str], bool],
    *,
    overwrite: bool = False,
    join: bool = False,
    can_append: bool = True,
) -> list[str]:
    """Return the shards that a write of ``splits``, whose names ``is_written`` tells, replaces.

    With ``join`` the splits may exist: the write was allowed when it began. Shards of other splits are never replaced.
    Raises ObjectExistsError where the writer may not write; the error names the choices, without ``append=True`` unless
    ``can_append``.
    """
    append = ", pass append=True to add to it," if can_append else ""
    choices = f"Choose another folder{append} or pass overwrite=True to replace it"
    others = [path for path in target.unlisted if not is_written(path)]
    if others:
        adopt = ", or pass append=True to make them part of the dataset" if can_append else " or move them"
        raise ObjectExistsError(
            "The folder holds tars that the new dataset would hide",
            found=enumerate_names(others),
            shard=target.root,
            hint=f"Choose another folder{adopt}",
        )
    if target.others and not join:
        beside = ", or pass append=True to write beside them" if can_append else " or move them"
        raise ObjectExistsError(
            "The folder holds files of another format that the new dataset would hide",
            found=enumerate_names(list(target.others)),
            shard=target.root,
            hint=f"Choose another folder{beside}",
        )
    splits = {same_split(split, target.generation.splits) for split in splits}
    listed = {
        path: split
        for split, entry in target.generation.splits.items()
        for path in shard_paths(target.root, entry.segments)
        if split in splits or is_written(path)
    }
    taken = next((path for path, split in listed.items() if split not in splits), None)
    if taken is not None:  # not even overwrite=True replaces a split that is not written
        name, number = next(iter(splits), "other"), ", pass append=True for later numbers," if can_append else ""
        raise ObjectExistsError(
            f"Split {listed[taken]!r} has shards of the names that are to be written",
            found=join_url(target.root, taken),
            hint=f"Choose another folder{number} or other names, such as '{name}-%06d.tar'",
        )
    conflicts = [path for path in listed if not join or is_written(path)]
    if conflicts and not overwrite:
        subject = f"Split {listed[conflicts[0]]!r} already exists"
        raise ObjectExistsError(subject, found=join_url(target.root, conflicts[0]), hint=choices)
    if target.unlisted and not overwrite:
        found = join_url(target.root, target.unlisted[0])
        raise ObjectExistsError("Dataset already exists", found=found, hint=choices)
    writing = next(
        (write for write in target.unfinished if write.shards and same_split(write.head.split or "", splits) in splits),
        None,
    )
    if writing is not None and not overwrite and not join:
        raise ObjectExistsError(
            f"Split {writing.head.split!r} is being written, or its writer was interrupted",
            found=join_url(target.root, writing.head.pattern),
            hint=f"Finish that write with resume=True, or {choices[0].lower()}{choices[1:]}",
        )
    return [*(listed if overwrite else ()), *target.unlisted]


def fits_pattern(pattern: str, path: str) -> bool:
    """Whether a pattern of shard names, with a number and perhaps ``{split}``, gives this name.

    Examples:
        >>> fits_pattern("{split}-%06d.tar", "val-000001.tar"), fits_pattern("a-%06d.tar", "b-000001.tar")
        (True, False)
    """
    parts = _NUMBER_OR_SPLIT.split(pattern)
    regex = "".join(_to_regex(part) if at % 2 else re.escape(part) for at, part in enumerate(parts))
    return re.fullmatch(regex, path) is not None


def _to_regex(part: str) -> str:
    if part == "{split}":
        return r"[A-Za-z0-9_][\w.-]*"
    width = re.search(r"\d+", part)
    return rf"\d{{{int(width[0]) if width else 1},}}"


def _fits_any(patterns: Iterable[str], path: str) -> bool:
    return any(fits_pattern(pattern, path) for pattern in patterns)


def enumerate_names(paths: list[str]) -> str:
    """Return the first names, for a message."""
    more = len(paths) - _NAMES_SHOWN
    return ", ".join(map(repr, paths[:_NAMES_SHOWN])) + (f" and {more} more" if more > 0 else "")
