"""Datasets to look at: one that is pleasant, one that is hostile."""

from __future__ import annotations

import io
import itertools
import struct
import tarfile
import wave
import zlib

import numpy as np
from PIL import Image, ImageDraw

import shoal
from shoal.viewer._session import ViewerSession, ViewOptions

LABELS = ("reef", "kelp", "open water", "sand", "wreck")
DIVES, VALIDATION = 60, 10


def picture(draw: np.random.Generator, number: int) -> tuple[bytes, int, int]:
    width, height = [(480, 360), (360, 480), (512, 288)][number % 3]
    top, bottom = draw.integers((20, 110, 150), (100, 200, 235)), draw.integers((4, 14, 40), (18, 50, 90))
    fade = np.linspace(0, 1, height)[:, None, None]
    image = Image.fromarray(((top * (1 - fade) + bottom * fade) * np.ones((height, width, 1))).astype(np.uint8))
    pen = ImageDraw.Draw(image)
    for _ in range(int(draw.integers(6, 24))):
        x, y, size = (int(draw.integers(0, width)), int(draw.integers(height // 6, height)), int(draw.integers(6, 24)))
        colour = tuple(int(part) for part in draw.integers(120, 255, 3))
        pen.ellipse((x, y, x + 2 * size, y + size), fill=colour)
        tail = x + 2 * size - 2
        pen.polygon([(tail, y + size // 2), (tail + size // 2, y), (tail + size // 2, y + size)], fill=colour)
    out = io.BytesIO()
    image.save(out, "JPEG", quality=88)
    return out.getvalue(), width, height


def tone(number: int) -> bytes:
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(8000)
        time = np.arange(8000) / 8000
        file.writeframes((np.sin(2 * np.pi * (220 + 20 * number) * time) * 9000).astype("<i2").tobytes())
    return out.getvalue()


def dive(draw: np.random.Generator, number: int) -> dict[str, object]:
    data, width, height = picture(draw, number)
    label, depth = LABELS[int(draw.integers(0, 5))], round(float(abs(draw.normal(18, 9))), 2)
    facts = {"label": label, "depth": depth, "width": width, "height": height, "night": bool(draw.random() < 0.3)}
    camera = {"name": "north", "iso": int(draw.choice([100, 200, 400, 800])), "box": [1, 2, 30, 40]}
    sample: dict[str, object] = {
        "__key__": f"dive-{number:05d}",
        "jpg": data,
        "txt": f"A {label} at {depth:.0f} m, {int(draw.integers(1, 60))} fish seen.",
        "json": {**facts, "camera": camera},
    }
    wave_form = np.sin(np.linspace(0, 6, 48))[:, None] * np.cos(np.linspace(0, 4, 64))
    extra = {
        0: ("depth.npy", (wave_form + draw.normal(0, 0.1, (48, 64))).astype("f4")),
        1: ("sonar.npy", np.cumsum(draw.normal(0, 1, 2000)).astype("f4")),
        2: ("wav", tone(number)),
        3: ("planes.npy", draw.integers(0, 255, (5, 16, 16)).astype("i4")),
    }[number % 4]
    return {**sample, extra[0]: extra[1]}


def write_dives(root, count=DIVES, validation=VALIDATION, max_samples=16) -> None:
    draw = np.random.default_rng(3)
    said = {"title": "Dives", "license": "CC-BY-4.0"}
    with shoal.ShardWriter(f"{root}/train-%06d.tar", max_samples=max_samples, metadata=said) as writer:
        for number in range(count):
            writer.write(dive(draw, number))
    with shoal.ShardWriter(f"{root}/validation-%06d.tar", max_samples=max_samples) as writer:
        for number in range(validation):
            writer.write(dive(draw, 10_000 + number))


# -------------------------------------------------------------------------------------------------------------- hostile

SCRIPT = "<script>window.pwned = 1</script><img src=x onerror='window.pwned = 2'><a href='javascript:pwned=3'>x</a>"
KEY = '"><img src=x onerror=pwned=4>'
SVG = (
    '<svg xmlns="http://www.w3.org/2000/svg" width="40" height="40" onload="window.pwned=5">'
    "<script>window.pwned = 6; fetch('http://example.invalid/')</script>"
    '<image href="http://example.invalid/x.png" width="9" height="9"/><rect width="40" height="40" fill="teal"/></svg>'
)


def bomb(width: int, height: int) -> bytes:
    """A PNG that is all black, small as a file and large in memory."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    packer = zlib.compressobj(9)
    row = b"\0" + bytes(width // 8)
    pixels = b"".join(packer.compress(row) for _ in range(height)) + packer.flush()
    header = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


def npy(array: np.ndarray, *, allow_pickle: bool = False) -> bytes:
    out = io.BytesIO()
    np.save(out, array, allow_pickle=allow_pickle)
    return out.getvalue()


def hostile_members() -> list[tuple[str, bytes]]:
    extreme = np.array([[np.nan, np.inf, -np.inf], [1.7e308, -1.7e308, 0]])
    header = b"{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000, 1000000000), }"
    absurd = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header) + 1) + header + b"\n" + b"1234"
    return [
        ("a-html.txt", SCRIPT.encode()),
        ("a-html.json", b'{"caption": "%s", "%s": 1}' % (SCRIPT.replace('"', "'").encode(), b"<b>name</b>")),
        ("a-html.html", b"<!doctype html><script>window.pwned = 7</script>"),
        ("b-svg.svg", SVG.encode()),
        ("b-svg.txt", b"an svg"),
        ("c-long.txt", ("word " * 400_000 + SCRIPT).encode()),
        ("d-bomb.png", bomb(12_000, 12_000)),
        ("e-lie.jpg", SCRIPT.encode()),
        ("e-lie.mp3", b"<!doctype html><script>window.pwned = 8</script>"),
        ("f-arrays.nan.npy", npy(extreme)),
        ("f-arrays.empty.npy", npy(np.zeros((0, 5)))),
        ("f-arrays.complex.npy", npy(np.ones((3, 4), complex) * 1j)),
        ("f-arrays.text.npy", npy(np.array([SCRIPT, "b"]))),
        ("f-arrays.record.npy", npy(np.zeros(3, [("x", "f4"), ("y", "i8")]))),
        ("f-arrays.long.npy", npy(np.arange(300_000))),
        ("f-arrays.thin.npy", npy(np.zeros((1, 200_000), "u1"))),
        ("g-worse.absurd.npy", absurd),
        ("g-worse.object.npy", npy(np.array([{"a": 1}], object), allow_pickle=True)),
        ("g-worse.pkl", b"cos\nsystem\n(S'touch pwned'\ntR."),
        ("g-worse.deep.json", b"[" * 100_000 + b"]" * 100_000),
        ("g-worse.nested.json", b"[" * 400 + b"1" + b"]" * 400),
        ("g-worse.mp", b"\xdf\xff\xff\xff\xff"),
        ("g-worse.big.json", b"[" + b",".join(b"1" for _ in range(100_000)) + b"]"),
        (f"{KEY}.txt", b"a key of HTML"),
        ("h-evil\u202egpj.txt", b"a key that turns around"),
        ("i-field.<b>bold<|b>.txt", b"a field of HTML"),
        ("j-not-utf8.txt", b"\xff\xfe no text"),
    ]


def write_hostile(root) -> None:
    """By tarfile, since our own writer refuses some of it."""
    root.mkdir()
    with tarfile.open(root / "x-000000.tar", "w", format=tarfile.PAX_FORMAT) as tar:
        for name, data in hostile_members():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))


_NUMBERS = itertools.count()


def opened_with(values):
    """A session over samples with these values of a column, None for no value."""
    root = f"memory://viewer-counting/{next(_NUMBERS)}"
    with shoal.ShardWriter(f"{root}/a-%06d.tar", max_samples=16) as writer:
        for number, value in enumerate(values):
            facts = {"n": number} if value is None else {"n": number, "my value": value}
            writer.write({"__key__": f"k{number}", "json": facts})
    return ViewerSession(ViewOptions(root))
