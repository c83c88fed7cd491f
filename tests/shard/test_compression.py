"""Compressed shards: written so that everybody reads them, read so that no damage passes for an end."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import io
import itertools
import lzma
import os
import random
import struct
import subprocess
import sys
import tarfile
import tracemalloc
import zlib
from pathlib import Path

import pytest
import webdataset
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import MissingExtraError, OptionError, StoreError, TarError, TruncatedError
from shoal.shard import _compression
from shoal.shard._compression import (
    COMPRESSIONS,
    BlockCompressor,
    decompress_block,
    decompressed,
    reader_stream,
    sniff,
    unpacked_cache,
)
from shoal.store import LocalStore, MemoryStore

SEEKABLE = ["gzip", "zstd"]
MIB = 1 << 20


def zstd_stream(data: bytes) -> bytes:
    """As `zstd` writes a pipe: no content size in the header."""
    stream = zstandard.ZstdCompressor(write_checksum=True).compressobj()
    return stream.compress(data) + stream.flush()


PEER = {"gzip": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress, "zstd": zstd_stream}
ORACLE = {
    "gzip": gzip.decompress,
    "bz2": bz2.decompress,
    "xz": lzma.decompress,
    "zstd": lambda data: zstandard.ZstdDecompressor().stream_reader(io.BytesIO(data), read_across_frames=True).read(),
}


class Trickle:
    """A pipe that gives less than it is asked for."""

    def __init__(self, data, most):
        self._data = io.BytesIO(data)
        self._most = most

    def read(self, size):
        return self._data.read(min(size, self._most))


def packed(compression, blocks, level=None):
    """One shard: the stored bytes of each block, and those that end it."""
    shard = BlockCompressor(compression, level)
    return [shard.add(block) for block in blocks], shard.finish()


def whole(compression, blocks, level=None):
    stored, end = packed(compression, blocks, level)
    return b"".join(stored) + end


def read_all(stream, size=MIB):
    return b"".join(iter(lambda: stream.read(size), b""))


def unpacked(data, compression):
    return read_all(decompressed(io.BytesIO(data), compression))


def mixed(size, seed=0):
    """Part text, part noise, part zeros: every kind of deflate and zstd block."""
    source = random.Random(seed)
    text = b"".join(b"%d: a line of text\n" % source.randrange(10**6) for _ in range(size // 48))
    return (text + source.randbytes(size // 4) + bytes(size))[:size]


BLOCKS = st.lists(
    st.one_of(st.binary(max_size=300), st.builds(mixed, st.integers(0, 200_000), st.integers(0, 3))), max_size=6
)


# ----------------------------------------------------------------------------------------------------------- by content


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("data", [b"", b"a tar"], ids=["empty", "data"])
def test_a_compression_is_told_by_its_first_ten_bytes(compression, data):
    assert sniff(PEER[compression](data)[:10]) == compression
    assert sniff(whole(compression, [data])[:10]) == compression
    assert sniff(whole(compression, [])[:10] or zstandard.compress(b"")[:10]) == compression


@pytest.mark.parametrize("name", ["a.jpg", "BZh9.jpg", "BZh91AY.jpg", "\x1f\x8b.jpg", "7zXZ.jpg"])
def test_a_plain_tar_is_not_compressed_whatever_its_first_member_is_called(name):
    assert sniff(tarfile.TarInfo(name).tobuf()) is None


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_a_head_too_short_to_tell_is_not_taken_for_compressed(compression):
    assert sniff(PEER[compression](b"a tar")[:2]) is None


def test_a_zstd_file_may_start_with_a_frame_that_carries_no_data():
    skippable = struct.pack("<II", 0x184D2A5F, 4) + b"note"
    assert sniff(skippable) == "zstd"
    assert unpacked(skippable + zstd_stream(b"a tar") + skippable, "zstd") == b"a tar"


# ---------------------------------------------------------------------------------------------------------- round trips


@pytest.mark.parametrize("compression", COMPRESSIONS)
@given(blocks=BLOCKS, most=st.integers(1, 5000), size=st.integers(1, 50_000))
def test_what_is_written_is_read_here_and_by_the_format_s_own_library(compression, blocks, most, size):
    shard, plain = whole(compression, blocks), b"".join(blocks)
    assert ORACLE[compression](shard) == plain
    if shard:  # no block, no frame: nothing to tell zstd by
        assert read_all(decompressed(Trickle(shard, most), compression), size) == plain


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("output", [1, 7, 4096])
def test_however_little_comes_out_at_a_time_nothing_is_lost(compression, output, monkeypatch):
    monkeypatch.setattr(_compression, "_OUTPUT_BYTES", output)
    data = mixed(30_000) + b"ab" * 4000
    assert unpacked(PEER[compression](data) * 2, compression) == data * 2


@pytest.mark.parametrize("compression", COMPRESSIONS)
@given(parts=st.lists(st.binary(max_size=2000), min_size=1, max_size=5), padding=st.integers(0, 2000))
def test_several_members_of_another_maker_are_read_to_the_last_with_zeros_between_and_after(
    compression, parts, padding
):
    data = b"".join(PEER[compression](part) + bytes(padding) for part in parts)
    assert unpacked(data, compression) == b"".join(parts)


def test_a_gzip_header_with_name_comment_and_extra_field_is_read():
    extra = struct.pack("<H", 6) + b"ab\2\0xy"
    body = zlib.compress(b"a tar", wbits=-15) + struct.pack("<II", zlib.crc32(b"a tar"), 5)
    header = b"\x1f\x8b\x08\x1c" + bytes(6) + extra + b"name.tar\0" + b"comment\0"
    assert unpacked(header + body, "gzip") == b"a tar"


@given(
    parts=st.lists(st.tuples(st.integers(0, 300_000), st.booleans()), max_size=5),
    checksum=st.booleans(),
    level=st.sampled_from([-5, 1, 12]),
)
def test_zstd_frames_of_any_layout_are_walked(parts, checksum, level):
    stream = zstandard.ZstdCompressor(level=level, write_checksum=checksum).compressobj()
    stored, plain = b"", b""
    for size, flush in parts:
        plain += (part := mixed(size, size))
        stored += stream.compress(part)
        stored += stream.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK) if flush else b""
    stored += stream.flush()
    assert unpacked(stored, "zstd") == plain


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_every_level_is_read_back_and_others_are_refused(compression):
    data = mixed(3000)
    levels = range(0 if compression == "xz" else 1, 23 if compression == "zstd" else 10)
    for level in levels:
        assert ORACLE[compression](whole(compression, [data, data], level)) == data * 2
    for level in (levels.start - 1, levels.stop):
        with pytest.raises(OptionError, match=f"{levels.start} to {levels.stop - 1}"):
            BlockCompressor(compression, level)


def test_a_compression_that_does_not_exist_is_refused_with_those_that_do():
    for attempt in (lambda: BlockCompressor("lzo"), lambda: decompressed(io.BytesIO(), "lzo")):
        with pytest.raises(OptionError, match=r"gzip, bz2, xz, zstd.*lzo"):
            attempt()


@pytest.mark.parametrize("kind", [bytearray, memoryview])
@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_any_buffer_is_taken(compression, kind):
    assert whole(compression, [kind(b"a block"), kind(b"another")]) == whole(compression, [b"a block", b"another"])


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_a_stream_is_read_in_bounded_parts_only(compression):
    stream = decompressed(io.BytesIO(PEER[compression](b"a tar")), compression)
    for size in (0, -1):
        with pytest.raises(OptionError):
            stream.read(size)
    assert stream.read(2) == b"a "
    assert stream.read(100) == b"tar"
    assert stream.read(100) == stream.read(100) == b""


# ----------------------------------------------------------------------------------------------------------- same bytes


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_the_same_blocks_give_the_same_bytes_in_another_process_too(compression):
    blocks = [mixed(300_000, seed) for seed in range(3)]
    here = hashlib.sha256(whole(compression, blocks)).hexdigest()
    script = f"""
import sys; sys.path.insert(0, {os.path.dirname(__file__)!r})
from test_compression import *
print(hashlib.sha256(whole({compression!r}, [mixed(300_000, seed) for seed in range(3)])).hexdigest())"""
    there = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert there.stdout.strip() == here


@pytest.mark.parametrize("level", [1, 2, 6])
def test_a_gzip_shard_is_one_member_without_time_and_name(level):
    blocks = [mixed(100_000, seed) for seed in range(4)]
    shard = whole("gzip", blocks, level)
    member = zlib.decompressobj(wbits=31)
    assert member.decompress(shard) == b"".join(blocks)
    assert (member.eof, member.unused_data) == (True, b"")
    assert shard[:10] == b"\x1f\x8b\x08" + bytes(6) + b"\xff"
    assert shard[-8:] == struct.pack("<II", zlib.crc32(b"".join(blocks)), 400_000)


def test_gzip_s_default_level_compresses_no_worse_than_zlib_s_fastest():
    data = mixed(4 * MIB)[: 2 * MIB]
    assert len(whole("gzip", [data])) <= len(zlib.compress(data, 1)) * 1.02


def test_without_isal_zlib_writes_and_reads_the_same_content():
    script = f"""
import sys; sys.modules["isal"] = None; sys.path.insert(0, {os.path.dirname(__file__)!r})
from test_compression import *
blocks = [mixed(200_000, seed) for seed in range(3)]
stored, end = packed("gzip", blocks)
assert unpacked(b"".join(stored) + end, "gzip") == gzip.decompress(b"".join(stored) + end) == b"".join(blocks)
assert [decompress_block("gzip", part, 200_000, first=at == 0) for at, part in enumerate(stored)] == blocks
assert unpacked(sys.stdin.buffer.read(), "gzip") == b"".join(blocks)
try: unpacked(b"".join(stored) + end[:-1] + b"?", "gzip")
except TarError: print("all as with isal")"""
    blocks = [mixed(200_000, seed) for seed in range(3)]
    done = subprocess.run([sys.executable, "-c", script], input=whole("gzip", blocks), capture_output=True, check=False)
    assert (done.stdout.strip(), done.stderr) == (b"all as with isal", b"")


# ------------------------------------------------------------------------------------------------- what others can read


def tar_in_blocks(samples, block_bytes):
    """A tar as the writer cuts it: blocks of whole members, the end marker last."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, data in samples:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    tar = buffer.getvalue()
    return [tar[at : at + block_bytes] for at in range(0, len(tar), block_bytes)]


SAMPLES = [(f"{row:06d}.{field}", mixed(700, row) + field.encode()) for row in range(300) for field in ("bin", "txt")]


@pytest.fixture(scope="module")
def gzip_shard(tmp_path_factory):
    path = tmp_path_factory.mktemp("shard") / "shard-000000.tar"
    blocks = tar_in_blocks(SAMPLES, 16 * 512)
    assert len(blocks) > 50
    path.write_bytes(whole("gzip", blocks))
    return path


def members(archive):
    return [(member.name, archive.extractfile(member).read()) for member in archive]


@pytest.mark.parametrize("mode", ["r:*", "r|*"])
@pytest.mark.parametrize("compression", ["gzip", "bz2", "xz"])
def test_tarfile_reads_every_member(compression, mode):
    shard = io.BytesIO(whole(compression, tar_in_blocks(SAMPLES, 16 * 512)))
    with tarfile.open(fileobj=shard, mode=mode) as archive:
        assert members(archive) == SAMPLES


def test_tar_reads_every_member_of_a_gzip_shard(gzip_shard, tmp_path):
    listed = subprocess.run(["tar", "-tzf", gzip_shard], capture_output=True, text=True, check=True)
    assert listed.stdout.split() == [name for name, _ in SAMPLES]
    subprocess.run(["tar", "-xzf", gzip_shard, "-C", tmp_path], check=True)
    assert [(name, (tmp_path / name).read_bytes()) for name, _ in SAMPLES] == SAMPLES


@pytest.mark.usefixtures("leaky_peer")
def test_webdataset_reads_every_sample_of_a_gzip_shard(gzip_shard):
    samples = list(webdataset.WebDataset(str(gzip_shard), shardshuffle=False, empty_check=False))
    found = [(f"{sample['__key__']}.{field}", sample[field]) for sample in samples for field in ("bin", "txt")]
    assert found == SAMPLES


def test_our_stream_is_a_tar_for_tarfile():
    shard = whole("zstd", tar_in_blocks(SAMPLES, 16 * 512))
    with tarfile.open(fileobj=decompressed(io.BytesIO(shard), "zstd"), mode="r|") as archive:
        assert members(archive) == SAMPLES


# ---------------------------------------------------------------------------------------------------- reading one block


@pytest.mark.parametrize("compression", SEEKABLE)
@given(blocks=BLOCKS)
def test_each_block_is_read_alone(compression, blocks):
    stored, end = packed(compression, blocks)
    assert BlockCompressor(compression).seekable
    for at, (part, block) in enumerate(zip(stored, blocks, strict=True)):
        assert decompress_block(compression, part, len(block), first=at == 0) == block
    if blocks:  # the last one's bytes may be taken up to the end of the object
        first = len(blocks) == 1
        assert decompress_block(compression, stored[-1] + end, len(blocks[-1]), first=first) == blocks[-1]


@pytest.mark.parametrize("level", [1, 2, 3, 6, 9])
def test_a_gzip_block_refers_to_nothing_before_it(level):
    block = random.Random(level).randbytes(20_000)  # would cost next to nothing the second time
    stored, _ = packed("gzip", [block] * 3, level)
    assert all(zlib.decompressobj(wbits=-15).decompress(part) == block for part in stored[1:])


@pytest.mark.parametrize("compression", SEEKABLE)
@pytest.mark.parametrize("first", [True, False])
def test_a_block_of_another_size_than_its_index_says_is_refused(compression, first):
    blocks = [mixed(50_000, 1), mixed(50_000, 2)]
    part = packed(compression, blocks)[0][0 if first else 1]
    for size in (0, 1, 49_999, 50_001, 1 << 40):
        with pytest.raises(TarError, match=f"expected {size} bytes"):
            decompress_block(compression, part, size, first=first)


@pytest.mark.parametrize("compression", SEEKABLE)
def test_a_cut_block_is_refused_wherever_it_is_cut(compression):
    block = mixed(600)
    _, stored = packed(compression, [block, block])[0]
    ends = 5 if compression == "gzip" else 0  # the flush itself carries no data
    for length in range(len(stored) - ends):
        with pytest.raises(TarError):
            decompress_block(compression, stored[:length], len(block), first=False)


def test_a_block_of_noise_is_refused():
    for seed, compression in itertools.product(range(50), SEEKABLE):
        noise = random.Random(seed).randbytes(500)
        with pytest.raises(TarError):
            decompress_block(compression, noise, 100_000, first=seed % 2 == 0)


@pytest.mark.parametrize("compression", ["bz2", "xz"])
def test_bz2_and_xz_cannot_be_read_from_the_middle_and_say_so(compression):
    assert not BlockCompressor(compression).seekable
    with pytest.raises(OptionError, match="middle"):
        decompress_block(compression, PEER[compression](b"a block"), 7, first=True)


@pytest.mark.parametrize("compression", SEEKABLE)
def test_a_block_that_unpacks_to_more_than_it_should_takes_no_memory(compression):
    bomb = whole(compression, [bytes(100 * MIB)])
    tracemalloc.start()
    try:
        with pytest.raises(TarError):
            decompress_block(compression, bomb, 1000, first=True)
        assert tracemalloc.get_traced_memory()[1] < MIB
    finally:
        tracemalloc.stop()


# --------------------------------------------------------------------------------------------------------------- damage


def shard_of(compression):
    """A small shard that is one member, so that no cut of it is a shard too."""
    return whole(compression, [mixed(900, 1), mixed(900, 2)] if compression == "gzip" else [mixed(1800, 1)])


def read_until_error(stream):
    found = b""
    try:
        while part := stream.read(64):
            found += part
    except TarError as error:
        return found, error
    return found, None


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_a_shard_cut_anywhere_is_an_error_with_the_place(compression):
    shard = shard_of(compression)
    plain = ORACLE[compression](shard)
    for length in range(len(shard)):
        found, error = read_until_error(decompressed(io.BytesIO(shard[:length]), compression))
        assert isinstance(error, TruncatedError)
        assert error.offset == length
        assert plain.startswith(found)


def test_zstd_frames_cut_between_two_give_whole_blocks_only():
    blocks = [mixed(2000, seed) for seed in range(4)]
    stored, _ = packed("zstd", blocks)
    assert unpacked(b"".join(stored[:3]), "zstd") == b"".join(
        blocks[:3]
    )  # no tar without its end marker, so the scan sees
    with pytest.raises(TruncatedError):
        unpacked(b"".join(stored)[:-1], "zstd")


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_no_flipped_bit_changes_what_is_read(compression):
    shard = shard_of(compression)
    plain, unnoticed = ORACLE[compression](shard), 0
    for bit in range(len(shard) * 8):
        damaged = bytearray(shard)
        damaged[bit // 8] ^= 1 << bit % 8
        found, error = read_until_error(decompressed(io.BytesIO(damaged), compression))
        if error is None:
            assert found == plain
            unnoticed += 1
        else:
            assert error.offset is not None
    # What no checksum covers is no data: gzip's time, flags and system (52 bits), filling, needless room.
    assert unnoticed <= {"gzip": 52 + 40, "bz2": 16, "xz": 0, "zstd": 8}[compression]


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("rest", [b"?", b"garbage, and not little of it", b"\0\0\0?", bytes(600_000) + b"?"])
def test_data_after_the_end_is_an_error_with_the_place(compression, rest):
    good = PEER[compression](b"a tar")
    with pytest.raises(TarError) as caught:
        unpacked(good + rest, compression)
    assert caught.value.offset is not None
    assert caught.value.offset >= len(good)


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_damage_deep_in_a_large_shard_is_placed_within_a_piece(compression):
    good = PEER[compression](random.Random(0).randbytes(3 * MIB))
    at = 2 * MIB
    damaged = good[:at] + bytes(byte ^ 0xFF for byte in good[at : at + 64]) + good[at + 64 :]
    with pytest.raises(TarError) as caught:
        unpacked(damaged, compression)
    assert caught.value.offset > MIB


def test_a_frame_that_does_not_end_with_its_last_block_is_refused():
    frame = bytearray(zstandard.ZstdCompressor(write_checksum=False).compress(mixed(500_000)))
    frame[9] |= 1  # the first block says it is the last
    with pytest.raises(TarError):
        unpacked(bytes(frame), "zstd")


def test_an_xz_header_that_asks_for_four_gigabytes_is_refused():
    data = bytearray(lzma.compress(b"a tar"))
    header = slice(12, 12 + (data[12] + 1) * 4)
    data[data.index(b"\x21\x01", 12) + 2] = 40  # the dictionary's size
    data[header.stop - 4 : header.stop] = struct.pack("<I", zlib.crc32(data[header.start : header.stop - 4]))
    with pytest.raises(TarError, match=r"[Mm]emory"):
        unpacked(bytes(data), "xz")


def test_a_zstd_window_over_its_limit_is_refused():
    parameters = zstandard.ZstdCompressionParameters(window_log=28)
    stream = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    with pytest.raises(TarError, match="memory"):
        unpacked(stream.compress(b"a tar") + stream.flush(), "zstd")


# --------------------------------------------------------------------------------------------------------------- memory


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_300_mb_of_zeros_are_read_in_a_few(compression):
    zeros = whole(compression, [bytes(30 * MIB)] * 10, None if compression in SEEKABLE else 1)
    assert len(zeros) < 2 * MIB
    tracemalloc.start()
    try:
        stream = decompressed(io.BytesIO(zeros), compression)
        assert sum(len(part) for part in iter(lambda: stream.read(16 * MIB), b"")) == 300 * MIB
        assert tracemalloc.get_traced_memory()[1] < 8 * MIB
    finally:
        tracemalloc.stop()


# --------------------------------------------------------------------------------------------------------- open objects


def test_an_object_is_read_in_ranges_from_start_to_end(tmp_path):
    data = mixed(20 * MIB)
    reader = stored_object(tmp_path / "a.tar", data)
    assert read_all(reader_stream(reader), 3 * MIB + 1) == data
    reader.close()


def test_an_object_that_shrinks_while_it_is_read_is_an_error(tmp_path):
    path = tmp_path / "a.tar"
    reader = stored_object(path, bytes(20 * MIB))
    stream = reader_stream(reader)
    assert len(stream.read(9 * MIB)) == 8 * MIB
    os.truncate(path, 10 * MIB)
    with pytest.raises(TruncatedError, match="shrank") as caught:
        read_all(stream)
    assert caught.value.shard == str(path)
    reader.close()


def test_a_stream_that_is_not_ready_is_an_error_and_no_end():
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    os.write(writing, gzip.compress(b"a tar")[:12])
    with open(reading, "rb", buffering=0) as pipe, pytest.raises(StoreError, match="non-blocking"):
        read_all(decompressed(pipe, "gzip"))
    os.close(writing)


def stored_object(path, data):
    path.write_bytes(data)
    return LocalStore().open(str(path))


# ------------------------------------------------------------------------------------------------------ unpacked copies


def unpacked_files(folder):
    return sorted(path for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_a_compressed_tar_is_unpacked_once(compression, tmp_path):
    data = mixed(3 * MIB)
    reader = stored_object(tmp_path / "a.tar", PEER[compression](data[:MIB]) + PEER[compression](data[MIB:]))
    path = unpacked_cache(reader, compression, str(tmp_path / "cache"))
    assert Path(path).read_bytes() == data
    made = os.stat(path)
    again = unpacked_cache(reader, compression, str(tmp_path / "cache"))
    assert (again, os.stat(again).st_ino, os.stat(again).st_mtime_ns) == (path, made.st_ino, made.st_mtime_ns)
    assert [str(file) for file in unpacked_files(tmp_path / "cache")] == [path]
    reader.close()


def test_a_tar_that_changed_is_unpacked_again(tmp_path):
    store, found = MemoryStore(), []
    for content in (b"a" * 99, b"b" * 9999):
        store.write_all("memory://a.tar", gzip.compress(content, mtime=0))
        found.append(Path(unpacked_cache(store.open("memory://a.tar"), "gzip", str(tmp_path))).read_bytes())
    assert found == [b"a" * 99, b"b" * 9999]


def test_two_objects_with_the_same_name_size_and_version_are_told_apart(tmp_path):
    """A memory store counts its versions from 1 in each process, and a copied file may keep its time."""
    found = []
    for content in (b"a" * 99, b"b" * 99):
        store = MemoryStore()
        store.write_all("memory://a.tar", gzip.compress(content, mtime=0))
        found.append(Path(unpacked_cache(store.open("memory://a.tar"), "gzip", str(tmp_path))).read_bytes())
    assert found == [b"a" * 99, b"b" * 99]


def test_a_relative_path_means_another_file_in_another_folder(tmp_path, monkeypatch):
    paths = set()
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        monkeypatch.chdir(tmp_path / folder)
        (tmp_path / folder / "a.tar").write_bytes(gzip.compress(b"the same", mtime=0))
        os.utime("a.tar", ns=(0, 0))
        reader = LocalStore().open("a.tar")
        paths.add(unpacked_cache(reader, "gzip", str(tmp_path / "cache")))
        reader.close()
    assert len(paths) == 2


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_a_damaged_tar_leaves_nothing_in_the_cache_and_names_the_shard(compression, tmp_path):
    good = PEER[compression](random.Random(1).randbytes(3 * MIB))
    reader = stored_object(tmp_path / "a.tar", good[:-20])
    with pytest.raises(TruncatedError) as caught:
        unpacked_cache(reader, compression, str(tmp_path / "cache"))
    assert (caught.value.shard, caught.value.offset) == (str(tmp_path / "a.tar"), len(good) - 20)
    assert unpacked_files(tmp_path / "cache") == []
    reader.close()


def test_a_bomb_is_refused_and_leaves_nothing(tmp_path):
    reader = stored_object(tmp_path / "a.tar", whole("zstd", [bytes(10 * MIB)] * 7))
    with pytest.raises(TarError, match=f"at most {64 * MIB} bytes.*decompress it first") as caught:
        unpacked_cache(reader, "zstd", str(tmp_path / "cache"))
    assert caught.value.shard == str(tmp_path / "a.tar")
    assert unpacked_files(tmp_path / "cache") == []
    path = unpacked_cache(reader, "zstd", str(tmp_path / "cache"), most_bytes=70 * MIB)
    assert os.path.getsize(path) == 70 * MIB
    reader.close()


def test_most_bytes_is_the_most_and_not_one_less(tmp_path):
    reader = stored_object(tmp_path / "a.tar", gzip.compress(bytes(5000)))
    with pytest.raises(TarError):
        unpacked_cache(reader, "gzip", str(tmp_path / "cache"), most_bytes=4999)
    assert os.path.getsize(unpacked_cache(reader, "gzip", str(tmp_path / "cache"), most_bytes=5000)) == 5000
    reader.close()


def test_a_large_tar_may_unpack_to_200_times_its_size():
    assert _compression._max_unpacked_bytes(10 * MIB) == 2000 * MIB
    assert _compression._max_unpacked_bytes(10) == 64 * MIB


def test_a_disk_without_room_is_said_so(tmp_path, monkeypatch):
    free = _compression.shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(_compression.shutil, "disk_usage", lambda folder: free)
    reader = stored_object(tmp_path / "a.tar", gzip.compress(bytes(5000)))
    with pytest.raises(StoreError, match="SHOAL_CACHE"):
        unpacked_cache(reader, "gzip", str(tmp_path / "cache"))
    assert unpacked_files(tmp_path / "cache") == []
    reader.close()


def test_a_cache_that_cannot_be_made_is_a_store_error(tmp_path):
    (tmp_path / "file").write_bytes(b"in the way")
    reader = stored_object(tmp_path / "a.tar", gzip.compress(b"a tar"))
    with pytest.raises(StoreError, match="SHOAL_CACHE"):
        unpacked_cache(reader, "gzip", str(tmp_path / "file"))
    reader.close()


# ------------------------------------------------------------------------------------------------------- missing extras


def test_zstd_without_its_package_names_the_extra(monkeypatch):
    frame = zstd_stream(b"a block")
    monkeypatch.setitem(sys.modules, "zstandard", None)
    assert sniff(frame) == "zstd"
    for attempt in (
        lambda: BlockCompressor("zstd"),
        lambda: decompressed(io.BytesIO(frame), "zstd"),
        lambda: decompress_block("zstd", frame, 7, first=True),
    ):
        with pytest.raises(MissingExtraError, match=r"shoal\[zstd\]"):
            attempt()


def test_the_other_compressions_need_no_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "zstandard", None)
    for compression in ("gzip", "bz2", "xz"):
        assert unpacked(whole(compression, [b"a block"]), compression) == b"a block"
