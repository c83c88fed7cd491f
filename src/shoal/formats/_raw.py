"""One file, one sample: any files, and images in a folder for each class."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from shoal.errors import FormatError
from shoal.store import base_name

from ._parts import Values

__all__ = ["IMAGE_ENDINGS", "class_labels", "image_values", "raw_field", "raw_fields", "raw_values", "stem_of"]

IMAGE_ENDINGS = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".avif")
_NO_EXTENSION = "bin"


def raw_field(path: str) -> str:
    """The field that holds a file's bytes: its extension in small letters.

    Example:
        >>> raw_field("a/photo.JPG"), raw_field("a/notes")
        ('jpg', 'bin')
    """
    stem, dot, extension = base_name(path).rpartition(".")
    return extension.lower() if dot and stem and extension else _NO_EXTENSION


def raw_values(path: str, data: bytes, fields: Sequence[str] | None) -> Values:
    """The bytes of a file under its extension."""
    field = raw_field(path)
    return {field: data} if fields is None or field in fields else {}


def raw_fields(paths: Sequence[str], read: Callable[[str], bytes]) -> tuple[str, ...]:
    """Every extension, in the order they appear."""
    return tuple(dict.fromkeys(map(raw_field, paths)))


def image_values(path: str, data: bytes, fields: Sequence[str] | None) -> Values:
    """The bytes of an image file, whichever extension it has."""
    return {"image": data} if fields is None or "image" in fields else {}


def class_labels(paths: Sequence[str]) -> list[Mapping[str, Any]]:
    """The class of each file: its first folder, numbered in the order of the names. Raises FormatError without one."""
    for path in paths:
        if "/" not in path:
            raise FormatError("an image is in no class's folder", expected="class/image", found=path)
    folders = [path.partition("/")[0] for path in paths]
    numbers = {name: number for number, name in enumerate(sorted(set(folders)))}
    return [{"cls": numbers[folder], "class_name": folder} for folder in folders]


def stem_of(path: str) -> str:
    """A file's path without its extension."""
    folder, slash, name = path.rpartition("/")
    stem, dot, _ = name.rpartition(".")
    return folder + slash + (stem if dot and stem else name)
