"""Codecs: a field's bytes to its value and back, chosen by the last dotted component of the field's name.

::

    _codec          the Codec type, limits and options
    _registry       the codec of each extension, built in or added by users
    _dispatch       decode specs, and one function to decode or encode each field
    _documents      text, integers, JSON, MessagePack, CBOR, pickle, and gzip
    _arrays         npy, npz and tenbin
    _image_spec     what image to decode to: form, size, fit
    _images         images to pixels, also resized to one size, and back
    _audio_video    audio and video
    _frameworks     tensors of torch, JAX and TensorFlow

Examples:
    >>> from shoal.codec import decode, decode_spec, encode
    >>> data = encode("meta.json", {"width": 640})
    >>> decode("meta.json", data, decode_spec(True))
    {'width': 640}
"""

from __future__ import annotations

from ._arrays import array_view, as_array, decode_npy, encode_npy
from ._audio_video import Audio, Clip, Video
from ._codec import Buffer, Codec, Decoder, EncodeOptions, Encoder, Limits, SizedDecoder, decoding_seconds
from ._dispatch import DecodeSpec, decode, decode_spec, decoders, encode, encoders, unmatched
from ._documents import decode_json
from ._frameworks import Framework, framework, framework_of
from ._image_spec import ImageSpec
from ._registry import codec_for, register_codec

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
    "decode_json",
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
