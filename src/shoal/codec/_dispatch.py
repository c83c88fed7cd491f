"""From a spec and field names to functions, once; then bytes to values with no look-up for each sample."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from shoal.codec._clock import clocked
from shoal.codec._codec import Buffer, Codec, Decoder, Encoded, EncodeOptions, Encoder, SizedDecoder
from shoal.codec._form import FORMS
from shoal.codec._gzip import GZIP_MAGIC, gunzip, gzip
from shoal.codec._image_decode import image_decoder
from shoal.codec._image_spec import ImageSpec
from shoal.codec._registry import codec_for, codec_of, split_field
from shoal.codec._spec import Choice, DecodeSpec, Handler
from shoal.codec._video import Clip, video_decoder
from shoal.errors import CodecError, DecodeError, EncodeError, MissingExtraError, OptionError

__all__ = ["decode", "decoders", "encode", "encoders", "unmatched"]

_DEFAULT_OPTIONS = EncodeOptions()


def decode(field: str, data: Buffer, spec: DecodeSpec) -> Any:
    """The value of one field's bytes; the bytes themselves where ``spec`` leaves them so.

    For many samples, `decoders` finds the functions once.

    Raises:
        DecodeError: The bytes are not what the field's name says (with ``on_decode_error="keep"``: they are returned).
        UnsafeCodecError: Only pickle can read them, and ``allow_pickle`` is false.
        MissingExtraError: A package that is needed is not installed.

    Example:
        >>> from shoal.codec import decode_spec
        >>> decode("meta.json", b'{"width": 3}', decode_spec(True))
        {'width': 3}
    """
    decoder = _decoder(spec, field)
    return data if decoder is None else decoder(data)


def decoders(spec: DecodeSpec, fields: Iterable[str]) -> dict[str, Decoder]:
    """The function for each field that ``spec`` decodes; those that stay bytes are absent, as is ``__key__``.

    The functions raise what `decode` raises, with the field named; callers add shard and key with ``.at(...)``.

    Raises:
        MissingExtraError: A package that is needed is not installed.
        UnsafeCodecError: The spec asks for a pickle by name, and ``allow_pickle`` is false.

    Example:
        >>> from shoal.codec import decode_spec
        >>> functions = decoders(decode_spec(True), ["cls", "jpg"])
        >>> list(functions), functions["cls"](b"7")
        (['cls'], 7)
    """
    found = {field: _decoder(spec, field) for field in fields if not field.startswith("__")}
    return {field: decoder for field, decoder in found.items() if decoder is not None}


def unmatched(spec: DecodeSpec, fields: Iterable[str]) -> tuple[str, ...]:
    """The fields that ``spec`` chooses something for and that are none of these.

    An extension that has a codec is not meant for one dataset, so it is not among them.

    Example:
        >>> from shoal.codec import decode_spec
        >>> unmatched(decode_spec({"jpgg": "rgb8", "png": "rgb8"}), ["jpg", "json"])
        ('jpgg',)
    """
    split = [split_field(field) for field in fields]
    names = [parts for parts, _ in split] + [(*parts, "gz") for parts, gzipped in split if gzipped]
    meant = {".".join(pattern): pattern for pattern, _ in spec.fields}
    named = {name: pattern for name, pattern in meant.items() if "." in name or codec_of(name) is None}
    return tuple(name for name, one in named.items() if not any(parts[-len(one) :] == one for parts in names))


def _decoder(spec: DecodeSpec, field: str) -> Decoder | None:
    if spec.only is not None and field not in spec.only:
        return None
    parts, gzipped = split_field(field)
    try:
        found = _plain_decoder(spec, field, parts, gzipped)
    except (CodecError, MissingExtraError) as error:
        error.at(field=field)
        raise
    if found is None:
        return None
    if gzipped:
        found = _gunzipping(found, spec.limits.max_bytes)
    codec, keep = codec_for(field), spec.on_decode_error == "keep"
    if isinstance(found, SizedDecoder) and not keep:  # bytes that are kept have no place in an array
        return _guarded_filling(found, field, codec)
    if codec is None or codec.kind != "data":
        found = clocked(found)
    return _guarded(found, field, codec, keep)


def _plain_decoder(spec: DecodeSpec, field: str, parts: tuple[str, ...], gzipped: bool) -> Decoder | None:
    choice = spec.choice_for((*parts, "gz")) if gzipped else None
    choice = spec.choice_for(parts) if choice is None else choice
    if choice is not None:
        return _chosen(spec, choice, field)
    codec = codec_for(field)
    handlers: list[Handler] = []
    final: Decoder | None = None
    for step in spec.steps:
        if callable(step):
            handlers.append(step)
        elif (final := _stepped(spec, step, codec, parts)) is not None:
            break
    if final is None:
        final = _automatic(spec, codec)
    if final is None and gzipped and spec.automatic:
        final = _same
    return _handled(handlers, field, final or _same) if handlers else final


def _chosen(spec: DecodeSpec, choice: Choice, field: str) -> Decoder | None:
    """The decoder that the user chose for this very field."""
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


def _stepped(
    spec: DecodeSpec, step: str | Clip | ImageSpec, codec: Codec | None, parts: tuple[str, ...]
) -> Decoder | None:
    """The decoder of a rule for all fields of a kind or an extension, or None where it does not apply to this one."""
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


def _automatic(spec: DecodeSpec, codec: Codec | None) -> Decoder | None:
    if not spec.automatic or codec is None or codec.decoder is None or not codec.automatic:
        return None
    return None if codec.unsafe and not spec.limits.allow_pickle else codec.decoder(spec.limits)


def _same(data: Buffer) -> Buffer:
    return data


def _gunzipping(decoder: Decoder, max_bytes: int) -> Decoder:
    if isinstance(decoder, SizedDecoder):
        fill = decoder.decode_into
        return replace(decoder, decode_into=lambda data, out: fill(gunzip(data, max_bytes), out))
    return lambda data: decoder(gunzip(data, max_bytes))


def _handled(handlers: list[Handler], field: str, final: Decoder) -> Decoder:
    name = "." + (field[:-3] if split_field(field)[1] else field)

    def run(data: Buffer) -> Any:
        held = bytes(data)
        for handler in handlers:
            value = handler(name, held)
            if value is not None:
                return value
        return final(data)

    return run


def _guarded(decoder: Decoder, field: str, codec: Codec | None, keep: bool) -> Decoder:
    """The boundary where what libraries raise becomes a `DecodeError`, or the bytes are kept."""

    def run(data: Buffer) -> Any:
        try:
            return decoder(data)
        except (MissingExtraError, MemoryError):
            raise  # these say nothing about the data
        except Exception as error:  # noqa: BLE001 - whatever a library raises
            if keep:
                return data
            raise _decode_error(error, field, codec) from _cause(error)

    return run


def _guarded_filling(decoder: SizedDecoder, field: str, codec: Codec | None) -> SizedDecoder:
    decode_into = clocked(decoder.decode_into)

    def run(data: Buffer, out: Any) -> None:
        try:
            decode_into(data, out)
        except (MissingExtraError, MemoryError):
            raise
        except Exception as error:  # noqa: BLE001 - whatever a library raises
            raise _decode_error(error, field, codec) from _cause(error)

    return replace(decoder, decode_into=run)


def _cause(error: Exception) -> BaseException | None:
    return error.__cause__ if isinstance(error, CodecError) else error


def _decode_error(error: Exception, field: str, codec: Codec | None) -> CodecError:
    if isinstance(error, CodecError):
        error.at(field=field)
        return error
    expected = codec.expects if codec else None
    found = f"{type(error).__name__}: {_IN_MEMORY.sub('', str(error))}"
    return DecodeError("the field does not decode", expected=expected, found=found, field=field, offset=_offset(error))


_IN_MEMORY = re.compile(r" <_io\.BytesIO object at 0x[0-9a-f]+>")  # Pillow's name for bytes, which says nothing


def _offset(error: Exception) -> int | None:
    if isinstance(error, UnicodeDecodeError):
        return error.start
    place = re.search(r"\(byte (\d+)\)", str(error))  # how msgspec says where
    return int(place[1]) if place else None


def encode(field: str, value: Any, options: EncodeOptions = _DEFAULT_OPTIONS) -> Encoded:
    """The bytes of one field's value, by the field's name.

    Bytes, bytearrays and memoryviews are taken as encoded already. A ``str`` is written as UTF-8 under text, json and
    integer names and under names without a codec; elsewhere it is a value like any other. The same value gives the same
    bytes, on every run. A field that ends in ``.gz`` is compressed, unless its bytes are gzip data already.

    Raises:
        EncodeError: The value does not fit the field's name.
        UnsafeCodecError: Only pickle can hold it, and ``allow_pickle`` is false.
        MissingExtraError: A package that is needed is not installed.

    Example:
        >>> encode("cls", 7), encode("meta.json", {"width": 3}), encode("blob", b"as it is")
        (b'7', b'{"width":3}', b'as it is')
    """
    return _encoder(options, field)(value)


def encoders(options: EncodeOptions, fields: Iterable[str]) -> dict[str, Encoder]:
    """The function for each field that turns its values into bytes, as `encode` does.

    Example:
        >>> encoders(EncodeOptions(), ["cls"])["cls"](7)
        b'7'
    """
    return {field: _encoder(options, field) for field in fields}


_RAW = (bytes, bytearray, memoryview)  # made once: a union written in the call is built anew each time


def _encoder(options: EncodeOptions, field: str) -> Encoder:
    codec = codec_for(field)
    encode_value = codec.encoder(options) if codec and codec.encoder else _refuse
    textual = codec is None or codec.textual
    _, gzipped = split_field(field)

    def run(value: Any) -> Encoded:  # flat, because one is called for each field of each sample
        if isinstance(value, _RAW):
            return value if isinstance(value, bytes) else _flat(value)
        try:
            return value.encode() if textual and isinstance(value, str) else encode_value(value)
        except (MissingExtraError, MemoryError):
            raise
        except CodecError as error:
            error.at(field=field)
            raise
        except Exception as error:  # the one boundary where what libraries raise becomes an EncodeError
            raise _encode_error(error, field, codec) from error

    return run if not gzipped else lambda value: _gzipped(run(value))


def _gzipped(encoded: Encoded) -> Encoded:
    return encoded if encoded[:2] == GZIP_MAGIC else gzip(encoded)


def _flat(value: bytearray | memoryview) -> Encoded:
    # Writers count len() as bytes, which a memoryview over floats or of two dimensions would not give.
    view = memoryview(value)
    if view.ndim == 1 and view.format == "B" and view.contiguous:
        return view
    return view.cast("B") if view.c_contiguous and view.nbytes else view.tobytes()


def _encode_error(error: Exception, field: str, codec: Codec | None) -> EncodeError:
    expected = f"what becomes {codec.expects}" if codec else None
    found = f"{type(error).__name__}: {error}"
    return EncodeError("the value does not encode", expected=expected, found=found, field=field)


def _refuse(value: Any) -> Encoded:
    raise EncodeError(
        "no codec encodes this field",
        expected="bytes or text",
        found=type(value).__name__,
        hint="end the field's name in what it is, such as .json or .npy, or see shoal.codec.register_codec",
    )
