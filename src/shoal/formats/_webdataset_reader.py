"""The samples of one archive: neighbours as they come, or the whole archive grouped by key."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Generator, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from shoal.errors import DuplicateFieldError, OptionError, ShoalError, StoreError, TarError, TruncatedError
from shoal.shard import Decoders, KeyRule, Sample, SampleStream, StreamOptions

from ._webdataset_open import Archive, ArchiveSource, archive_name, open_archive
from ._webdataset_values import FieldDecoders

__all__ = ["ArchiveOptions", "ArchiveReader", "Place", "Step"]


@dataclass(frozen=True, slots=True)
class ArchiveOptions:
    """How samples are made of one archive."""

    rule: KeyRule
    fields: frozenset[str] | None
    decoders: FieldDecoders
    goes_on: bool
    """Whether damage is handed on as a step, instead of raised."""
    most: int | None = None
    """How many samples are wanted in all."""


class Place(NamedTuple):
    """Where reading goes on in an archive; a tuple, as `Step`, because one is made for every sample."""

    offset: int = 0
    """The byte, in the unpacked tar, where the next sample starts."""
    passed: int = 0
    """How many samples were given; counted only where the whole archive is grouped, and ``offset`` says nothing."""


_START = Place()


class Step(NamedTuple):
    """One thing that happened while reading: a sample, or an error that was passed over."""

    place: Place
    """Where reading goes on after it."""
    sample: Sample | None = None
    error: ShoalError | None = None


class ArchiveReader:
    """Reads one archive, from a place in it on. ``size`` is known once it is open."""

    def __init__(
        self, source: ArchiveSource, options: ArchiveOptions, place: Place = _START, size: int | None = None
    ) -> None:
        self.size = size
        self.skipped: Counter[str] = Counter()
        self._source = source
        self._name = archive_name(source)
        self._options = options
        self._place = place
        self._errors: deque[ShoalError] = deque()
        self._archive: Archive | None = None
        self._told = False
        self._known: tuple[str, ...] = ()
        self._decoders: Decoders = {}

    def steps(self) -> Generator[Step]:
        """Every sample that is left, and every error that is passed over, in order.

        Raises what opening and reading raise, unless ``goes_on``; a position in another file raises OptionError always.
        """
        try:
            archive = self._archive = open_archive(self._source)
        except StoreError as error:
            yield self._passed_over(error)
            return
        try:
            self._check_size(archive)
            yield from self._whole(archive) if self._options.rule.group == "archive" else self._neighbours(archive)
        finally:
            archive.close()

    def _check_size(self, archive: Archive) -> None:
        if self.size is not None and archive.size is not None and self.size != archive.size:
            raise OptionError(
                "the archive is not the one the position was taken in",
                expected=f"{self.size} bytes",
                found=archive.size,
                shard=self._name,
                hint="start over without resume_from",
            )
        self.size = archive.size

    def _passed_over(self, error: ShoalError) -> Step:
        error.at(shard=self._name)
        if not self._options.goes_on:
            raise error
        return Step(self._place, error=error)

    def _neighbours(self, archive: Archive) -> Iterator[Step]:
        options = self._options
        wanted = StreamOptions(options.rule, options.fields, options.decoders, refuse_returning=True)
        stream = SampleStream(
            archive.feed,
            self._name,
            wanted,
            start=self._place.offset,
            skipped=self.skipped,
            on_damage=self._on_damage if options.goes_on else None,
        )
        for sample in self._until_failure(stream, archive):
            if self._errors:
                yield from self._noted()
            self._place = Place(stream.position)
            yield Step(self._place, sample)
        yield from self._noted()

    def _until_failure(self, stream: SampleStream, archive: Archive) -> Iterator[Sample]:
        """Every sample of the stream; what cuts it short is noted or raised.

        Where unpacking or the stream itself failed, that is the error, and not the truncation it looks like.
        """
        try:
            for sample in stream:
                del sample["__url__"]
                yield sample
        except (TarError, StoreError) as error:
            if not (self._told and error is archive.failure):  # looking for what comes behind it meets it again
                self._on_damage(error)

    def _on_damage(self, error: ShoalError) -> None:
        cause = self._cause(error)
        if not self._options.goes_on:
            raise cause from cause.__cause__
        self._errors.append(cause)

    def _cause(self, error: ShoalError) -> ShoalError:
        failure = None if self._archive is None else self._archive.failure
        if failure is not None and isinstance(error, TruncatedError) and not self._told:
            error = failure
        self._told = self._told or error is failure
        return error.at(shard=self._name)

    def _noted(self) -> Iterator[Step]:
        while self._errors:
            yield Step(self._place, error=self._errors.popleft())

    def _whole(self, archive: Archive) -> Iterator[Step]:
        grouping = _Grouping(self._options, self._name)
        rule = replace(self._options.rule, group="neighbours", folders="keep")
        stream = SampleStream(
            archive.feed,
            self._name,
            StreamOptions(rule, self._options.fields),
            skipped=self.skipped,
            on_damage=self._on_damage if self._options.goes_on else None,
            on_lost=grouping.lose,
        )
        for piece in self._until_failure(stream, archive):
            if (error := grouping.add(piece)) is not None:
                self._on_damage(error)
        damaged = any(not isinstance(error, DuplicateFieldError) for error in self._errors)
        samples = grouping.finish(self.skipped, damaged=damaged)
        for error in grouping.errors:
            self._on_damage(error)
        yield from self._noted()
        for number in range(self._place.passed, len(samples)):
            sample, samples[number] = samples[number], {}  # the caller may let go of one while we hold the rest
            self._decode(sample)
            self._place = Place(0, number + 1)
            yield Step(self._place, sample)

    def _decode(self, sample: Sample) -> None:
        fields = tuple(sample)
        if fields != self._known:
            self._known, self._decoders = fields, self._options.decoders([f for f in fields if f != "__key__"])
        try:
            for field, decode in self._decoders.items():
                sample[field] = decode(sample[field])
        except ShoalError as error:
            raise error.at(shard=self._name, key=sample["__key__"]) from error.__cause__


class _Grouping:
    """Pieces of samples, put together by key. In the end ``errors`` are the samples that had to be left out."""

    def __init__(self, options: ArchiveOptions, name: str) -> None:
        self.errors: list[TarError] = []
        self._flat = options.rule.folders == "flatten"
        self._name = name
        # Where damaged samples are left out, others take their place among the first, so all must be held.
        self._most = None if options.goes_on else options.most
        self._samples: dict[str, Sample] = {}
        self._lost: set[str] = set()
        self._returned = False

    def lose(self, key: str) -> None:
        """Leave a sample out: part of it was lost."""
        self._lost.add(key)

    def add(self, piece: Sample) -> TarError | None:
        """Take the next members of a sample; the error where one of its fields is there already."""
        key: str = piece["__key__"]
        before = self._samples.get(key)
        if before is None:
            if self._most is None or len(self._samples) < self._most:
                self._samples[key] = piece
            return None
        self._returned = True
        both = (before.keys() & piece.keys()) - {"__key__"}
        before.update(piece)
        if not both or key in self._lost:
            return None
        self._lost.add(key)
        return DuplicateFieldError("a sample has the same field twice", shard=self._name, key=key, field=min(both))

    def finish(self, skipped: Counter[str], *, damaged: bool) -> list[Sample]:
        """The samples, in the order in which their first members lie.

        Where keys return and there is damage, a lost member can have been anyone's: then only samples with every field
        that any sample has are known to be whole.
        """
        for key in self._lost:
            self._samples.pop(key, None)
        if damaged and self._returned:
            self._leave_out_partial()
        return self._flattened(skipped) if self._flat else list(self._samples.values())

    def _leave_out_partial(self) -> None:
        fields = {field for sample in self._samples.values() for field in sample}
        for key in [key for key, sample in self._samples.items() if len(sample) < len(fields)]:
            missing = min(fields - self._samples.pop(key).keys())
            problem = "the sample may have lost a member to the damage"
            self.errors.append(TarError(problem, shard=self._name, key=key, field=missing))

    def _flattened(self, skipped: Counter[str]) -> list[Sample]:
        found: dict[str, Sample] = {}
        for name, sample in self._samples.items():
            key = name.rpartition("/")[2]
            if not key:
                skipped["name without key and field"] += len(sample) - 1
            elif key in found:
                self.errors.append(self._same(key, name))
            else:
                found[key] = {**sample, "__key__": key}
        return list(found.values())

    def _same(self, key: str, name: str) -> TarError:
        problem, hint = "flattening folders makes two samples one", "keep folders: KeyRule(folders='keep')"
        return TarError(problem, found=name, shard=self._name, key=key, hint=hint)
