"""``tf.data``'s verbs: each gives a loader, which does the work on threads and can be gone on with."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

from shoal.errors import ShardIndexError, TarError
from shoal.load import Auto, DataLoader, Described, Filter, LoaderOptions, Map, Ragged, StreamSource, ThreadingOptions

from ._combined._mix import MixedSource
from ._core import Core
from ._loading import DatasetSource
from ._peer._loader import SampleLoader
from ._windows import TokenWindows

if TYPE_CHECKING:
    from ._dataset import Dataset

__all__ = ["PipelineVerbs"]

T = TypeVar("T")


class PipelineVerbs(Core[T]):
    """``shuffle``, ``batch``, ``prefetch`` and the like, and what a DataLoader asks of a dataset.

    Example:
        >>> import shoal
        >>> with shoal.ShardWriter("memory://doc/verbs/train-%06d.tar") as writer:
        ...     for number in range(10):
        ...         writer.write({"__key__": f"k{number}", "cls": number})
        >>> loader = shoal.Dataset("memory://doc/verbs").shuffle(100, seed=1).map(lambda s: s["cls"]).batch(4)
        >>> sorted(label for batch in loader for label in batch)
        [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    """

    def __load__(self) -> Described:
        """How a loader reads it: stored samples by number, then what ``map`` and ``filter`` were told.

        A format is applied to batches as wholes. What is damaged so that samples have no numbers, where damage is
        passed over, is read from its start.
        """
        if not self._is_numbered():
            return Described(StreamSource(lambda: iter(self), "a damaged dataset"))
        form, stages = self._format, self._description.stages
        inner = stages if form is None else stages[:-1]
        steps = tuple(Map(stage.function) if stage.kind == "map" else Filter(stage.function) for stage in inner)
        collate = None if form is None else partial(form.batch, names=self._columns())
        return Described(self._numbered(), steps, collate)

    def _is_numbered(self) -> bool:
        try:
            return not self.errors.goes_on or len(self.source) >= 0
        except (TarError, ShardIndexError):
            return False

    def _numbered(self) -> DatasetSource:
        mixture = self._description.mixture
        if mixture is None:
            return DatasetSource(cast("Dataset[Any]", self))
        return MixedSource(self._view(rows=mixture.rows, whole=mixture.rows is None), mixture)

    def loader(self, options: LoaderOptions | None = None, **changes: Any) -> DataLoader:
        """Batches of this dataset: ``DataLoader(dataset, options)``."""
        return DataLoader(self, options, **changes)

    def _samples(self) -> SampleLoader:
        return SampleLoader(self, batch_size=None)

    def shuffle(self, buffer_size: int | None = None, seed: int | None = None) -> SampleLoader:
        """Samples in a random order, a new one each epoch; at least ``buffer_size`` of them are mixed at a time.

        None mixes as many as the loader's ``memory_budget`` allows, which is often all. webdataset's verbs may follow.
        """
        return cast(SampleLoader, self._samples().shuffle(buffer_size, seed))

    def batch(
        self,
        batch_size: int,
        drop_last: bool = False,
        *,
        ragged: Ragged = "list",
        collate_fn: Callable[[list[Any]], Any] | None = None,
    ) -> DataLoader:
        """Samples gathered ``batch_size`` at a time."""
        return self._samples().batch(batch_size, drop_last, ragged=ragged, collate_fn=collate_fn)

    def padded_batch(self, batch_size: int, drop_last: bool = False) -> DataLoader:
        """Batches in which arrays of different shapes are padded with zeros to the largest."""
        return self._samples().padded_batch(batch_size, drop_last)

    def bucket(
        self,
        boundaries: Sequence[int],
        batch_sizes: Sequence[int] | int,
        length_of: Callable[[Any], int],
        *,
        drop_last: bool = False,
        ragged: Ragged = "pad",
        collate_fn: Callable[[list[Any]], Any] | None = None,
    ) -> DataLoader:
        """Batches of samples of about one length."""
        return self._samples().bucket(
            boundaries, batch_sizes, length_of, drop_last=drop_last, ragged=ragged, collate_fn=collate_fn
        )

    def pack(
        self,
        length: int,
        field: str,
        how: Literal["first_fit", "concat"] = "first_fit",
        *,
        open_rows: int = 64,
        pad: int = 0,
    ) -> DataLoader:
        """Token sequences put together into rows of ``length`` tokens."""
        return self._samples().pack(length, field, how, open_rows=open_rows, pad=pad)

    def token_windows(
        self, field: str, length: int, stride: int | None = None, *, drop_last: bool = True, pad: int = 0
    ) -> TokenWindows:
        """Windows of ``length`` tokens over the arrays of a field, as samples of their own, for a DataLoader.

        They are ``stride`` apart (``length``, if not said) and do not cross documents.
        """
        return TokenWindows(cast("Dataset[Any]", self), field, length, stride, drop_last, pad)

    def flat_map(self, function: Callable[[T], Iterable[Any]]) -> DataLoader:
        """All that the function gives for each sample, one after the other."""
        return self._samples().flat_map(function)

    def interleave(
        self, function: Callable[[T], Iterable[Any]], cycle_length: int = 2, block_length: int = 1
    ) -> DataLoader:
        """What the function gives for ``cycle_length`` samples at a time, in turns of ``block_length``."""
        return self._samples().interleave(function, cycle_length, block_length)

    def window(self, size: int, shift: int | None = None, *, drop_last: bool = False) -> DataLoader:
        """Lists of ``size`` neighbours, each beginning ``shift`` after the one before."""
        return self._samples().window(size, shift, drop_last=drop_last)

    def unbatch(self) -> DataLoader:
        """Samples that are batches, as ``batched`` and ``map`` make them, taken apart."""
        return self._samples().unbatch()

    def take_while(self, function: Callable[[T], Any]) -> DataLoader:
        """Samples until the function is first false."""
        return self._samples().take_while(function)

    def enumerate(self, start: int = 0) -> DataLoader:
        """Pairs of a number and a sample."""
        return self._samples().enumerate(start)

    def zip(self, *others: Any) -> DataLoader:
        """Tuples of a sample of this and one of each other; the shortest ends it."""
        return self._samples().zip(*others)

    def repeat(self, count: int | None = None) -> DataLoader:
        """``count`` epochs in one iteration, or no end of them."""
        return self._samples().repeat(count)

    def cache(self) -> DataLoader:
        """Samples kept in memory after they were first read."""
        return self._samples().cache()

    def prefetch(self, buffer_size: int | Auto = "auto") -> DataLoader:
        """How much is made ready ahead."""
        return self._samples().prefetch(buffer_size)

    def with_options(self, **changes: Any) -> DataLoader:
        """Batches of this dataset with these fields of LoaderOptions: ``DataLoader(dataset, **changes)``."""
        return self.loader(**changes)

    def options(self, options: ThreadingOptions | LoaderOptions | None = None, **changes: Any) -> DataLoader:
        """Loader options, or threading options, for what follows."""
        return self._samples().options(options, **changes)
