"""JPEGs decoded where the batch is wanted: on a GPU by its own decoder, else by the processor's fastest."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from shoal.codec import ImageSpec, decode, decode_spec
from shoal.errors import MissingExtraError

__all__ = ["decode_jpegs"]


def decode_jpegs(images: Sequence[bytes], size: int | tuple[int, int] | None = None, device: Any = "cpu") -> Any:
    """JPEGs as one uint8 tensor of n x 3 x height x width on the device, in RGB.

    Each is resized to ``size``, height and width or one number for both, as the mean of what a pixel covers. Without a
    size, images that are not all of one come as a list. A GPU decodes by itself, by torchvision: the processor only
    hands it the bytes.

    Raises:
        MissingExtraError: torchvision, which decodes on GPUs, or a decoder of the processor's is not installed.
        OptionError: The size is not one.

    Example:
        >>> import simplejpeg
        >>> picture = simplejpeg.encode_jpeg(np.full((40, 60, 3), 200, np.uint8))
        >>> decode_jpegs([picture, picture], size=(20, 30)).shape
        torch.Size([2, 3, 20, 30])
    """
    spec = ImageSpec("rgb8", size)
    where = torch.device(device)
    made = _on_gpu(images, where) if where.type == "cuda" else _on_processor(images, spec, where)
    if spec.shape is not None:
        return _sized(made, spec.shape[:2], where)
    return torch.stack(made) if len({image.shape for image in made}) == 1 else made


def _on_gpu(images: Sequence[bytes], device: Any) -> list[Any]:
    vision = _torchvision()
    data = [torch.from_numpy(np.frombuffer(image, np.uint8).copy()) for image in images]
    decoded: list[Any] = vision.decode_jpeg(data, mode=vision.ImageReadMode.RGB, device=device) if data else []
    return decoded


def _on_processor(images: Sequence[bytes], spec: ImageSpec, device: Any) -> list[Any]:
    chosen = decode_spec({"jpg": spec})
    arrays = (np.ascontiguousarray(decode("jpg", image, chosen)) for image in images)
    return [torch.from_numpy(array).permute(2, 0, 1).to(device) for array in arrays]


def _sized(images: list[Any], size: tuple[int, ...], device: Any) -> Any:
    if not images:
        return torch.empty((0, 3, *size), dtype=torch.uint8, device=device)
    groups: dict[Any, list[int]] = {}
    for at, image in enumerate(images):
        groups.setdefault(image.shape, []).append(at)
    # Those of one size at once: a call on the device costs more than a small image.
    together = torch.cat([_resized(torch.stack([images[at] for at in places]), size) for places in groups.values()])
    if len(groups) == 1:
        return together
    order = np.argsort([at for places in groups.values() for at in places])
    return together.index_select(0, torch.from_numpy(order).to(device, non_blocking=True))


def _resized(images: Any, size: tuple[int, ...]) -> Any:
    if images.shape[2:] == size:
        return images
    resized = torch.nn.functional.interpolate(images.float(), size, mode="bilinear", antialias=True)
    return resized.round_().clamp_(0, 255).to(torch.uint8)


def _torchvision() -> Any:
    try:
        io: Any = importlib.import_module("torchvision.io")
    except ImportError as error:
        hint = "pip install torchvision, of the release that goes with your torch"
        raise MissingExtraError("the package torchvision cannot be imported", found=error, hint=hint) from error
    return io
