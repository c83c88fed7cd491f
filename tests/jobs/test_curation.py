"""Photographs cleaned without a rewrite: compared with tarfile, hashlib, PIL and counts in plain Python."""

from __future__ import annotations

import collections
import hashlib
import io
import json
import tarfile

import numpy as np
from PIL import Image
from tests.jobs.running import run_json

import shoal

PHOTOGRAPHERS = ["ada", "bo", "çelik", "dũng", "eve", "fay"]


def write_photos(folder, count=90, seed=0):
    rng = np.random.default_rng(seed)
    images = []
    with shoal.ShardWriter(f"{folder}/train-%06d.tar", max_samples=25) as writer:
        for number in range(count):
            width = int(rng.integers(16, 48))
            jpg = io.BytesIO()
            Image.fromarray(rng.integers(0, 256, (16, width, 3), dtype=np.uint8)).save(jpg, "JPEG")
            data = images[number - 7] if number % 13 == 12 else jpg.getvalue()
            if number in (20, 55):
                data = data[:40] if number == 20 else b"<html>not found</html>"
            images.append(data)
            meta = {"width": width, "photographer": PHOTOGRAPHERS[rng.integers(len(PHOTOGRAPHERS))]}
            meta["license"] = None if number % 10 == 6 else ["cc0", "private", "cc-by"][rng.integers(3)]
            writer.write({"__key__": f"p{number:03d}", "jpg": data, "json": meta})


def read_photos(folder):
    samples = collections.defaultdict(dict)
    for path in sorted(folder.glob("*.tar")):
        with tarfile.open(path) as tar:
            for member in tar:
                key, _, field = member.name.partition(".")
                samples[key][field] = tar.extractfile(member).read()
    return {key: {"jpg": sample["jpg"], **json.loads(sample["json"])} for key, sample in samples.items()}


def pixels_of(data):
    """The sum of an image's pixels, None where it is no image."""
    try:
        return int(np.asarray(Image.open(io.BytesIO(data)).convert("RGB")).sum())
    except OSError:
        return None


def test_what_is_deleted_is_gone_and_no_tar_is_touched(tmp_path):
    write_photos(tmp_path / "photos")
    photos = read_photos(tmp_path / "photos")
    tars = {path.name: hashlib.sha256(path.read_bytes()).digest() for path in (tmp_path / "photos").glob("*.tar")}
    found = run_json("curation.py", cwd=tmp_path)

    pixels = {key: pixels_of(photo["jpg"]) for key, photo in photos.items()}
    corrupt = [key for key, total in pixels.items() if total is None]
    assert found["corrupt"] == found["verified"] == corrupt == ["p020", "p055"]
    seen = collections.Counter()
    duplicates = [key for key, photo in photos.items() if (seen.update([photo["jpg"]]), seen[photo["jpg"]])[1] > 1]
    assert found["duplicates"] == duplicates
    assert len(duplicates) >= 5
    private = [key for key, photo in photos.items() if photo["license"] in (None, "private")]
    assert found["private"] == private

    reasons = (
        dict.fromkeys(private, "private") | dict.fromkeys(duplicates, "duplicate") | dict.fromkeys(corrupt, "corrupt")
    )
    clean = {key: photo for key, photo in photos.items() if key not in reasons}
    assert found["clean"] == found["again"] == list(clean)
    assert found["everything"] == len(photos)
    assert sorted(found["tombstones"]) == sorted([key, reason] for key, reason in reasons.items())
    for name, digest in tars.items():
        assert hashlib.sha256((tmp_path / "photos" / name).read_bytes()).digest() == digest

    assert found["pixels"] == found["loaded"] == {key: pixels[key] for key in clean}
    wide = [key for key, photo in clean.items() if photo["width"] >= 30 and photo["photographer"] in ("ada", "bo")]
    assert found["large"] == wide
    groups = collections.defaultdict(list)
    for photo in clean.values():
        groups[photo["photographer"]].append(photo["width"])
    table = [{"photographer": name, "photos": len(some), "widest": max(some)} for name, some in sorted(groups.items())]
    assert found["sql"] == table
    assert found["unique"] == list(dict.fromkeys(photo["photographer"] for photo in clean.values()))
    assert (found["info"]["samples"], found["info"]["tombstones"]) == (len(photos), len(reasons))
    assert found["top"] == max(clean, key=lambda key: clean[key]["width"])

    owners = {name: {clean[key]["photographer"] for key in keys} for name, keys in found["splits"].items()}
    assert sorted(key for keys in found["splits"].values() for key in keys) == sorted(clean)
    assert sum(map(len, owners.values())) == len(set.union(*owners.values()))  # nobody is in two splits
    assert len([keys for keys in found["splits"].values() if keys]) >= 2

    restored = [key for key in photos if key in clean or key == duplicates[0]]
    assert found["restored"] == restored
    assert found["grown"] == [*restored, "later"]
    for name, keys in found["splits"].items():
        assert set(keys) <= set(found["kept splits"][name])
    assert len(shoal.Dataset(str(tmp_path / "photos"))) == len(restored) + 1
