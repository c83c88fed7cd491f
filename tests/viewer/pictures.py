"""Take the pictures of the documentation: ``python -m tests.viewer.pictures`` writes docs/how-to/pictures."""

from __future__ import annotations

import io
import os
import shutil
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright
from tests.viewer.samples import write_dives

from shoal.viewer import viewing

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "pictures"
PICTURES = [
    ("viewer-samples", "/?where=depth%20%3E%3D%2010", "light", (1280, 800)),
    ("viewer-sample", "/sample/0", "light", (1280, 1180)),
    ("viewer-shards", "/shards", "light", (1280, 620)),
    ("viewer-dark", "/", "dark", (1280, 800)),
    ("viewer-phone", "/", "light", (390, 780)),
]


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        root = Path(folder) / "dives"
        write_dives(root, count=600, validation=60, max_samples=48)
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        os.chdir(folder)  # so that the pictures say `dives`, and not where it lies here
        with viewing("dives") as address:
            for name, path, scheme, (width, height) in PICTURES:
                context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
                page = context.new_page()
                page.goto(address.url)
                page.goto(address.url.partition("/?")[0] + path)
                page.wait_for_load_state("networkidle")
                keep(page.screenshot(), FOLDER / f"{name}.png")
                context.close()
        browser.close()


def keep(shot: bytes, path: Path) -> None:
    """With 200 colours: a fourth of the bytes, and no difference that anyone would see."""
    image = (
        Image.open(io.BytesIO(shot)).convert("RGB").quantize(200, Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
    )
    path.parent.mkdir(exist_ok=True)
    image.save(path, optimize=True)


if __name__ == "__main__":
    main()
