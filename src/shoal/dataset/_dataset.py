"""The `Dataset` class. Its methods are in its base classes, grouped by topic.

Those that start a `DataLoader` are here, in `LoaderMethods`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Unpack, cast, overload

from shoal.errors import DecodeError, ShardIndexError, TarError
from shoal.load._columns import Ragged
from shoal.load._loader import DataLoader
from shoal.load._options import Auto, LoaderOptions, ThreadingOptions
from shoal.load._sources import SourceDescription, StreamSource
from shoal.load._stages import Filter, Map
from shoal.protocols import DataSource

from ._base import DatasetBase
from ._batches import Batches
from ._combine import Combine
from ._description import DatasetOptions, PathLike, describe
from ._loader_source import DatasetSource
from ._mixture import MixedSource, MixtureMethods
from ._shard_processing import ShardProcessing
from ._tabular import Tabular
from ._token_windows import TokenWindows
from ._update import Update
from ._webdataset_methods import SampleLoader, WebDatasetMethods

if TYPE_CHECKING:
    from typing_extensions import TypeVar as DefaultTypeVar

    T = DefaultTypeVar("T", default=dict[str, Any])
else:
    T = TypeVar("T")

__all__ = ["Dataset"]


class LoaderMethods(DatasetBase[T]):
    """``shuffle``, ``batch``, ``prefetch`` and the like, and what a DataLoader asks of a dataset.

    Examples:
        >>> import shoal
        >>> with shoal.ShardWriter("memory://doc/verbs/train-%06d.tar") as writer:
        ...     for number in range(10):
        ...         writer.write({"__key__": f"k{number}", "cls": number})
        >>> loader = shoal.Dataset("memory://doc/verbs").shuffle(100, seed=1).map(lambda s: s["cls"]).batch(4)
        >>> sorted(label for batch in loader for label in batch)
        [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    """

    def __load__(self) -> SourceDescription:
        """How a loader reads it: stored samples by number, then what ``map`` and ``filter`` were told.

        A format is applied to batches as wholes. What is damaged so that samples have no numbers, where damage is
        passed over, is read from its start.
        """
        if not self._has_row_numbers():
            stream = StreamSource(lambda: self._walk(self._rows), "a damaged dataset")
            return SourceDescription(stream, errors=self._description.policy)
        form, stages = self._format, self._description.stages
        inner = stages if form is None else stages[:-1]
        steps = tuple(Map(stage.function) if stage.kind == "map" else Filter(stage.function) for stage in inner)
        collate = None if form is None else partial(form.batch, names=self._columns())
        mixture, source = self._description.mixture, DatasetSource(cast("Dataset[Any]", self))
        if mixture is not None:
            source = MixedSource(self._view(rows=mixture.rows, whole=mixture.rows is None), mixture)
        return SourceDescription(source, steps, collate, self._description.policy)

    def _has_row_numbers(self) -> bool:
        try:
            return not self.errors.goes_on or len(self.source) >= 0
        except (TarError, ShardIndexError, DecodeError):
            return False

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


class Dataset(
    Combine[T],
    Update[T],
    Batches[T],
    WebDatasetMethods[T],
    Tabular[T],
    ShardProcessing[T],
    MixtureMethods[T],
    LoaderMethods[T],
):
    """Samples by position, by key, in order, in batches, or by query.

    ``path`` is a tar, a pattern (``data-{000000..000099}.tar``, ``*.tar``), a list of these, a folder, or a URL that a
    registered store serves. Opening is lazy: the first question reads the manifest, or indexes a tar that has no index
    and keeps that in the cache.

    ``decode=True`` decodes json, text, class numbers, arrays, msgpack and cbor, and leaves images, audio and video as
    bytes; ``False`` gives bytes; a spec such as ``"rgb8"``, ``"pil"`` or ``{"jpg": "numpy"}`` decodes more.
    ``verify`` checks all that is read against the index's checksums. ``on_error`` says what iterating, and loaders of
    the dataset, do with a sample that cannot be read, decoded or mapped: ``"raise"``, ``"skip"``, or ``"quarantine"``,
    which also writes down what was skipped; ``errors`` counts it. ``error_budget`` is how many may be skipped in one
    pass: an int, or a share as a float below 1; by default a hundredth, at least one. Arrays are read-only views of the
    bytes that were read; ``writable`` makes copies of your own. Samples that were deleted with ``tombstone`` are left
    out; ``tombstones=False`` shows them. ``cache`` keeps what was read of far shards on the local disk, ``"blocks"``,
    or the whole of each shard that is opened, ``"shards"``.

    ``Dataset[ImageSample](path)`` gives samples of that type, from ``.msgpack`` payloads or from plain fields by name.
    Without a type the manifest's schema makes one; else payloads are ``DictSample`` and anything else is a dict.

    Examples:
        >>> import shoal
        >>> with shoal.ShardWriter("memory://doc/ds/train-%06d.tar") as writer:
        ...     for number in range(4):
        ...         writer.write({"__key__": f"k{number}", "txt": "hi", "json": {"width": number * 100}})
        >>> ds = shoal.Dataset("memory://doc/ds")
        >>> len(ds), ds[0]["txt"], ds.get("k3")["json"]
        (4, 'hi', {'width': 300})
        >>> [sample["__key__"] for sample in ds.where("width >= 200")]
        ['k2', 'k3']
    """

    @overload
    def __init__(
        self,
        path: PathLike | Iterable[PathLike] | DataSource,
        *,
        sample_type: type[T],
        **options: Unpack[DatasetOptions],
    ) -> None: ...
    @overload
    def __init__(
        self,
        path: PathLike | Iterable[PathLike] | DataSource,
        *,
        sample_type: None = None,
        **options: Unpack[DatasetOptions],
    ) -> None: ...
    def __init__(
        self,
        path: PathLike | Iterable[PathLike] | DataSource,
        *,
        sample_type: type[Any] | None = None,
        **options: Unpack[DatasetOptions],
    ) -> None:
        self._begin(describe(path, sample_type, **options))
