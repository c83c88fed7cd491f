"""What a field's bytes become when a WebDataset archive is parsed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal

from shoal.codec import Decoder, DecodeSpec, decode_spec, decoders
from shoal.errors import CodecError, DecodeError, OptionError
from shoal.shard import Decoders

__all__ = ["FieldDecoders", "OnDecodeError", "field_decoders"]

OnDecodeError = Literal["keep", "raise"]
FieldDecoders = Callable[[Sequence[str]], Decoders]

_JSON = frozenset({"json", "jsonl"})
_TEXT = frozenset({"txt", "text", "caption", "cls"})


def field_decoders(decode: Any, on_decode_error: OnDecodeError, *, allow_pickle: bool = False) -> FieldDecoders:
    """Give the function that finds, for fields, the functions that decode them.

    Text is stripped whatever ``decode`` is; ``decode`` turns json, jsonl and npy into values, and a spec (see
    `shoal.codec.decode_spec`) what it names too. All else stays bytes. Raises OptionError for what is no spec.
    """
    if on_decode_error not in {"keep", "raise"}:
        raise OptionError("on_decode_error is unknown", expected="'keep' or 'raise'", found=repr(on_decode_error))
    keep = on_decode_error == "keep"
    plain = decode_spec(decode is not False and decode is not None, allow_pickle=allow_pickle)
    chosen = _chosen(decode, on_decode_error, allow_pickle)

    def find(fields: Sequence[str]) -> Decoders:
        found: dict[str, Decoder] = dict(decoders(chosen, fields)) if chosen is not None else {}
        for field in fields:
            if field in found or field.startswith("__"):  # such fields are nobody's to decode, as in webdataset
                continue
            if (decoder := _own(field, plain, keep)) is not None:
                found[field] = decoder
        return found

    return find


def _chosen(decode: Any, on_decode_error: OnDecodeError, allow_pickle: bool) -> DecodeSpec | None:
    """The part of a spec that names fields; what it would decode unasked follows the rules of this format."""
    if decode is None or isinstance(decode, bool):
        return None
    spec = decode_spec(decode, allow_pickle=allow_pickle, on_decode_error=on_decode_error)
    return replace(spec, automatic=False)


def _own(field: str, spec: DecodeSpec, keep: bool) -> Decoder | None:
    extension = field.lower().rpartition(".")[2]
    if extension in _TEXT:
        return _kept(_stripped, _as_bytes) if keep else _located(_stripped, field)
    if extension in _JSON or extension == "npy":
        decoder = decoders(spec, [field]).get(field)
        if decoder is not None and keep:
            return _kept(decoder, _as_text if extension in _JSON else _as_bytes)
        return decoder
    return None


def _stripped(data: Any) -> str:
    try:
        return str(data, "utf-8").strip()
    except UnicodeDecodeError as error:
        raise DecodeError(
            "the field does not decode", expected="UTF-8 text", found=error, offset=error.start
        ) from error


def _located(decoder: Decoder, field: str) -> Decoder:
    def run(data: Any) -> Any:
        try:
            return decoder(data)
        except DecodeError as error:
            raise error.at(field=field) from error.__cause__

    return run


def _kept(decoder: Decoder, instead: Decoder) -> Decoder:
    def run(data: Any) -> Any:
        try:
            return decoder(data)
        except CodecError:
            return instead(data)

    return run


def _as_bytes(data: Any) -> bytes:
    return bytes(data)


def _as_text(data: Any) -> str | bytes:
    try:
        return str(data, "utf-8")
    except UnicodeDecodeError:
        return bytes(data)
