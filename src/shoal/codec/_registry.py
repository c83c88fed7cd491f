"""The codec of each extension: the built-in ones, and those that users register."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from types import MappingProxyType
from typing import Any

from shoal.errors import OptionError

from . import _arrays, _audio_video, _documents, _frameworks, _images
from ._codec import Buffer, Codec, DecoderMaker, EncoderMaker

__all__ = ["BUILT_IN", "codec_for", "codec_of", "register_codec", "split_field"]

_TABLES = (
    _documents.TEXT_CODECS,
    _documents.JSON_CODECS,
    _arrays.NPY_CODECS,
    _arrays.NPZ_CODECS,
    _arrays.TENBIN_CODECS,
    _documents.MSGPACK_CODECS,
    _documents.CBOR_CODECS,
    _documents.PICKLE_CODECS,
    _frameworks.TORCH_CODECS,
    _images.IMAGE_CODECS,
    _audio_video.AUDIO_CODECS,
    _audio_video.VIDEO_CODECS,
)

BUILT_IN = MappingProxyType(
    {extension: codec for codecs in _TABLES for codec in codecs for extension in codec.extensions}
)
_codecs: dict[str, Codec] = dict(BUILT_IN)


def split_field(field: str) -> tuple[tuple[str, ...], bool]:
    """Return the lower-case components of a field's name without a last ``gz``, and whether there was one.

    Examples:
        >>> split_field("meta.JSON.gz")
        (('meta', 'json'), True)
    """
    parts = tuple(field.lower().split("."))
    return (parts[:-1], True) if parts[-1] == "gz" else (parts, False)


def codec_of(extension: str) -> Codec | None:
    """Return the codec of an extension (in any case), or None."""
    return _codecs.get(extension.lower())


def codec_for(field: str) -> Codec | None:
    """Return the codec that a field's name chooses, or None if the field stays bytes.

    The last dotted component is the extension, in any case; a last ``gz`` is ignored.

    Examples:
        >>> codec_for("seg.PNG").kind, codec_for("meta.json.gz").name, codec_for("blob.bin")
        ('image', 'json', None)
    """
    parts, _ = split_field(field)
    return _codecs.get(parts[-1]) if parts else None


def register_codec(
    extensions: str | Iterable[str],
    *,
    decode: Callable[[bytes], Any] | Callable[[Buffer], Any] | None = None,
    encode: Callable[[Any], bytes | bytearray | memoryview] | None = None,
    name: str | None = None,
    replace: bool = False,
    automatic: bool = True,
    zero_copy: bool = False,
) -> None:
    """Register a codec for one or more extensions, in this process.

    Args:
        extensions: One or several, as ``"vec"``, ``"vec vector"`` or a list.
        decode: Function from a field's bytes to its value. None: fields stay bytes.
        encode: Function from a value to its bytes. None: only bytes can be written.
        name: Name in error messages; the first extension by default.
        replace: Whether to replace the codec that an extension has. If ``decode`` or ``encode`` is not given, that
            of the former codec is kept.
        automatic: Whether ``decode=True`` decodes it.
        zero_copy: Whether ``decode`` takes any buffer, such as a memoryview into a shared block, and so needs no copy.

    Raises:
        OptionError: An extension is invalid, or has a codec and ``replace`` is false, or there is nothing to register.

    Examples:
        >>> register_codec("hex", decode=bytes.hex, encode=bytes.fromhex, replace=True)
        >>> codec_for("digest.hex").name
        'hex'
    """
    if decode is None and encode is None:
        raise OptionError("a codec needs decode, encode or both")
    words = tuple(extensions.split()) if isinstance(extensions, str) else tuple(extensions)
    names = [_check_extension(word, replace) for word in words or ("",)]  # all of them, before any is registered
    for extension in names:
        added = Codec(
            name or names[0],
            (extension,),
            f"what the codec {name or names[0]!r} reads",
            _decoder_maker(decode, zero_copy) if decode else None,
            _encoder_maker(encode) if encode else None,
            automatic=automatic,
        )
        _codecs[extension] = _merge_codec(added, _codecs.get(extension))


def _check_extension(word: str, replace: bool) -> str:
    extension = word.lower()
    if not extension or extension == "gz" or any(sign in extension for sign in "./\\ \0"):
        raise OptionError("this is not an extension", expected="one component of a name, not gz", found=repr(word))
    if extension in _codecs and not replace:
        raise OptionError("this extension has a codec already", found=word, hint="pass replace=True to replace it")
    return extension


def _merge_codec(added: Codec, former: Codec | None) -> Codec:
    if former is None:
        return added
    if added.decoder is None:
        return dataclasses.replace(former, encoder=added.encoder)
    return dataclasses.replace(added, encoder=added.encoder or former.encoder, textual=former.textual)


def _decoder_maker(decode: Callable[[Any], Any], zero_copy: bool) -> DecoderMaker:
    return lambda limits: decode if zero_copy else lambda data: decode(bytes(data))


def _encoder_maker(encode: Callable[[Any], bytes | bytearray | memoryview]) -> EncoderMaker:
    def encode_value(value: Any) -> bytes | memoryview:
        encoded = encode(value)
        return encoded if isinstance(encoded, bytes) else memoryview(encoded)

    return lambda options: encode_value
