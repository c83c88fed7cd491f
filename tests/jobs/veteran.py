"""What a user of webdataset wrote for years, with `shoal.Dataset` in its place, as docs/how-to/from-webdataset.md says.

Each function is one idiom over the shards of ``URLS``; `PEERS` in the test has the same in webdataset.
"""

from __future__ import annotations

import itertools
import os

import shoal

URLS = "shards/train-{000000..000003}.tar"


def dataset() -> shoal.Dataset:
    return shoal.Dataset(URLS)


def raw() -> list:
    """Bytes as they are in the tars."""
    return list(shoal.Dataset(URLS, decode=False))


def decoded() -> list:
    return list(dataset().decode("rgb8"))


def tuples() -> list:
    return list(dataset().decode("rgb").to_tuple("png;jpg", "cls", "json"))


def mapped() -> list:
    line = dataset().decode("l8").to_tuple("jpg;png", "cls", "__key__")
    return list(line.map_tuple(lambda image: int(image.sum()), lambda label: label * 10))


def renamed() -> list:
    return list(dataset().rename(image="jpg;png", label="cls").map_dict(label=str).map(keep("__key__", "label")))


def keep(*names):
    return lambda sample: {name: sample[name] for name in names}


def selected() -> list:
    return list(dataset().filter(lambda sample: sample["json"]["width"] > 20).map(keep("__key__", "cls", "json")))


def batches() -> list:
    return list(dataset().decode("rgb8").to_tuple("jpg;png", "cls", "npy").batched(7))


def full_batches() -> list:
    return list(dataset().to_tuple("cls", "__key__").batched(7, partial=False))


def lists() -> list:
    return list(dataset().to_tuple("cls", "json").listed(6))


def unbatched() -> list:
    return list(dataset().to_tuple("cls", "npy").batched(7).unbatched())


def sliced() -> list:
    return list(dataset().to_tuple("__key__", "cls").slice(3, 30, 4))


def an_epoch() -> list:
    return list(dataset().to_tuple("__key__").with_epoch(90))


def without_images() -> list:
    """A field that not every sample has: captions."""
    return list(dataset().map(lambda sample: (sample["__key__"], sample.get("txt"))))


def transformed() -> list:
    """A chain as it stands in many a training script."""
    line = dataset().decode("torchrgb").rename(image="jpg;png", label="cls").to_tuple("image", "label")
    return list(line.map_tuple(lambda image: image.mean(), None).batched(5))


def shuffled() -> tuple:
    """Two epochs, and the same seed again."""
    line = dataset().shuffle(100, seed=3).to_tuple("__key__", "cls").batched(8)
    epochs = [[key for keys, _ in line for key in keys] for _ in range(2)]
    again = dataset().shuffle(100, seed=3).to_tuple("__key__", "cls").batched(8)
    return (*epochs, [key for keys, _ in again for key in keys])


def by_node() -> list:
    """What each of three processes reads, where ``split_by_node`` stood."""
    found = []
    for rank in range(3):
        os.environ |= {"RANK": str(rank), "WORLD_SIZE": "3"}
        loader = dataset().loader(batch_size=4, tail="uneven")
        found.append([key for batch in loader for key in batch["__key__"]])
    del os.environ["RANK"], os.environ["WORLD_SIZE"]
    return found


def worker_processes() -> list:
    """PyTorch's own loader with workers, where ``split_by_worker`` stood."""
    import torch

    line = dataset().to_tuple("__key__", "cls")
    loader = torch.utils.data.DataLoader(line, batch_size=5, num_workers=2)
    return [pair for keys, labels in loader for pair in zip(keys, labels.tolist(), strict=True)]


def looked_up() -> tuple:
    """What there was no way to do: lengths, positions, keys and queries."""
    whole = dataset()
    line = whole.to_tuple("__key__", "cls").batched(7)
    near = [whole[-1]["__key__"], whole.get("s0021")["cls"], line[-1][0]]
    return len(whole), len(line), near, whole.where("width > 20 and cls = 1").keys()


def written() -> list:
    """``TarWriter`` and ``ShardWriter``, with the samples as they were."""
    with shoal.ShardWriter("again/train-%06d.tar", max_samples=9) as writer:
        for sample in itertools.islice(shoal.Dataset(URLS, decode=False), 20):
            writer.write({name: value for name, value in sample.items() if name != "__url__"})
    return writer.urls
