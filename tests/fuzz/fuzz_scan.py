"""Fuzz the tar reader: ``make fuzz`` (atheris, coverage-guided).

An input is an archive; when its first byte is odd, the checksum of every block that looks like a header is made right
first, because no mutation would find one. Then:

- nothing but a TarError comes out of a scan, strict or not, whatever the chunks;
- chunks and gaps tile the archive;
- what was read is what ``tarfile`` reads, as far as both read.
"""

from __future__ import annotations

import io
import sys
import tarfile
import tempfile
import warnings
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["shoal.shard"]):
    from shoal.errors import TarError
    from shoal.shard._tar_header import BLOCK, padded, parse_header
    from shoal.shard._tar_scan import EXTENDED, ScanOptions, StreamFeed, UnreadableRange, scan

warnings.simplefilter("ignore")


def fuzz_one(data: bytes) -> None:
    archive = _repaired(data[1:]) if data[:1] and data[0] & 1 else data[1:]
    members, error = _read(archive, 1 << 20)
    assert error is None or error.offset is not None
    for chunk_bytes in (512, 4096):
        others, other_error = _read(archive, chunk_bytes)
        assert others == members, (chunk_bytes, members, others)
        assert type(other_error) is type(error), (chunk_bytes, error, other_error)
    _go_on(archive)
    if not _is_odd(archive):
        _compare(members, archive, complete=error is None)


def _read(archive: bytes, chunk_bytes: int) -> tuple[list[tuple[str, bytes]], TarError | None]:
    members: list[tuple[str, bytes]] = []
    try:
        for chunk in scan(StreamFeed(io.BytesIO(archive)), ScanOptions(chunk_bytes=chunk_bytes)):
            spans = zip(chunk.names, chunk.offsets.tolist(), chunk.sizes.tolist(), strict=True)
            members += [(name, archive[offset : offset + size]) for name, offset, size in spans]
    except TarError as error:
        return members, error
    return members, None


def _go_on(archive: bytes) -> None:
    position, errors = 0, []
    for part in scan(StreamFeed(io.BytesIO(archive)), ScanOptions(chunk_bytes=1024), on_damage=errors.append):
        start = part.start if isinstance(part, UnreadableRange) else part.base
        assert start == position < part.stop, (start, position, part.stop)
        position = part.stop
        assert len(errors) <= len(archive) // BLOCK + 2


def _compare(members: list[tuple[str, bytes]], archive: bytes, *, complete: bool) -> None:
    expected = _by_tarfile(archive)
    if expected is None:
        return
    # tarfile takes the slash off a name that PAX gave
    found = [(name.rstrip("/"), data) for name, data in members]
    both = min(len(found), len(expected))
    assert found[:both] == expected[:both], (found, expected)
    assert not complete or len(found) >= len(expected), (found, expected)


def _by_tarfile(archive: bytes) -> list[tuple[str, bytes]] | None:
    """The oracle's members; None when it does not take the archive. It ends silently at what it takes for damage."""
    found = []
    try:
        with tarfile.open(fileobj=io.BytesIO(archive), mode="r:", encoding="utf-8") as tar:
            for member in tar:
                if member.isreg():
                    data = archive[member.offset_data : member.offset_data + member.size]
                    if len(data) < member.size:
                        break
                    found.append((member.name.rstrip("/"), data))
    except (tarfile.TarError, ValueError, OverflowError, IndexError, MemoryError):
        return None
    return found


def _repaired(archive: bytes) -> bytes:
    blocks = [archive[at : at + BLOCK] for at in range(0, len(archive), BLOCK)]
    return b"".join(
        _checksummed(block) if block[257:261] == b"usta" and len(block) == BLOCK else block for block in blocks
    )


def _checksummed(block: bytes) -> bytes:
    total = sum(block[:148]) + 8 * 32 + sum(block[156:])
    return block[:148] + b"%06o\0 " % total + block[156:]


def _is_odd(archive: bytes) -> bool:
    """Whether the archive has something in which tarfile is known to differ, on purpose or by mistake."""
    for at in range(0, len(archive) - BLOCK + 1, BLOCK):
        block = archive[at : at + BLOCK]
        if block[257:265] == b"ustar  \0" and block[345]:
            return True  # it takes GNU's times for a prefix
        try:
            header = parse_header(block, at)
        except TarError:
            continue
        stop = at + BLOCK + header.size
        if header.kind == ord("g") or (
            header.kind in EXTENDED and any(archive[stop : at + BLOCK + padded(header.size)])
        ):
            return (
                True  # it reads records behind the end of a header, and applies a global size to half of what it is for
            )
    return False


def _seeds() -> list[bytes]:
    seeds = []
    for tar_format in (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        file = io.BytesIO()
        with tarfile.open(fileobj=file, mode="w", format=tar_format) as tar:
            for name, size in (("a.txt", 5), ("d/" * 60 + "b.jpg", 600), ("é.cls", 0)):
                info = tarfile.TarInfo(name)
                info.size, info.mtime = size, 1.5 if tar_format == tarfile.PAX_FORMAT else 0
                tar.addfile(info, io.BytesIO(bytes(size)))
            folder = tarfile.TarInfo("folder")
            folder.type = tarfile.DIRTYPE
            tar.addfile(folder)
        seeds += [
            b"\1" + file.getvalue()[: file.tell()].rstrip(b"\0") + bytes(2 * BLOCK),
            b"\1" + file.getvalue()[:3000],
        ]
    return seeds


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for number, seed in enumerate(_seeds()):
            (Path(folder) / str(number)).write_bytes(seed)
        atheris.Setup([*sys.argv, "-max_len=16384", folder], fuzz_one)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
