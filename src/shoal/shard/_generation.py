"""A generation, one committed state of a dataset, as a value and as the JSON document that the manifest is.

``.shoal/manifest.json`` is the newest generation and all that opening a dataset reads: every file of the index is named
in it with its size. Its first line is the crc32 of all bytes after it, nothing is parsed before that was compared, and
every value is checked for its bounds afterwards. Keys that this version does not know are kept by every change.
"""

from __future__ import annotations

import math
import os
import re
import secrets
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeVar
from urllib.parse import quote

import msgspec

from shoal._crc32 import crc32
from shoal.errors import ManifestError, OptionError, WriteError
from shoal.store._url import join_url, local_path, scheme_of

from ._layout import MAX_KEY_BYTES, MIN_KEY_BYTES, IndexFile, RecordLayout, Scalar, Segment
from ._member_names import WEBDATASET_RULE, KeyRule

__all__ = [
    "FORMAT_VERSION",
    "NO_GENERATION",
    "Generation",
    "PendingMoves",
    "Split",
    "check_id",
    "check_path",
    "decode_document",
    "decode_generation",
    "encode_document",
    "encode_generation",
    "is_generation",
    "locate",
    "new_id",
    "with_split",
]

FORMAT_VERSION = 2
_MAX_ROWS = (1 << 32) - 1
_MAX_BYTES = (1 << 63) - 1
_ID = re.compile(r"[0-9a-f]{16}")
_DIGEST = re.compile(r"[0-9a-f]{32}")
_FILE_NAME = re.compile(r"[a-z0-9][a-z0-9_-]*(-[0-9a-f]+)?\.(parquet|rec)")
_FIRST_LINE = b'{"crc32": "%08x",\n'
_FIRST_LINE_BYTES = len(_FIRST_LINE % 0)
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Split:
    """The segments of one split, in the order of their samples."""

    segments: tuple[Segment, ...] = ()
    unknown: dict[str, Any] = field(default_factory=dict)
    """Keys of the document that only later versions know."""

    @property
    def rows(self) -> int:
        """The number of its samples, deleted ones included."""
        return sum(segment.rows for segment in self.segments)


@dataclass(frozen=True, slots=True)
class PendingMoves:
    """New tars of this generation that are still in the folder of their writer, until they are moved to their paths."""

    writer: str
    size: int
    crc32: int
    """Size and crc32 of the list of moves in that folder."""


@dataclass(frozen=True, slots=True)
class Generation:
    """One committed state of a dataset."""

    id: str
    parent: str | None
    lineage: str
    """The generation that began the lineage: generations of one lineage share the same tar bytes."""
    created: str
    """The UTC time of the commit, in ISO 8601."""
    splits: dict[str, Split] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)
    schema: dict[str, Any] | None = None
    rule: KeyRule = WEBDATASET_RULE
    writer: str | None = None
    """The write that was committed by this generation; None for other changes. A write is committed at most once."""
    pending: tuple[PendingMoves, ...] = ()
    unknown: dict[str, Any] = field(default_factory=dict)
    """Keys of the document that only later versions know."""

    @property
    def segments(self) -> Iterator[Segment]:
        """The segments of all splits."""
        return (segment for split in self.splits.values() for segment in split.segments)

    def files(self) -> dict[str, int]:
        """All files of the index: the path of each, relative to the dataset's root, and its size."""
        return {
            path: file.size
            for segment in self.segments
            for path, file in zip(segment.paths(), (*segment.files, segment.deleted), strict=False)
            if file is not None
        }


NO_GENERATION = Generation("", None, "", "")
"""What a change is applied to where there is no dataset yet."""


def new_id() -> str:
    """Return a random id: of a generation, a segment or a writer."""
    return secrets.token_hex(8)


def with_split(generation: Generation, name: str, segments: Iterable[Segment]) -> Generation:
    """Return the generation with these segments in one split, all others and unknown keys as they are.

    Examples:
        >>> with_split(NO_GENERATION, "train", []).splits
        {'train': Split(segments=(), unknown={})}
    """
    split = replace(generation.splits.get(name, Split()), segments=tuple(segments))
    return replace(generation, splits={**generation.splits, name: split})


# ------------------------------------------------------------------------------------------------- signed documents


def encode_document(document: dict[str, Any]) -> bytes:
    r"""Return a document as JSON whose first line is the crc32 of all bytes after it. Raises WriteError.

    Examples:
        >>> encode_document({"who": "me"})
        b'{"crc32": "905ab8e5",\n "who": "me"\n}\n'
    """
    try:
        body = msgspec.json.format(msgspec.json.encode(document), indent=1)[2:] + b"\n"
    except (TypeError, ValueError, RecursionError, msgspec.EncodeError) as error:
        raise WriteError("A document must be JSON", found=str(error)) from error
    return _FIRST_LINE % crc32(body) + body


def decode_document(data: bytes, url: str) -> dict[str, Any]:
    """Return the document that `encode_document` encoded, without the crc32. Raises ManifestError for any other."""
    if data[:_FIRST_LINE_BYTES] != _FIRST_LINE % crc32(memoryview(data)[_FIRST_LINE_BYTES:]):
        raise ManifestError(
            "The document is damaged: its bytes do not match the crc32 in its first line",
            shard=url,
            hint="Restore the file, or run `shoal repair`",
        )
    try:
        document = msgspec.json.decode(data, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError) as error:  # its writer did not write JSON
        raise _invalid(url, str(error)) from error
    document.pop("crc32", None)
    return document


def _invalid(url: str, problem: str) -> ManifestError:
    return ManifestError("The document is not one that shoal wrote", found=problem, shard=url)


# -------------------------------------------------------------------------------------------------------- generations


def encode_generation(generation: Generation) -> bytes:
    """Return the document of a generation; values that are the default are left out. Raises WriteError."""
    document: dict[str, Any] = {"shoal": FORMAT_VERSION}
    document |= {name: getattr(generation, name) for name in ("id", "parent", "lineage", "created", "writer")}
    document["splits"] = {
        name: {"segments": [_encode_segment(segment) for segment in split.segments], **split.unknown}
        for name, split in generation.splits.items()
    }
    document["schema"] = generation.schema
    document["metadata"] = generation.metadata
    document["rule"] = {} if generation.rule == WEBDATASET_RULE else msgspec.to_builtins(generation.rule)
    document["pending"] = [msgspec.to_builtins(moves) for moves in generation.pending]
    needed = ("shoal", "id", "lineage", "created", "splits")
    document = {name: value for name, value in document.items() if name in needed or value not in (None, {}, [])}
    return encode_document({**document, **generation.unknown})


def _encode_segment(segment: Segment) -> dict[str, Any]:
    # JSON has no infinity: a column without bounds is read instead.
    bounds = {name: pair for name, pair in segment.bounds.items() if all(map(_is_json, pair))}
    document: dict[str, Any] = msgspec.to_builtins(replace(segment, bounds=bounds))
    return _without_empty(document)


def _is_json(value: Scalar) -> bool:
    return not isinstance(value, float) or math.isfinite(value)


def _without_empty(document: dict[str, Any]) -> dict[str, Any]:
    document["files"] = [
        {name: value for name, value in file.items() if value is not None} for file in document["files"]
    ]
    return {name: value for name, value in document.items() if name == "files" or value not in (None, {})}


def is_generation(data: bytes) -> bool:
    """Whether a manifest begins as generations do."""
    return data.startswith(_FIRST_LINE[:11])


def decode_generation(data: bytes, url: str) -> Generation:
    """Return the generation of a document. Raises ManifestError for one that is damaged, or of a newer version."""
    document = decode_document(data, url)
    version = document.pop("shoal", None)
    if isinstance(version, int) and version > FORMAT_VERSION:
        raise ManifestError(
            f"Manifest version {version} is newer than version {FORMAT_VERSION} supported here",
            shard=url,
            hint="Upgrade shoal",
        )
    if version != FORMAT_VERSION or isinstance(version, bool):
        raise _invalid(url, f"version {version!r}")
    try:
        generation = _build_generation(document)
        _check_generation(generation)
    except (msgspec.ValidationError, KeyError, TypeError, ValueError) as error:
        raise _invalid(url, str(error)) from error
    return generation


def _build_generation(document: dict[str, Any]) -> Generation:
    names = {each.name for each in fields(Generation)} - {"unknown"}
    known = {name: value for name, value in document.items() if name in names}
    splits = {
        name: Split(
            tuple(_convert(segment, Segment) for segment in _convert(split["segments"], list[dict[str, Any]])),
            {key: value for key, value in split.items() if key != "segments"},
        )
        for name, split in _convert(known.pop("splits"), dict[str, dict[str, Any]]).items()
    }
    unknown = {name: value for name, value in document.items() if name not in names}
    generation = _convert({"parent": None, **known}, Generation)
    return replace(generation, splits=splits, unknown=unknown)


def _convert(value: Any, kind: type[_T]) -> _T:
    return msgspec.convert(value, kind)


# ------------------------------------------------------------------------------------------------------------- bounds


def check_id(value: str) -> str:
    """Return an id as `new_id` makes them. Raises OptionError, a ValueError, for others: ids become names of files."""
    if not _ID.fullmatch(value):
        raise OptionError("An id must be 16 hexadecimal digits", found=repr(value[:80]))
    return value


def check_path(path: str, url: str) -> str:
    """Return a path of a tar that is below the dataset's root. Raises ManifestError; ``url`` names the document."""
    parts = re.split(r"[/\\]", path)
    if not all(parts) or {".", ".."} & set(parts) or "\0" in path:
        raise ManifestError("A path leads out of the dataset", found=repr(path[:80]), shard=url)
    return path


def locate(root: str, path: str, url: str | None = None) -> str:
    """Return the URL of a file of the dataset, given by its path; ``url`` names the document that has the path.

    Every path that comes from a document goes through here. Raises ManifestError for one that leads out of the dataset,
    also by a folder that is a symbolic link. A file may be one: caches keep the files of a dataset elsewhere.

    Examples:
        >>> locate("s3://bucket/data", "train/a.tar"), locate("file:///data", "%2e%2e/a.tar")
        ('s3://bucket/data/train/a.tar', 'file:///data/%252e%252e/a.tar')
    """
    check_path(path, url or root)
    scheme = scheme_of(root)
    is_quoted = "://" in root and scheme in ("file", "http", "https")  # what reads these URLs unquotes them
    location = join_url(root, quote(path) if is_quoted else path)
    if scheme == "file":
        top, folder = (os.path.realpath(each) for each in (local_path(root), os.path.dirname(local_path(location))))
        if os.path.commonpath([top, folder]) != top:
            raise ManifestError("A path leads out of the dataset", found=repr(path[:80]), shard=url or root)
    return location


def _require(condition: bool, problem: str) -> None:
    if not condition:
        raise ValueError(problem)


def _check_generation(generation: Generation) -> None:
    ids = (generation.id, generation.parent, generation.lineage, generation.writer)
    for value in (*ids, *(moves.writer for moves in generation.pending)):
        if value is not None:
            check_id(value)
    for moves in generation.pending:
        _check_range("size of the moves", moves.size, _MAX_BYTES)
        _check_range("crc32 of the moves", moves.crc32, _MAX_ROWS)
    segments = list(generation.segments)
    _require(len({segment.id for segment in segments}) == len(segments), "a segment is listed twice")
    for name, split in generation.splits.items():
        _require(name != "", "a split has no name")
        _require(len({segment.layout for segment in split.segments}) <= 1, f"layouts of split {name!r} differ")
        for segment in split.segments:
            _check_segment(segment)


def _check_segment(segment: Segment) -> None:
    check_id(segment.id)
    _check_range("rows", segment.rows, _MAX_ROWS)
    _check_range("shards", segment.shards, _MAX_ROWS)
    _check_range("bytes", segment.bytes, _MAX_BYTES)
    _check_layout(segment.layout)
    _require(_DIGEST.fullmatch(segment.digest) is not None, "a digest is not 32 hexadecimal digits")
    files = (*segment.files, *(() if segment.deleted is None else (segment.deleted,)))
    _require(len({file.name for file in files}) == len(files), f"segment {segment.id} has two files of one name")
    for file in files:
        _check_file(file)
    if segment.deleted is not None:
        _require(1 <= segment.deleted.records <= segment.rows, "more rows are deleted than there are")
    for name, (low, high) in segment.bounds.items():
        is_ordered = isinstance(low, str) == isinstance(high, str) and bool(low <= high)  # type: ignore[operator]
        _require(name in segment.columns and is_ordered, f"the bounds of column {name!r} are not in order")


def _check_layout(layout: RecordLayout) -> None:
    _check_range("key_bytes", layout.key_bytes, MAX_KEY_BYTES, MIN_KEY_BYTES)
    _require(layout.key_bytes % 4 == 0, "key_bytes is not a multiple of 4")
    _require(all(layout.fields), "a field has no name")
    _require(len(set(layout.fields)) == len(layout.fields), "a field is listed twice")


def _check_file(file: IndexFile) -> None:
    _require(_FILE_NAME.fullmatch(file.name) is not None, f"{file.name!r} is not the name of a file of an index")
    _check_range("size", file.size, _MAX_BYTES)
    _check_range("records", file.records, _MAX_ROWS)
    has_footer = file.footer_start is not None and file.footer_crc32 is not None
    _require(has_footer == file.name.endswith(".parquet"), f"{file.name} must have a footer if it is a Parquet file")
    _require(has_footer or (file.footer_start is None and file.footer_crc32 is None), f"{file.name} has half a footer")
    _check_range("footer_start", file.footer_start or 0, file.size)
    _check_range("footer_crc32", file.footer_crc32 or 0, _MAX_ROWS)


def _check_range(name: str, value: int, maximum: int, minimum: int = 0) -> None:
    _require(minimum <= value <= maximum, f"{name} must be from {minimum} to {maximum}, got {value}")
