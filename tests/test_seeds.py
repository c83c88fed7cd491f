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


def test_seed_002_up_to_hugging_face_style_loading(tmp_path, monkeypatch, leaky_peer, capsys):
    monkeypatch.chdir(tmp_path)
    # Define a Sample Type
    import numpy as np
    from numpy.typing import NDArray

    import shoal

    @shoal.packable
    class ImageSample:
        image: NDArray
        label: str
        confidence: float

    # Create and Write Samples
    import webdataset as wds

    samples = [
        ImageSample(
            image=np.random.rand(224, 224, 3).astype(np.float32),  # noqa: NPY002 - as the document has it
            label="cat",
            confidence=0.95,
        )
        for _ in range(100)
    ]

    with wds.writer.TarWriter("data-000000.tar") as sink:
        for i, sample in enumerate(samples):
            sink.write({**sample.as_wds, "__key__": f"sample_{i:06d}"})

    # Load and Iterate
    dataset = shoal.Dataset[ImageSample]("data-000000.tar")

    # Iterate with batching
    sizes = []
    for batch in dataset.shuffled(batch_size=32):
        images = batch.image  # numpy array (32, 224, 224, 3)
        labels = batch.label  # list of 32 strings
        confs = batch.confidence  # list of 32 floats
        sizes.append(len(batch))
        assert images.shape == (len(batch), 224, 224, 3)
        assert labels == ["cat"] * len(batch)
        assert confs == [0.95] * len(batch)
    assert sizes == [32, 32, 32, 4]

    # Use Lenses for Type Transformations
    @shoal.packable
    class SimplifiedSample:
        label: str

    @shoal.lens
    def simplify(src: ImageSample) -> SimplifiedSample:
        return SimplifiedSample(label=src.label)

    # View dataset through a different type
    simple_ds = dataset.as_type(SimplifiedSample)
    for batch in simple_ds.ordered(batch_size=16):
        print(batch.label)
    assert capsys.readouterr().out.count("cat") == 100

    # HuggingFace-Style Loading
    monkeypatch.chdir(_folder_of_shards(tmp_path, samples[:2]))
    ds = shoal.load_dataset("path/to/data-{000000..000009}.tar", split="train")
    assert len(ds) == 20

    # Load with split detection
    ds_dict = shoal.load_dataset("path/to/data/")
    train_ds = ds_dict["train"]
    test_ds = ds_dict["test"]
    assert (len(train_ds), len(test_ds)) == (2, 2)


def _folder_of_shards(root, samples):
    import shoal

    for number in range(10):
        shoal.write_samples(samples, root / "path" / "to" / f"data-{number:06d}.tar")
    for split in ("train", "test"):
        shoal.write_samples(samples, root / "path" / "to" / "data" / f"{split}-000000.tar")
    return root
