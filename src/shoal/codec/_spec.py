"""What to decode, as a value: built once from what the user says, read for each field."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Literal, TypeAlias, get_args

from shoal.codec._codec import DEFAULT_MAX_BYTES, Limits
from shoal.codec._form import FORMS
from shoal.codec._image_spec import ImageSpec, image_spec_named
from shoal.codec._registry import codec_of
from shoal.codec._video import Clip
from shoal.errors import OptionError

__all__ = ["Choice", "DecodeSpec", "Handler", "OnDecodeError", "decode_spec"]

Handler: TypeAlias = Callable[[str, bytes], Any]
Choice: TypeAlias = bool | str | Clip | ImageSpec | Callable[[bytes], Any]
OnDecodeError: TypeAlias = Literal["raise", "keep"]
_Item: TypeAlias = bool | str | Clip | ImageSpec | Handler | Mapping[str, Choice]
_DEFAULT_LIMITS = Limits()


@dataclass(frozen=True, slots=True)
class DecodeSpec:
    """What to decode; made by `decode_spec`.

    Attributes:
        automatic: Whether to decode all that ``decode=True`` decodes.
        fields: Choices for fields by the last components of their names. The longest match wins, before all else.
        steps: Forms, extensions, clips, image specs and handlers, tried in order; the first that gives a value wins.
        limits: What decoding may do.
        on_decode_error: What a field that does not decode becomes: an error, or its bytes.
        only: The fields that are decoded at all; None for all of them.
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
        """The choice for a field's own name, or None."""
        matches = [(pattern, choice) for pattern, choice in self.fields if parts[-len(pattern) :] == pattern]
        return max(matches, key=lambda match: len(match[0]))[1] if matches else None


def decode_spec(
    decode: _Item | Sequence[_Item] | DecodeSpec | None = True,
    *,
    allow_pickle: bool = False,
    on_decode_error: OnDecodeError = "raise",
    max_bytes: int = DEFAULT_MAX_BYTES,
) -> DecodeSpec:
    """Make a `DecodeSpec` from what a user says.

    Args:
        decode: ``True`` decodes json, text, integers, arrays (npy, npz, ten), msgpack and cbor, also gzipped, and
            leaves images, sound and video as bytes. ``False`` or ``None`` decodes nothing. The rest adds to ``True``:

            - a form for all images (``"rgb8"``, ``"rgb"``, ``"pil"``, ``"torchrgb"``, ... all of webdataset's, and
              ``"numpy"``: as stored; ``"rgb8@224"`` or ``"rgb8@224x320"``: resized to height x width, and an
              `ImageSpec` for more of that), for all sounds (``"audio"``, ``"audio16"``, ``"torchaudio"``) or all videos
              (``"video"``, ``"torchvideo"``, or a `Clip`), or an extension to be decoded by its codec (``"pth"``);
            - a mapping of field names or extensions (``"jpg"``, ``"seg.png"``, ``"jpg png"``) to a form, an extension,
              a `Clip`, an `ImageSpec`, ``True``, ``False``, or a function of the bytes; the longest match wins, before
              other rules;
            - a function ``(name, bytes)`` that gives the value or None, called as webdataset calls its handlers: the
              name has a leading dot (``".seg.png"``) and no ``.gz``;
            - a sequence of these, tried in order; ``False`` in it turns off what ``True`` decodes.
        allow_pickle: Decode pickles, and arrays of objects. Only for data you trust: they can run code.
        on_decode_error: ``"raise"``: a field that does not decode raises `DecodeError`; ``"keep"``: it stays bytes.
        max_bytes: The most that one compressed field may become.

    Raises:
        OptionError: A name is neither a form nor an extension with a codec, or an option is none of the above.

    Example:
        >>> decode_spec("rgb8").steps
        ('rgb8',)
        >>> decode_spec({"depth.png": "numpy"}).fields
        ((('depth', 'png'), 'numpy'),)
    """
    if isinstance(decode, DecodeSpec):
        return decode
    if on_decode_error not in get_args(OnDecodeError):
        raise OptionError("on_decode_error is unknown", expected="'raise' or 'keep'", found=repr(on_decode_error))
    items = _items(decode)
    return DecodeSpec(
        automatic=not any(item is False for item in items),
        fields=tuple(pair for item in items if isinstance(item, Mapping) for pair in _field_choices(item)),
        steps=tuple(_step(item) for item in items if not isinstance(item, bool | Mapping)),
        limits=Limits(allow_pickle, max_bytes),
        on_decode_error=on_decode_error,
    )


def _items(decode: Any) -> tuple[Any, ...]:
    if decode is None:
        return (False,)
    if isinstance(decode, Sequence) and not isinstance(decode, str | bytes):
        return tuple(decode)
    return (decode,)


def _step(item: Any) -> str | Clip | ImageSpec | Handler:
    if isinstance(item, str):
        return _known(item)
    if isinstance(item, Clip | ImageSpec):
        return item
    if not callable(item):
        raise OptionError("this is not a decode spec", expected="a name, mapping or function", found=repr(item))
    handler: Handler = item
    return handler


def _field_choices(mapping: Mapping[str, Any]) -> list[tuple[tuple[str, ...], Choice]]:
    return [
        (_pattern(name), _choice(name, choice))
        for names, choice in mapping.items()
        for name in names.split() or [names]
    ]


def _pattern(name: str) -> tuple[str, ...]:
    parts = tuple(name.lower().removeprefix(".").split("."))
    if not all(parts):
        raise OptionError("this is not a field", expected="dotted components", found=repr(name))
    return parts


def _choice(name: str, choice: Any) -> Choice:
    if isinstance(choice, bool):
        return choice
    try:
        return _step(choice)  # type: ignore[return-value]  # a function of the bytes here, not a handler
    except OptionError as error:
        raise error.at(field=name) from None


def _known(name: str) -> str | ImageSpec:
    lower = name.lower().removeprefix(".")
    if "@" in lower:
        return image_spec_named(lower)
    if lower in FORMS or codec_of(lower) is not None:
        return lower
    near = get_close_matches(lower, FORMS, 3) or list(FORMS)
    raise OptionError("no decode spec has this name", expected=" or ".join(near), found=repr(name))
