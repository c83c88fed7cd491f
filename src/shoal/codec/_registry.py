"""Which codec an extension chooses: those built in, and those users add."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace as changed
from types import MappingProxyType
from typing import Any

from shoal.codec._codec import Buffer, Codec, DecoderMaker, EncoderMaker
from shoal.errors import OptionError

from . import _arrays, _audio_video, _documents, _frameworks, _image_encode

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
    _image_encode.IMAGE_CODECS,
    _audio_video.AUDIO_CODECS,
    _audio_video.VIDEO_CODECS,
)

BUILT_IN = MappingProxyType(
    {extension: codec for codecs in _TABLES for codec in codecs for extension in codec.extensions}
)
_codecs: dict[str, Codec] = dict(BUILT_IN)


def split_field(field: str) -> tuple[tuple[str, ...], bool]:
    """The lower-case components of a field's name without a last ``gz``, and whether there was one.

    Example:
        >>> split_field("meta.JSON.gz")
        (('meta', 'json'), True)
    """
    parts = tuple(field.lower().split("."))
    return (parts[:-1], True) if parts[-1] == "gz" else (parts, False)


def codec_of(extension: str) -> Codec | None:
    """The codec for a bare extension, in any case."""
    return _codecs.get(extension.lower())


def codec_for(field: str) -> Codec | None:
    """The codec that a field's name chooses, or None where its bytes stay as they are.

    The last dotted component counts, in any case; a last ``gz`` is passed over.

    Example:
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
    """Teach shoal an extension, in this process.

    Args:
        extensions: One or several, as ``"vec"``, ``"vec vector"`` or a list.
        decode: Takes a field's bytes, gives its value. Left out: the bytes stay as they are.
        encode: Takes a value, gives its bytes. Left out: only bytes can be written.
        name: What error messages call it; the first extension by default.
        replace: Needed where an extension has a codec already. The half not given stays as it was.
        automatic: Whether ``decode=True`` decodes it.
        zero_copy: ``decode`` takes any buffer, such as a memoryview into a shared block, and gets it without a copy.

    Raises:
        OptionError: An extension is not one, or is taken and ``replace`` is false, or there is nothing to register.

    Example:
        >>> register_codec("hex", decode=bytes.hex, encode=bytes.fromhex, replace=True)
        >>> codec_for("digest.hex").name
        'hex'
    """
    if decode is None and encode is None:
        raise OptionError("a codec needs decode, encode or both")
    words = tuple(extensions.split()) if isinstance(extensions, str) else tuple(extensions)
    names = [_checked(word, replace) for word in words or ("",)]  # all of them, before any is registered
    for extension in names:
        added = Codec(
            name or names[0],
            (extension,),
            f"what the codec {name or names[0]!r} reads",
            _decoder_maker(decode, zero_copy) if decode else None,
            _encoder_maker(encode) if encode else None,
            automatic=automatic,
        )
        _codecs[extension] = _merged(added, _codecs.get(extension))


def _checked(word: str, replace: bool) -> str:
    extension = word.lower()
    if not extension or extension == "gz" or any(sign in extension for sign in "./\\ \0"):
        raise OptionError("this is not an extension", expected="one component of a name, not gz", found=repr(word))
    if extension in _codecs and not replace:
        raise OptionError("this extension has a codec already", found=word, hint="pass replace=True to replace it")
    return extension


def _merged(added: Codec, former: Codec | None) -> Codec:
    if former is None:
        return added
    if added.decoder is None:
        return changed(former, encoder=added.encoder)
    return changed(added, encoder=added.encoder or former.encoder, textual=former.textual)


def _decoder_maker(decode: Callable[[Any], Any], zero_copy: bool) -> DecoderMaker:
    return lambda limits: decode if zero_copy else lambda data: decode(bytes(data))


def _encoder_maker(encode: Callable[[Any], bytes | bytearray | memoryview]) -> EncoderMaker:
    def encode_value(value: Any) -> bytes | memoryview:
        encoded = encode(value)
        return encoded if isinstance(encoded, bytes) else memoryview(encoded)

    return lambda options: encode_value
