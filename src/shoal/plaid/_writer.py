"""Samples of generators into the shards of a dataset: one after the other, or by several processes.

A split is cut into at most 32 runs of neighbouring samples, however many processes write them. A run makes shards of
its own in a folder of its own, and these take their places and numbers in the order of the runs. So the bytes do not
depend on who wrote them.
"""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import pickle
import shutil
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoal.errors import ObjectExistsError, OptionError, WriteError

from ._layout import DATA_FOLDER, describe_splits, staging_folder
from ._progress import Bar, progress
from ._record import check_split, field_names
from ._run import Run, SampleCallback, WrittenRun, place_shards, write_run

if TYPE_CHECKING:
    from plaid import Sample

__all__ = ["generate_datasetdict_to_disk"]

_MOST_RUNS = 32

SampleGenerator = Callable[..., Generator["Sample", None, None]]


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
    splits = _planned(root, generators, variable_schema, gen_kwargs or {}, num_proc)
    splits = {name: replace(split, callback=sample_callback) for name, split in splits.items()}
    placed: list[Path] = []
    try:
        with _written(splits, num_proc, worker_initializer, verbose) as written:
            records = {name: place_shards(root, name, runs, placed) for name, runs in written}
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

    def runs(self) -> list[Run]:
        """The stretches of the split. The last one takes what comes."""
        count = 1 if self.ids is None else len(self.ids)
        step = max(1, -(-count // _MOST_RUNS))
        staged, target = staging_folder(self.root) / self.name, str(self.root / DATA_FOLDER / self.name)
        return [
            Run(self.name, start, min(step, count - start), str(staged / f"{start:09d}"), target, self.fields)
            for start in range(0, count, step)
        ]

    def part(self, run: Run) -> _Split:
        """What another process needs to know."""
        return replace(self, ids=(self.ids or [])[run.first : run.first + run.length])


def _planned(
    root: Path,
    generators: Mapping[str, SampleGenerator],
    schema: Mapping[str, Any],
    gen_kwargs: Mapping[str, Any],
    num_proc: int,
) -> dict[str, _Split]:
    """The splits to write; refused before anything is written."""
    fields = field_names(schema)
    found = {}
    for name, generator in generators.items():
        check_split(name)
        if any((root / DATA_FOLDER / name).glob("*.tar")) or (root / DATA_FOLDER / f"{name}.tar").exists():
            raise ObjectExistsError(
                "the split is there already", found=str(root / DATA_FOLDER / name), hint="write elsewhere, or remove it"
            )
        options = dict(gen_kwargs.get(name) or {})
        shards = options.pop("shards_ids", None)
        ids = None if shards is None else list(itertools.chain.from_iterable(shards))
        if num_proc > 1:
            _check_shared(name, generator, ids)
        found[name] = _Split(name, generator, options, ids, fields, root)
    return found


def _check_shared(name: str, generator: SampleGenerator, ids: Sequence[Any] | None) -> None:
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


Written = Iterator[tuple[str, Iterator[WrittenRun]]]


@contextlib.contextmanager
def _written(
    splits: Mapping[str, _Split], num_proc: int, initializer: Callable[[], None] | None, verbose: bool
) -> Iterator[Written]:
    """Each split and its runs, as they are written, in order."""
    if num_proc <= 1:
        yield ((name, _alone(split, verbose)) for name, split in splits.items())
        return
    context = multiprocessing.get_context()
    executor = ProcessPoolExecutor(num_proc, context, initializer)
    try:
        waiting = {
            name: [(run, executor.submit(_write_ids, split.part(run), run)) for run in split.runs()]
            for name, split in splits.items()
        }
        yield ((name, _by_others(splits[name], jobs, verbose)) for name, jobs in waiting.items())
    except BrokenProcessPool as error:
        raise WriteError(
            "a process ended before its work was done", found=error, hint="did it run out of memory?"
        ) from error
    finally:
        executor.shutdown(cancel_futures=True)


def _alone(split: _Split, verbose: bool) -> Iterator[WrittenRun]:
    """The generator is asked once, and its samples are cut into the runs that several processes would write."""
    runs = split.runs()
    samples = split.samples(split.ids) if runs else iter(())
    with progress(split.name, None if split.ids is None else len(split.ids), verbose) as bar:
        for number, run in enumerate(runs):
            taken = samples if number + 1 == len(runs) else itertools.islice(samples, run.length)
            yield write_run(run, _noting(taken, bar), split.callback)


def _noting(samples: Iterable[Sample], bar: Bar) -> Iterator[Sample]:
    for sample in samples:
        yield sample
        bar.update(1)


def _by_others(split: _Split, jobs: Sequence[tuple[Run, Any]], verbose: bool) -> Iterator[WrittenRun]:
    with progress(split.name, sum(run.length for run, _ in jobs), verbose) as bar:
        for run, job in jobs:
            yield job.result()
            bar.update(run.length)


def _write_ids(split: _Split, run: Run) -> WrittenRun:
    """What another process does."""
    written = write_run(run, split.samples(split.ids), split.callback)
    if (found := sum(record.samples for record in written.shards)) != run.length:
        raise WriteError(
            "a generator gave another number of samples than it got ids",
            expected=run.length,
            found=found,
            hint="use num_proc=1 where an id is not a sample",
        )
    return written
