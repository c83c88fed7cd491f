"""Change a dataset in its store: append samples, delete and restore them, and refresh views after such changes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar, runtime_checkable

import numpy as np
import pyarrow as pa

from shoal._typing import IntArray
from shoal.errors import (
    FormatError,
    ManifestError,
    ObjectChangedError,
    ObjectNotFoundError,
    OptionError,
    SampleKeyError,
)
from shoal.shard._commit import kept_generations
from shoal.shard._compact import compact
from shoal.shard._row_view import RowView
from shoal.shard._source import ShardSource, Source

from ._append import append_samples, append_to_split, find_split_part, find_target
from ._base import DatasetBase
from ._deletion import Tombstone, delete_samples, list_tombstones, restore_samples
from ._description import CompositeDescription, Step, source_identity
from ._splits import Keys, is_one_of, key_array
from ._tombstones import add_tombstones, remove_tombstones, tombstones_of
from ._transforms import Transforms

if TYPE_CHECKING:
    from ._dataset import Dataset

__all__ = ["Update"]

T = TypeVar("T")
_NAME_CHARS = 6


@runtime_checkable
class _Refreshable(Protocol):
    """A composite description that can be built again from the datasets as they are now."""

    def refreshed(self) -> CompositeDescription: ...


class Update(Transforms[T]):
    """Methods that change a dataset in its store, and `refresh`, which sees such changes."""

    def append(
        self, samples: Iterable[Any], *, max_samples: int | None = None, max_bytes: int | None = None
    ) -> Dataset[T]:
        """Add samples in new shards, named, compressed and typed as those there are; gives the dataset with them.

        All of them are there at once, when the manifest is replaced at the end: whoever opens the dataset meanwhile, or
        after this was killed, sees it as it was. This dataset and its views stay as they are. Dicts need a ``__key__``
        or get a number; typed samples are numbered on. One process at a time may append.

        Raises SchemaMismatchError for samples of another type than the manifest's, WriteError for a key that is there
        already, ManifestError where there is no manifest to add to, OptionError when called on a view.

        Examples:
            >>> import shoal
            >>> with shoal.ShardWriter("memory://doc/append/a-%06d.tar") as writer:
            ...     writer.write({"__key__": "one", "txt": "1"})
            >>> ds = shoal.Dataset("memory://doc/append")
            >>> grown = ds.append([{"__key__": "two", "txt": "2"}])
            >>> ds.keys(), grown.keys(), [url.rpartition("/")[2] for url in grown.shards]
            (['one'], ['one', 'two'], ['a-000000.tar', 'a-000001.tar'])
        """
        description = self.described
        self._refuse_view("samples are added to a dataset")
        if (table := self._segment_table) is not None:
            whole = self._another(replace(description, tombstones=False))
            append_to_split(samples, find_split_part(table), whole, max_samples, max_bytes)
            return self.refresh()
        target = find_target(self.source, description.path, description.options.split)
        whole = self._another(
            replace(
                description,
                path=target.root,
                options=replace(description.options, split=target.split),
                tombstones=False,
            )
        )
        added = append_samples(samples, target, whole, max_samples, max_bytes)
        fresh = self.refresh()
        if {url.removeprefix("./") for url in added} <= {url.removeprefix("./") for url in fresh.shards}:
            return fresh
        # The dataset was opened from a list of shards, which does not include the new ones.
        return self._another(replace(description, path=(*self.shards, *added)))

    def compact(self) -> Dataset[T]:
        """Remove deleted samples from their tars; gives the dataset as it is then.

        Shards that have deleted samples are written anew, under their names; others stay as they are. All of them are
        replaced at once: a process that dies leaves the old dataset or the new one. The samples cannot be restored
        afterwards, and positions change, so that datasets that are open raise ObjectChangedError until `refresh`.
        What the index has of the samples, such as keys, is removed some commits later, with the generations before.

        Raises OptionError when called on a view, FormatError where the index is not in segments, and ObjectExistsError
        where others change the dataset meanwhile.
        """
        self._refuse_view("compact applies to a dataset")
        table = self._segment_table
        if table is None:
            raise FormatError(
                "Only datasets with an index in segments can be compacted, and writers do not make one yet",
                hint="rewrite it without the deleted samples with `shoal reshard`",
            )
        for root in dict.fromkeys(part.opened.root for part in table.parts):
            compact(root, [part.name for part in table.parts if part.opened.root == root])
        return self.refresh()

    def refresh(self) -> Dataset[T]:
        """The dataset as it is now: the manifest, the folder or the pattern is looked at again.

        What ``where``, ``exclude`` and ``split`` chose is chosen again, from all there is; samples chosen by position
        stay the same samples. Datasets put together of others are put together of what those are now. This dataset and
        its views stay as they are. Raises ManifestError when a shard that samples were chosen from is gone.
        """
        return self._reopened(None)

    @property
    def generation(self) -> str | None:
        """Names the committed state that is read, for states of loaders; None where there is no one such.

        It begins with the lineage: between generations of one, samples are only added and deleted.
        """
        source = self.source
        if not isinstance(source, ShardSource) or isinstance(self._description.path, CompositeDescription):
            return None
        generation = source.generation
        return None if generation is None else _name_generation(generation.lineage, generation.id)

    def at_generation(self, generation: str) -> Dataset[T]:
        """The dataset as it was in an earlier ``generation``, with the same methods applied; for loaders.

        Raises ObjectChangedError where the dataset was replaced since, and ObjectNotFoundError where the generation is
        not kept any more.
        """
        table = self._segment_table
        if table is None:
            raise ObjectNotFoundError("The dataset has no generations", found=generation)
        opened = table.parts[0].opened
        if generation.partition("-")[0] != opened.generation.lineage[:_NAME_CHARS]:
            raise ObjectChangedError("The dataset was replaced", shard=opened.root)
        for known in kept_generations(opened.root):
            if _name_generation(opened.generation.lineage, known) == generation:
                return self._reopened(known)
        raise ObjectNotFoundError("The generation is not kept any more", found=generation, shard=opened.root)

    def _reopened(self, generation: str | None) -> Dataset[T]:
        """The dataset in the newest generation, or in this one, with the same methods applied."""
        description = self.described
        path: Any = description.path
        path = path.refreshed() if isinstance(path, _Refreshable) else path
        options = replace(description.options, generation=generation)
        fresh = self._another(replace(description, path=path, options=options, steps=()))
        for step in description.steps:
            fresh = self._reapply(step, fresh)
        return fresh

    def _reapply(self, step: Step, fresh: Any) -> Dataset[T]:
        if step.again is not None:
            again: Dataset[T] = step.again(fresh)
            return again
        rows = None if step.rows is None else _rows_after_refresh(step.rows, self.source, fresh.source, fresh.rows)
        view: Dataset[T] = fresh._view(rows=rows, step=replace(step, rows=rows))  # noqa: SLF001 - as self's
        return view

    def tombstone(
        self, keys: Keys, reason: str | None = None, *, repeated: Literal["error", "all"] = "error"
    ) -> Dataset[T]:
        """Delete samples for good, without touching a tar; gives the dataset without them.

        Which samples is kept beside the manifest, in ``.shoal/tombstones.json``, and every later opening leaves them
        out, unless it says ``tombstones=False``. ``restore`` brings them back. This dataset and its views stay as they
        are. One process at a time may do this.

        Args:
            keys: Keys of samples in view; or a view, such as one by ``where``, whose samples are deleted and no others.
            reason: Kept with each sample.
            repeated: What happens where several samples have a key that is named: an error with their number, or
                ``"all"`` of them are deleted.

        Raises:
            SampleKeyError: No sample has a key, or several have one; the first keys are named.
            FormatError: There are no tars.

        Examples:
            >>> import shoal
            >>> with shoal.ShardWriter("memory://doc/tombstone/a-%06d.tar") as writer:
            ...     for number in range(3):
            ...         writer.write({"__key__": f"k{number}", "cls": number})
            >>> ds = shoal.Dataset("memory://doc/tombstone").tombstone(["k1"], reason="blurred")
            >>> ds.keys(), [(stone.key, stone.reason) for stone in ds.tombstones]
            (['k0', 'k2'], [('k1', 'blurred')])
            >>> len(shoal.Dataset("memory://doc/tombstone", tombstones=False)), len(ds.restore(["k1"]))
            (3, 3)
        """
        if reason is not None and not isinstance(reason, str):
            raise OptionError("a reason is text", expected="str", found=repr(reason))
        _check_repeated(repeated)
        table = self._segment_table
        if table is not None and reason is not None:
            raise OptionError(f"reason must be None: the index has no place for it, got {reason!r}")
        chosen = self._rows_of(keys) if isinstance(keys, DatasetBase) else None
        rows = self._rows_of_keys(keys, repeated) if chosen is None else self._rows_in_view(chosen)
        if table is None:
            add_tombstones(self.source, self._description.path, rows, reason)
        else:
            delete_samples(table, rows)
        return self.refresh()

    def _deleted_keys(self) -> pa.Array:
        table = self._segment_table
        keys = [stone.key for stone in self.tombstones] if table is None else table.keys(table.deleted().as_array())
        return pa.array(keys, pa.large_string())

    def _rows_of_keys(self, keys: Keys, repeated: str) -> IntArray:
        """The rows of the samples in view that have these keys."""
        gone, here = key_array(keys), self.key_column().cast(pa.large_string())
        known = pa.chunked_array([*here.chunks, self._deleted_keys()], pa.large_string())
        _refuse_unknown(gone, known, "no sample has this key")
        rows = np.unique(self.rows.where(is_one_of(here, gone)).as_array())
        if repeated == "error":
            _refuse_repeated(self.source.keys(rows), "samples", "tombstone(ds.where(...))")
        return rows

    def _rows_in_view(self, rows: RowView) -> IntArray:
        """These rows, of which those that were deleted before are passed over."""
        strange = pa.array(self.source.keys(rows.without(self.rows).as_array()), pa.large_string())
        _refuse_unknown(strange, pa.chunked_array([self._deleted_keys()]), "a sample is not in this view")
        return np.unique(rows.within(self.rows).as_array())

    @property
    def tombstones(self) -> tuple[Tombstone, ...]:
        """The samples that were deleted from these shards: key, shard and reason."""
        table = self._segment_table
        return tombstones_of(self.source, self._description.path) if table is None else list_tombstones(table)

    def restore(
        self, keys: Keys | Iterable[Tombstone] | None = None, *, repeated: Literal["error", "all"] = "error"
    ) -> Dataset[T]:
        """Bring deleted samples back, all of them without ``keys``; gives the dataset with them.

        ``keys`` may also be some of ``tombstones``. Raises SampleKeyError for a key that was not deleted, and for one
        under which several samples were, unless ``repeated="all"``.
        """
        _check_repeated(repeated)
        stones = self.tombstones
        if keys is not None and not isinstance(keys, (DatasetBase, pa.Array, pa.ChunkedArray, str, bytes)):
            keys = list(keys)
        given = [key for key in keys if isinstance(key, Tombstone)] if isinstance(keys, list) else []
        if given and isinstance(keys, list) and len(given) == len(keys):
            places = {(stone.shard, stone.row) for stone in given}
            chosen = [number for number, stone in enumerate(stones) if (stone.shard, stone.row) in places]
        elif keys is not None:
            wanted = key_array(keys)
            _refuse_unknown(wanted, pa.chunked_array([self._deleted_keys()]), "no deleted sample has this key")
            names = set(wanted.to_pylist())
            chosen = [number for number, stone in enumerate(stones) if stone.key in names]
            if repeated == "error":
                repeating = [stones[number].key for number in chosen]
                _refuse_repeated(repeating, "deleted samples", "restore(some of ds.tombstones)")
        else:
            chosen = list(range(len(stones)))
        table = self._segment_table
        if table is None:
            remove_tombstones(self.source, self._description.path, [stones[number] for number in chosen])
        else:
            restore_samples(table, table.deleted().as_array()[chosen])
        return self.refresh()


def _name_generation(lineage: str, generation_id: str) -> str:
    """Return a short name: of the few generations that are kept, no two are called the same."""
    return f"{lineage[:_NAME_CHARS]}-{generation_id[:_NAME_CHARS]}"


def _check_repeated(repeated: object) -> None:
    if repeated not in ("error", "all"):
        raise OptionError(f"repeated must be 'error' or 'all', got {repeated!r}")


def _refuse_repeated(keys: Sequence[str], what: str, exact: str) -> None:
    """Raise SampleKeyError where several samples have one of these keys."""
    repeated = {key: count for key, count in Counter(keys).items() if count > 1}
    if repeated:
        shown = ", ".join(f"{count} {what} have the key {key!r}" for key, count in list(repeated.items())[:3])
        more = f" and {len(repeated) - 3:,} more keys repeat" if len(repeated) > 3 else ""
        hint = f"pass repeated='all' for all {sum(repeated.values()):,} of them, or choose some: {exact}"
        raise SampleKeyError(f"{shown}{more}", hint=hint)


def _refuse_unknown(wanted: pa.Array, known: pa.ChunkedArray, problem: str) -> None:
    strange = wanted.filter(pa.array(~is_one_of(pa.chunked_array([wanted]), known.combine_chunks())))
    if len(strange):
        more = f" and {len(strange) - 3:,} more" if len(strange) > 3 else ""
        raise SampleKeyError(problem, found=", ".join(map(repr, strange[:3].to_pylist())) + more)


def _rows_after_refresh(rows: RowView, old: Source, new: Source, visible: RowView) -> RowView:
    """The rows that samples have in the refreshed source, without those deleted since."""
    if not (isinstance(old, ShardSource) and isinstance(new, ShardSource)):
        if source_identity(old) != source_identity(new):
            raise OptionError(
                "samples chosen by position cannot be found again",
                expected="tar shards",
                hint="refresh the dataset first, then choose",
            )
        return rows
    if old.segment_table is not None and new.segment_table is not None:
        followed = old.segment_table.follow(rows, new.segment_table)
        if followed is None:
            hint = "Refresh the dataset, then choose again"
            raise ManifestError("The dataset that samples were chosen from was replaced", hint=hint)
        moved = followed
    else:
        places = _new_shard_numbers(old, new, rows.shards(old.starts).tolist())
        moved = rows.moved(old.starts, new.starts[places] - old.starts[:-1])
    return moved if visible.is_whole(len(new)) else moved.within(visible)


def _new_shard_numbers(old: ShardSource, new: ShardSource, touched: Sequence[int]) -> IntArray:
    """The number that each touched shard has now. Raises ManifestError if it is gone or was replaced."""
    there = {ref.url: number for number, ref in reversed(list(enumerate(new.shards)))}
    places = np.zeros(len(old.shards), np.int64)
    for number in touched:
        before = old.shards[number]
        at = there.get(before.url)
        counts = None if at is None else (np.diff(old.starts)[number], np.diff(new.starts)[at])
        if at is None or counts is None or counts[0] != counts[1] or before.size != new.shards[at].size:
            problem = "a shard that samples were chosen from is " + ("gone" if at is None else "another now")
            raise ManifestError(problem, shard=before.url, hint="refresh the dataset, then choose again")
        places[number] = at
    return places
