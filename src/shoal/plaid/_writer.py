"""Write PLAID datasets: samples of generators into shards.

A split is cut into at most 32 tasks of neighbouring samples, however many processes write them. A task makes shards of
its own in a folder of its own, and these take their places and numbers in the order of the tasks. So the bytes do not
depend on who wrote them.
"""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import os
import pickle
import shutil
from collections.abc import Callable, Generator, Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from shoal._typing import AnyArray
from shoal.codec._arrays import encode_npy
from shoal.codec._codec import EncodeOptions
from shoal.errors import ObjectExistsError, OptionError, WriteError
from shoal.shard._destination import load_destination
from shoal.shard._manifest import ShardRecord, record_of
from shoal.shard._shard_file import EncodedSample, SampleEncoder, ShardFile
from shoal.shard._stored_rows import move_shard, save_rows

from ._layout import (
    DATA_FOLDER,
    RECORD_FIELD,
    Values,
    check_split,
    describe_splits,
    encode_record,
    field_names,
    sample_key,
    shard_path,
    staging_folder,
)

if TYPE_CHECKING:
    from plaid import Infos, ProblemDefinition, Sample
    from webdataset.writer import TarWriter

__all__ = [
    "SampleCallback",
    "SampleCallbackContext",
    "generate_datasetdict_to_disk",
    "place_shards",
    "save_to_disk",
    "variable_values",
    "write_sample_to_tar",
    "write_values",
]

SampleGenerator = Callable[..., Generator["Sample", None, None]]
Value = npt.NDArray[Any] | None
_SHARD_BYTES = 512 << 20
_MAX_TASKS = 32
"""Tasks of a split, whatever the number of processes, so that the bytes do not depend on it."""
_LARGE_BYTES = 64 << 10
"""Smaller arrays are always shown to PLAID as they are: to hash them takes no time."""
_LETTERS = np.dtype("S1")
"""CGNS keeps a text as an array of letters."""


@dataclass(frozen=True, slots=True)
class SampleCallbackContext:
    """What a ``sample_callback`` is told of the sample that was written, as PLAID tells it."""

    sample: Sample
    split_name: str
    index: int
    """The sample's number in its split."""
    path: Path
    """The split's folder: the shard gets its name when the split is whole."""


SampleCallback = Callable[[SampleCallbackContext], None]


@dataclass(frozen=True, slots=True)
class WriteTask:
    """Neighbouring samples of one split, which one process writes."""

    split: str
    first: int
    """The number of its first sample."""
    length: int
    folder: str
    """Where its shards are written."""
    target: str
    """Where they will be."""
    fields: dict[str, str]
    """The member field of each feature path."""


@dataclass(frozen=True, slots=True)
class WrittenShards:
    """The shards of a task; their paths are names in its folder."""

    folder: str
    shards: tuple[ShardRecord, ...]


def write_task(task: WriteTask, samples: Iterable[Sample], callback: SampleCallback | None = None) -> WrittenShards:
    """Write samples numbered from ``task.first`` on."""
    return write_values(task.folder, task.fields, _numbered(task, samples, callback))


def _numbered(
    task: WriteTask, samples: Iterable[Sample], callback: SampleCallback | None
) -> Iterator[tuple[int, Values]]:
    for number, sample in enumerate(map(whole_of, samples), task.first):
        yield number, variable_values(sample, task.fields)
        if callback is not None:  # asked for the next one, so this one is written
            callback(SampleCallbackContext(sample, task.split, number, Path(task.target)))


def write_values(folder: str, fields: Mapping[str, str], samples: Iterable[tuple[int, Values]]) -> WrittenShards:
    """Write samples, given by number and features. A shard is full when the next one would make it too large."""
    os.makedirs(folder, exist_ok=True)
    encoder = SampleEncoder(EncodeOptions())
    shards = _Shards(folder)
    try:
        for number, values in samples:
            shards.write(encoder.encode(sample_key(number), _members(number, values, fields)))
        shards.finish()
    except BaseException:
        shards.abort()
        raise
    return WrittenShards(folder, tuple(shards.records))


def _members(number: int, values: Values, fields: Mapping[str, str]) -> dict[str, Any]:
    record = encode_record(number, fields, [path for path, value in values.items() if value is None])
    return {RECORD_FIELD: record} | {fields[path]: value for path, value in values.items() if value is not None}


def write_sample_to_tar(
    tar_writer: TarWriter, sample: Sample, var_features_keys: Sequence[str], sample_idx: int
) -> None:
    """Write one sample with a ``webdataset.TarWriter``, as the members that shards of the backend have.

    The tar has no index, so `WebDatasetWrapper` scans it once when it opens it.
    """
    members = _members(sample_idx, variable_values(sample, var_features_keys), field_names(var_features_keys))
    encoded = {name: value if name == RECORD_FIELD else encode_npy(value) for name, value in members.items()}
    tar_writer.write({"__key__": sample_key(sample_idx), **encoded})


class _Shards:
    """Numbered shards in one folder, one open at a time."""

    def __init__(self, folder: str) -> None:
        self.records: list[ShardRecord] = []
        self._folder = folder
        self._file: ShardFile | None = None

    def write(self, sample: EncodedSample) -> None:
        if self._file is not None and self._file.size + sample[3] > _SHARD_BYTES:
            self.finish()
        if self._file is None:
            self._file = ShardFile(os.path.join(self._folder, self._name))
        self._file.write(sample)

    @property
    def _name(self) -> str:
        return f"{len(self.records):06d}.tar"

    def finish(self) -> None:
        if self._file is None:
            return
        index = self._file.commit().index
        save_rows(index, self._folder, self._name)
        self.records.append(record_of(self._name, index))
        self._file = None

    def abort(self) -> None:
        if self._file is not None:
            self._file.abort()


def place_shards(root: Path, split: str, parts: Iterable[WrittenShards], placed: list[Path]) -> list[ShardRecord]:
    """Move the shards of a split, given in order, to their names in the dataset; ``placed`` notes each file.

    Their numbers are in the order of their samples.
    """
    (root / DATA_FOLDER / split).mkdir(parents=True, exist_ok=True)
    records: list[ShardRecord] = []
    for part in parts:
        for record in part.shards:
            path = shard_path(split, len(records))
            placed += map(Path, move_shard(part.folder, record.path, str(root), path))
            records.append(replace(record, path=path))
    return records


def generate_datasetdict_to_disk(
    output_folder: str | Path,
    generators: dict[str, SampleGenerator],
    variable_schema: dict[str, Any],
    gen_kwargs: dict[str, Any] | None = None,
    num_proc: int = 1,
    verbose: bool = False,
    sample_callback: SampleCallback | None = None,
    worker_initializer: Callable[[], None] | None = None,
) -> None:
    """Write the samples of each split's generator to ``data/<split>/shard-%06d.tar``, with an index and a manifest.

    ``variable_schema`` names the features to store, by path. ``gen_kwargs[split]["shards_ids"]`` lists the ids for the
    generator, in lists; with ``num_proc`` processes each takes some of them and calls ``generator([ids])``, and the
    bytes are those that one process writes. The processes start as ``multiprocessing`` is set to start them, and call
    ``worker_initializer`` first. ``sample_callback`` is called after each sample, where it was written. ``verbose``
    shows progress on stderr.

    Raises:
        ObjectExistsError: The split is there already.
        OptionError: ``num_proc`` asks for processes without ``shards_ids``, or the generator cannot be sent to them.
        WriteError: A generator gave another number of samples than ids, or a process ended before its work.
        EncodeError, UnsafeCodecError: A value is no array, or one of Python objects.
    """
    root = Path(output_folder)
    splits = _plan_splits(root, generators, variable_schema, gen_kwargs or {}, num_proc)
    splits = {name: replace(split, callback=sample_callback) for name, split in splits.items()}
    placed: list[Path] = []
    try:
        with _write_splits(splits, num_proc, worker_initializer, verbose) as written:
            records = {name: place_shards(root, name, parts, placed) for name, parts in written}
        describe_splits(root, {name: (records[name], splits[name].fields) for name in splits})
    except BaseException:
        for path in placed:
            path.unlink(missing_ok=True)
        raise
    finally:
        shutil.rmtree(staging_folder(root), ignore_errors=True)


@dataclass(frozen=True, slots=True)
class _Split:
    name: str
    generator: SampleGenerator
    options: dict[str, Any]
    ids: list[Any] | None
    """None where the generator takes none, so that nobody knows how many samples there will be."""
    fields: dict[str, str]
    root: Path
    callback: SampleCallback | None = None

    def samples(self, ids: list[Any] | None) -> Iterator[Sample]:
        return self.generator(**self.options) if ids is None else self.generator([ids], **self.options)

    def tasks(self) -> list[WriteTask]:
        """The tasks of the split. If the number of samples is not known, the last one takes all that come."""
        count = 1 if self.ids is None else len(self.ids)
        step = max(1, -(-count // _MAX_TASKS))
        staged, target = staging_folder(self.root) / self.name, str(self.root / DATA_FOLDER / self.name)
        return [
            WriteTask(self.name, start, min(step, count - start), str(staged / f"{start:09d}"), target, self.fields)
            for start in range(0, count, step)
        ]

    def part(self, task: WriteTask) -> _Split:
        """What another process needs to know."""
        return replace(self, ids=(self.ids or [])[task.first : task.first + task.length])


def _plan_splits(
    root: Path,
    generators: Mapping[str, SampleGenerator],
    schema: Mapping[str, Any],
    gen_kwargs: Mapping[str, Any],
    num_proc: int,
) -> dict[str, _Split]:
    """The splits to write; refused before anything is written."""
    fields = field_names(schema)
    destination = load_destination(str(root), "")
    found = {}
    for name, generator in generators.items():
        check_split(name)
        destination.paths_to_replace((name,), partial(_is_of_split, name), can_append=False)
        if any((root / DATA_FOLDER / name).glob("*.tar")) or (root / DATA_FOLDER / f"{name}.tar").exists():
            raise ObjectExistsError(
                "the split is there already", found=str(root / DATA_FOLDER / name), hint="write elsewhere, or remove it"
            )
        options = dict(gen_kwargs.get(name) or {})
        shards = options.pop("shards_ids", None)
        ids = None if shards is None else list(itertools.chain.from_iterable(shards))
        if num_proc > 1:
            _check_sendable(name, generator, ids)
        found[name] = _Split(name, generator, options, ids, fields, root)
    return found


def _is_of_split(split: str, path: str) -> bool:
    return path.startswith(f"{DATA_FOLDER}/{split}/") or path == f"{DATA_FOLDER}/{split}.tar"


def _check_sendable(name: str, generator: SampleGenerator, ids: Sequence[Any] | None) -> None:
    if ids is None:
        raise OptionError(
            "several processes need to know which samples are whose",
            expected=f"gen_kwargs[{name!r}]['shards_ids']",
            hint="or num_proc=1",
        )
    try:
        pickle.dumps(generator)
    except Exception as error:
        raise OptionError(
            "the generator cannot be sent to other processes",
            expected="a function of a module, or an object of such a class",
            found=error,
            hint="define it at the top of a module, or use num_proc=1",
        ) from error


WrittenSplits = Iterator[tuple[str, Iterator[WrittenShards]]]


@contextlib.contextmanager
def _write_splits(
    splits: Mapping[str, _Split], num_proc: int, initializer: Callable[[], None] | None, verbose: bool
) -> Iterator[WrittenSplits]:
    """Each split and its tasks, as they are written, in order."""
    if num_proc <= 1:
        yield ((name, _write_here(split, verbose)) for name, split in splits.items())
        return
    context = multiprocessing.get_context()
    executor = ProcessPoolExecutor(num_proc, context, initializer)
    try:
        waiting = {
            name: [(task, executor.submit(_write_part, split.part(task), task)) for task in split.tasks()]
            for name, split in splits.items()
        }
        yield ((name, _collect(splits[name], jobs, verbose)) for name, jobs in waiting.items())
    except BrokenProcessPool as error:
        raise WriteError(
            "a process ended before its work was done", found=error, hint="did it run out of memory?"
        ) from error
    finally:
        executor.shutdown(cancel_futures=True)


def _write_here(split: _Split, verbose: bool) -> Iterator[WrittenShards]:
    """The generator is asked once, and its samples are cut into the tasks that several processes would write."""
    tasks = split.tasks()
    samples = split.samples(split.ids) if tasks else iter(())
    with progress(split.name, None if split.ids is None else len(split.ids), verbose) as bar:
        for number, task in enumerate(tasks):
            taken = samples if number + 1 == len(tasks) else itertools.islice(samples, task.length)
            yield write_task(task, _count_samples(taken, bar), split.callback)


def _count_samples(samples: Iterable[Sample], bar: Bar) -> Iterator[Sample]:
    for sample in samples:
        yield sample
        bar.update(1)


def _collect(split: _Split, jobs: Sequence[tuple[WriteTask, Any]], verbose: bool) -> Iterator[WrittenShards]:
    with progress(split.name, sum(task.length for task, _ in jobs), verbose) as bar:
        for task, job in jobs:
            yield job.result()
            bar.update(task.length)


def _write_part(split: _Split, task: WriteTask) -> WrittenShards:
    """What another process does."""
    written = write_task(task, split.samples(split.ids), split.callback)
    if (found := sum(record.samples for record in written.shards)) != task.length:
        raise WriteError(
            "a generator gave another number of samples than it got ids",
            expected=task.length,
            found=found,
            hint="use num_proc=1 where an id is not a sample",
        )
    return written


def variable_values(sample: Sample, paths: Iterable[str]) -> dict[str, Value]:
    """The values of these features in a sample, None for those it lacks: what PLAID's ``build_sample_dict`` gives.

    A sample with one time needs no comparing of times, so its arrays are neither hashed nor copied.
    """
    flat = _one_time(sample) if len(sample.data) == 1 else _many_times(sample)
    return {path: flat.get(path) for path in paths}


def _many_times(sample: Sample) -> dict[str, Value]:
    from plaid.storage.common.preprocessor import build_sample_dict

    flat: dict[str, Value] = build_sample_dict(sample)[0]
    return flat


def _one_time(sample: Sample) -> dict[str, Value]:
    from plaid.utils.cgns_helper import flatten_cgns_tree

    ((time, tree),) = sample.data.items()
    flat: dict[str, Any] = flatten_cgns_tree(tree)[0]
    found: dict[str, Value] = {}
    for path, value in flat.items():
        if "/Time" in path or "CGNSLibraryVersion" in path:
            continue
        found[path] = None if value is None else _join_letters(np.atleast_1d(value))
        found[f"{path}_times"] = None if value is None else np.array([time, 0.0, -1.0])
    return found


def _join_letters(value: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Join an array of letters to one text, as PLAID stores it; any other array is returned as it is."""
    if value.dtype != _LETTERS or value.ndim != 1:
        return value
    return np.array([b"".join(value.tolist()).decode("ascii")])


class Bar(Protocol):
    """What counts along."""

    def update(self, count: int) -> object: ...


class _Silent:
    def update(self, count: int) -> None:
        pass


@contextlib.contextmanager
def progress(split: str, total: int | None, verbose: bool) -> Iterator[Bar]:
    """A bar for one split, or none."""
    if not verbose:
        yield _Silent()
        return
    from tqdm import tqdm  # type: ignore[import-untyped]

    bar: Any
    with tqdm(total=total, desc=f"Writing {split} split") as bar:
        yield bar


def save_to_disk(
    output_folder: str | Path,
    sample_constructor: Callable[[Any], Sample],
    ids: Mapping[str, Sequence[Any]],
    infos: Infos | None = None,
    backend: str = "webdataset",
    pb_defs: dict[str, ProblemDefinition] | None = None,
    num_proc: int = 1,
    verbose: bool = False,
    overwrite: bool = False,
    **options: Any,
) -> None:
    """Save a dataset as ``plaid.storage.save_to_disk`` does: the same files, in a fraction of the time.

    What it takes and raises is PLAID's; what else a newer PLAID takes is passed on. For other backends than
    ``webdataset`` it is PLAID's function.

    Examples:
        >>> import numpy as np
        >>> from plaid import Sample
        >>> from plaid.storage import init_from_disk
        >>> def make_sample(number):
        ...     sample = Sample()
        ...     sample.add_global("Mach", np.array([number / 4]))
        ...     return sample
        >>> save_to_disk("flow", make_sample, {"train": range(3)})
        >>> datasets, converters = init_from_disk("flow")
        >>> converters["train"].to_plaid(datasets["train"], 2).get_global("Mach").item()
        0.5
    """
    from plaid.storage import save_to_disk as save

    if backend == "webdataset":
        ids = {split: _ids_with_split(split, own) for split, own in ids.items()}
        sample_constructor = _OutlineConstructor(sample_constructor)
    save(output_folder, sample_constructor, ids, infos, backend, pb_defs, num_proc, verbose, overwrite, **options)


def _ids_with_split(split: str, ids: Sequence[Any]) -> Sequence[Any]:
    """Ids that tell their split; what PLAID would refuse is left to it."""
    return [(split, each) for each in ids] if hasattr(ids, "__getitem__") and hasattr(ids, "__len__") else ids


@dataclass(frozen=True, slots=True)
class Outline:
    """A sample as PLAID's first pass sees it."""

    data: dict[float, Any]
    """A tree for each time, as in a sample."""
    whole: Sample


def whole_of(sample: Sample | Outline) -> Sample:
    """The sample itself."""
    return sample.whole if isinstance(sample, Outline) else sample


class _OutlineConstructor:
    """Makes outlines, from pairs of a split and an id. Sent to another process, it begins anew there.

    To learn which features are the same in all samples, PLAID makes all of them before it writes any, and hashes every
    array twice: that takes several times as long as writing them. But once an array differs from the first of its name,
    the others tell nothing new. From then on PLAID is shown an empty array in its place, which is of the same type and
    differs as well; what is written is the sample itself.
    """

    def __init__(self, constructor: Callable[[Any], Sample]) -> None:
        self._constructor = constructor
        self._first: dict[Hashable, AnyArray] = {}
        self._varying: set[Hashable] = set()

    def __call__(self, place: tuple[str, Any]) -> Any:
        split, number = place
        sample = self._constructor(number)
        if len(sample.data) != 1:  # of several times, the sizes of arrays matter too
            return sample
        return Outline({time: self._outline_of(tree, (split,)) for time, tree in sample.data.items()}, sample)

    def _outline_of(self, node: Any, path: tuple[str, ...]) -> list[Any]:
        name, value, children, label = node
        path = (*path, name)
        if self._varies(path, value):
            value = np.empty((0,) * value.ndim, value.dtype)  # which PLAID takes to be of the same type
        return [name, value, [self._outline_of(child, path) for child in children], label]

    def _varies(self, path: tuple[str, ...], value: Any) -> bool:
        """Whether another value was shown to PLAID already for this path."""
        if not isinstance(value, np.ndarray) or not value.ndim or value.dtype == _LETTERS:
            return False
        if value.nbytes < _LARGE_BYTES:
            return False
        if path not in self._varying and not _same_bytes(self._first.setdefault(path, value), value):
            self._varying.add(path)
            del self._first[path]
        return path in self._varying

    def __reduce__(self) -> tuple[type[_OutlineConstructor], tuple[Callable[[Any], Sample]]]:
        return _OutlineConstructor, (self._constructor,)


def _same_bytes(first: AnyArray, second: AnyArray) -> bool:
    """What PLAID compares: not the shapes, nor the types."""
    if first is second:
        return True
    return first.nbytes == second.nbytes and np.array_equal(_bytes(first), _bytes(second))


def _bytes(array: AnyArray) -> npt.NDArray[np.uint8]:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)
