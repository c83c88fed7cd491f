"""Images and sounds in samples: stored as files, decoded when first looked at, written back as they were."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING
from functools import lru_cache
from typing import Any

import numpy as np

from shoal.codec import Buffer, Decoder, codec_for, decode_spec, decoders, encode
from shoal.errors import CodecError, EncodeError, SchemaError
from shoal.sample._misfit import Misfit, found_type
from shoal.schema import Audio, Image

__all__ = ["Encoded", "MediaField", "decode_media", "media_to_wire"]

_BYTES = (bytes, bytearray, memoryview)


class Encoded:
    """A file's bytes, and the value they decode to once it was asked for.

    ``writable``: the decoded value takes the place of the bytes, so that changes to it are written.
    """

    __slots__ = ("data", "value", "writable")

    def __init__(self, data: Buffer, writable: bool = False) -> None:
        self.data = data
        self.writable = writable
        self.value: Any = None

    def __reduce__(self) -> tuple[Any, ...]:
        return Encoded, (bytes(self.data), self.writable)  # a view into a block does not travel

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Encoded) and self.data == other.data

    def __hash__(self) -> int:
        return hash(bytes(self.data))


def decode_media(of: Image | Audio) -> Callable[[Buffer], Any]:
    """The function that decodes files of this field. The content decides how, the declared format does not."""
    kind = "image" if isinstance(of, Image) else "audio"
    found = codec_for(of.format)
    if found is None or found.kind != kind:
        raise SchemaError(f"this is not a format for {kind}", found=of.format, hint="see shoal.codec")
    form = "numpy" if kind == "image" else "audio"

    def run(data: Buffer) -> Any:
        # Looked up here and not before: a missing extra matters only to those who look at the field.
        try:
            return _decoder(of.format, form)(data)
        except CodecError as error:
            error.field = None  # it says the format; the field of the sample is known further up
            raise

    return run


@lru_cache(maxsize=64)
def _decoder(name: str, form: str) -> Decoder:
    return decoders(decode_spec(form), (name,))[name]


def media_to_wire(of: Image | Audio) -> Callable[[Any], Buffer]:
    """The function that gives the bytes to store: those of a file as they are, pixels and sounds encoded."""

    def run(value: Any) -> Buffer:
        if isinstance(value, Encoded):
            return value.data
        if isinstance(value, _BYTES):
            return value
        try:
            return encode(of.format, value)
        except EncodeError as error:
            raise Misfit(f"{of}: {error.expected}", f"{found_type(value)}: {error.found or error.problem}") from error

    return run


class MediaField:
    """The attribute of an image or a sound: bytes are kept as they came, and decoded when the attribute is read."""

    def __init__(self, name: str, of: Image | Audio, default: Any) -> None:
        self.name = name
        self.decode = decode_media(of)
        self.default = default

    def __get__(self, sample: Any, owner: type | None = None) -> Any:
        if sample is None:
            if self.default is not MISSING:
                return self.default
            raise AttributeError(self.name)
        try:
            held = sample.__dict__[self.name]
        except KeyError:
            raise AttributeError(self.name) from None
        if type(held) is not Encoded:
            if not isinstance(held, _BYTES):
                return held
            held = sample.__dict__[self.name] = Encoded(held)
        if held.value is None:
            self._decode(sample, held)
        return held.value

    def _decode(self, sample: Any, held: Encoded) -> None:
        try:
            held.value = self.decode(held.data)
        except CodecError as error:
            raise error.at(field=self.name) from None
        if held.writable:
            sample.__dict__[self.name] = held.value
        else:
            _read_only(held.value)

    def __set__(self, sample: Any, value: Any) -> None:
        sample.__dict__[self.name] = Encoded(value) if isinstance(value, _BYTES) else value


def _read_only(value: Any) -> None:
    # The bytes are what is written again, so a change to the decoded value would be lost without a word.
    for array in value if isinstance(value, tuple) else (value,):
        if isinstance(array, np.ndarray):
            array.flags.writeable = False
