"""WebDataset archives: plain tars in which members of one name and several extensions make a sample.

``parse`` and ``parse_shards`` give lists, ``stream`` and ``stream_shards`` samples one at a time in bounded memory, and
``write`` makes archives. A sample is a dict of ``__key__`` and its fields, nothing else:

    {"__key__": "000001", "jpg": b"...", "json": {"width": 512}, "txt": "a cat"}

| field | value |
| --- | --- |
| json, jsonl | decoded, jsonl as a list (``decode=False``: bytes) |
| npy | an array (``decode=False``: bytes) |
| txt, text, caption, cls | text, stripped, whatever ``decode`` is |
| jpg, mp3 and all else | bytes, unless ``decode`` is a spec that names them |

The last component of a field's name counts: ``meta.json`` is json. Archives may be compressed (gzip, bz2, xz, zstd),
which their content tells, and lie wherever a store reaches: a path, a URL, ``-`` for standard input, a pipe, or any
object with ``read``.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Literal, TypedDict, Unpack

from shoal.errors import OptionError
from shoal.shard._member_names import WEBDATASET_RULE, KeyRule
from shoal.shard._shard import Sample
from shoal.shard._stream import ErrorLog, ErrorPolicy, OnError, error_limit
from shoal.shard._writer import ShardWriter
from shoal.store._pattern import numbered_name

from ._webdataset_reader import ArchiveOptions, ArchiveSource, OnDecodeError, field_decoders, freeze_sources
from ._webdataset_stream import StreamPlan, WebDatasetStream

__all__ = ["ReadOptions", "WebDatasetStream", "parse", "parse_shards", "stream", "stream_shards", "write"]

Group = Literal["archive", "neighbours"]
_COMPRESSIONS = {
    **dict.fromkeys(["gz", "tgz"], "gzip"),
    **dict.fromkeys(["bz2", "tbz2"], "bz2"),
    **dict.fromkeys(["xz", "txz"], "xz"),
    **dict.fromkeys(["zst", "tzst"], "zstd"),
}


class ReadOptions(TypedDict, total=False):
    """What all four functions take besides what they name.

    Attributes:
        rule: How member names become keys and fields. `KeyRule()` is WebDataset's; ``KeyRule(folders="flatten")`` drops
            folders from keys, and one name from two folders is an error.
        on_error: What to do about damage, missing shards and samples that do not decode. ``"raise"``; ``"skip"``: go
            on, count, and warn at the end; ``"quarantine"``: also write each error to a file. A sample that may have
            lost a member is never given.
        error_budget: How many errors may be passed over before that is an error itself, an int; None: any number.
        quarantine: The JSON-lines file for ``"quarantine"``; by default one in shoal's cache folder.
        on_decode_error: ``"keep"``: json that does not decode stays text, or bytes where it is no UTF-8, and other
            fields stay bytes; ``"raise"``: DecodeError.
        allow_pickle: Whether arrays of Python objects may be decoded. They can run code.
        log: Where errors are counted and kept; its policy takes the place of ``on_error`` and what belongs to it.
    """

    rule: KeyRule
    on_error: OnError
    error_budget: int | None
    quarantine: str | None
    on_decode_error: OnDecodeError
    allow_pickle: bool
    log: ErrorLog


def parse(
    path: ArchiveSource,
    *,
    decode: Any = True,
    extensions: Iterable[str] | None = None,
    max_samples: int | None = None,
    group: Group = "archive",
    **options: Unpack[ReadOptions],
) -> list[Sample]:
    """All samples of an archive.

    Members of one key make one sample wherever they lie in the archive. With ``group="neighbours"`` only those that
    follow each other do, a key that comes back is an error, and ``max_samples`` ends the reading at once.

    Args:
        path: A path, URL, pattern or folder, ``-``, or an object with ``read``.
        decode: Whether to decode json, jsonl and npy; a spec such as ``"rgb8"`` or ``{"jpg": "pil"}`` decodes more.
        extensions: Only these fields, as ``jpg`` or ``.jpg``, whole: ``seg.png`` is not ``png``. Samples with none of
            them are left out, and large members that are not wanted are not read where the archive allows it.
        max_samples: At most this many samples.
        group: What makes a sample, as said above.
        options: See `ReadOptions`.

    Raises:
        FileNotFoundError: Nothing is there (as ObjectNotFoundError).
        TarError: The archive is damaged, or has one field of a sample twice. (An empty file has no samples.)
        DecodeError: A field does not decode, and ``on_decode_error="raise"``.
        ErrorBudgetExceeded: More was damaged than ``error_budget`` allows.

    Examples:
        >>> from shoal.formats import webdataset
        >>> samples = [{"__key__": "000001", "txt": "a cat", "json": {"legs": 4}}]
        >>> _ = webdataset.write("memory://doc/parse/cats.tar", samples)
        >>> webdataset.parse("memory://doc/parse/cats.tar")
        [{'__key__': '000001', 'txt': 'a cat', 'json': {'legs': 4}}]
        >>> webdataset.parse("memory://doc/parse/cats.tar", extensions=[".txt"])
        [{'__key__': '000001', 'txt': 'a cat'}]
    """
    archive, log = _parse_options(decode, extensions, max_samples, group, **options)
    return _collect(StreamPlan(freeze_sources(path), archive), log)


def stream(
    path: ArchiveSource,
    *,
    decode: Any = True,
    extensions: Iterable[str] | None = None,
    max_samples: int | None = None,
    group: Group = "neighbours",
    resume_from: Mapping[str, Any] | None = None,
    **options: Unpack[ReadOptions],
) -> WebDatasetStream:
    """The samples of an archive, one at a time: memory stays at a few MiB, or at a few times the largest sample.

    Nothing is opened before the first sample is asked for. Members that follow each other make a sample; a key that
    comes back raises InterleavedKeyError. ``group="archive"`` groups as ``parse`` does, and holds the archive's samples
    in memory.

    The rest is as for `parse`. ``resume_from`` takes the ``position`` of a stream made the same way; a pipe or object
    is given anew, from its start, and passed over up to there. ``max_samples`` counts the samples given before too.

    Raises:
        InterleavedKeyError: A key came back after other keys. (After a resume, among the samples since.)
        OptionError: ``resume_from`` is the position of another stream, or of a file that has changed.

    Examples:
        >>> from shoal.formats import webdataset
        >>> _ = webdataset.write("memory://doc/stream/a.tar", ({"txt": f"caption {n}"} for n in range(3)))
        >>> samples = webdataset.stream("memory://doc/stream/a.tar")
        >>> next(samples)
        {'__key__': '000000000', 'txt': 'caption 0'}
        >>> rest = webdataset.stream("memory://doc/stream/a.tar", resume_from=samples.position)
        >>> [sample["txt"] for sample in rest]
        ['caption 1', 'caption 2']
    """
    archive, log = _parse_options(decode, extensions, max_samples, _group(group, options), **options)
    return WebDatasetStream(StreamPlan(freeze_sources(path), archive, resume_from=resume_from), log)


def parse_shards(
    paths: ArchiveSource | Iterable[ArchiveSource],
    *,
    decode: Any = True,
    extensions: Iterable[str] | None = None,
    max_samples: int | None = None,
    group: Group = "archive",
    workers: int = 1,
    shuffle: bool = False,
    seed: int = 0,
    epoch: int = 0,
    **options: Unpack[ReadOptions],
) -> list[Sample]:
    """All samples of several archives, in their order: `parse` of each, and what `stream_shards` says of the rest.

    A damaged or missing shard raises; ``on_error="skip"`` goes on with what is sound, and warns. Equal keys in two
    shards are two samples.

    Examples:
        >>> from shoal.formats import webdataset
        >>> _ = webdataset.write("memory://doc/shards/a-%03d.tar", ({"txt": str(n)} for n in range(4)), max_samples=2)
        >>> [sample["txt"] for sample in webdataset.parse_shards("memory://doc/shards/a-{000..001}.tar")]
        ['0', '1', '2', '3']
    """
    archive, log = _parse_options(decode, extensions, max_samples, group, **options)
    return _collect(StreamPlan(freeze_sources(paths), archive, shuffle, seed, epoch, workers), log)


def stream_shards(
    paths: ArchiveSource | Iterable[ArchiveSource],
    *,
    decode: Any = True,
    extensions: Iterable[str] | None = None,
    max_samples: int | None = None,
    group: Group = "neighbours",
    workers: int = 1,
    buffer_bytes: int = 16 << 20,
    shuffle: bool = False,
    seed: int = 0,
    epoch: int = 0,
    resume_from: Mapping[str, Any] | None = None,
    **options: Unpack[ReadOptions],
) -> WebDatasetStream:
    """The samples of several archives, one at a time: as `stream`, one archive after the other.

    Args:
        paths: Paths, URLs, patterns (``data-{00000..00099}.tar``, ``*.tar``, ``a.tar::b.tar``), or a folder.
        decode: As for `parse`.
        extensions: As for `parse`.
        max_samples: At most this many samples in all; no shard is opened that is not needed.
        group: As for `stream`.
        workers: How many shards are read at once, each on a thread. The samples and their order stay the same, and an
            error comes where it would come with one.
        buffer_bytes: How far each thread reads ahead.
        shuffle: Read the shards in an order that ``seed`` and ``epoch`` decide; another one for each epoch.
        seed: See ``shuffle``.
        epoch: See ``shuffle``.
        resume_from: As for `stream`.
        options: See `ReadOptions`.

    Examples:
        >>> from shoal.formats import webdataset
        >>> _ = webdataset.write(
        ...     "memory://doc/stream_shards/a-%03d.tar", ({"txt": str(n)} for n in range(6)), max_samples=1
        ... )
        >>> epochs = [
        ...     webdataset.stream_shards("memory://doc/stream_shards/*.tar", shuffle=True, epoch=e) for e in (0, 1)
        ... ]
        >>> ["".join(sample["txt"] for sample in samples) for samples in epochs]
        ['051234', '514302']
    """
    archive, log = _parse_options(decode, extensions, max_samples, _group(group, options), **options)
    plan = StreamPlan(freeze_sources(paths), archive, shuffle, seed, epoch, workers, buffer_bytes, resume_from)
    return WebDatasetStream(plan, log)


def write(path: str | os.PathLike[str], samples: Iterable[Any], **options: Any) -> list[str]:
    """Write samples into an archive, or into several where ``path`` has a ``%06d``; return where they are.

    Samples and options are those of `shoal.ShardWriter`, which does the work. A name that ends in ``.gz``, ``.bz2``,
    ``.xz`` or ``.zst`` (``.tgz`` and so on) is compressed so, unless ``compression`` says otherwise; a name without a
    number takes all samples.

    Examples:
        >>> from shoal.formats import webdataset
        >>> webdataset.write("memory://doc/write/a.tar.gz", [{"__key__": "a", "txt": "one"}])
        ['memory://doc/write/a.tar.gz']
    """
    name = os.fspath(path)
    options.setdefault("compression", _COMPRESSIONS.get(name.lower().rpartition(".")[2]))
    if numbered_name(name, 0) == name:
        options = {"max_samples": 1 << 62, "max_bytes": 1 << 62, **options}
    with ShardWriter(name, **options) as writer:
        for sample in samples:
            writer.write(sample)
    return writer.urls


def _collect(plan: StreamPlan, log: ErrorLog) -> list[Sample]:
    with WebDatasetStream(plan, log) as samples:
        return list(samples)


def _group(group: Group, options: ReadOptions) -> Group:
    return "archive" if "rule" in options and options["rule"].group == "archive" else group


def _parse_options(
    decode: Any,
    extensions: Iterable[str] | None,
    max_samples: int | None,
    group: Group,
    *,
    rule: KeyRule = WEBDATASET_RULE,
    on_error: OnError = "raise",
    error_budget: int | None = None,
    quarantine: str | None = None,
    on_decode_error: OnDecodeError = "keep",
    allow_pickle: bool = False,
    log: ErrorLog | None = None,
    **unknown: Any,
) -> tuple[ArchiveOptions, ErrorLog]:
    """What a user says, as values. Raises OptionError where it makes no sense."""
    if unknown:
        known = ", ".join(ReadOptions.__annotations__)
        raise TypeError(f"webdataset has no option {min(unknown)!r}; besides what is named it has {known}")
    rule = replace(rule, group=group)
    error_limit(error_budget, None)  # there is no share of a stream
    log = ErrorLog(ErrorPolicy(on_error, error_budget, quarantine)) if log is None else log
    decoders = field_decoders(decode, on_decode_error, allow_pickle=allow_pickle)
    return ArchiveOptions(rule, _fields(extensions, rule), decoders, log.goes_on, max_samples), log


def _fields(extensions: Iterable[str] | None, rule: KeyRule) -> frozenset[str] | None:
    if extensions is None:
        return None
    if isinstance(extensions, str):
        raise OptionError("extensions are a list", expected="such as ['jpg', 'txt']", found=repr(extensions))
    names = (extension.removeprefix(".") for extension in extensions)
    return frozenset(name.lower() if rule.case == "lower" else name for name in names)
