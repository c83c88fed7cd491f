"""The byte ranges of fields and arrays in a payload, without decoding it: for batches assembled by copying bytes."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from shoal.codec._codec import Buffer
from shoal.errors import DecodeError

from ._stored_values import NPY_MAGIC, decode_array, read_compact

__all__ = ["ArraySpan", "Span", "array_span", "field_spans"]


class Span(NamedTuple):
    """The byte range of one field's value in a payload.

    ``payload[start:stop]`` is the MessagePack value. ``content`` is where its header ends: the bytes of a str or bytes
    value, or the big-endian bytes of a number, are ``payload[content:stop]``.
    """

    start: int
    stop: int
    content: int
    kind: str


class ArraySpan(NamedTuple):
    """The byte range of an array in a payload: ``payload[offset : offset + nbytes]``, in ``order`` C or F."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    order: str
    offset: int
    nbytes: int


def field_spans(payload: Buffer) -> dict[str, Span]:
    """Return the byte range of each field's value in a payload, in the payload's order.

    Raises:
        DecodeError: The payload is not one MessagePack map with str keys, or is truncated.

    Examples:
        >>> import msgspec
        >>> payload = msgspec.msgpack.encode({"label": "cat", "score": 0.5})
        >>> spans = field_spans(payload)
        >>> payload[spans["label"].content : spans["label"].stop]
        b'cat'
        >>> spans["score"]
        Span(start=17, stop=26, content=18, kind='float')
    """
    spans: dict[str, Span] = {}
    size = len(payload)
    try:
        kind, _, position, values = _read_head(payload, 0)
        if kind != "map":
            raise DecodeError("the sample is not a MessagePack map", found=f"first byte {payload[0]:#04x}", offset=0)
        for _ in range(values // 2):
            kind, content, stop = _read_value(payload, position)
            if kind != "str" or stop > size:
                raise DecodeError("a key of the sample is not text", found=kind, offset=position)
            name = str(payload[content:stop], "utf-8")
            kind, content, end = _read_value(payload, stop)
            if end > size:
                raise DecodeError("the sample ends too soon", expected=end, found=size, field=name)
            spans[name] = Span(stop, end, content, kind)
            position = end
    except (IndexError, UnicodeDecodeError) as error:
        raise DecodeError("the sample is not a MessagePack map", found=error) from error
    if position != size:
        raise DecodeError("something follows the sample", expected=position, found=size, offset=position)
    return spans


def array_span(payload: Buffer, span: Span) -> ArraySpan:
    """Return the byte range of an array's numbers in a payload, for a span whose kind is ``bytes``.

    Raises:
        DecodeError: The field is not an array.

    Examples:
        >>> import msgspec, numpy as np
        >>> from shoal.codec import encode
        >>> payload = msgspec.msgpack.encode({"x": encode("npy", np.arange(3, dtype=np.int16))})
        >>> array = array_span(payload, field_spans(payload)["x"])
        >>> array.dtype, array.shape, np.frombuffer(payload, array.dtype, 3, array.offset).tolist()
        (dtype('int16'), (3,), [0, 1, 2])
    """
    if span.kind != "bytes":
        raise DecodeError("this field is not an array", expected="bytes", found=span.kind, offset=span.start)
    data = memoryview(payload)[span.content : span.stop]
    if data[:6] != NPY_MAGIC:
        compact = read_compact(data)
        return ArraySpan(compact.dtype, compact.shape, "C", span.content + compact.offset, len(data) - compact.offset)
    array = decode_array(data)
    order = "C" if array.flags.c_contiguous else "F"
    return ArraySpan(array.dtype, array.shape, order, span.stop - array.nbytes, array.nbytes)


# By first byte: kind, and the number of bytes of content.
_FIXED_SIZE: dict[int, tuple[str, int]] = {
    0xC0: ("nil", 0), 0xC2: ("bool", 0), 0xC3: ("bool", 0), 0xCA: ("float", 4), 0xCB: ("float", 8),
    **{0xCC + n: ("int", 1 << n) for n in range(4)}, **{0xD0 + n: ("int", 1 << n) for n in range(4)},
    **{0xD4 + n: ("ext", 1 + (1 << n)) for n in range(5)},
}  # fmt: skip
# By first byte: kind, number of bytes of the size, number of bytes after the size (the type of an ext), and for
# containers the number of values for each unit of the size.
_VARIABLE_SIZE: dict[int, tuple[str, int, int, int]] = {
    0xC4: ("bytes", 1, 0, 0), 0xC5: ("bytes", 2, 0, 0), 0xC6: ("bytes", 4, 0, 0),
    0xC7: ("ext", 1, 1, 0), 0xC8: ("ext", 2, 1, 0), 0xC9: ("ext", 4, 1, 0),
    0xD9: ("str", 1, 0, 0), 0xDA: ("str", 2, 0, 0), 0xDB: ("str", 4, 0, 0),
    0xDC: ("list", 2, 0, 1), 0xDD: ("list", 4, 0, 1), 0xDE: ("map", 2, 0, 2), 0xDF: ("map", 4, 0, 2),
}  # fmt: skip


def _read_value(payload: Buffer, position: int) -> tuple[str, int, int]:
    """Return kind, content and stop of the value that starts at a position."""
    kind, content, stop, waiting = _read_head(payload, position)
    while waiting:  # a loop and not a recursion, because hostile data may be nested very deeply
        _, _, stop, more = _read_head(payload, stop)
        waiting += more - 1
    return kind, content, stop


def _read_head(payload: Buffer, position: int) -> tuple[str, int, int, int]:
    """Return kind, content and stop of the value at a position, and for a container the number of its values."""
    first = payload[position]
    after = position + 1
    if 0xA0 <= first < 0xC0:
        return "str", after, after + (first & 0x1F), 0
    if first < 0x80 or first >= 0xE0:
        return "int", position, after, 0
    if first < 0xA0:
        return ("list", after, after, first & 0xF) if first >= 0x90 else ("map", after, after, 2 * (first & 0xF))
    fixed = _FIXED_SIZE.get(first)
    if fixed:
        return fixed[0], after, after + fixed[1], 0
    if first not in _VARIABLE_SIZE:
        raise DecodeError("this is not MessagePack", found=f"byte {first:#04x}", offset=position)
    kind, width, extra, times = _VARIABLE_SIZE[first]
    content = after + width
    size = int.from_bytes(payload[after:content], "big")
    return (kind, content, content, size * times) if times else (kind, content, content + extra + size, 0)
