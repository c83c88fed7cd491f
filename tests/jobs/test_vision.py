"""What img2dataset writes, trained on by ranks that crash: compared with tarfile, json, pyarrow and PIL."""

from __future__ import annotations

import collections
import hashlib
import io
import json
import tarfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from tests.jobs.running import run, run_json
from tests.ports import free_port

import shoal
from shoal.build import repair

CAPTIONS = {
    "en": "a cat",
    "de": "eine Katze überm Stuhl",
    "ja": "マットの上の猫",
    "ar": "قطة",
    "x": '🐱 "it\'s"\nand more',
}
GLOBAL_BATCH = 12


def write_img2dataset(folder, shards=3, urls=20, seed=0):
    """A tar of jpg, json and perhaps txt for what was downloaded; beside it a Parquet file of all rows, and counts."""
    rng = np.random.default_rng(seed)
    folder.mkdir()
    for shard in range(shards):
        rows = [write_row(f"{shard:05d}{number:04d}", number, rng) for number in range(urls)]
        with tarfile.open(folder / f"{shard:05d}.tar", "w") as tar:
            for row, jpg in rows:
                if jpg is None:
                    continue
                document = json.dumps(row, ensure_ascii=row["lang"] != "ja", indent=4).encode()
                text = None if row["caption"] is None else row["caption"].encode()
                for field, data in (("jpg", jpg), ("txt", text), ("json", document)):
                    if data is not None:
                        member = tarfile.TarInfo(f"{row['key']}.{field}")
                        member.size = len(data)
                        tar.addfile(member, io.BytesIO(data))
        scored = [{**row, "score": float(rng.random())} for row, _ in rows]
        pq.write_table(pa.Table.from_pylist(scored), folder / f"{shard:05d}.parquet")
        successes = sum(jpg is not None for _, jpg in rows)
        counts = {"count": urls, "successes": successes, "failed_to_download": urls - successes}
        (folder / f"{shard:05d}_stats.json").write_text(json.dumps(counts))


def write_row(key, number, rng):
    jpg = io.BytesIO()
    Image.fromarray(rng.integers(0, 256, (24, 24, 3), dtype=np.uint8)).save(jpg, "JPEG", quality=90)
    lang = list(CAPTIONS)[rng.integers(len(CAPTIONS))]
    row = {"key": key, "url": f"https://example.org/{key}.jpg", "lang": lang, "status": "success"}
    row["caption"] = None if number % 7 == 3 else f"{CAPTIONS[lang]} {key}"
    row |= {"error_message": None, "width": 24, "height": 24, "original_width": int(rng.integers(100, 2000))}
    row |= {
        "similarity": float(rng.random()) if number % 3 else None,
        "sha256": hashlib.sha256(jpg.getvalue()).hexdigest(),
    }
    if number % 5 == 4:
        gone = dict.fromkeys(("width", "height", "original_width", "sha256"))
        return {**row, "status": "failed_to_download", "error_message": "HTTP Error 404: Not Found", **gone}, None
    return row, jpg.getvalue()


def read_tars(folder):
    """Each sample as it is in the tars: its fields' bytes by key."""
    samples = collections.defaultdict(dict)
    for path in sorted(folder.glob("*.tar")):
        with tarfile.open(path) as tar:
            for member in tar:
                key, _, field = member.name.partition(".")
                samples[key][field] = tar.extractfile(member).read()
    return dict(samples)


def read_seen(run, crashes):
    """What all ranks saw at each step, without the steps that were done again after a crash."""
    steps = collections.defaultdict(list)
    for path in sorted(run.glob("seen-*.jsonl")):
        start = int(path.stem.split("-")[1])
        stop = min((crash for crash in crashes if crash > start), default=1 << 30)
        for row in map(json.loads, path.read_text().splitlines()):
            if row["step"] <= stop:
                steps[row["step"]].append(row)
    return [steps[step] for step in sorted(steps)]


def test_ranks_crash_and_go_on_as_others(tmp_path):
    write_img2dataset(tmp_path / "laion")
    (tmp_path / "run").mkdir()
    samples = read_tars(tmp_path / "laion")
    metas = {key: json.loads(sample["json"]) for key, sample in samples.items()}
    rows = pa.concat_tables(map(pq.read_table, sorted((tmp_path / "laion").glob("*.parquet")))).to_pylist()
    scores = {row["key"]: row["score"] for row in rows}

    # Two ranks die in the step after an epoch's end was saved, three in the midst of the next epoch, two do the rest.
    where = {"MASTER_ADDR": "127.0.0.1", "cwd": tmp_path}
    run("vision.py", "laion", "run", 2, 5, code=1, MASTER_PORT=str(free_port()), **where)
    run("vision.py", "laion", "run", 3, 7, code=1, MASTER_PORT=str(free_port()), **where)
    looked = run_json("vision.py", "laion", "run", 2, MASTER_PORT=str(free_port()), **where)

    texts = {key: sample["txt"].decode() if "txt" in sample else None for key, sample in samples.items()}
    assert looked["len"] == len(samples) == sum(row["status"] == "success" for row in rows)
    assert looked["keys"] == list(samples)
    assert looked["fields"] == ["jpg", "json", "txt"]
    assert looked["captions"] == texts == {key: meta["caption"] for key, meta in metas.items()}
    expected = {
        "all": metas,
        "no caption": [key for key, meta in metas.items() if meta["caption"] is None],
        "no text": [key for key, text in texts.items() if text is None],
        "german": [key for key, text in texts.items() if text and "Katze" in text],
        "japanese": [key for key, text in texts.items() if text and "猫" in text],
        "no cat emoji": [key for key, text in texts.items() if text and "🐱" not in text],
        "large": [key for key, meta in metas.items() if meta["original_width"] >= 1000],
        "not similar": [
            key for key, meta in metas.items() if meta["similarity"] is not None and meta["similarity"] <= 0.5
        ],
    }
    assert looked["where"] == {name: list(keys) for name, keys in expected.items()}
    assert all(0 < len(keys) < len(samples) for name, keys in expected.items() if name != "all")
    assert looked["failed"] == [row["key"] for row in rows if row["status"] == "failed_to_download"]
    assert looked["scores"] == [[key, scores[key]] for key in samples]
    assert looked["high"] == [key for key in samples if scores[key] > 0.5 and metas[key]["original_width"] < 1000]

    chosen = {key for key, meta in metas.items() if meta["original_width"] >= 400}
    pixels = {key: int(np.asarray(Image.open(io.BytesIO(samples[key]["jpg"]))).sum(dtype=np.int64)) for key in chosen}
    assert all(len(chosen) % number for number in (2, 3, GLOBAL_BATCH))  # so that ends of epochs need filling
    steps = read_seen(tmp_path / "run", crashes=[4, 6])
    per_epoch = -(-len(chosen) // GLOBAL_BATCH)
    assert [len(ranks) for ranks in steps] == [2] * 4 + [3] * 2 + [2] * (2 * per_epoch - 6)
    total = 0
    for ranks in steps:
        assert len({len(rank["keys"]) for rank in ranks}) == 1  # equal batches, or gradients would be wrong
        assert all(rank["sums"] == [pixels[key] for key in rank["keys"]] for rank in ranks)
        total += sum(sum(rank["sums"]) for rank in ranks)
        assert {rank["total"] for rank in ranks} == {total}
    for epoch in range(2):
        seen = [key for ranks in steps for rank in ranks if rank["epoch"] == epoch for key in rank["keys"]]
        counts = collections.Counter(seen)
        assert set(counts) == chosen
        assert len(seen) == 2 * -(-len(chosen) // 2)  # padded for the two ranks that end it

    # The order is the one that a single process has which never stops.
    images = shoal.Dataset(str(tmp_path / "laion")).where("original_width >= 400 and status = 'success'")
    whole = shoal.DataLoader(images, batch_size=GLOBAL_BATCH, shuffle=True, seed=3)
    orders = [batch["__key__"] for _ in range(2) for batch in whole]
    assert len(orders) == len(steps)
    for keys, ranks in zip(orders, steps, strict=True):
        together = [rank["keys"][place] for place in range(len(ranks[0]["keys"])) for rank in ranks]
        assert together[: len(keys)] == keys
    assert orders[:per_epoch] != orders[per_epoch:]


def test_a_tar_that_was_cut_is_an_error_or_costs_what_it_lost(tmp_path):
    write_img2dataset(tmp_path / "laion")
    samples = read_tars(tmp_path / "laion")
    path = tmp_path / "laion" / "00001.tar"
    with tarfile.open(path) as tar:
        cut = tar.getmember("000010008.jpg")
    path.write_bytes(path.read_bytes()[: cut.offset_data + cut.size // 2])
    left = {key: sample for key, sample in samples.items() if not "000010008" <= key < "00002"}
    assert 0 < len(left) < len(samples)

    strict = shoal.Dataset(str(tmp_path / "laion"), decode=False)
    for read in (len, list, lambda ds: ds.where("width > 0").keys(), lambda ds: list(shoal.DataLoader(ds))):
        with pytest.raises(shoal.TruncatedError) as caught:
            read(strict)
        assert caught.value.shard.endswith("00001.tar")

    tolerant = shoal.Dataset(str(tmp_path / "laion"), decode=False, on_error="skip")
    with pytest.warns(shoal.ShoalWarning, match="passed over 1 damaged place"):
        found = {
            sample["__key__"]: {field: sample[field] for field in sample if field[0] != "_"} for sample in tolerant
        }
    # The sample before the cut may be left out, since a member of it may be what is missing.
    assert set(left) - set(found) <= {"000010007"}
    assert found == {key: left[key] for key in found}
    assert tolerant.errors.count == 1

    done = repair(str(tmp_path / "laion"), output=str(tmp_path / "whole"))
    assert done.saved == len(left)
    assert read_tars(tmp_path / "whole") == left


def test_what_is_downloaded_later_is_there_after_refresh(tmp_path):
    write_img2dataset(tmp_path / "laion", shards=2)
    first = shoal.Dataset(str(tmp_path / "laion"))
    large = first.where("original_width >= 1000")
    assert len(first) == 32
    before = len(large)

    write_img2dataset(tmp_path / "later", shards=3, seed=5)
    for path in (tmp_path / "later").glob("00002*"):
        path.rename(tmp_path / "laion" / path.name)
    samples = read_tars(tmp_path / "laion")
    assert (len(first), len(large)) == (32, before)
    assert first.refresh().keys() == shoal.Dataset(str(tmp_path / "laion")).keys() == list(samples)
    widths = {key: json.loads(sample["json"])["original_width"] for key, sample in samples.items()}
    assert large.refresh().keys() == [key for key, width in widths.items() if width >= 1000]
