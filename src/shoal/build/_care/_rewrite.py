"""Write saved samples into a new shard, and read it back to see that it is right."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import io
import lzma
import tarfile
import zlib
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import IO, Any, cast

from shoal.errors import ChecksumError, CodecError, MissingExtraError, TruncatedError, WriteError
from shoal.shard import (
    WEBDATASET_RULE,
    KeyRule,
    ShardIndex,
    ShardWriter,
    VerifyOptions,
    index_shard,
    index_url,
    load_index,
    save_index,
    verify_shard,
)
from shoal.store import ObjectWriter, base_name, parent_url, store_for

from ._chains import TarReader
from ._salvage import Piece, SavedSample

__all__ = ["rewrite"]

_NO_LIMIT = 1 << 62


def rewrite(
    url: str,
    samples: Sequence[SavedSample],
    tar: TarReader,
    *,
    rule: KeyRule = WEBDATASET_RULE,
    compression: str | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> ShardIndex:
    """Write ``samples``, whose bytes are in ``tar``, as the shard ``url`` with its index beside it, and check both.

    Members keep their names. Where those are what shoal itself would write, the shard is as ShardWriter writes it.
    Raises ChecksumError when bytes changed since they were looked at, WriteError when the new shard is not right.
    """
    try:
        index = _as_shoal_writes(url, samples, tar, rule, compression, metadata)
    except (WriteError, CodecError):  # names that shoal reads and would not write
        index = _as_it_was(url, samples, tar, rule, compression)
    report = verify_shard(url, index, VerifyOptions(rule=rule))
    if not report.ok or report.samples != len(samples):
        found = str(report.problems[0]) if report.problems else f"{report.samples} samples"
        raise WriteError("the new shard is not right", expected=f"{len(samples)} samples", found=found, shard=url)
    return index


def _as_shoal_writes(
    url: str,
    samples: Sequence[SavedSample],
    tar: TarReader,
    rule: KeyRule,
    compression: str | None,
    metadata: Mapping[str, Any] | None,
) -> ShardIndex:
    if rule != WEBDATASET_RULE or not all(map(_is_plain, samples)):
        raise WriteError("not as shoal writes")
    writer = ShardWriter(
        url,
        max_samples=_NO_LIMIT,
        max_bytes=_NO_LIMIT,
        compression=compression,
        metadata=metadata,
        overwrite=True,
    )
    with writer:
        for sample in samples:
            writer.write((sample.key, {piece.field: _data(tar, piece) for piece in sample.pieces}))
    return load_index(index_url(parent_url(url), base_name(url)))


def _is_plain(sample: SavedSample) -> bool:
    return all(
        piece.name == f"{sample.key}.{piece.field}" and not piece.field.startswith("__") for piece in sample.pieces
    )


def _data(tar: TarReader, piece: Piece) -> bytes:
    data = tar.read(piece.offset, piece.offset + piece.size)
    if len(data) < piece.size:
        raise TruncatedError("the shard became shorter while it was repaired", field=piece.field, offset=piece.offset)
    if piece.crc is not None and zlib.crc32(data) != piece.crc:
        raise ChecksumError("the shard changed while it was repaired", field=piece.field, offset=piece.offset)
    return data


def _as_it_was(
    url: str, samples: Sequence[SavedSample], tar: TarReader, rule: KeyRule, compression: str | None
) -> ShardIndex:
    """Any names at all, one member after the other."""
    sink = store_for(url).create(url)
    try:
        with (
            contextlib.closing(_compressing(_Sink(sink), compression)) as file,
            tarfile.open(fileobj=file, mode="w|", format=tarfile.PAX_FORMAT, encoding=rule.encoding) as archive,
        ):
            for sample in samples:
                for piece in sample.pieces:
                    info = tarfile.TarInfo(piece.name)
                    info.size, info.mode = piece.size, 0o444
                    archive.addfile(info, io.BytesIO(_data(tar, piece)))
    except BaseException:
        sink.abort()
        raise
    sink.commit()
    with closing(store_for(url).open(url)) as reader:
        index = index_shard(reader, rule)
    save_index(index, index_url(parent_url(url), base_name(url)))
    return index


class _Sink(io.RawIOBase):
    """A store's writer as a file."""

    def __init__(self, writer: ObjectWriter) -> None:
        super().__init__()
        self._writer = writer

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        self._writer.write(bytes(data))
        return len(data)


def _compressing(file: io.RawIOBase, compression: str | None) -> IO[bytes]:
    """No times and no names go in: the same samples give the same bytes."""
    raw = cast("IO[bytes]", file)
    if compression == "gzip":
        return cast("IO[bytes]", gzip.GzipFile("", "wb", fileobj=raw, mtime=0))
    if compression == "bz2":
        return bz2.BZ2File(raw, "wb")
    if compression == "xz":
        return lzma.LZMAFile(raw, "wb")
    return _zstd(raw) if compression == "zstd" else raw


def _zstd(file: IO[bytes]) -> IO[bytes]:
    try:
        import zstandard
    except ImportError:
        raise MissingExtraError("zstd shards need the zstandard package", hint="pip install 'shoal[zstd]'") from None
    return cast("IO[bytes]", zstandard.ZstdCompressor().stream_writer(file, closefd=False))
