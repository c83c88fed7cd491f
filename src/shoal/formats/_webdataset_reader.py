"""Reading one WebDataset archive: opening what a user named, grouping its members, decoding its fields."""

from __future__ import annotations

import os
import stat
import sys
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, cast

from shoal.codec._codec import Decoder
from shoal.codec._dispatch import DecodeSpec, decode_spec, decoders
from shoal.errors import (
    CodecError,
    DecodeError,
    DuplicateFieldError,
    ObjectNotFoundError,
    OptionError,
    ShoalError,
    StoreError,
    TarError,
    TruncatedError,
)
from shoal.shard._compression import decompressed, reader_stream, sniff
from shoal.shard._discovery import is_dataset_folder, locate_shards
from shoal.shard._member_names import KeyRule
from shoal.shard._shard import Decoders, Sample
from shoal.shard._stream import SampleStream, StreamOptions
from shoal.shard._tar_scan import Feed, ReaderFeed, StreamFeed, SupportsRead
from shoal.store._pattern import expand_pattern
from shoal.store._registry import store_for
from shoal.store._url import local_path, scheme_of

__all__ = [
    "ArchiveOptions",
    "ArchivePosition",
    "ArchiveReader",
    "ArchiveSource",
    "ArchiveStep",
    "OnDecodeError",
    "archive_name",
    "field_decoders",
    "freeze_sources",
    "is_stream",
    "resolve_sources",
]

ArchiveSource = str | os.PathLike[str] | SupportsRead
OnDecodeError = Literal["keep", "raise"]
FieldDecoders = Callable[[Sequence[str]], Decoders]

STDIN = "-"
_SNIFFED_BYTES = 512
_PATTERN_CHARACTERS = "{*?[:"
_JSON = frozenset({"json", "jsonl"})
_TEXT = frozenset({"txt", "text", "caption", "cls"})


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


class ArchivePosition(NamedTuple):
    """Where reading goes on in an archive; a tuple, as `ArchiveStep`, because one is made for every sample."""

    offset: int = 0
    """The byte, in the unpacked tar, where the next sample starts."""
    passed: int = 0
    """How many samples were given; counted only where the whole archive is grouped, and ``offset`` says nothing."""


_START = ArchivePosition()


class ArchiveStep(NamedTuple):
    """One thing that happened while reading: a sample, or an error that was passed over."""

    place: ArchivePosition
    """Where reading goes on after it."""
    sample: Sample | None = None
    error: ShoalError | None = None


class ArchiveReader:
    """Reads one archive, from a place in it on. ``size`` is known once it is open."""

    def __init__(
        self, source: ArchiveSource, options: ArchiveOptions, place: ArchivePosition = _START, size: int | None = None
    ) -> None:
        self.size = size
        self.skipped: Counter[str] = Counter()
        self._source = source
        self._name = archive_name(source)
        self._options = options
        self._place = place
        self._errors: deque[ShoalError] = deque()
        self._archive: Archive | None = None
        self._failure_reported = False
        self._known: tuple[str, ...] = ()
        self._decoders: Decoders = {}

    def steps(self) -> Generator[ArchiveStep]:
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
            by_key = self._options.rule.group == "archive"
            yield from self._grouped_by_key(archive) if by_key else self._neighbours(archive)
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

    def _passed_over(self, error: ShoalError) -> ArchiveStep:
        error.at(shard=self._name)
        if not self._options.goes_on:
            raise error
        return ArchiveStep(self._place, error=error)

    def _neighbours(self, archive: Archive) -> Iterator[ArchiveStep]:
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
                yield from self._pending_errors()
            self._place = ArchivePosition(stream.position)
            yield ArchiveStep(self._place, sample)
        yield from self._pending_errors()

    def _until_failure(self, stream: SampleStream, archive: Archive) -> Iterator[Sample]:
        """Every sample of the stream; what cuts it short is noted or raised.

        Where unpacking or the stream itself failed, that is the error, and not the truncation it looks like.
        """
        try:
            for sample in stream:
                del sample["__url__"]
                yield sample
        except (TarError, StoreError) as error:
            # Looking for what comes after a failure meets the same failure again.
            if not (self._failure_reported and error is archive.failure):
                self._on_damage(error)

    def _on_damage(self, error: ShoalError) -> None:
        if isinstance(error, TruncatedError) and self._is_empty():
            return  # these functions read a file of 0 bytes as an archive without samples; datasets refuse it
        cause = self._cause(error)
        if not self._options.goes_on:
            raise cause from cause.__cause__
        self._errors.append(cause)

    def _is_empty(self) -> bool:
        archive = self._archive
        return archive is not None and archive.failure is None and archive.feed.size == 0

    def _cause(self, error: ShoalError) -> ShoalError:
        failure = None if self._archive is None else self._archive.failure
        if failure is not None and isinstance(error, TruncatedError) and not self._failure_reported:
            error = failure
        self._failure_reported = self._failure_reported or error is failure
        return error.at(shard=self._name)

    def _pending_errors(self) -> Iterator[ArchiveStep]:
        while self._errors:
            yield ArchiveStep(self._place, error=self._errors.popleft())

    def _grouped_by_key(self, archive: Archive) -> Iterator[ArchiveStep]:
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
        yield from self._pending_errors()
        for number in range(self._place.passed, len(samples)):
            sample, samples[number] = samples[number], {}  # the caller may let go of one while we hold the rest
            try:
                self._decode(sample)
            except DecodeError as error:
                self._place = ArchivePosition(0, number + 1)
                yield self._passed_over(error)
                continue
            self._place = ArchivePosition(0, number + 1)
            yield ArchiveStep(self._place, sample)

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
                self.errors.append(self._flattening_error(key, name))
            else:
                found[key] = {**sample, "__key__": key}
        return list(found.values())

    def _flattening_error(self, key: str, name: str) -> TarError:
        problem, hint = "flattening folders makes two samples one", "keep folders: KeyRule(folders='keep')"
        return TarError(problem, found=name, shard=self._name, key=key, hint=hint)


@dataclass(frozen=True, slots=True)
class Archive:
    """An open archive: the tar's bytes, unpacked, and what is known of them."""

    feed: Feed
    close: Callable[[], None]
    size: int | None = None
    """Of the stored object, where it is known."""
    stream: DeferredErrorStream | None = None

    @property
    def failure(self) -> ShoalError | None:
        """Why the bytes ended, where that was not their end."""
        return None if self.stream is None else self.stream.failure


class DeferredErrorStream:
    """A stream that fails only after all its bytes were taken, so that the samples in them are not lost.

    From the failure on ``read`` gives no bytes, and ``failure`` says what happened.
    """

    def __init__(self, stream: SupportsRead) -> None:
        self.failure: ShoalError | None = None
        self._stream = stream

    def read(self, size: int, /) -> bytes | None:
        if self.failure is not None:
            return b""
        try:
            return self._stream.read(size)
        except OptionError:
            raise
        except ShoalError as error:
            self.failure = error
        except OSError as error:
            self.failure = StoreError(error.strerror or str(error), hint="the stream failed while it was read")
            self.failure.__cause__ = error
        return b""


class DeferredErrorFeed(StreamFeed):
    """The bytes of a `DeferredErrorStream`; where they end because it failed, that is raised."""

    def __init__(self, stream: DeferredErrorStream) -> None:
        super().__init__(stream)
        self._deferred = stream

    def at(self, position: int, length: int) -> bytes:
        data = super().at(position, length)
        if not data and self._deferred.failure is not None:
            raise self._deferred.failure
        return data


class _BinaryStream:
    """The caller's object with ``read``, checked, and with what was read to see its kind put back in front."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._head = b""

    def peek(self, size: int) -> bytes:
        while len(self._head) < size and (part := self._stream_read(size - len(self._head))):
            self._head += part
        return self._head

    def read(self, size: int, /) -> bytes | None:
        if self._head:
            part, self._head = self._head[:size], self._head[size:]
            return part
        return self._stream_read(size)

    def _stream_read(self, size: int) -> bytes | None:
        part = self._stream.read(size)
        if isinstance(part, str):
            raise OptionError("the stream gives text", expected="bytes", found="str", hint="open the file with 'rb'")
        return None if part is None else bytes(part)  # None: nothing to read yet, which the feed refuses


def is_stream(source: object) -> bool:
    """Whether a source is read from where it stands, and cannot be opened again."""
    return source == STDIN or hasattr(source, "read")


def archive_name(source: ArchiveSource) -> str:
    """How messages call a source."""
    if isinstance(source, (str, os.PathLike)):
        return "<stdin>" if source == STDIN else os.fspath(source)
    name = getattr(source, "name", None)
    return name if isinstance(name, str) else "<stream>"


def freeze_sources(paths: ArchiveSource | Iterable[ArchiveSource]) -> ArchiveSource | tuple[ArchiveSource, ...]:
    """What a user names, to be opened later: a list may change, or run out, before then.

    Raises OptionError for what names no archive.
    """
    several: Any = paths
    if isinstance(several, (str, os.PathLike)) or hasattr(several, "read"):
        return _checked(several)
    return tuple(map(_checked, several)) if isinstance(several, Iterable) else _checked(several)


def _checked(source: Any) -> ArchiveSource:
    if not isinstance(source, (str, os.PathLike)) and not hasattr(source, "read"):
        expected = "a path, a URL, '-', or an object with read"
        raise OptionError("this names no archive", expected=expected, found=type(source).__name__)
    return cast("ArchiveSource", source)


def resolve_sources(paths: ArchiveSource | tuple[ArchiveSource, ...]) -> tuple[ArchiveSource, ...]:
    """Every archive that is meant, in order: a path, URL, pattern or folder, a stream, or several of these."""
    if isinstance(paths, (str, os.PathLike)):
        return _resolve_path(os.fspath(paths))
    if isinstance(paths, tuple):
        return tuple(source for item in paths for source in _resolve_item(item))
    return (paths,)


def _resolve_path(path: str) -> tuple[ArchiveSource, ...]:
    if path != STDIN and is_dataset_folder(path):
        return tuple(ref.url for ref in locate_shards(path).shards)
    return _resolve_item(path)


def _resolve_item(item: ArchiveSource) -> tuple[ArchiveSource, ...]:
    """One of several. A file that is there is meant itself, even where its name could be a pattern."""
    if not isinstance(item, (str, os.PathLike)):
        return (item,)
    path = os.fspath(item)
    if path == STDIN or not any(mark in path for mark in _PATTERN_CHARACTERS) or _is_there(path):
        return (path,)
    return tuple(expand_pattern(path))


def _is_there(path: str) -> bool:
    try:
        store_for(path).info(path)
    except (ObjectNotFoundError, StoreError):
        return False
    return True


def open_archive(source: ArchiveSource) -> Archive:
    """Open a source, and unpack it as it is read where it is compressed, which its first bytes tell.

    Raises ObjectNotFoundError, StoreError, or OptionError for a stream of text. What the caller opened stays open.
    """
    if isinstance(source, (str, os.PathLike)):
        return _open_path(os.fspath(source))
    return _open_stream(source, _leave_open)


def _open_path(path: str) -> Archive:
    if path == STDIN:
        return _open_stream(sys.stdin.buffer, _leave_open)
    if _is_pipe(path):
        file = open(local_path(path), "rb", buffering=0)  # noqa: SIM115 - closed with the archive
        return _closed_on_error(file.close, lambda: _open_stream(file, file.close))
    reader = store_for(path).open(path)

    def opened() -> Archive:
        compression = sniff(reader.read(0, _SNIFFED_BYTES))
        if compression is None:
            return Archive(ReaderFeed(reader), reader.close, reader.info.size)
        stream = DeferredErrorStream(decompressed(reader_stream(reader), compression))
        return Archive(DeferredErrorFeed(stream), reader.close, reader.info.size, stream)

    return _closed_on_error(reader.close, opened)


def _open_stream(stream: Any, close: Callable[[], None]) -> Archive:
    binary = _BinaryStream(stream)
    compression = sniff(binary.peek(_SNIFFED_BYTES))
    deferred = DeferredErrorStream(binary if compression is None else decompressed(binary, compression))
    return Archive(DeferredErrorFeed(deferred), close, None, deferred)


def _is_pipe(path: str) -> bool:
    """Whether a path names something that cannot be read from any position, as ``/dev/stdin`` and named pipes do."""
    if scheme_of(path) != "file":
        return False
    try:
        mode = os.stat(local_path(path)).st_mode
    except OSError:
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISBLK(mode))


def _closed_on_error(close: Callable[[], None], opened: Callable[[], Archive]) -> Archive:
    try:
        return opened()
    except BaseException:
        close()
        raise


def _leave_open() -> None:
    """Do nothing: what the caller opened, the caller closes."""


def field_decoders(decode: Any, on_decode_error: OnDecodeError, *, allow_pickle: bool = False) -> FieldDecoders:
    """Give the function that finds, for fields, the functions that decode them.

    Text is stripped whatever ``decode`` is; ``decode`` turns json, jsonl and npy into values, and a spec (see
    `shoal.codec.decode_spec`) what it names too. All else stays bytes. Raises OptionError for what is no spec.
    """
    if on_decode_error not in {"keep", "raise"}:
        raise OptionError("on_decode_error is unknown", expected="'keep' or 'raise'", found=repr(on_decode_error))
    keep = on_decode_error == "keep"
    plain = decode_spec(decode is not False and decode is not None, allow_pickle=allow_pickle)
    chosen = _chosen(decode, on_decode_error, allow_pickle)

    def find(fields: Sequence[str]) -> Decoders:
        found: dict[str, Decoder] = dict(decoders(chosen, fields)) if chosen is not None else {}
        for field in fields:
            if field in found or field.startswith("__"):  # such fields are nobody's to decode, as in webdataset
                continue
            if (decoder := _own(field, plain, keep)) is not None:
                found[field] = decoder
        return found

    return find


def _chosen(decode: Any, on_decode_error: OnDecodeError, allow_pickle: bool) -> DecodeSpec | None:
    """The part of a spec that names fields; what it would decode unasked follows the rules of this format."""
    if decode is None or isinstance(decode, bool):
        return None
    spec = decode_spec(decode, allow_pickle=allow_pickle, on_decode_error=on_decode_error)
    return replace(spec, automatic=False)


def _own(field: str, spec: DecodeSpec, keep: bool) -> Decoder | None:
    extension = field.lower().rpartition(".")[2]
    if extension in _TEXT:
        return _kept(_stripped, bytes) if keep else _located(_stripped, field)
    if extension in _JSON or extension == "npy":
        decoder = decoders(spec, [field]).get(field)
        if decoder is not None and keep:
            return _kept(decoder, _as_text if extension in _JSON else bytes)
        return decoder
    return None


def _stripped(data: Any) -> str:
    try:
        return str(data, "utf-8").strip()
    except UnicodeDecodeError as error:
        raise DecodeError(
            "the field does not decode", expected="UTF-8 text", found=error, offset=error.start
        ) from error


def _located(decoder: Decoder, field: str) -> Decoder:
    def run(data: Any) -> Any:
        try:
            return decoder(data)
        except DecodeError as error:
            raise error.at(field=field) from error.__cause__

    return run


def _kept(decoder: Decoder, instead: Decoder) -> Decoder:
    def run(data: Any) -> Any:
        try:
            return decoder(data)
        except CodecError:
            return instead(data)

    return run


def _as_text(data: Any) -> str | bytes:
    try:
        return str(data, "utf-8")
    except UnicodeDecodeError:
        return bytes(data)
