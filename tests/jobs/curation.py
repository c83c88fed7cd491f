"""Clean a dataset of photographs without rewriting it: corrupt images, duplicates, private ones; then splits.

``python curation.py`` works on ``photos/`` and prints what it decided.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys

import shoal
from shoal.build import verify

SHARES = {"train": 0.7, "validation": 0.15, "test": 0.15}


def digests(samples: list[dict]) -> dict[str, str]:
    """The sha256 of each image."""
    return {sample["__key__"]: hashlib.sha256(sample["jpg"]).hexdigest() for sample in samples}


def command(*arguments: str) -> dict:
    """What the shoal command says, as a value."""
    done = subprocess.run([sys.executable, "-m", "shoal", *arguments, "--json"], capture_output=True, check=False)
    return json.loads(done.stdout)


def find_corrupt(photos: shoal.Dataset) -> list[str]:
    """The keys of images that cannot be decoded, one by one."""
    corrupt = []
    decoded = photos.decode("rgb8", only="jpg").columns(["jpg"])
    for position, key in enumerate(photos.keys()):
        try:
            decoded[position]
        except shoal.DecodeError:
            corrupt.append(key)
    return corrupt


def find_duplicates(photos: shoal.Dataset) -> list[str]:
    """All but the first image of those that have the same bytes."""
    first, duplicates = {}, []
    report = photos.columns(["jpg"]).process_shards(digests, checkpoint="digests.jsonl")
    for found in report.results.values():
        for key, digest in found.items():
            if first.setdefault(digest, key) != key:
                duplicates.append(key)
    return duplicates


def main() -> dict:
    photos = shoal.Dataset("photos")
    corrupt, duplicates = find_corrupt(photos), find_duplicates(photos)
    checked = verify("photos", decode=True)
    private = photos.where("license is null or license = 'private'")
    clean = photos.tombstone(corrupt, reason="corrupt").tombstone(duplicates, reason="duplicate")
    clean = clean.tombstone(clean.where("license is null or license = 'private'"), reason="private")
    again = shoal.Dataset("photos")
    splits = again.split(SHARES, by="photographer", seed=1)
    decoded = again.decode("rgb8", only="jpg")
    pixels = {sample["__key__"]: int(sample["jpg"].sum()) for sample in decoded}
    loaded = {}
    for batch in decoded.loader(batch_size=8, shuffle=True):
        loaded |= {key: int(image.sum()) for key, image in zip(batch["__key__"], batch["jpg"], strict=True)}
    large = again.where("width >= 30 and photographer in ('ada', 'bo')")
    sql = again.sql("select photographer, count(*) as photos, max(width) as widest from ds group by 1 order by 1")
    report = {
        "corrupt": corrupt,
        "duplicates": duplicates,
        "verified": sorted({finding.key for finding in checked.findings if finding.severity == "error"}),
        "private": private.keys(),
        "clean": clean.keys(),
        "again": again.keys(),
        "everything": len(shoal.Dataset("photos", tombstones=False)),
        "tombstones": [[stone.key, stone.reason] for stone in again.tombstones],
        "splits": {name: part.keys() for name, part in splits.items()},
        "pixels": pixels,
        "loaded": loaded,
        "large": large.keys(),
        "sql": sql.to_pylist(),
        "top": again.sort("width", reverse=True).head(3)[0]["__key__"],
        "unique": again.unique("photographer"),
        "info": command("info", "photos"),
    }
    restored = again.restore(duplicates[:1])
    report["restored"] = restored.keys()
    report["grown"] = restored.append([{"__key__": "later", "jpg": b"...", "json": {"width": 50}}]).keys()
    report["kept splits"] = {
        name: part.keys() for name, part in restored.split(SHARES, by="photographer", seed=1).items()
    }
    return report


if __name__ == "__main__":
    print(json.dumps(main(), default=str))
