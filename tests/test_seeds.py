"""The examples of the documents this package answers to, with only the import renamed."""

from __future__ import annotations

from glob import glob

import pytest


@pytest.fixture
def labeled_samples():
    return [
        {"image.jpg": b"\xff\xd8" + bytes([n % 256]) * 500, "label.txt": f"label {n}", "metadata": {"annotator": n % 3}}
        for n in range(2500)
    ]


def test_seed_000(tmp_path, monkeypatch, leaky_peer, labeled_samples):
    monkeypatch.chdir(tmp_path)
    shard_dir = "./shards"

    from shoal.shard import ShardingService

    # Initialize service
    shard_service = ShardingService(output_dir="./shards", shard_size=1000, compression="gzip")

    # Create shards from labeled data
    shard_paths = shard_service.create_shards_from_data(
        samples=labeled_samples, metadata={"dataset": "my_dataset", "split": "train"}
    )

    # Load shards in training code
    import webdataset as wds

    dataset = wds.WebDataset(sorted(glob(f"{shard_dir}/shard-*.tar")), shardshuffle=False)

    count = 0
    for sample in dataset:
        x = sample["image.jpg"]
        y = sample["label.txt"]
        assert x == labeled_samples[count]["image.jpg"]
        assert y == labeled_samples[count]["label.txt"].encode()
        count += 1
    assert count == 2500
    assert shard_paths == sorted(glob(f"{shard_dir}/shard-*.tar"))
    assert len(shard_paths) == 3


def test_seed_000_loaded_here(tmp_path, labeled_samples):
    import shoal

    shoal.ShardingService(tmp_path, compression="gzip").create_shards_from_data(labeled_samples, {"split": "train"})
    dataset = shoal.load_shards(tmp_path, split="train")
    assert len(dataset) == 2500
    assert dataset[2499]["label.txt"] == "label 2499"
    assert len(dataset.where("annotator = 2")) == 833
