"""One field's bytes to its value, and back, chosen by the last dotted component of the field's name.

::

    _codec      what a codec is          _registry   which one a name chooses, and how users add theirs
    _form       "rgb8", "audio", ...     _spec       what to decode, as a value
    _framework _frameworks _jax _tf      tensors that are handed out
    _resolve    decode, decoders, encode, encoders: all the rest meets here; _clock counts how long it took
    _text _json _msgpack _cbor _pickle _array _npz _tenbin _torch _image_encode _audio _video
    _image_spec _image_read _image_resize _image_decode   images, perhaps all of one size

Example:
    >>> from shoal.codec import decode, decode_spec, encode
    >>> data = encode("meta.json", {"width": 640})
    >>> decode("meta.json", data, decode_spec(True))
    {'width': 640}
"""

from __future__ import annotations

from shoal.codec._codec import Buffer, Codec, Decoder, EncodeOptions, Encoder, Limits, SizedDecoder
from shoal.codec._frameworks import framework, framework_of
from shoal.codec._image_spec import ImageSpec
from shoal.codec._registry import codec_for, register_codec

from ._arrays import array_view, as_array, decode_npy, encode_npy
from ._audio_video import Audio, Clip, Video
from ._codec import decoding_seconds
from ._dispatch import DecodeSpec, decode, decode_spec, decoders, encode, encoders, unmatched
from ._frameworks import Framework

__all__ = [
    "Audio",
    "Buffer",
    "Clip",
    "Codec",
    "DecodeSpec",
    "Decoder",
    "EncodeOptions",
    "Encoder",
    "Framework",
    "ImageSpec",
    "Limits",
    "SizedDecoder",
    "Video",
    "array_view",
    "as_array",
    "codec_for",
    "decode",
    "decode_npy",
    "decode_spec",
    "decoders",
    "decoding_seconds",
    "encode",
    "encode_npy",
    "encoders",
    "framework",
    "framework_of",
    "register_codec",
    "unmatched",
]
