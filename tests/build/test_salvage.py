"""Of shards damaged at random, every sample whose bytes are whole is saved, and none is wrong."""

from __future__ import annotations

import io
import random
import tarfile

import pytest
from tests.build.damage import damaged, whole_keys
from tests.scale import times

import shoal
from shoal.build import repair
from shoal.shard import load_index, load_manifest, members_of, verify_dataset
from shoal.shard._stored_rows import index_url
from shoal.store import store_for

FIELDS = ("bin", "cls", "jpg", "json", "txt")


def written(root: str, luck: random.Random, compression: str | None = None, samples: int | None = None) -> dict:
    """A dataset of one shard; returns its samples."""
    fields = luck.sample(FIELDS, luck.randint(1, 3))
    stem = luck.choice(["", "folder/", "a-long-name-" * 9])
    kept = {}
    with shoal.ShardWriter(f"{root}/a-%06d.tar", compression=compression) as writer:
        for number in range(luck.randint(1, 24) if samples is None else samples):
            key = f"{stem}{number:04d}"
            kept[key] = {field: luck.randbytes(luck.choice([0, 1, 300, 512, 700, 5000])) for field in fields}
            writer.write({"__key__": key, **kept[key]})
    return kept


def entries_of(data: bytes, index) -> dict[str, list[bytes]]:
    """Every member with its headers, as it stands in the tar."""
    members = [(key, each) for row, key in enumerate(index.key_list(0, len(index))) for each in members_of(index, row)]
    members.sort(key=lambda pair: pair[1].offset)
    entries: dict[str, list[bytes]] = {}
    start = 0
    for key, member in members:
        stop = member.offset + member.size
        entries.setdefault(key, []).append(data[start:stop])
        start = -(-stop // 512) * 512
    return entries


def read_back(root: str) -> dict[str, dict[str, bytes]]:
    manifest = load_manifest(root)
    if not manifest.shards:
        return {}
    samples = list(shoal.Dataset(root, decode=False))
    return {
        sample["__key__"]: {name: value for name, value in sample.items() if not name.startswith("__")}
        for sample in samples
    }


@pytest.mark.parametrize("seed", range(times(60, 1000)))
def test_every_whole_sample_is_saved_and_none_is_wrong(seed):
    luck = random.Random(seed)
    root = f"memory://soak/{seed}"
    samples = written(root, luck)
    url = f"{root}/a-000000.tar"
    store = store_for(url)
    before, index = store.read_all(url), load_index(index_url(root, "a-000000.tar"))
    after = damaged(before, luck)
    store.write_all(url, after)
    whole = whole_keys(before, after, index, entries_of(before, index))

    done = repair(root)

    found = read_back(root)
    assert whole <= set(found)
    assert all(samples[key] == fields for key, fields in found.items())
    assert done.saved == len(found)
    assert done.saved + done.lost == len(samples)
    assert {lost.key for shard in done.shards for lost in shard.lost} == set(samples) - set(found)
    kept = done.shards[0].quarantine
    assert after == before or (done.shards[0].action != "sound" and store.read_all(kept) == after)
    assert all(report.ok for report in verify_dataset(root)) or not found
    again = repair(root)
    assert all(shard.action == "sound" for shard in again.shards)


@pytest.mark.parametrize("compression", ["gzip", "zstd"])
@pytest.mark.parametrize("seed", range(times(2, 100)))
def test_of_a_compressed_shard_every_block_that_is_whole_is_saved(seed, compression):
    luck = random.Random(seed)
    root = f"memory://soak-{compression}/{seed}"
    samples = written(root, luck, compression, samples=300)
    url = f"{root}/a-000000.tar"
    store = store_for(url)
    before, index = store.read_all(url), load_index(index_url(root, "a-000000.tar"))
    after = damaged(before, luck) if luck.random() < 0.5 else aimed(before, luck)
    store.write_all(url, after)
    whole = set()
    for number in range(len(index.blocks)):
        start, stop = index.blocks.stored[number : number + 2].tolist()
        if after[start:stop] == before[start:stop] and len(after) >= stop:
            first, last = index.blocks.rows[number : number + 2].tolist()
            whole.update(index.key_list(first, last))

    done = repair(root)

    found = read_back(root)
    assert whole <= set(found)
    assert all(samples[key] == fields for key, fields in found.items())
    assert done.saved + done.lost == len(samples)
    assert all(shard.action == "sound" for shard in repair(root).shards)
    assert load_manifest(root).shards == () or load_manifest(root).shards[0].compression == compression


def aimed(data: bytes, luck: random.Random) -> bytes:
    """One bit, so that most blocks stay whole."""
    changed = bytearray(data)
    changed[luck.randrange(len(data))] ^= 1 << luck.randrange(8)
    return bytes(changed)


@pytest.mark.parametrize("compression", ["bz2", "xz", "gzip"])
def test_of_a_stream_without_blocks_all_that_decompresses_is_saved(compression, tmp_path):
    luck = random.Random(7)
    with shoal.ShardWriter(tmp_path / "d" / "a-%06d.tar", compression=compression, level=1) as writer:
        for number in range(150):
            writer.write({"__key__": f"{number:04d}", "bin": luck.randbytes(5000)})
    path = tmp_path / "d" / "a-000000.tar"
    data = path.read_bytes()
    path.write_bytes(data[: len(data) * 2 // 3])
    for stored in (tmp_path / "d" / ".shoal").rglob("*"):
        if stored.is_file():
            stored.unlink()  # no manifest, no index: the tar speaks for itself
    done = repair(tmp_path / "d" / "a-000000.tar")
    assert done.shards[0].proof == "structure"
    again = random.Random(7)
    expected = {f"{number:04d}": again.randbytes(5000) for number in range(150)}
    found = {each["__key__"]: each["bin"] for each in shoal.Dataset(path)}
    assert len(found) > 70
    assert all(expected[key] == value for key, value in found.items())


def foreign(luck: random.Random, path, tar_format: int) -> dict[str, dict[str, bytes]]:
    """A tar by the standard library, which nobody indexed."""
    fields = luck.sample(FIELDS, luck.randint(1, 3))
    kept: dict[str, dict[str, bytes]] = {}
    with tarfile.open(path, "w", format=tar_format) as archive:
        for number in range(luck.randint(8, 30)):
            kept[f"k{number:04d}"] = {
                field: luck.randbytes(luck.choice([0, 1, 300, 512, 700, 5000])) for field in fields
            }
            for field, data in kept[f"k{number:04d}"].items():
                info = tarfile.TarInfo(f"k{number:04d}.{field}")
                info.size, info.mtime = len(data), 1.5  # in PAX, a header of its own, as webdataset's writer makes
                archive.addfile(info, io.BytesIO(data))
    return kept


def headers_of(data: bytes) -> list[int]:
    """Where members begin, their PAX headers included."""
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        return [member.offset for member in archive]


@pytest.mark.parametrize("tar_format", [tarfile.USTAR_FORMAT, tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
@pytest.mark.parametrize("seed", range(times(8, 300)))
def test_without_an_index_what_headers_can_tell_of_is_saved_and_not_wrong(seed, tar_format, tmp_path):
    """Damage that headers tell of: a cut, a lost part, headers that are zeroed or flipped or exchanged for others."""
    luck = random.Random(seed)
    path = tmp_path / "a.tar"
    samples = foreign(luck, path, tar_format)
    data = bytearray(path.read_bytes())
    starts, size = headers_of(bytes(data)), len(data)
    kind = luck.choice(["cut", "lost", "zeroed", "flipped"])
    # not among the last: of members that are gone as a whole, nothing would tell
    at = luck.choice([start for start in starts if start + 3000 < starts[-1]] or starts[:1])
    if kind == "cut":
        at = luck.randrange(1, starts[-1])
        del data[at:]
    elif kind == "lost":  # what follows is shifted; had a whole member gone, nothing would tell of it
        del data[at : at + luck.choice([100, 700, 3000])]
    elif kind == "zeroed":
        data[at : at + 512] = bytes(512)
    else:
        data[at + luck.randrange(100)] ^= 1
    path.write_bytes(data)

    done = repair(path)

    assert done.shards[0].proof == "structure"
    found = read_tar(path) if path.exists() else {}
    assert all(samples[key] == fields for key, fields in found.items())
    assert len(found) == done.saved
    if kind == "cut":
        sure = [key for key, end in ends_of(samples, starts, size).items() if end <= at]
        assert set(sure[:-1]) <= set(found)  # all but the last, whose fields may be the first of several
    else:
        hit = sum(at <= start < at + 3000 for start in starts)
        assert len(found) >= len(samples) - hit - 5  # those that it hit, the one before, and two on each side
    assert not found or all(shard.action == "sound" for shard in repair(path).shards)


def ends_of(samples: dict, starts: list[int], size: int) -> dict[str, int]:
    """Where each sample's bytes end."""
    ends, following = {}, iter([*starts[1:], size])
    for key, fields in samples.items():
        for _ in fields:
            ends[key] = next(following)
    return ends


def read_tar(path) -> dict[str, dict[str, bytes]]:
    found: dict[str, dict[str, bytes]] = {}
    with tarfile.open(path) as archive:
        for member in archive:
            key, _, field = member.name.partition(".")
            found.setdefault(key, {})[field] = archive.extractfile(member).read()
    return found
