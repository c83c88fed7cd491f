"""verify finds every kind of damage, all of it, and says where."""

from __future__ import annotations

import io
import random
import tarfile
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.shard.archives import END
from tests.shard.archives import plain as member

from shoal.codec import decode_spec, decoders
from shoal.errors import StoreError
from shoal.shard import (
    FieldExtents,
    KeyRule,
    ShardWriter,
    VerifyOptions,
    index_shard,
    load_index,
    load_manifest,
    save_index,
    verify_dataset,
    verify_shard,
    with_hashes,
)
from shoal.shard._journal import commit
from shoal.shard._stored_rows import index_url
from shoal.store import MemoryStore, register_store, store_for

COMPRESSIONS = [None, "gzip", "bz2", "xz", "zstd"]
counter = iter(range(1_000_000))


def written(samples: int = 3, compression: str | None = None, **options) -> tuple[str, object]:
    """A new shard in memory, and its index."""
    root = f"memory://verify/{next(counter)}"
    with ShardWriter(f"{root}/a.tar", compression=compression, **options) as writer:
        for number in range(samples):
            writer.write(
                {"__key__": f"k{number}", "bin": random.Random(number).randbytes(700), "txt": f"text {number}"}
            )
    return f"{root}/a.tar", load_index(index_url(root, "a.tar"))


def stored(url: str) -> bytes:
    return store_for(url).read_all(url)


def put(url: str, data: bytes) -> None:
    store_for(url).write_all(url, bytes(data))


def flipped(data: bytes, bit: int) -> bytes:
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def found(report) -> list[tuple[str, str | None, str | None]]:
    return [(each.kind, each.key, each.field) for each in report.problems]


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_a_sound_shard(compression):
    url, index = written(compression=compression)
    report = verify_shard(url, index)
    assert (report.ok, report.samples, report.members, report.notes) == (True, 3, 6, ())
    assert report.bytes == len(stored(url))
    alone = verify_shard(url)
    assert (alone.ok, alone.samples, alone.members, len(alone.notes)) == (True, 3, 6, 1)


@pytest.mark.parametrize("compression", ["gzip", "bz2", "xz", "zstd"])
def test_every_flipped_bit_of_a_compressed_shard_is_found(compression):
    root = f"memory://verify/{next(counter)}"
    with ShardWriter(f"{root}/a.tar", compression=compression) as writer:
        writer.write({"__key__": "k", "txt": "hello"})
    url, index = f"{root}/a.tar", load_index(index_url(root, "a.tar"))
    data = stored(url)
    missed = []
    for bit in range(8 * len(data)):
        put(url, flipped(data, bit))
        missed += [bit] if verify_shard(url, index).ok else []
    assert missed == []


def test_every_flipped_bit_of_a_member_its_headers_and_its_padding_is_found_at_its_place():
    url, index = written()
    data = stored(url)
    # the second sample's txt: a header, six bytes of data, padding
    offset = int(index.fields["txt"].offset[1])
    for bit in range(8 * (offset - 512), 8 * (offset + 512), 3):
        put(url, flipped(data, bit))
        report = verify_shard(url, index)
        place = bit // 8 - offset
        if 0 <= place < 6:
            assert found(report) == [("data", "k1", "txt")]
            assert report.problems[0].offset == offset
        elif place >= 6:
            assert found(report) == [("filler", None, None)]
        else:  # the last bytes of the checksum's own field are in no checksum but the block's
            assert found(report) in ([("header", "k1", "txt")], [("filler", None, None)])
        assert report.samples == 3


@settings(max_examples=60)
@given(bit=st.integers(0, 8 * 30720 - 1))
def test_any_flipped_bit_of_a_plain_shard_is_found(bit):
    url, index = written(9)
    data = stored(url)
    assert len(data) == 30720
    put(url, flipped(data, bit))
    assert not verify_shard(url, index).ok


@settings(max_examples=60)
@given(bits=st.sets(st.integers(0, 8), min_size=1, max_size=9))
def test_all_damage_is_found_not_only_the_first(bits):
    url, index = written(9)
    data = bytearray(stored(url))
    for row in bits:
        data[int(index.fields["bin"].offset[row]) + 17] ^= 4
    put(url, data)
    assert found(verify_shard(url, index)) == [("data", f"k{row}", "bin") for row in sorted(bits)]


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_a_shard_that_was_cut_loses_samples_by_name(compression):
    url, index = written(40, compression)
    data = stored(url)
    put(url, data[: len(data) // 2])
    report = verify_shard(url, index)
    assert report.problems[0].kind == "index"
    lost = {each.key for each in report.problems if each.kind in ("missing", "header")}
    assert "k39" in lost
    assert report.samples + len(lost) >= 40


def test_every_cut_of_a_plain_shard_is_found():
    url, index = written()
    data = stored(url)
    for length in range(0, len(data), 61):
        put(url, data[:length])
        assert not verify_shard(url, index).ok, length


@pytest.mark.parametrize("compression", ["gzip", "zstd"])
def test_one_damaged_block_of_a_seekable_shard_costs_no_other_block(compression):
    url, index = written(2000, compression)
    blocks = index.blocks
    assert len(blocks) > 3
    middle = int(blocks.stored[1] + blocks.stored[2]) // 2
    data = bytearray(stored(url))
    data[middle : middle + 8] = bytes(each ^ 255 for each in data[middle : middle + 8])
    put(url, data)
    report = verify_shard(url, index)
    first, last = (int(row) for row in blocks.rows[1:3])
    damaged = {int(each.key[1:]) for each in report.problems if each.key}
    assert damaged
    assert damaged <= set(range(first, last))
    assert report.samples >= 2000 - (last - first)


def test_a_stale_index_is_one_problem():
    url, index = written(3)
    other, _ = written(7)
    put(url, stored(other)[512:])
    report = verify_shard(url, index)
    assert [each.kind for each in report.problems if each.kind == "index"] == ["index"]
    put(url, b"".join([member("other.txt", b"x"), END]))
    assert found(verify_shard(url, index)) == [("index", None, None)]


def test_members_that_are_missing_extra_or_different():
    root = f"memory://verify/{next(counter)}"
    url = f"{root}/a.tar"
    put(url, member("a.txt", b"one") + member("a.cls", b"1") + member("b.txt", b"two") + member("c.txt", b"3") + END)
    index = index_shard(store_for(url).open(url))
    put(url, member("a.txt", b"one") + member("x.cls", b"1") + member("b.txt", b"twoo") + member("c.txt", b"4") + END)
    assert found(verify_shard(url, index)) == [("name", "a", "cls"), ("size", "b", "txt"), ("data", "c", "txt")]
    assert verify_shard(url, index).problems[0].found == "x.cls"
    put(url, member("a.txt", b"one") + END + bytes(3072))
    report = verify_shard(url, index)
    assert [(each.kind, each.key, each.field) for each in report.problems] == [
        ("missing", "a", "cls"),
        ("missing", "b", None),
        ("missing", "c", None),
    ]
    put(
        url,
        member("a.txt", b"one")
        + member("a.cls", b"1")
        + member("b.txt", b"two")
        + member("c.txt", b"3")
        + member("d.txt", b"4")
        + END,
    )
    assert ("extra", "d", "txt") in found(verify_shard(url, index))


def test_an_index_that_lies():
    url, index = written()
    wrong = index.fields["txt"].size.copy()
    wrong[1] += 1
    fields = {**index.fields, "txt": FieldExtents(index.fields["txt"].offset, wrong, index.fields["txt"].crc)}
    assert found(verify_shard(url, replace(index, fields=fields))) == [("size", "k1", "txt")]
    moved = index.fields["txt"].offset.copy()
    moved[2] += 512
    fields = {**index.fields, "txt": FieldExtents(moved, index.fields["txt"].size, index.fields["txt"].crc)}
    assert set(found(verify_shard(url, replace(index, fields=fields)))) == {
        ("missing", "k2", "txt"),
        ("extra", "k2", "txt"),
    }


def test_an_index_without_checksums_still_has_names_and_sizes():
    url, index = written()
    fields = {name: FieldExtents(part.offset, part.size, None) for name, part in index.fields.items()}
    index = replace(index, fields=fields, blocks=None)
    report = verify_shard(url, index)
    assert report.ok
    assert "no checksums" in report.notes[0].problem


def test_a_tar_in_a_tar_is_not_taken_for_members():
    inner = member("inner.txt", b"inside") * 3 + END
    url = f"memory://verify/{next(counter)}/a.tar"
    data = member("a.tar", inner) + member("b.txt", b"after") + END
    put(url, data)
    index = index_shard(store_for(url).open(url))
    put(url, flipped(data, 8))  # the outer header
    assert ("header", "a", "tar") in found(verify_shard(url, index))
    assert not [each for each in found(verify_shard(url, index)) if each[0] == "extra"]


def test_duplicates_and_keys_that_come_back():
    url = f"memory://verify/{next(counter)}/a.tar"
    put(url, member("a.txt", b"1") + member("a.TXT", b"2") + member("b.txt", b"3") + member("a.txt", b"4") + END)
    report = verify_shard(url)
    assert found(report) == [("duplicate", "a", "txt")]
    assert any("come back" in note.problem for note in report.notes)
    put(url, member("a.txt", b"1") + member("b.txt", b"3") + member("a.txt", b"4") + END)
    assert found(verify_shard(url)) == []
    put(url, member("a.txt", b"1") + member("b.txt", b"3") + member("a.cls", b"4") + END)
    assert (found(verify_shard(url)), verify_shard(url).samples) == ([], 2)


def test_a_missing_end_is_a_problem_and_members_that_are_no_files_are_notes():
    url = f"memory://verify/{next(counter)}/a.tar"
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        link = tarfile.TarInfo("link.txt")
        link.type = tarfile.SYMTYPE
        link.linkname = "a.txt"
        tar.addfile(link)
    put(url, member("a.txt", b"1") + buffer.getvalue()[:512])
    report = verify_shard(url)
    (problem,) = report.problems
    assert "without an end marker" in problem.problem
    assert any("symbolic link" in note.problem for note in report.notes)


def test_flattened_folders_that_merge_samples():
    url = f"memory://verify/{next(counter)}/a.tar"
    put(url, member("x/a.txt", b"1") + member("y/a.txt", b"2") + END)
    report = verify_shard(url, options=VerifyOptions(KeyRule(folders="flatten")))
    assert [each.kind for each in report.problems] == ["name"]


def test_what_is_no_tar():
    url = f"memory://verify/{next(counter)}/a.tar"
    put(url, b"plain text " * 200)
    assert [each.kind for each in verify_shard(url).problems] == ["header"]
    assert [each.kind for each in verify_shard("memory://verify/nothing.tar").problems] == ["shard"]
    put(url, b"")  # reads as an empty archive, and is far more often a failed download
    assert [each.kind for each in verify_shard(url).problems] == ["shard"]


class Worn(MemoryStore):
    """A disk with a bad sector."""

    def open(self, url):
        return WornReader(super().open(url))


class WornReader:
    def __init__(self, reader):
        self._reader = reader
        self.info = reader.info
        self.close = reader.close

    def read(self, start, stop):
        if stop > 4096:
            raise StoreError("input/output error", found=self.info.url)
        return self._reader.read(start, stop)


def test_a_disk_that_fails_is_a_problem_of_the_shard():
    register_store("worn", Worn())
    with ShardWriter("worn://a/x.tar") as writer:
        writer.write({"__key__": "a", "bin": bytes(9000)})
    report = verify_shard("worn://a/x.tar")
    assert [(each.kind, each.problem) for each in report.problems] == [("shard", "input/output error")]


def test_large_members_are_checked_in_parts(monkeypatch):
    monkeypatch.setattr("shoal.shard._verify._LARGE_BYTES", 600)
    url, index = written(4)
    assert verify_shard(url, index).ok
    data = bytearray(stored(url))
    data[int(index.fields["bin"].offset[2]) + 699] ^= 1
    put(url, data)
    assert found(verify_shard(url, index)) == [("data", "k2", "bin")]


def test_every_byte_is_told_of_once():
    for compression in COMPRESSIONS:
        url, index = written(50, compression)
        parts: list[int] = []
        verify_shard(url, index, VerifyOptions(on_bytes=parts.append))
        assert sum(parts) == len(stored(url))


def test_very_many_fields():
    root = f"memory://verify/{next(counter)}"
    with ShardWriter(f"{root}/a.tar") as writer:
        for number in range(300):
            writer.write({"__key__": f"k{number}", f"f{number}": b"x"})
    url, index = f"{root}/a.tar", load_index(index_url(root, "a.tar"))
    assert verify_shard(url, index).ok
    data = bytearray(stored(url))
    data[int(index.fields["f7"].offset[7])] ^= 1
    put(url, data)
    assert found(verify_shard(url, index)) == [("data", "k7", "f7")]


def test_decoding():
    root = f"memory://verify/{next(counter)}"
    with ShardWriter(f"{root}/a.tar") as writer:
        writer.write({"__key__": "good", "json": {"a": 1}, "npy": np.zeros(3)})
        writer.write({"__key__": "bad", "json": b"{", "npy": b"no array"})
    spec = decode_spec(True)
    options = VerifyOptions(decoders=lambda fields: decoders(spec, fields))
    assert found(verify_shard(f"{root}/a.tar", None, options)) == [("decode", "bad", "json"), ("decode", "bad", "npy")]


# --------------------------------------------------------------------------------------------------------- the dataset


def dataset() -> str:
    root = f"memory://verify/{next(counter)}"
    with ShardWriter(f"{root}/s-%06d.tar", max_samples=2) as writer:
        for number in range(5):
            writer.write({"__key__": f"k{number}", "txt": f"text {number}"})
    return root


def kinds(root: str, **options) -> dict[str, list[str]]:
    reports = verify_dataset(root, options=VerifyOptions(**options))
    return {report.url.rpartition("/")[2]: [each.kind for each in report.problems] for report in reports}


def test_a_sound_dataset():
    assert kinds(dataset()) == {"s-000000.tar": [], "s-000001.tar": [], "s-000002.tar": []}


def test_missing_shards_missing_indexes_and_unlisted_tars():
    root = dataset()
    store = store_for(root)
    put(f"{root}/extra.tar", stored(f"{root}/s-000000.tar"))
    store.delete(f"{root}/s-000000.tar")
    store.delete(index_url(root, "s-000001.tar"))
    put(index_url(root, "s-000002.tar"), b"no index")
    reports = list(verify_dataset(root))
    assert [[each.kind for each in report.problems] for report in reports] == [["shard"], ["index"], ["index"], []]
    assert [note.problem for note in reports[3].notes] == ["the manifest does not list this tar, so no reader sees it"]


def test_counts_against_the_manifest():
    root = dataset()
    manifest = load_manifest(root)
    records = tuple(replace(record, samples=9, bytes=1) for record in manifest.splits["train"])
    commit(root, lambda before: replace(manifest, splits={"train": records}))
    assert kinds(root) == {f"s-00000{number}.tar": ["manifest"] * 2 for number in range(3)}


def test_hashes():
    root = dataset()
    hashes = {
        report.url.rpartition("/")[2]: report.sha256
        for report in verify_dataset(root, options=VerifyOptions(hashed=True))
    }
    assert all(hashes.values())
    commit(root, lambda before: with_hashes(load_manifest(root), hashes))
    assert kinds(root, hashed=True)["s-000000.tar"] == []
    commit(root, lambda before: with_hashes(load_manifest(root), {"s-000000.tar": "0" * 64}))
    assert kinds(root, hashed=True)["s-000000.tar"] == ["hash"]
    assert kinds(root)["s-000000.tar"] == []


def test_a_problem_reads_as_errors_do():
    url, index = written()
    data = bytearray(stored(url))
    offset = int(index.fields["txt"].offset[1])
    data[offset] ^= 1
    put(url, data)
    text = str(verify_shard(url, index).problems[0])
    assert text.startswith("a member's bytes changed after they were written: expected crc32 ")
    assert text.endswith(f"(shard {url}, key k1, field txt, byte {offset})")
    save_index(index, f"{url}.copy")
    assert load_index(f"{url}.copy").facts == index.facts
