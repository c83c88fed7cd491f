"""Codecs that users register, and the extensions that are built in."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.codec import (
    Codec,
    codec_for,
    decode,
    decode_spec,
    encode,
    register_codec,
)
from shoal.codec._registry import BUILT_IN
from shoal.errors import DecodeError, EncodeError, OptionError

PNG = encode("png", np.full((2, 3, 3), 7, np.uint8))


@pytest.mark.usefixtures("registry")
def test_a_registered_codec_works_both_ways():
    register_codec("vec vector", decode=lambda data: np.frombuffer(data, "<f4"), encode=lambda value: value.tobytes())
    value = np.arange(3, dtype="<f4")
    for field in ("vec", "a.VECTOR", "vec.gz"):
        assert np.array_equal(decode(field, encode(field, value), decode_spec(True)), value)
    assert codec_for("x.vec").name == "vec"
    assert isinstance(codec_for("x.vec"), Codec)


@pytest.mark.usefixtures("registry")
def test_a_registered_codec_gets_bytes_unless_it_takes_views():
    register_codec("copied", decode=type)
    register_codec("viewed", decode=type, zero_copy=True)
    assert decode("copied", memoryview(b""), decode_spec(True)) is bytes
    assert decode("viewed", memoryview(b""), decode_spec(True)) is memoryview


@pytest.mark.usefixtures("registry")
def test_a_codec_that_is_not_automatic_waits_to_be_asked():
    register_codec("heavy", decode=len, automatic=False)
    assert decode("heavy", b"123", decode_spec(True)) == b"123"
    assert decode("heavy", b"123", decode_spec("heavy")) == 3
    assert decode("heavy", b"123", decode_spec({"heavy": True})) == 3


@pytest.mark.usefixtures("registry")
def test_replacing_must_be_said_and_keeps_the_other_half():
    with pytest.raises(OptionError, match="replace=True"):
        register_codec("json", decode=len)
    assert decode("json", b"[1]", decode_spec(True)) == [1]
    register_codec("json", decode=len, replace=True)
    assert decode("json", b"[1]", decode_spec(True)) == 3
    assert encode("json", [1]) == b"[1]"
    register_codec("cls", encode=lambda value: bytearray(b"9"), replace=True)
    assert encode("cls", 1) == b"9"
    assert decode("cls", b"1", decode_spec(True)) == 1


@pytest.mark.usefixtures("registry")
def test_a_replaced_image_codec_is_the_users_own():
    register_codec("jpg", decode=len, replace=True)
    assert decode("jpg", PNG, decode_spec(True)) == decode("jpg", PNG, decode_spec("rgb8")) == len(PNG)
    assert decode("png", PNG, decode_spec("rgb8")).shape == (2, 3, 3)


@pytest.mark.usefixtures("registry")
def test_errors_of_a_registered_codec_name_the_field():
    register_codec("odd", decode=lambda data: 1 / 0, encode=lambda value: 1 / 0, name="oddities")
    with pytest.raises(DecodeError, match=r"oddities.*ZeroDivisionError.*field x\.odd"):
        decode("x.odd", b"", decode_spec(True))
    with pytest.raises(EncodeError, match=r"ZeroDivisionError.*field x\.odd"):
        encode("x.odd", 1)


@pytest.mark.usefixtures("registry")
@pytest.mark.parametrize("extensions", ["", [], "gz", "a.b", ["ok", "a/b"], ["a b"], "GZ"])
def test_what_is_no_extension_is_refused(extensions):
    with pytest.raises(OptionError):
        register_codec(extensions, decode=len)
    assert codec_for("ok") is None, "nothing is registered where one of several is refused"


@pytest.mark.usefixtures("registry")
def test_a_codec_does_something():
    with pytest.raises(OptionError, match="decode, encode or both"):
        register_codec("nothing")


NEEDED = """
    json jsn jsonl txt text caption transcript html htm cls cls2 class count index inx id npy npz msgpack mp msg cbor
    pkl pickle pyd pth ten tenbin tb jpg jpeg png webp bmp tiff tif gif ppm pgm pbm img image wav flac mp3 ogg mp4
"""


@pytest.mark.parametrize("extension", NEEDED.split())
def test_every_promised_extension_goes_both_ways(extension):
    codec = BUILT_IN[extension]
    assert codec.decoder is not None
    assert codec.encoder is not None
