"""Samples and credentials that several tests use."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from tests.store.servers import ACCESS_KEY, SECRET_KEY

import shoal


@shoal.packable
class ImageSample:
    image: NDArray[np.float32]
    label: str


def samples(count=5, shift=0):
    return [ImageSample(np.full((2, 2), number + shift, np.float32), f"label {number}") for number in range(count)]


def credentials(endpoint, **changes):
    keys = {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY, "AWS_REGION": "us-east-1"}
    return {"AWS_ENDPOINT": endpoint, **keys, **changes}
