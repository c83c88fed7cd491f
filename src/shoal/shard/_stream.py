"""`SampleStream`: read samples in order without an index; `ErrorPolicy` says what to do with damaged ones."""

from __future__ import annotations

import itertools
import math
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import msgspec
import numpy as np

from shoal._typing import IntArray
from shoal.errors import (
    DecodeError,
    DuplicateFieldError,
    ErrorBudgetExceeded,
    InterleavedKeyError,
    OptionError,
    ShoalError,
    ShoalWarning,
    TarError,
    TruncatedError,
)
from shoal.store._base import ObjectReader
from shoal.store._cache import cache_dir
from shoal.store._fork import ForkSafeLock
from shoal.store._registry import store_for
from shoal.store._url import join_url

from ._compression import decompressed, reader_stream, sniff
from ._index_build import MemberColumns, refuse_duplicates
from ._member_names import WEBDATASET_RULE, Grouped, Grouper, KeyRule, split_name
from ._read import build_samples, decode_samples
from ._shard import Decoders, Sample
from ._table import missing_in
from ._tar_header import BLOCK
from ._tar_scan import Chunk, Feed, ReaderFeed, ScanOptions, StreamFeed, UnreadableRange, scan

__all__ = [
    "ErrorLog",
    "ErrorPolicy",
    "OnError",
    "SampleStream",
    "StreamOptions",
    "check_error_budget",
    "error_limit",
    "salvaged_runs",
    "streamed_runs",
]

OnError = Literal["raise", "skip", "quarantine"]
_OWN_NAMES = ("__key__", "__url__")
# Where members can be passed over without reading them, those from this size on are; the chunks are smaller, because
# each such member costs two of them.
_LARGE_BYTES, _SMALL_CHUNK_BYTES = 1 << 20, 256 << 10
_RUN_SAMPLES = 256
_MAX_KEPT_ERRORS = 1000


def _no_decoders(fields: Sequence[str]) -> Decoders:
    return {}


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """How samples are made of what a stream holds."""

    rule: KeyRule = WEBDATASET_RULE
    fields: frozenset[str] | None = None
    """Keep only these; samples with none of them are left out."""
    decoders: Callable[[Sequence[str]], Decoders] = _no_decoders
    """Given the fields met, how each is decoded."""
    refuse_returning: bool = False
    """Raise InterleavedKeyError when a key comes back, instead of giving its sample in parts as WebDataset does."""


_DEFAULT_OPTIONS = StreamOptions()


@dataclass(slots=True)
class _Open:
    """The last sample of a chunk, which the next chunk may go on with."""

    sample: Sample
    key: str
    """With its folders, even where the sample's own key is flattened."""
    start: int
    error: TarError | None
    lost: bool
    """It stands next to damage, so part of it may be missing: it is never given."""


class SampleStream:
    """Iterate over the samples of one archive.

    ``position`` is the byte at which the next sample starts, counted in the (unpacked) tar: a stream started there
    gives exactly the samples not yet given. ``skipped`` counts the members that belong to no sample, by reason.

    Damage raises a TarError with the shard's name, after all whole samples before it were given. With ``on_damage``
    that error is handed over instead, and unless it raises, the stream goes on behind the damage; samples that may have
    lost a member to it are left out, and their keys handed to ``on_lost``.
    """

    def __init__(
        self,
        feed: Feed,
        url: str,
        options: StreamOptions = _DEFAULT_OPTIONS,
        *,
        start: int = 0,
        skipped: Counter[str] | None = None,
        on_damage: Callable[[TarError | DecodeError], None] | None = None,
        on_lost: Callable[[str], None] | None = None,
    ) -> None:
        if options.rule.group == "archive":
            raise OptionError(
                "a stream groups neighbours only",
                expected="KeyRule(group='neighbours')",
                found="group='archive'",
                hint="open the archive by path",
            )
        self.position = start
        self.skipped: Counter[str] = Counter() if skipped is None else skipped
        self._feed = feed
        self._url = url
        self._options = options
        # Flattening only shortens the keys given: members of one sample share their folder, flattened or not.
        self._rule = replace(options.rule, folders="keep")
        self._flat = options.rule.folders == "flatten"
        self._on_damage = on_damage
        self._on_lost = on_lost
        self._decoders: Decoders = {}
        self._known: tuple[str, ...] = ()
        self._open: _Open | None = None
        self._after_damage = False
        self._seen = _SeenKeys()
        self._last: str | None = None
        self._end = start

    def __iter__(self) -> Iterator[Sample]:
        """Each sample, complete."""
        on_damage = None if self._on_damage is None else self._fail
        try:
            for part in scan(
                self._feed, self._scan_options(), start=self.position, skipped=self.skipped, on_damage=on_damage
            ):
                if isinstance(part, UnreadableRange):
                    self._lose_open()
                else:
                    self._end = part.stop
                    yield from self._samples(part)
            left, self._open = self._open, None
            if left is not None and self._gives(left, self._end):
                yield left.sample
        except ShoalError as error:
            raise error.at(shard=self._url) from error.__cause__

    def _scan_options(self) -> ScanOptions:
        encoding = self._rule.encoding
        if self._options.fields is None or self._feed.size is None:
            return ScanOptions(encoding=encoding)
        return ScanOptions(chunk_bytes=_SMALL_CHUNK_BYTES, large_bytes=_LARGE_BYTES, encoding=encoding)

    def _fail(self, error: TarError | DecodeError) -> None:
        error.at(shard=self._url)
        if self._on_damage is None:
            raise error
        self._on_damage(error)

    def _lose_open(self) -> None:
        """Behind damage nothing goes on, and the first sample may lack its beginning."""
        if self._open is not None:
            self._lose(self._open.sample)
        self._open, self._after_damage = None, True

    def _lose(self, sample: Sample) -> None:
        if self._on_lost is not None:
            self._on_lost(sample["__key__"])

    def _samples(self, chunk: Chunk) -> Iterator[Sample]:
        grouper = Grouper(self._rule, self.skipped)
        grouped = grouper.add([self._named(name) for name in chunk.names] if self._flat else chunk.named)
        keys = grouper.keys
        if not keys:
            return
        samples, errors = self._raw(chunk, grouper, grouped)
        starts = _row_starts(chunk, grouped)
        lost, self._after_damage = self._after_damage, False
        before, self._open = self._open, None
        joined = before is not None and before.key == keys[0]
        if before is not None:
            if joined:
                samples[0], starts[0], lost = _joined(before, samples[0], errors, self._url), before.start, before.lost
            elif self._gives(before, starts[0]):
                yield before.sample
        self._refuse_returned(samples, keys, starts, errors, joined)
        for at, sample in enumerate(samples[:-1]):
            first_lost = lost and at == 0
            if (errors or first_lost) and not self._is_sound(sample, starts[at + 1], errors.get(at), first_lost):
                continue
            if self._is_wanted(sample, starts[at + 1]):
                yield sample
        last = len(samples) - 1
        self._open = _Open(samples[-1], keys[-1], starts[-1], errors.get(last), lost and last == 0)

    def _named(self, name: str) -> str:
        """The name, or none where flattening leaves no key of it: then it is counted with those that have none."""
        return name if split_name(name, self._options.rule) else ""

    def _gives(self, left: _Open, stop: int) -> bool:
        return self._is_sound(left.sample, stop, left.error, left.lost) and self._is_wanted(left.sample, stop)

    def _is_sound(self, sample: Sample, stop: int, error: TarError | None, lost: bool) -> bool:
        if error is not None and not lost:
            self._fail(error)
        if error is not None or lost:
            self._lose(sample)
            self.position = stop
            return False
        return True

    def _is_wanted(self, sample: Sample, stop: int) -> bool:
        """Decode the sample; False when none of the wanted fields is in it."""
        if len(sample) == len(_OWN_NAMES) and self._options.fields is not None:
            self.position = stop
            return False
        try:
            self._decode(sample)
        except DecodeError as error:
            self._fail(error)
            self._lose(sample)
            self.position = stop
            return False
        self.position = stop
        return True

    def _raw(self, chunk: Chunk, grouper: Grouper, grouped: Grouped) -> tuple[list[Sample], dict[int, TarError]]:
        """The chunk's samples, undecoded, and what is wrong with some of them, by row.

        This is a small index of the chunk, read as an indexed shard is.
        """
        kept = slice(None) if grouped.kept is None else grouped.kept
        names = list(grouper.fields)
        members = MemberColumns(
            grouped.rows, grouped.fields, chunk.offsets[kept], chunk.sizes[kept], np.empty(0, np.uint32)
        )
        wanted = [name for name in names if self._is_field(name)]
        columns = [_dense(len(grouper.keys), members, grouper.fields[name], chunk.base) for name in wanted]
        keys = [key.rpartition("/")[2] for key in grouper.keys] if self._flat else grouper.keys
        starts = np.array([start for start, _ in columns], np.int64).reshape(len(wanted), len(keys))
        stops = starts + np.array([size for _, size in columns], np.int64).reshape(starts.shape)
        sparse = missing_in(starts)
        samples = build_samples(tuple(wanted), sparse, keys, self._url, self._bytes(chunk, wanted), starts, stops)
        return samples, _duplicates(keys, names, members, self._url)

    def _is_field(self, name: str) -> bool:
        fields = self._options.fields
        return name not in _OWN_NAMES and (fields is None or name in fields)

    def _bytes(self, chunk: Chunk, wanted: list[str]) -> bytes:
        """The chunk's bytes; a large member comes without them, and they are read only if it is wanted."""
        if chunk.data or not wanted:
            return chunk.data
        length = int(chunk.offsets[-1] + chunk.sizes[-1]) - chunk.base
        data = self._feed.at(chunk.base, length)
        if len(data) < length:
            raise TruncatedError(
                "the archive became shorter while it was read",
                expected=f"bytes up to {chunk.base + length}",
                found=f"the end at {chunk.base + len(data)}",
                offset=chunk.base,
            )
        return data

    def _refuse_returned(
        self, samples: list[Sample], keys: list[str], starts: list[int], errors: dict[int, TarError], joined: bool
    ) -> None:
        """Note an error for each sample whose key was there before; a ``joined`` one began in the last chunk."""
        if not self._options.refuse_returning:
            return
        first = 1 if joined else 0
        given = [sample["__key__"] for sample in samples]
        for at in self._seen.add(given[first:]):
            row = at + first
            if keys[row].endswith("/"):  # of hidden files, which have no name before their first dot
                continue
            neighbour = given[row - 1] if row else self._last
            errors.setdefault(row, self._returned(given[row], keys[row], starts[row], neighbour))
        self._last = given[-1]

    def _returned(self, key: str, name: str, start: int, neighbour: str | None) -> TarError:
        if key == neighbour:  # neighbours of one key are one sample, unless flattening made their keys the same
            problem, hint = "flattening folders makes two samples one", "keep folders: KeyRule(folders='keep')"
            return TarError(problem, found=name, shard=self._url, key=key, offset=start, hint=hint)
        return InterleavedKeyError(
            "a key comes back after other keys",
            shard=self._url,
            key=key,
            offset=start,
            hint="Index the shard with `shoal index`, or read all of it before the first sample: group='archive'",
        )

    def _decode(self, sample: Sample) -> None:
        fields = tuple(sample)
        if fields != self._known:
            self._known, self._decoders = fields, self._options.decoders([f for f in fields if f not in _OWN_NAMES])
        try:
            decode_samples([sample], list(sample), self._decoders)
        except ShoalError as error:
            raise error.at(shard=self._url, key=sample["__key__"]) from error.__cause__


class _SeenKeys:
    """Which keys there were, at 8 bytes each: hashes in sorted runs, a few of them, each twice as long as the next."""

    def __init__(self) -> None:
        self._runs: list[IntArray] = []

    def add(self, keys: list[str]) -> list[int]:
        """Take the next keys; the positions of those that were there before."""
        hashes = np.fromiter(map(hash, keys), np.int64, len(keys))
        order = np.argsort(hashes, kind="stable")
        run = hashes[order]
        again = np.zeros(len(keys), bool)
        again[order[1:]] = run[1:] == run[:-1]
        for before in self._runs:
            at = np.minimum(np.searchsorted(before, hashes), len(before) - 1)
            again |= before[at] == hashes
        self._keep(run)
        found: list[int] = np.flatnonzero(again).tolist()
        return found

    def _keep(self, run: IntArray) -> None:
        while self._runs and len(self._runs[-1]) < 2 * len(run):
            run = np.sort(np.concatenate((self._runs.pop(), run)))
        if len(run):
            self._runs.append(run)


def _row_starts(chunk: Chunk, grouped: Grouped) -> list[int]:
    """Where each row's first header stands."""
    starts = chunk.starts if grouped.kept is None else chunk.starts[grouped.kept]
    first = np.append([True], np.diff(grouped.rows) > 0)
    found: list[int] = starts[first].tolist()
    return found


def _dense(rows: int, members: MemberColumns, code: int, base: int) -> tuple[IntArray, IntArray]:
    at = np.flatnonzero(members.fields == code)
    starts, sizes = np.full(rows, -1, np.int64), np.zeros(rows, np.int64)
    starts[members.rows[at]] = members.offsets[at] - base
    sizes[members.rows[at]] = members.sizes[at]
    return starts, sizes


def _duplicates(keys: list[str], names: list[str], members: MemberColumns, url: str) -> dict[int, TarError]:
    """Why some of the rows cannot be given: a field twice, or one that would take the place of the key."""
    found: dict[int, TarError] = {}
    slots = members.rows * len(names) + members.fields
    if (np.diff(slots) <= 0).any():
        again, counts = np.unique(slots, return_counts=True)
        for row in np.unique(again[counts > 1] // len(names)).tolist():
            try:
                refuse_duplicates(keys, names, _of_row(members, row), url)
            except DuplicateFieldError as error:
                found[row] = error
    for name in set(names).intersection(_OWN_NAMES):
        for at in np.flatnonzero(members.fields == names.index(name)).tolist():
            row = int(members.rows[at])
            found[row] = _twice(keys[row], name, int(members.offsets[at]) - 512, url)
    return found


def _of_row(members: MemberColumns, row: int) -> MemberColumns:
    at = members.rows == row
    return MemberColumns(members.rows[at], members.fields[at], members.offsets[at], members.sizes[at], members.crcs)


def _joined(before: _Open, after: Sample, errors: dict[int, TarError], url: str) -> Sample:
    """A sample that two chunks hold, as one; what is wrong with either half goes into ``errors``."""
    both = (before.sample.keys() & after.keys()).difference(_OWN_NAMES)
    error = before.error or (_twice(after["__key__"], min(both), before.start, url) if both else None)
    if error is not None:
        errors[0] = error
    return {**before.sample, **after}


def _twice(key: str, field: str, offset: int, url: str) -> DuplicateFieldError:
    return DuplicateFieldError("a sample has the same field twice", shard=url, key=key, field=field, offset=offset)


def salvaged_runs(
    url: str,
    rule: KeyRule,
    fields: Sequence[str] | None,
    decoders: Decoders,
    log: ErrorLog,
    reason: ShoalError,
) -> Iterator[list[Sample]]:
    """The samples of a shard that could not be opened for ``reason``; damage is passed over as ``log`` lets it."""
    if not isinstance(reason, TarError) or rule.group == "archive":  # else the stream meets it again
        log.handle(reason)
    if rule.group == "archive":
        return  # any sample may have lost a member
    yield from streamed_runs(store_for(url).open(url), rule, fields, decoders, log)


def streamed_runs(
    reader: ObjectReader, rule: KeyRule, fields: Sequence[str] | None, decoders: Decoders, log: ErrorLog
) -> Iterator[list[Sample]]:
    """The samples of an open shard as they lie, in one pass without an index; it is closed at the end."""
    try:
        samples = _samples(reader, rule, decoders, log)
        while run := list(itertools.islice(samples, _RUN_SAMPLES)):
            yield run if fields is None else [_projected(sample, fields) for sample in run]
    finally:
        reader.close()


def _samples(reader: ObjectReader, rule: KeyRule, decoders: Decoders, log: ErrorLog) -> Iterator[Sample]:
    def found(names: Sequence[str]) -> Decoders:
        return {name: decoders[name] for name in names if name in decoders}

    options = StreamOptions(rule, decoders=found, refuse_returning=True)
    try:
        yield from SampleStream(_feed(reader), reader.info.url, options, on_damage=log.handle)
    except TarError as error:  # a compressed stream gives nothing behind damage
        log.handle(error)


def _feed(reader: ObjectReader) -> Feed:
    compression = sniff(reader.read(0, BLOCK))
    return ReaderFeed(reader) if compression is None else StreamFeed(decompressed(reader_stream(reader), compression))


def _projected(sample: Sample, fields: Sequence[str]) -> Sample:
    return {name: value for name, value in sample.items() if name in fields or name in ("__key__", "__url__")}


@dataclass(frozen=True, slots=True)
class ErrorPolicy:
    """What to do with a sample that cannot be read, decoded or mapped.

    ``raise`` stops there; ``skip`` goes on without it; ``quarantine`` also writes the error to the JSON-lines file that
    ``quarantine`` names, by default one in shoal's cache folder. ``budget`` is how many may be skipped; see
    `error_limit`.
    """

    on_error: OnError = "raise"
    budget: float | None = None
    quarantine: str | None = None

    def __post_init__(self) -> None:
        if self.on_error not in ("raise", "skip", "quarantine"):
            raise OptionError("no such on_error", expected="'raise', 'skip' or 'quarantine'", found=repr(self.on_error))
        check_error_budget(self.budget)

    @property
    def goes_on(self) -> bool:
        """Whether samples are skipped at all."""
        return self.on_error != "raise"

    def write_quarantine(self, error: Exception) -> None:
        """Write an error to the quarantine file, if there is one."""
        if self.on_error != "quarantine":
            return
        url = self.quarantine or join_url(cache_dir(), "quarantine.jsonl")
        facts = {
            "error": type(error).__name__,
            "problem": "; ".join([str(error), *getattr(error, "__notes__", ())]),
            **{name: getattr(error, name, None) for name in ("shard", "key", "field", "offset")},
        }
        store_for(url).append(url, msgspec.json.encode(facts) + b"\n")


def check_error_budget(budget: object) -> None:
    """Raise OptionError unless it is None, an int of at least 0, or a float from 0 to below 1."""
    is_count = isinstance(budget, int) and not isinstance(budget, bool) and budget >= 0
    if budget is not None and not is_count and not (isinstance(budget, float) and 0 <= budget < 1):
        raise OptionError(
            "error_budget is out of range",
            expected="a number of samples, an int of at least 0, or a share of them, a float below 1",
            found=repr(budget),
        )


def error_limit(budget: float | None, count: int | None) -> float:
    """Return how many samples may be skipped in one pass over ``count`` samples (None: their number is not known).

    An int is that number, a float below 1 a share of the samples. None is a hundredth, but at least one; any number
    where that of the samples is not known. Raises OptionError for a share of an unknown number.

    Examples:
        >>> error_limit(5, None), error_limit(0.5, 20), error_limit(None, 250), error_limit(None, None)
        (5, 10, 2, inf)
    """
    check_error_budget(budget)
    if budget is None:
        return math.inf if count is None else max(1, count // 100)
    if isinstance(budget, int):
        return budget
    if count is None:
        raise OptionError(
            "error_budget is a share of samples whose number is not known", expected="an int", found=repr(budget)
        )
    return int(budget * count)


_STOP = ErrorPolicy()


def _unknown_number() -> int | None:
    return None


class ErrorLog:
    """Counts and keeps what a policy let pass.

    ``begin`` starts the log of one pass over the data, whose errors are also counted here. The budget is
    that of a pass.
    """

    def __init__(
        self,
        policy: ErrorPolicy = _STOP,
        samples: Callable[[], int | None] = _unknown_number,
        total: ErrorLog | None = None,
    ) -> None:
        self.policy = policy
        self._samples = samples
        self._total = total
        self._limit: float | None = None
        self.count = 0
        self.kinds: Counter[str] = Counter()
        self.errors: list[Exception] = []
        self._lock = ForkSafeLock()
        self._reported = 0

    @property
    def goes_on(self) -> bool:
        """Whether damage is passed over at all."""
        return self.policy.goes_on

    def begin(self, samples: Callable[[], int | None] = _unknown_number) -> ErrorLog:
        """Return the log of one pass over the data; ``samples`` gives their number, once there is an error."""
        return ErrorLog(self.policy, samples, self)

    def handle(self, error: Exception) -> None:
        """Take note of one lost sample, or raise: the error itself, or ErrorBudgetExceeded."""
        if not self.goes_on:
            raise error
        self._count(error)
        self.policy.write_quarantine(error)
        if self._limit is None:
            self._limit = error_limit(self.policy.budget, self._samples())
        if self.count > self._limit:
            raise ErrorBudgetExceeded(
                "too much is damaged",
                expected=f"at most {self._limit} errors",
                found=self.count,
                hint=f"last: {error}; error_budget allows more",
            ) from error

    def _count(self, error: Exception) -> None:
        with self._lock:
            self.count += 1
            self.kinds[type(error).__name__] += 1
            if len(self.errors) < _MAX_KEPT_ERRORS:
                self.errors.append(error)
        if self._total is not None:
            self._total._count(error)  # noqa: SLF001 - of the same class

    def __repr__(self) -> str:
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(self.kinds.items()))
        return f"<ErrorLog: {kinds or 'nothing was passed over'}>"

    def tell(self) -> None:
        """Warn once about what was lost since the last time: nothing is skipped without a word."""
        if self.count > self._reported:
            lost, self._reported = self.count - self._reported, self.count
            kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(self.kinds.items()))
            warnings.warn(
                f"passed over {lost} damaged place{'s' if lost > 1 else ''} ({kinds}); the first: {self.errors[0]}",
                ShoalWarning,
                stacklevel=3,
            )
