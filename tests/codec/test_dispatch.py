"""How decode specs, handlers and mappings choose decoders, and bytes that are already encoded."""

from __future__ import annotations

import io
import pickle
import subprocess
import sys

import numpy as np
import PIL.Image
import pytest
import webdataset
from hypothesis import given
from hypothesis import strategies as st

from shoal.codec import (
    Clip,
    DecodeSpec,
    EncodeOptions,
    codec_for,
    decode,
    decode_spec,
    decoders,
    encode,
    encoders,
)
from shoal.codec._dispatch import FORMS
from shoal.errors import DecodeError, EncodeError, MissingExtraError, OptionError

PNG = encode("png", np.full((2, 3, 3), 7, np.uint8))
SAMPLE = {
    "json": b'{"a":1}',
    "txt": b"a cat",
    "cls": b"7",
    "npy": encode("npy", np.arange(2)),
    "npz": encode("npz", {"a": np.arange(2)}),
    "ten": encode("ten", [np.arange(2)]),
    "mp": encode("mp", [1]),
    "cbor": encode("cbor", [1]),
    "meta.json.gz": encode("meta.json.gz", [1]),
    "jpg": PNG,
    "png": PNG,
    "wav": b"",
    "mp4": b"",
    "pkl": b"",
    "pth": b"",
    "bin": b"",
    "noextension": b"",
}
AUTOMATIC = ["json", "txt", "cls", "npy", "npz", "ten", "mp", "cbor", "meta.json.gz"]


def test_true_decodes_data_and_leaves_media():
    assert list(decoders(decode_spec(True), SAMPLE)) == AUTOMATIC
    assert decode_spec() == decode_spec(True)


def test_false_and_none_decode_nothing():
    assert decoders(decode_spec(False), SAMPLE) == decoders(decode_spec(None), SAMPLE) == {}


def test_allow_pickle_adds_pickles():
    assert list(decoders(decode_spec(True, allow_pickle=True), SAMPLE)) == [*AUTOMATIC, "pkl"]


@pytest.mark.parametrize(
    "spec, added",
    [
        ("rgb8", ["jpg", "png"]),
        ("audio", ["wav"]),
        ("video", ["mp4"]),
        (Clip(), ["mp4"]),
        ("pth", ["pth"]),
        ("png", ["png"]),
    ],
)
def test_a_name_adds_to_true(spec, added):
    assert set(decoders(decode_spec(spec), SAMPLE)) == {*AUTOMATIC, *added}


def test_false_in_a_sequence_leaves_only_what_is_named():
    assert list(decoders(decode_spec([False, "rgb8", {"cls": True}]), SAMPLE)) == ["cls", "jpg", "png"]


@pytest.mark.parametrize("field", SAMPLE)
def test_decode_is_the_function_of_decoders(field):
    spec = decode_spec("rgb8")
    function = decoders(spec, [field]).get(field, lambda data: data)
    assert repr(decode(field, SAMPLE[field], spec)) == repr(function(SAMPLE[field]))


def test_reserved_names_are_never_decoded():
    assert decoders(decode_spec(lambda name, data: 1), ["__key__", "__url__", "__meta__.json"]) == {}


@pytest.mark.parametrize("field", ["JSON", "Meta.Json", "a.b.json", "a.JSN"])
def test_the_last_component_chooses_in_any_case(field):
    assert decode(field, b"[1]", decode_spec(True)) == [1]


@pytest.mark.parametrize("field", ["json.bak", "xjson", "json.", ".gz", "gz", "", "."])
def test_other_components_do_not(field):
    assert codec_for(field) is None


@given(field=st.text())
def test_any_name_has_an_answer(field):
    decoders(decode_spec(["rgb8", {"seg.png": "numpy"}]), [field])
    encoders(EncodeOptions(), [field])


def test_a_name_of_ten_thousand_gz_is_no_trouble():
    assert codec_for("a" + ".gz" * 10_000) is None


def test_the_longest_match_wins_before_all_else():
    spec = decode_spec(["rgb8", {"png": "l8", "seg.png": "numpy", "x.seg.png": False, "jpg": len}])
    values = {
        field: decode(field, PNG, spec) for field in ("png", "a.png", "seg.png", "B.SEG.PNG", "x.seg.png", "jpg", "gif")
    }
    assert values["png"].ndim == values["a.png"].ndim == 2
    assert values["seg.png"].shape == values["B.SEG.PNG"].shape == (2, 3, 3)
    assert values["x.seg.png"] is PNG
    assert values["jpg"] == len(PNG)
    assert values["gif"].shape == (2, 3, 3)


def test_a_mapping_names_fields_forms_extensions_functions_and_several_at_once():
    spec = decode_spec({"picture": "rgb8", ".record": "json", "a b": int, "raw.json": False})
    assert decode("picture", PNG, spec).shape == (2, 3, 3)
    assert decode("record", b"[1]", spec) == [1]
    assert (decode("a", b"1", spec), decode("x.b", b"2", spec)) == (1, 2)
    assert decode("raw.json", b"[1]", spec) == b"[1]"
    assert decode("json", b"[1]", spec) == [1]


def test_a_function_gets_bytes_and_gz_is_undone_before():
    spec = decode_spec({"vec": lambda data: (type(data), data)})
    assert decode("vec", memoryview(b"12"), spec) == (bytes, b"12")
    assert decode("vec.gz", encode("vec.gz", b"12"), spec) == (bytes, b"12")


def test_handlers_are_tried_in_order_and_none_passes_on():
    calls = []

    def first(name, data):
        calls.append(name)
        return None if name != ".a.bin" else "first"

    spec = decode_spec([first, lambda name, data: "second" if name.endswith((".bin", ".txt")) else None])
    assert decode("a.bin", b"", spec) == "first"
    assert decode("b.bin", b"", spec) == "second"
    assert decode("cls", b"3", spec) == 3
    assert decode("raw", data := b"x", spec) is data
    assert decode("t.txt.gz", encode("t.txt.gz", "x"), spec) == "second"
    assert calls == [".a.bin", ".b.bin", ".cls", ".raw", ".t.txt"]


def test_handlers_and_forms_are_tried_in_their_order():
    def handler(name, data):
        return "mine"

    assert decode("png", PNG, decode_spec([handler, "rgb8"])) == "mine"
    assert decode("png", PNG, decode_spec(["rgb8", handler])).shape == (2, 3, 3)
    assert decode("cls", b"3", decode_spec(["rgb8", handler])) == "mine"


@pytest.mark.parametrize(
    "handler, field, data",
    [
        (webdataset.autodecode.imagehandler("rgb8"), "a.png", PNG),
        (webdataset.handle_extension("seg.png", len), "x.seg.png", PNG),
        (webdataset.autodecode.basichandlers, "a.cls", b"5"),
    ],
)
def test_webdatasets_own_handlers_work(wds_decode, handler, field, data):
    expected = webdataset.autodecode.Decoder([handler]).decode({field: data})[field]
    assert np.array_equal(decode(field, memoryview(data), decode_spec(handler)), expected)


def test_every_webdataset_spec_is_known():
    assert set(webdataset.autodecode.imagespecs) <= set(FORMS)
    assert decode_spec("PIL").steps == ("pil",)


@pytest.mark.parametrize(
    "spec", ["rgb9", "torch rgb", "", 5, 1.5, [5], {"a": 5}, {"a": "rgb9"}, {"": True}, {"a..b": True}, [b"x"]]
)
def test_what_is_no_spec_is_refused(spec):
    with pytest.raises(OptionError):
        decode_spec(spec)


def test_a_near_miss_is_named():
    with pytest.raises(OptionError, match="torchrgb8"):
        decode_spec("torchrbg8")


@pytest.mark.parametrize("options", [{"on_decode_error": "skip"}, {"max_bytes": 0}])
def test_options_are_checked(options):
    with pytest.raises(OptionError):
        decode_spec(True, **options)
    with pytest.raises(OptionError):
        EncodeOptions(quality=0)


def test_true_for_a_field_without_a_codec_is_refused():
    with pytest.raises(OptionError, match=r"field blob\.bin"):
        decode("blob.bin", b"", decode_spec({"bin": True}))


def test_a_spec_is_a_value():
    spec = decode_spec(["rgb8", {"a": "numpy"}], on_decode_error="keep")
    assert spec == decode_spec(["rgb8", {"a": "numpy"}], on_decode_error="keep")
    assert hash(spec) == hash(pickle.loads(pickle.dumps(spec)))
    assert decode_spec(spec) is spec
    assert isinstance(spec, DecodeSpec)


BAD = {
    "json": b"{",
    "txt": b"\xff",
    "npy": b"x",
    "npz": b"x",
    "cls": b"x",
    "mp": b"",
    "cbor": b"",
    "ten": b"x",
    "a.json.gz": b"x",
    "png": b"x",
}


@pytest.mark.parametrize("field", BAD)
@pytest.mark.parametrize("wrap", [bytes, memoryview])
def test_keep_keeps_the_very_bytes(field, wrap):
    data = wrap(BAD[field])
    assert decode(field, data, decode_spec("rgb8", on_decode_error="keep")) is data
    with pytest.raises(DecodeError) as caught:
        decode(field, data, decode_spec("rgb8"))
    error = caught.value.at(shard="a.tar", key="0001", field="another")
    assert (error.shard, error.key, error.field) == ("a.tar", "0001", field)


def test_what_a_function_raises_becomes_a_decode_error():
    def broken(data):
        raise RuntimeError("out of cheese")

    with pytest.raises(DecodeError, match="RuntimeError: out of cheese") as caught:
        decode("x", b"", decode_spec({"x": broken}))
    assert isinstance(caught.value.__cause__, RuntimeError)
    assert decode("x", b"", decode_spec({"x": broken}, on_decode_error="keep")) == b""


def test_a_lack_of_memory_is_not_the_datas_fault():
    def hungry(data):
        raise MemoryError

    with pytest.raises(MemoryError):
        decode("x", b"", decode_spec({"x": hungry}, on_decode_error="keep"))


@pytest.mark.parametrize(
    "package, extra, use",
    [
        ("PIL.Image", "images", lambda: decoders(decode_spec("rgb8"), ["jpg"])),
        ("PIL.Image", "images", lambda: encode("png", np.zeros((2, 2), np.uint8))),
        ("soundfile", "audio", lambda: decode("wav", b"", decode_spec("audio", on_decode_error="keep"))),
        ("av", "video", lambda: decode("mp4", b"", decode_spec("video"))),
        ("cbor2", "cbor", lambda: decode("cbor", b"\x01", decode_spec(True))),
        ("cbor2", "cbor", lambda: encode("cbor", 1)),
        ("torch", "torch", lambda: decode("pth", b"", decode_spec("pth"))),
        ("torch", "torch", lambda: decode("png", PNG, decode_spec("torchrgb", on_decode_error="keep"))),
    ],
)
def test_a_missing_package_is_named(monkeypatch, package, extra, use):
    monkeypatch.setitem(sys.modules, package, None)  # how Python itself marks a module that cannot be imported
    with pytest.raises(MissingExtraError, match=rf"pip install 'shoal\[{extra}\]'"):
        use()


def test_bytes_are_written_without_the_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    assert encode("png", PNG) is PNG


def test_simplejpeg_is_not_needed(monkeypatch):
    monkeypatch.setattr("shoal.codec._images.find_spec", lambda name: None)
    stream = io.BytesIO()
    PIL.Image.new("RGB", (3, 2)).save(stream, "JPEG")
    assert decode("jpg", stream.getvalue(), decode_spec("rgb8")).shape == (2, 3, 3)


def test_importing_codecs_loads_no_extra():
    code = "import sys, shoal.codec; print(*sorted(set(m.partition('.')[0] for m in sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={"PYTHONPATH": ":".join(sys.path)}
    )
    assert not {"PIL", "torch", "simplejpeg", "soundfile", "av", "cbor2", "pyarrow"} & set(done.stdout.split())


@pytest.mark.parametrize("field", ["blob.bin", "jpg", "json", "npy", "pkl", "mp4", "noextension", "weird."])
@pytest.mark.parametrize("wrap", [bytes, bytearray, memoryview])
def test_bytes_pass_through(field, wrap):
    encoded = encode(field, wrap(b"as it is"))
    assert bytes(encoded) == b"as it is"
    assert isinstance(encoded, bytes | memoryview)


def test_views_are_not_copied():
    block = bytearray(b"0123456789")
    encoded = encode("bin", memoryview(block)[2:5])
    block[2] = ord("x")
    assert bytes(encoded) == b"x34"


@pytest.mark.parametrize("array", [np.arange(6, dtype="f4").reshape(2, 3), np.arange(10)[::2], np.zeros((0, 3))])
def test_a_view_of_numbers_counts_as_bytes(array):
    encoded = encode("bin", memoryview(array))
    assert len(encoded) == array.nbytes
    assert bytes(encoded) == array.tobytes()


def test_text_under_an_unknown_name_is_utf8(wds_encode):
    assert encode("blob.xyz", "ä") == "ä".encode() == wds_encode("blob.xyz", "ä")


@pytest.mark.parametrize("value", [5, None, {"a": 1}, np.arange(3)])
def test_other_values_under_an_unknown_name_are_refused(value):
    with pytest.raises(EncodeError, match="register_codec") as caught:
        encode("blob.xyz", value)
    assert caught.value.field == "blob.xyz"
