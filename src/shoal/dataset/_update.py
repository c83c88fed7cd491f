"""Datasets that change: ``append`` and ``refresh``, ``tombstone`` and ``restore``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shoal.errors import ManifestError, OptionError, SampleKeyError
from shoal.shard import ShardSource, Source

from ._append import append_samples, dataset_of
from ._description import CompositeDescription, Step, source_identity
from ._splits import Keys, is_one_of, key_array
from ._tombstones import Tombstone, add_tombstones, remove_tombstones, tombstones_of
from ._transforms import Views

if TYPE_CHECKING:
    from ._dataset import Dataset

__all__ = ["Growth"]

T = TypeVar("T")
Int64 = npt.NDArray[np.int64]


@runtime_checkable
class _Refreshable(Protocol):
    """A recipe that can be made again of what is there now."""

    def refreshed(self) -> CompositeDescription: ...


class Growth(Views[T]):
    """``append``, ``refresh``, ``tombstone``, ``tombstones``, ``restore``."""

    def append(
        self, samples: Iterable[Any], *, max_samples: int | None = None, max_bytes: int | None = None
    ) -> Dataset[T]:
        """Add samples in new shards, named, compressed and typed as those there are; gives the dataset with them.

        All of them are there at once, when the manifest is replaced at the end: whoever opens the dataset meanwhile, or
        after this was killed, sees it as it was. This dataset and its views stay as they are. Dicts need a ``__key__``
        or get a number; typed samples are numbered on. One process at a time may append.

        Raises SchemaMismatchError for samples of another type than the manifest's, WriteError for a key that is there
        already, ManifestError where there is no manifest to add to, OptionError when called on a view.

        Example:
            >>> import shoal
            >>> with shoal.ShardWriter("memory://doc/append/a-%06d.tar") as writer:
            ...     writer.write({"__key__": "one", "txt": "1"})
            >>> ds = shoal.Dataset("memory://doc/append")
            >>> grown = ds.append([{"__key__": "two", "txt": "2"}])
            >>> ds.keys(), grown.keys(), [url.rpartition("/")[2] for url in grown.shards]
            (['one'], ['one', 'two'], ['a-000000.tar', 'a-000001.tar'])
        """
        said = self.described
        if (
            self._chosen is not None
            or said.stages
            or said.fields is not None
            or isinstance(said.path, CompositeDescription)
        ):
            raise OptionError("samples are added to a dataset, not to a view of it", found=repr(self))
        target = dataset_of(self.source, said.path, said.options.split)
        whole = self._another(
            replace(said, path=target.root, options=replace(said.options, split=target.split), tombstones=False)
        )
        added = append_samples(samples, target, whole, max_samples, max_bytes)
        fresh = self.refresh()
        if {_plain(url) for url in added} <= {_plain(url) for url in fresh.shards}:
            return fresh
        return self._another(replace(said, path=(*self.shards, *added)))  # a list of shards does not name the new ones

    def refresh(self) -> Dataset[T]:
        """The dataset as it is now: the manifest, the folder or the pattern is looked at again.

        What ``where``, ``exclude`` and ``split`` chose is chosen again, from all there is; samples chosen by position
        stay the same samples. Datasets put together of others are put together of what those are now. This dataset and
        its views stay as they are. Raises ManifestError when a shard that samples were chosen from is gone.
        """
        said = self.described
        path: Any = said.path
        path = path.refreshed() if isinstance(path, _Refreshable) else path
        fresh = self._another(replace(said, path=path, steps=()))
        for step in said.steps:
            fresh = self._done_again(step, fresh)
        return fresh

    def _done_again(self, step: Step, fresh: Any) -> Dataset[T]:
        if step.again is not None:
            again: Dataset[T] = step.again(fresh)
            return again
        rows = None if step.rows is None else _moved(step.rows, self.source, fresh.source, fresh.numbers)
        view: Dataset[T] = fresh._view(rows=rows, step=replace(step, rows=rows))  # noqa: SLF001 - as self's
        return view

    def tombstone(self, keys: Keys, reason: str | None = None) -> Dataset[T]:
        """Delete samples for good, without touching a tar; gives the dataset without them.

        The keys are written beside the manifest, in ``.shoal/tombstones.json``, and every later opening leaves the
        samples out, unless it says ``tombstones=False``. ``restore`` brings them back. This dataset and its views stay
        as they are. One process at a time may do this.

        Raises SampleKeyError, naming the first, when no sample has a key; FormatError where there are no tars.

        Example:
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
        gone, here = key_array(keys), self.key_column()
        dead = pa.array([stone.key for stone in self.tombstones], pa.large_string())
        known = pa.chunked_array([*here.cast(pa.large_string()).chunks, dead], pa.large_string())
        _refuse_unknown(gone, known, "no sample has this key")
        add_tombstones(self.source, self._description.path, self._kept(is_one_of(here, gone)), reason)
        return self.refresh()

    @property
    def tombstones(self) -> tuple[Tombstone, ...]:
        """The samples that were deleted from these shards: key, shard and reason."""
        return tombstones_of(self.source, self._description.path)

    def restore(self, keys: Keys | None = None) -> Dataset[T]:
        """Bring deleted samples back, all of them without ``keys``; gives the dataset with them.

        Raises SampleKeyError for a key that was not deleted.
        """
        dead = pa.array([stone.key for stone in self.tombstones], pa.large_string())
        wanted = dead if keys is None else key_array(keys)
        _refuse_unknown(wanted, pa.chunked_array([dead]), "no deleted sample has this key")
        remove_tombstones(self.source, self._description.path, wanted.to_pylist())
        return self.refresh()


def _plain(url: str) -> str:
    return url.removeprefix("./")


def _refuse_unknown(wanted: pa.Array, known: pa.ChunkedArray, problem: str) -> None:
    strange = wanted.filter(pa.array(~is_one_of(pa.chunked_array([wanted]), known.combine_chunks())))
    if len(strange):
        more = f" and {len(strange) - 3:,} more" if len(strange) > 3 else ""
        raise SampleKeyError(problem, found=", ".join(map(repr, strange[:3].to_pylist())) + more)


def _moved(rows: Int64, old: Source, new: Source, living: Int64) -> Int64:
    """The numbers that samples have now; those deleted since are left out."""
    if not (isinstance(old, ShardSource) and isinstance(new, ShardSource)):
        if source_identity(old) != source_identity(new):
            raise OptionError(
                "samples chosen by position cannot be found again",
                expected="tar shards",
                hint="refresh the dataset first, then choose",
            )
        return rows
    places = _places(old, new, np.unique(np.searchsorted(old.starts, rows, "right") - 1).tolist())
    numbers = np.searchsorted(old.starts, rows, "right") - 1
    found: Int64 = new.starts[places[numbers]] + rows - old.starts[numbers]
    return found[np.isin(found, living)]


def _places(old: ShardSource, new: ShardSource, touched: Sequence[int]) -> Int64:
    """Where each touched shard stands now. Raises ManifestError when it is gone, or another."""
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
