"""Decode specs, and the functions that decode and encode each field, chosen by its name.

A spec and field names are resolved to functions once, before samples are read; errors of the libraries that decode and
encode become `DecodeError` and `EncodeError` here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import partial
from typing import Any, Literal, TypeAlias, get_args

from shoal.errors import CodecError, DecodeError, EncodeError, MissingExtraError, OptionError

from ._audio_video import AUDIO_FORMS, VIDEO_FORMS, Clip, audio_decoder, video_decoder
from ._codec import (
    DEFAULT_MAX_BYTES,
    Buffer,
    Codec,
    Decoder,
    DecoderMaker,
    Encoded,
    EncodeOptions,
    Encoder,
    Kind,
    Limits,
    SizedDecoder,
    time_decoding,
)
from ._documents import GZIP_MAGIC, gunzip, gzip
from ._image_spec import IMAGE_FORMS, ImageSpec, parse_image_spec
from ._images import image_decoder
from ._registry import codec_for, codec_of, split_field

__all__ = ["FORMS", "DecodeSpec", "decode", "decode_spec", "decoders", "encode", "encoders", "unmatched"]

Handler: TypeAlias = Callable[[str, bytes], Any]
Choice: TypeAlias = bool | str | Clip | ImageSpec | Callable[[bytes], Any]
OnDecodeError: TypeAlias = Literal["raise", "keep"]
_Item: TypeAlias = bool | str | Clip | ImageSpec | Handler | Mapping[str, Choice]


_DEFAULT_OPTIONS = EncodeOptions()
_DEFAULT_LIMITS = Limits()
_BUFFER_TYPES = (bytes, bytearray, memoryview)  # a tuple is checked faster than a union
_IN_MEMORY = re.compile(r" <_io\.BytesIO object at 0x[0-9a-f]+>")  # Pillow's name for the bytes, of no use in a message


@dataclass(frozen=True, slots=True)
class DecodeSpec:
    """What to decode, as `decode_spec` returns it.

    Attributes:
        automatic: Whether to decode everything that ``decode=True`` decodes.
        fields: Choices for fields by the last components of their names. The longest match wins, before other rules.
        steps: Forms, extensions, clips, image specs and handlers, tried in order; the first that returns a value wins.
        limits: What decoding may do.
        on_decode_error: Whether a field that does not decode raises an error or stays bytes.
        only: The fields that may be decoded; None for all of them.
    """

    automatic: bool = True
    fields: tuple[tuple[tuple[str, ...], Choice], ...] = ()
    steps: tuple[str | Clip | ImageSpec | Handler, ...] = ()
    limits: Limits = _DEFAULT_LIMITS
    on_decode_error: OnDecodeError = "raise"
    only: frozenset[str] | None = None

    @property
    def has_sizes(self) -> bool:
        """Whether some images are decoded to one size, so that a batch of them is one array from the start."""
        choices = (*self.steps, *(choice for _, choice in self.fields))
        return any(isinstance(choice, ImageSpec) and choice.shape is not None for choice in choices)

    def choice_for(self, parts: tuple[str, ...]) -> Choice | None:
        """Return the choice for a field by its own name, or None."""
        matches = [(pattern, choice) for pattern, choice in self.fields if parts[-len(pattern) :] == pattern]
        return max(matches, key=lambda match: len(match[0]))[1] if matches else None


def decode_spec(
    decode: _Item | Sequence[_Item] | DecodeSpec | None = True,
    *,
    allow_pickle: bool = False,
    on_decode_error: OnDecodeError = "raise",
    max_bytes: int = DEFAULT_MAX_BYTES,
) -> DecodeSpec:
    """Make a `DecodeSpec` from the values that ``decode=`` takes.

    Args:
        decode: ``True`` decodes json, text, integers, arrays (npy, npz, ten), msgpack and cbor, also gzipped, and
            leaves images, audio and video as bytes. ``False`` or ``None`` decodes nothing. Other values add to
            ``True``:

            - a form for all images (``"rgb8"``, ``"rgb"``, ``"pil"``, ``"torchrgb"``, ... all of webdataset's, and
              ``"numpy"``: as stored; ``"rgb8@224"`` or ``"rgb8@224x320"``: resized to height x width; an `ImageSpec`
              for more options), for all audio (``"audio"``, ``"audio16"``, ``"torchaudio"``) or all videos
              (``"video"``, ``"torchvideo"``, or a `Clip`), or an extension to decode by its codec (``"pth"``);
            - a mapping of field names or extensions (``"jpg"``, ``"seg.png"``, ``"jpg png"``) to a form, an extension,
              a `Clip`, an `ImageSpec`, ``True``, ``False``, or a function of the bytes; the longest match wins, before
              other rules;
            - a function ``(name, bytes)`` that returns the value or None, called as webdataset calls its handlers: the
              name has a leading dot (``".seg.png"``) and no ``.gz``;
            - a sequence of these, tried in order; ``False`` in it turns off what ``True`` decodes.
        allow_pickle: Decode pickles, and arrays of objects. Only for data you trust: they can run code.
        on_decode_error: ``"raise"``: a field that does not decode raises `DecodeError`; ``"keep"``: it stays bytes.
        max_bytes: Maximum size of one decoded field, in bytes.

    Raises:
        OptionError: A name is neither a form nor an extension with a codec, or an option has another value.

    Examples:
        >>> decode_spec("rgb8").steps
        ('rgb8',)
        >>> decode_spec({"depth.png": "numpy"}).fields
        ((('depth', 'png'), 'numpy'),)
    """
    if isinstance(decode, DecodeSpec):
        return decode
    if on_decode_error not in get_args(OnDecodeError):
        raise OptionError("on_decode_error is unknown", expected="'raise' or 'keep'", found=repr(on_decode_error))
    items: tuple[Any, ...] = (False if decode is None else decode,)
    if isinstance(decode, Sequence) and not isinstance(decode, str | bytes):
        items = tuple(decode)
    return DecodeSpec(
        automatic=not any(item is False for item in items),
        fields=tuple(pair for item in items if isinstance(item, Mapping) for pair in _field_choices(item)),
        steps=tuple(_parse_step(item) for item in items if not isinstance(item, bool | Mapping)),
        limits=Limits(allow_pickle, max_bytes),
        on_decode_error=on_decode_error,
    )


def _field_choices(mapping: Mapping[str, Any]) -> list[tuple[tuple[str, ...], Choice]]:
    return [
        (_parse_pattern(name), _parse_choice(name, choice))
        for names, choice in mapping.items()
        for name in names.split() or [names]
    ]


def _parse_pattern(name: str) -> tuple[str, ...]:
    parts = tuple(name.lower().removeprefix(".").split("."))
    if not all(parts):
        raise OptionError("this is not a field", expected="dotted components", found=repr(name))
    return parts


def _parse_choice(name: str, choice: Any) -> Choice:
    if isinstance(choice, bool):
        return choice
    try:
        return _parse_step(choice)  # type: ignore[return-value]  # a function of the bytes here, not a handler
    except OptionError as error:
        raise error.at(field=name) from None


def _parse_step(item: Any) -> str | Clip | ImageSpec | Handler:
    if isinstance(item, str):
        return _parse_name(item)
    if isinstance(item, Clip | ImageSpec):
        return item
    if not callable(item):
        raise OptionError("this is not a decode spec", expected="a name, mapping or function", found=repr(item))
    handler: Handler = item
    return handler


def _parse_name(name: str) -> str | ImageSpec:
    lower = name.lower().removeprefix(".")
    if "@" in lower:
        return parse_image_spec(lower)
    if lower in FORMS or codec_of(lower) is not None:
        return lower
    near = get_close_matches(lower, FORMS, 3) or list(FORMS)
    raise OptionError("no decode spec has this name", expected=" or ".join(near), found=repr(name))


@dataclass(frozen=True, slots=True)
class Form:
    """One named way to decode all fields of a kind."""

    name: str
    kind: Kind
    decoder: DecoderMaker


def _list_forms() -> Iterator[Form]:
    for name in IMAGE_FORMS:
        yield Form(name, "image", partial(image_decoder, ImageSpec(name)))
    for audio_form in AUDIO_FORMS:
        yield Form(audio_form, "audio", partial(audio_decoder, audio_form))
    for video_form in VIDEO_FORMS:
        yield Form(video_form, "video", partial(video_decoder, video_form))


FORMS = {form.name: form for form in _list_forms()}


def decode(field: str, data: Buffer, spec: DecodeSpec) -> Any:
    """Decode one field's bytes; return the bytes if ``spec`` does not decode the field.

    For many samples, use `decoders`, which chooses the functions once.

    Raises:
        DecodeError: The bytes are not valid for the field's name (with ``on_decode_error="keep"``: they are returned).
        UnsafeCodecError: Only pickle can read them, and ``allow_pickle`` is false.
        MissingExtraError: A required package is not installed.

    Examples:
        >>> from shoal.codec import decode_spec
        >>> decode("meta.json", b'{"width": 3}', decode_spec(True))
        {'width': 3}
    """
    decoder = _make_decoder(spec, field)
    return data if decoder is None else decoder(data)


def decoders(spec: DecodeSpec, fields: Iterable[str], *, digits: bool = True) -> dict[str, Decoder]:
    """Return the function for each field that ``spec`` decodes; fields that stay bytes are absent, as is ``__key__``.

    Without ``digits``, bytes are not taken for an integer because their field has a name such as ``id``: for formats
    that have integers of their own.

    The functions raise what `decode` raises, with the field named; callers add shard and key with ``.at(...)``.

    Raises:
        MissingExtraError: A required package is not installed.
        UnsafeCodecError: The spec names a pickle field, and ``allow_pickle`` is false.

    Examples:
        >>> from shoal.codec import decode_spec
        >>> functions = decoders(decode_spec(True), ["cls", "jpg"])
        >>> list(functions), functions["cls"](b"7")
        (['cls'], 7)
    """
    by_field = {field: _make_decoder(spec, field, digits) for field in fields if not field.startswith("__")}
    return {field: decoder for field, decoder in by_field.items() if decoder is not None}


def unmatched(spec: DecodeSpec, fields: Iterable[str]) -> tuple[str, ...]:
    """Return the names in ``spec`` that match none of the fields.

    Extensions that have a codec are not returned: a spec with them may be used for several datasets.

    Examples:
        >>> from shoal.codec import decode_spec
        >>> unmatched(decode_spec({"jpgg": "rgb8", "png": "rgb8"}), ["jpg", "json"])
        ('jpgg',)
    """
    split = [split_field(field) for field in fields]
    names = [parts for parts, _ in split] + [(*parts, "gz") for parts, gzipped in split if gzipped]
    patterns = {".".join(pattern): pattern for pattern, _ in spec.fields}
    return tuple(
        name
        for name, pattern in patterns.items()
        if ("." in name or codec_of(name) is None) and not any(parts[-len(pattern) :] == pattern for parts in names)
    )


def _make_decoder(spec: DecodeSpec, field: str, digits: bool = True) -> Decoder | None:
    if spec.only is not None and field not in spec.only:
        return None
    parts, gzipped = split_field(field)
    try:
        decoder = _select_decoder(spec, field, parts, gzipped, digits)
    except (CodecError, MissingExtraError) as error:
        error.at(field=field)
        raise
    if decoder is None:
        return None
    if gzipped:
        decoder = _gunzip_first(decoder, spec.limits.max_bytes)
    codec, keep = codec_for(field), spec.on_decode_error == "keep"
    if isinstance(decoder, SizedDecoder) and not keep:  # an array could not hold the bytes of a field that is kept
        return _translate_sized_errors(decoder, field, codec)
    if codec is None or codec.kind != "data":
        decoder = time_decoding(decoder)
    return _translate_errors(decoder, field, codec, keep)


def _select_decoder(
    spec: DecodeSpec, field: str, parts: tuple[str, ...], gzipped: bool, digits: bool
) -> Decoder | None:
    choice = spec.choice_for((*parts, "gz")) if gzipped else None
    choice = spec.choice_for(parts) if choice is None else choice
    if choice is not None:
        return _decoder_for_choice(spec, choice, field)
    codec = codec_for(field)
    handlers: list[Handler] = []
    final: Decoder | None = None
    for step in spec.steps:
        if callable(step):
            handlers.append(step)
        elif (final := _decoder_for_step(spec, step, codec, parts)) is not None:
            break
    if final is None and (digits or codec is None or codec.name != "integer"):
        final = _automatic_decoder(spec, codec)
    if final is None and gzipped and spec.automatic:
        final = _return_bytes
    return _try_handlers(handlers, field, final or _return_bytes) if handlers else final


def _decoder_for_choice(spec: DecodeSpec, choice: Choice, field: str) -> Decoder | None:
    """Return the decoder that a spec chooses for a field by its name."""
    if choice is False:
        return None
    if isinstance(choice, Clip):
        return video_decoder("video", spec.limits, choice)
    if isinstance(choice, ImageSpec):
        return image_decoder(choice, spec.limits)
    if isinstance(choice, str) and choice in FORMS:
        return FORMS[choice].decoder(spec.limits)
    if callable(choice):
        function = choice
        return lambda data: function(bytes(data))
    codec = codec_of(choice) if isinstance(choice, str) else codec_for(field)
    if codec is None or codec.decoder is None:
        raise OptionError(
            "no codec decodes this field", found=choice, field=field, hint="see shoal.codec.register_codec"
        )
    return codec.decoder(spec.limits)


def _decoder_for_step(
    spec: DecodeSpec, step: str | Clip | ImageSpec, codec: Codec | None, parts: tuple[str, ...]
) -> Decoder | None:
    """Return the decoder of a rule for all fields of a kind or an extension, or None if it does not apply."""
    if codec is None or codec.decoder is None:
        return None
    if isinstance(step, Clip):
        return video_decoder("video", spec.limits, step) if codec.kind == "video" else None
    if isinstance(step, ImageSpec):
        return image_decoder(step, spec.limits) if codec.kind == "image" else None
    form = FORMS.get(step)
    if form is not None and form.kind == codec.kind:
        return form.decoder(spec.limits)
    return codec.decoder(spec.limits) if form is None and parts[-1] == step else None


def _automatic_decoder(spec: DecodeSpec, codec: Codec | None) -> Decoder | None:
    if not spec.automatic or codec is None or codec.decoder is None or not codec.automatic:
        return None
    return None if codec.unsafe and not spec.limits.allow_pickle else codec.decoder(spec.limits)


def _return_bytes(data: Buffer) -> Buffer:
    return data


def _gunzip_first(decoder: Decoder, max_bytes: int) -> Decoder:
    if isinstance(decoder, SizedDecoder):
        decode_into = decoder.decode_into
        return replace(decoder, decode_into=lambda data, out: decode_into(gunzip(data, max_bytes), out))
    return lambda data: decoder(gunzip(data, max_bytes))


def _try_handlers(handlers: list[Handler], field: str, final: Decoder) -> Decoder:
    name = "." + (field[:-3] if split_field(field)[1] else field)

    def run(data: Buffer) -> Any:
        copied = bytes(data)
        for handler in handlers:
            value = handler(name, copied)
            if value is not None:
                return value
        return final(data)

    return run


def _translate_errors(decoder: Decoder, field: str, codec: Codec | None, keep: bool) -> Decoder:
    """Wrap a decoder so that errors of libraries become `DecodeError`, or the bytes are returned if ``keep``."""

    def run(data: Buffer) -> Any:
        try:
            return decoder(data)
        except (MissingExtraError, MemoryError):
            raise  # not caused by the data
        except Exception as error:  # noqa: BLE001 - libraries raise errors of any type
            if keep:
                return data
            raise _decode_error(error, field, codec) from _error_cause(error)

    return run


def _translate_sized_errors(decoder: SizedDecoder, field: str, codec: Codec | None) -> SizedDecoder:
    decode_into = time_decoding(decoder.decode_into)

    def run(data: Buffer, out: Any) -> None:
        try:
            decode_into(data, out)
        except (MissingExtraError, MemoryError):
            raise
        except Exception as error:  # noqa: BLE001 - libraries raise errors of any type
            raise _decode_error(error, field, codec) from _error_cause(error)

    return replace(decoder, decode_into=run)


def _error_cause(error: Exception) -> BaseException | None:
    return error.__cause__ if isinstance(error, CodecError) else error


def _decode_error(error: Exception, field: str, codec: Codec | None) -> CodecError:
    if isinstance(error, CodecError):
        error.at(field=field)
        return error
    expected = codec.expects if codec else None
    found = f"{type(error).__name__}: {_IN_MEMORY.sub('', str(error))}"
    return DecodeError(
        "the field does not decode", expected=expected, found=found, field=field, offset=_error_offset(error)
    )


def _error_offset(error: Exception) -> int | None:
    if isinstance(error, UnicodeDecodeError):
        return error.start
    match = re.search(r"\(byte (\d+)\)", str(error))  # in messages of msgspec
    return int(match[1]) if match else None


def encode(field: str, value: Any, options: EncodeOptions = _DEFAULT_OPTIONS) -> Encoded:
    """Encode one field's value by the codec of the field's name.

    Bytes, bytearrays and memoryviews are returned unchanged, as encoded already. A ``str`` is written as UTF-8 under
    text, json and integer names and under names without a codec; other codecs encode it as a value. The same value
    gives the same bytes on every run. A field that ends in ``.gz`` is compressed, unless its bytes are gzip data.

    Raises:
        EncodeError: The codec cannot encode the value.
        UnsafeCodecError: Only pickle can encode it, and ``allow_pickle`` is false.
        MissingExtraError: A required package is not installed.

    Examples:
        >>> encode("cls", 7), encode("meta.json", {"width": 3}), encode("blob", b"as it is")
        (b'7', b'{"width":3}', b'as it is')
    """
    return _make_encoder(options, field)(value)


def encoders(options: EncodeOptions, fields: Iterable[str]) -> dict[str, Encoder]:
    """Return the function that encodes each field, as `encode` does.

    Examples:
        >>> encoders(EncodeOptions(), ["cls"])["cls"](7)
        b'7'
    """
    return {field: _make_encoder(options, field) for field in fields}


def _make_encoder(options: EncodeOptions, field: str) -> Encoder:
    codec = codec_for(field)
    encode_value = codec.encoder(options) if codec and codec.encoder else _refuse_value
    textual = codec is None or codec.textual
    _, gzipped = split_field(field)

    def run(value: Any) -> Encoded:  # one function without further calls: it runs for each field of each sample
        if isinstance(value, _BUFFER_TYPES):
            return value if isinstance(value, bytes) else _flatten_buffer(value)
        try:
            return value.encode() if textual and isinstance(value, str) else encode_value(value)
        except (MissingExtraError, MemoryError):
            raise
        except CodecError as error:
            error.at(field=field)
            raise
        except Exception as error:  # errors of libraries become EncodeError here
            raise _encode_error(error, field, codec) from error

    return run if not gzipped else lambda value: _gzip_once(run(value))


def _gzip_once(encoded: Encoded) -> Encoded:
    return encoded if encoded[:2] == GZIP_MAGIC else gzip(encoded)


def _flatten_buffer(value: bytearray | memoryview) -> Encoded:
    # Writers take len() as the number of bytes, which is wrong for a memoryview of floats or of two dimensions.
    view = memoryview(value)
    if view.ndim == 1 and view.format == "B" and view.contiguous:
        return view
    return view.cast("B") if view.c_contiguous and view.nbytes else view.tobytes()


def _encode_error(error: Exception, field: str, codec: Codec | None) -> EncodeError:
    expected = f"what becomes {codec.expects}" if codec else None
    cause = f"{type(error).__name__}: {error}"
    return EncodeError("the value does not encode", expected=expected, found=cause, field=field)


def _refuse_value(value: Any) -> Encoded:
    raise EncodeError(
        "no codec encodes this field",
        expected="bytes or text",
        found=type(value).__name__,
        hint="end the field's name in what it is, such as .json or .npy, or see shoal.codec.register_codec",
    )
