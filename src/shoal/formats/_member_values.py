"""Values of samples as bytes, and keys and fields as names of tar members."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from shoal.codec._dispatch import encode
from shoal.codec._registry import codec_for
from shoal.errors import CodecError, EncodeError, WriteError
from shoal.store._url import base_name

from ._sources import KEY, number_key

__all__ = [
    "Row",
    "as_member",
    "extension_of_image",
    "is_bytes",
    "member_key",
    "member_name",
    "plain_value",
    "rows_from",
]

Row = dict[str, Any]
_IMAGE_MAGICS = (
    (b"\xff\xd8\xff", "jpg"),
    (b"\x89PNG", "png"),
    (b"GIF8", "gif"),
    (b"BM", "bmp"),
    (b"II*\0", "tif"),
    (b"MM\0*", "tif"),
)


def rows_from(samples: Iterable[Any]) -> Iterator[tuple[str, Row]]:
    """Samples as their keys and fields. Raises WriteError for what is no sample."""
    for number, sample in enumerate(samples):
        fields = sample if isinstance(sample, Mapping) else getattr(sample, "as_wds", None)
        if not isinstance(fields, Mapping):
            raise WriteError("this is no sample", expected="a mapping or a packable", found=type(sample).__name__)
        key = fields.get(KEY)
        yield (
            number_key(number) if key is None else str(key),
            {n: v for n, v in fields.items() if not n.startswith("__")},
        )


def is_bytes(value: Any) -> bool:
    """Whether a value is bytes in any form."""
    return isinstance(value, (bytes, bytearray, memoryview))


def member_name(field: str) -> str:
    """A field as the name of a member or file: without slashes."""
    return field.replace("/", ".").strip(".") or "bin"


def as_member(field: str, value: Any) -> tuple[str, bytes]:
    """A value as bytes, with the field's name: ``.npy``, ``.txt`` or ``.json`` is added where the name does not say.

    Examples:
        >>> as_member("label", 3), as_member("txt", "hello")
        (('label.json', b'3'), ('txt', b'hello'))
    """
    if is_bytes(value):
        return field, bytes(value)
    if codec_for(field) is not None:
        try:
            return field, bytes(encode(field, value))
        except CodecError:  # its name says one thing and its value another: `id` may be text
            pass
    kind = "npy" if isinstance(value, np.ndarray) else "txt" if isinstance(value, str) else "json"
    return f"{field}.{kind}", bytes(encode(kind, plain_value(value) if kind == "json" else value))


def plain_value(value: Any) -> Any:
    """A value as JSON has it."""
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    if isinstance(value, Mapping):
        return {str(name): plain_value(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain_value(inner) for inner in value]
    if is_bytes(value):
        raise EncodeError("bytes inside lists and dicts have no place in JSON", found=type(value).__name__)
    return value


def member_key(key: str, row: Mapping[str, Any]) -> str:
    """A key as tars have them: dots belong to extensions there, so what looks like one goes.

    Examples:
        >>> member_key("a/photo.jpg", {"jpg": b""}), member_key("v1.5", {"txt": ""})
        ('a/photo', 'v1_5')
    """
    for field in row:
        if key.lower().endswith(f".{field}".lower()):
            key = key[: -len(field) - 1]
            break
    folder = key[: len(key) - len(base_name(key))]
    return folder + base_name(key).replace(".", "_")


def extension_of_image(data: bytes) -> str:
    """What an image's first bytes say it is; ``img`` where they say nothing."""
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "webp"
    return next((extension for magic, extension in _IMAGE_MAGICS if data.startswith(magic)), "img")
