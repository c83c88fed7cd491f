"""How fast are JPEG decoders and resizers, and how much of that is left when a loader does it?

``python -m benchmarks.image_decoders`` takes about a minute.
"""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import cv2
import numpy as np
import PIL.Image
import simplejpeg

import shoal
from shoal.codec import Decoder, ImageSpec, decode_spec, decoders
from shoal.codec._image_spec import Interpolation, JpegDecoder

from ._data import FOLDER
from ._measure import Question

__all__ = ["run"]

SIDE, BATCH, THREADS = 224, 32, 2
COUNT, DIFFERENT = 1280, 40
SIZES = ((320, 400), (1200, 1600))
DECODERS: tuple[JpegDecoder, ...] = ("pillow", "cv2", "simplejpeg")
WAYS = {
    "Pillow, area": ImageSpec(size=SIDE, decoder="pillow", resizer="pillow"),
    "simplejpeg and cv2, area, decoded whole": ImageSpec(size=SIDE, scaled=False),
    "simplejpeg and cv2, area": ImageSpec(size=SIDE),
    "simplejpeg and cv2, linear": ImageSpec(size=SIDE, interpolation="linear"),
}
HOW: dict[Interpolation, int] = {"area": cv2.INTER_AREA, "linear": cv2.INTER_LINEAR}


def photograph(height: int, width: int, rng: np.random.Generator) -> bytes:
    """Noise with about the spectrum of photographs, as JPEG of quality 90."""
    frequencies = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width)[None, :]) + 1e-2
    planes = [
        np.fft.irfft2(np.exp(2j * np.pi * rng.random(frequencies.shape)) / frequencies, (height, width))
        for _ in range(3)
    ]
    pixels = np.stack([planes[0], 0.8 * planes[0] + 0.2 * planes[1], 0.8 * planes[0] + 0.2 * planes[2]], axis=2)
    levels = (pixels - pixels.mean()) / pixels.std() * 50 + 128
    stream = io.BytesIO()
    PIL.Image.fromarray(levels.clip(0, 255).astype(np.uint8)).save(stream, "JPEG", quality=90)
    return stream.getvalue()


@dataclass(frozen=True)
class Taken:
    """Seconds that went by, and seconds of all processors: the second tells more where others use the machine."""

    wall: float
    processor: float


def run(rounds: int = 9) -> Question:
    """Compare decoders, ways to resize, and a loader with none."""
    question = Question(
        "Image decoders",
        f"JPEG to RGB on one thread, then resized to {SIDE} x {SIDE}; then batches of {BATCH} on {THREADS} threads, by "
        "the DataLoader (shuffled, from a warm shard) and by the two calls alone, over the same bytes in memory. Rates "
        "beside the first line of each part: the best of all rounds, by the clock and by processor time.",
        ("images", "work", "way", "x the first", "x the first, a processor second"),
    )
    rng = np.random.default_rng(4)
    for height, width in SIZES:
        images = [photograph(height, width, rng) for _ in range(DIFFERENT if height < 1000 else 4)]
        shown = f"{width} x {height}, {sum(map(len, images)) // len(images) // 1000} KB"
        specs: dict[str, ImageSpec] = {name: ImageSpec(decoder=name) for name in DECODERS}
        for work, ways in (("decode", specs), ("decode and resize", WAYS)):
            question.rows.extend(_rows(shown, work, _decoding(ways, images), rounds))
        for how in HOW if height < 1000 else ():
            question.rows.extend(_rows(shown, f"{how}, {THREADS} threads", _loading(how, images), rounds))
    return question


def _rows(shown: str, work: str, turns: dict[str, Callable[[], Taken]], rounds: int) -> list[tuple[str, ...]]:
    """Contenders take turns; the first turn of each is not counted."""
    taken: dict[str, list[Taken]] = {name: [] for name in turns}
    for _ in range(rounds + 1):
        for name, turn in turns.items():
            taken[name].append(turn())
    wall = {name: min(one.wall for one in all_[1:]) for name, all_ in taken.items()}
    processor = {name: min(one.processor for one in all_[1:]) for name, all_ in taken.items()}
    first = next(iter(turns))
    return [
        (shown, work, name, f"{wall[first] / wall[name]:.2f}", f"{processor[first] / processor[name]:.2f}")
        for name in turns
    ]


def _timed(run: Callable[[], object]) -> Taken:
    wall, processor = time.perf_counter(), time.process_time()
    run()
    return Taken(time.perf_counter() - wall, time.process_time() - processor)


def _decoding(specs: dict[str, ImageSpec], images: list[bytes]) -> dict[str, Callable[[], Taken]]:
    functions = {name: decoders(decode_spec({"jpg": spec}), ["jpg"])["jpg"] for name, spec in specs.items()}
    return {name: partial(_timed, partial(_all, decode, images)) for name, decode in functions.items()}


def _all(decode: Decoder, images: list[bytes]) -> None:
    for image in images:
        decode(image)


def _loading(how: Interpolation, images: list[bytes]) -> dict[str, Callable[[], Taken]]:
    dataset = shoal.Dataset(_made(images), decode={"jpg": ImageSpec(size=SIDE, interpolation=how)})
    bare = partial(_bare, images, HOW[how])
    return {"no loader": partial(_timed, bare), "DataLoader": partial(_loader_taken, dataset)}


def _made(images: list[bytes]) -> str:
    path = FOLDER / "jpeg" / "data.tar"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with shoal.ShardWriter(str(path), overwrite=True) as writer:
            for number in range(COUNT):
                writer.write({"__key__": f"{number:06d}", "jpg": images[number % len(images)], "cls": number % 10})
    return str(path)


def _bare(images: list[bytes], how: int) -> None:
    """Each thread decodes and resizes its half of the images into an array that is there."""

    def work(first: int) -> None:
        out = np.empty((BATCH, SIDE, SIDE, 3), np.uint8)
        for number in range(first, COUNT, THREADS):
            pixels = simplejpeg.decode_jpeg(images[number % len(images)])
            cv2.resize(pixels, (SIDE, SIDE), dst=out[number // THREADS % BATCH], interpolation=how)

    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(work, range(THREADS)))


def _loader_taken(dataset: shoal.Dataset[Any]) -> Taken:
    """In the midst of its epochs, so that what it made ready before is not counted as made in no time."""
    with dataset.loader(batch_size=BATCH, shuffle=True, seed=1, num_workers=THREADS) as loader:
        batches = _endless(loader)
        for _ in range(12):
            next(batches)
        taken = _timed(lambda: _take(batches, COUNT // BATCH))
        batches.close()
    return taken


def _take(batches: Iterator[Any], count: int) -> None:
    for _ in range(count):
        next(batches)


def _endless(loader: Any) -> Generator[Any, None, None]:
    while True:
        yield from loader


if __name__ == "__main__":
    print(run().markdown())
