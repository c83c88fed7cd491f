"""How fast is the input of a PyTorch training, tensors of pictures at 224 x 224 in batches of 128?"""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import torch

import shoal
import shoal.torch
from shoal.codec import ImageSpec

from ._loader_peers import WORKERS, made, spdl_batches, torch_batches, webdataset_batches
from ._loader_table import HEADER, loader_rows
from ._loader_turns import Loader, take_turns
from ._measure import Question
from .loader_jpeg import LOADERS as PICTURE_LOADERS
from .loader_jpeg import SAMPLES, SIDE, decoded, grouped, picture_tars

__all__ = ["LOADERS", "run"]

BATCH = 128
_SPEC = ImageSpec("rgb8", SIDE, interpolation="linear", scaled=False)
"""As the peers are told to do it: simplejpeg, then cv2's linear resizer."""


def _folder() -> str:
    """The same pictures as files, in a folder for each class."""
    return made("jpeg/folder", _write_folder)


def _write_folder(folder: str) -> None:
    for sample in shoal.Dataset(f"{picture_tars()}/*.tar", decode=False):
        place = os.path.join(folder, sample["cls"].decode())
        os.makedirs(place, exist_ok=True)
        with open(os.path.join(place, f"{sample['__key__']}.jpg"), "wb") as file:
            file.write(sample["jpg"])


class _ImageFolder(torch.utils.data.Dataset[Any]):
    """What torchvision's ImageFolder does: a file for each picture, opened when it is asked for.

    torchvision itself cannot be imported beside a torch without CUDA. Its decoder would be Pillow; here it has the same
    decoder and resizer as all others, which is faster.
    """

    def __init__(self, folder: str) -> None:
        paths = sorted(glob.glob(f"{folder}/*/*.jpg"))
        self._samples = [(path, int(os.path.basename(os.path.dirname(path)))) for path in paths]

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, at: int) -> tuple[Any, int]:
        path, label = self._samples[at]
        with open(path, "rb") as file:
            return torch.from_numpy(decoded(file.read())), label


def _sample(sample: dict[str, Any]) -> dict[str, Any]:
    return {"image": torch.from_numpy(decoded(sample["jpg"])), "cls": int(sample["cls"])}


def _tensors(samples: list[dict[str, Any]]) -> tuple[Any, Any]:
    return torch.stack([one["image"] for one in samples]), torch.tensor([one["cls"] for one in samples])


def _counted(batches: Iterable[Any]) -> Iterator[int]:
    return (len(images) for images, _ in batches)


def _shoal(workers: Any) -> Iterator[int]:
    dataset = shoal.Dataset(f"{picture_tars()}/*.tar", decode={"jpg": _SPEC, "cls": True})
    with shoal.torch.DataLoader(dataset, batch_size=BATCH, shuffle=True, num_workers=workers) as loader:
        yield from (len(batch["jpg"]) for batch in loader.repeat())


def _webdataset() -> Iterator[int]:
    yield from _counted(webdataset_batches(picture_tars(), BATCH, _tensors, _sample, WORKERS))


def _files() -> Iterator[int]:
    yield from _counted(torch_batches(_ImageFolder(_folder()), WORKERS, batch_size=BATCH, shuffle=True))


def _spdl() -> Iterator[int]:
    yield from _counted(spdl_batches(picture_tars(), BATCH, _tensors, _sample, grouped))


LOADERS = (
    next(loader for loader in PICTURE_LOADERS if loader.name == f"limit: bare, {WORKERS} threads"),
    Loader("shoal.torch, auto", partial(_shoal, "auto"), picture_tars),
    Loader(f"shoal.torch, {WORKERS} threads", partial(_shoal, WORKERS), picture_tars),
    Loader(f"webdataset, {WORKERS} workers", _webdataset, picture_tars),
    Loader(f"ImageFolder, {WORKERS} workers", _files, _folder),
    Loader(f"SPDL, {WORKERS} threads", _spdl, picture_tars),
)


def run(rounds: int = 5, seconds: float = 3.0) -> Question:
    """Compare loaders with each other and with the bare work."""
    question = Question(
        "Input of a PyTorch training",
        f"Shuffled batches of {BATCH} pictures of about 400 x 320, decoded by simplejpeg and resized by cv2 to "
        f"{SIDE} x {SIDE}, as tensors, warm. The limit decodes and resizes bytes in memory on {WORKERS} threads, with "
        "no loader.",
        HEADER,
    )
    for loader in LOADERS:
        loader.prepare()
    found = take_turns("benchmarks.torch_input", [loader.name for loader in LOADERS], rounds, seconds)
    size = sum(map(os.path.getsize, glob.glob(f"{picture_tars()}/*.tar")))
    question.rows.extend(loader_rows(found, size / SAMPLES, found[LOADERS[0].name].rate))
    return question


if __name__ == "__main__":
    print(run().markdown())
