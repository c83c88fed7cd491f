"""npy, npz and tenbin: exact, without copies, and never more memory than the data has bytes."""

from __future__ import annotations

import contextlib
import io
import zipfile

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from shoal.codec import EncodeOptions, decode, decode_spec, encode
from shoal.errors import DecodeError, EncodeError, UnsafeCodecError

# NumPy's own writer, used here to compare, warns that NumPy 1.16 cannot read what it writes.
pytestmark = pytest.mark.filterwarnings("ignore:Stored array in format")

TRUE = decode_spec(True)
PICKLE = decode_spec(True, allow_pickle=True)
TENBIN = ["f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8"]
shapes = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5)
arrays = hnp.arrays(hnp.scalar_dtypes() | hnp.nested_dtypes(), shapes)


def saved(array):
    stream = io.BytesIO()
    np.save(stream, array, allow_pickle=False)
    return stream.getvalue()


def identical(left, right):
    return left.dtype == right.dtype and left.shape == right.shape and left.tobytes() == right.tobytes()


def npy(header, data=b"", version=(1, 0)):
    text = header.encode("latin-1")
    return b"\x93NUMPY" + bytes(version) + len(text).to_bytes(2 if version[0] == 1 else 4, "little") + text + data


@given(array=arrays)
def test_npy_comes_back(array):
    assert identical(decode("npy", encode("npy", array), TRUE), array)


@given(array=arrays, fortran=st.booleans())
def test_npy_is_numpys_own(array, fortran):
    array = np.asarray(array, order="F" if fortran else "C")
    assert encode("npy", array) == saved(array)
    assert identical(decode("npy", saved(array), TRUE), array)


@given(array=hnp.arrays(hnp.scalar_dtypes(), shapes))
def test_npy_is_webdatasets(wds_decode, wds_encode, array):
    assert identical(decode("x.npy", wds_encode("x.npy", array), TRUE), array)
    assert identical(wds_decode("x.npy", encode("x.npy", array)), array)


def test_npy_of_a_slice_is_that_of_its_copy():
    array = np.arange(24).reshape(4, 6)[::2, ::-3]
    assert encode("npy", array) == saved(array.copy())


def test_npy_in_fortran_order_keeps_it():
    array = np.asfortranarray(np.arange(6).reshape(2, 3))
    decoded = decode("npy", encode("npy", array), TRUE)
    assert decoded.flags.f_contiguous
    assert identical(decoded, array)


@pytest.mark.parametrize("name", ["ä", "猫"])
def test_npy_of_unusual_columns_is_numpys_own(name):
    array = np.zeros(2, [(name, "f4")])
    assert encode("npy", array) == saved(array)
    assert identical(decode("npy", saved(array), TRUE), array)


def test_npy_of_thousands_of_columns_comes_back():
    array = np.ones(2, [(f"column{number:05}", "f4") for number in range(3000)])
    assert encode("npy", array) == saved(array)
    assert identical(decode("npy", saved(array), TRUE), array)


@pytest.mark.parametrize("wrap", [bytes, bytearray, memoryview, lambda data: memoryview(bytearray(data))])
def test_npy_is_a_read_only_view(wrap):
    data = wrap(encode("npy", np.arange(1000)))
    decoded = decode("npy", data, TRUE)
    assert np.shares_memory(decoded, np.frombuffer(data, np.uint8))
    assert not decoded.flags.writeable
    assert np.array_equal(decoded, np.arange(1000))


@pytest.mark.parametrize("value", [np.float32(2), torch.arange(4.0), torch.ones(2, 2, requires_grad=True)])
def test_scalars_and_tensors_are_arrays(value):
    expected = value.detach().numpy() if isinstance(value, torch.Tensor) else np.asarray(value)
    assert identical(decode("npy", encode("npy", value), TRUE), expected)


@pytest.mark.parametrize("value", [[1, 2], 5, "text", None, {"a": 1}])
def test_what_is_no_array_is_refused(value):
    with pytest.raises(EncodeError, match="not an array"):
        encode("npy", value)


WHOLE = saved(np.arange(5, dtype="f8"))


@pytest.mark.parametrize("size", range(len(WHOLE)))
def test_npy_cut_anywhere_is_refused(size):
    with pytest.raises(DecodeError):
        decode("npy", WHOLE[:size], TRUE)


@given(position=st.integers(0, len(WHOLE) - 41), bit=st.integers(0, 7))
def test_npy_with_a_flipped_header_bit_never_gives_other_than_an_array_or_an_error(position, bit):
    damaged = bytearray(WHOLE)
    damaged[position] ^= 1 << bit
    with contextlib.suppress(DecodeError, UnsafeCodecError):
        assert decode("npy", damaged, TRUE).nbytes == 40


@pytest.mark.parametrize(
    "header",
    [
        "{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000,)}",
        "{'descr': '<f8', 'fortran_order': False, 'shape': (2, 9223372036854775807, 4)}",
        "{'descr': '<f8', 'fortran_order': False, 'shape': (1,)}",
        "{'descr': '<f8', 'fortran_order': False, 'shape': (-1,)}",
        "{'descr': '<f8', 'fortran_order': False, 'shape': (True,)}",
        "{'descr': '<f8', 'fortran_order': False, 'shape': 2}",
        "{'descr': '<f8', 'fortran_order': 0, 'shape': (2,)}",
        "{'descr': 'no such type', 'fortran_order': False, 'shape': (2,)}",
        "{'descr': '<f8', 'shape': (2,)}",
        "{'descr': '<f8', 'fortran_order': False, 'shape': (2,), 'more': 1}",
        "__import__('os').getcwd()",
        "(((",
        "(" * 60_000,
        "-" * 60_000 + "1",
        "1+" * 30_000 + "1",
        "",
    ],
)
def test_an_npy_header_that_lies_is_refused(header):
    with pytest.raises(DecodeError):
        decode("npy", npy(header, bytes(16)), TRUE)


def test_an_npy_header_beyond_reason_is_refused():
    with pytest.raises(DecodeError, match="header is too long"):
        decode("npy", npy(" " * (1 << 21), version=(2, 0)), TRUE)


@pytest.mark.parametrize("version", [(0, 0), (4, 0), (255, 0)])
def test_an_unknown_npy_version_is_refused(version):
    with pytest.raises(DecodeError):
        decode("npy", npy("{'descr': '<f8', 'fortran_order': False, 'shape': (2,)}", bytes(16), version), TRUE)


@pytest.mark.parametrize("version", [(2, 0), (3, 0)])
def test_later_npy_versions_are_read(version):
    data = npy("{'descr': '<f8', 'fortran_order': False, 'shape': (2,)}", bytes(16), version)
    assert identical(decode("npy", data, TRUE), np.zeros(2))


OBJECTS = np.array([{"a": 1}, None], dtype=object)


@pytest.mark.parametrize("field, value", [("npy", OBJECTS), ("npz", {"x": OBJECTS})])
def test_arrays_of_objects_need_allow_pickle(field, value):
    with pytest.raises(UnsafeCodecError, match="allow_pickle=True"):
        encode(field, value)
    data = encode(field, value, EncodeOptions(allow_pickle=True))
    with pytest.raises(UnsafeCodecError, match="allow_pickle=True") as caught:
        decode(field, data, TRUE)
    assert caught.value.field == field
    decoded = decode(field, data, PICKLE)
    assert (decoded if field == "npy" else decoded["x"]).tolist() == OBJECTS.tolist()


names = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)


@given(value=st.dictionaries(names, arrays, max_size=4))
def test_npz_comes_back(value):
    decoded = decode("npz", encode("npz", value), TRUE)
    assert list(decoded) == list(value)
    assert all(identical(decoded[name], value[name]) for name in value)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_npz_of_numpy_is_read(wds_decode, save):
    value = {"a": np.arange(1000), "b/c": np.eye(3, dtype="f4"), "empty": np.zeros((0, 2)), "one": np.array(5)}
    stream = io.BytesIO()
    save(stream, **value)
    ours, theirs = decode("npz", stream.getvalue(), TRUE), wds_decode("npz", stream.getvalue())
    assert list(ours) == list(theirs)
    assert all(identical(ours[name], theirs[name]) for name in value)


def test_npz_is_read_by_webdataset_and_theirs_here(wds_decode, wds_encode):
    value = {"a": np.arange(5), "b": np.ones((2, 2), "f4")}
    theirs, ours = wds_decode("npz", encode("npz", value)), decode("npz", wds_encode("npz", value), TRUE)
    assert all(identical(theirs[name], value[name]) and identical(ours[name], value[name]) for name in value)


def test_npz_has_no_time_in_it():
    with zipfile.ZipFile(io.BytesIO(encode("npz", {"a": np.arange(3)}))) as archive:
        (member,) = archive.infolist()
    assert (member.date_time, member.create_system, member.compress_type) == (
        (1980, 1, 1, 0, 0, 0),
        3,
        zipfile.ZIP_STORED,
    )


def test_npz_is_a_view_where_it_is_stored():
    data = encode("npz", {"a": np.arange(1000)})
    assert np.shares_memory(decode("npz", data, TRUE)["a"], np.frombuffer(data, np.uint8))


def test_other_members_of_an_npz_are_bytes():
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("readme.txt", b"hello")
    assert decode("npz", stream.getvalue(), TRUE) == {"readme.txt": b"hello"}


def test_an_npz_that_declares_too_much_is_refused():
    data = compressed({"a": np.zeros(1_000_000, "u1")})
    with pytest.raises(DecodeError, match="at most 1000 bytes"):
        decode("npz", data, decode_spec(True, max_bytes=1000))


def compressed(value):
    stream = io.BytesIO()
    np.savez_compressed(stream, **value)
    return stream.getvalue()


def test_an_npz_that_inflates_beyond_what_it_declares_is_refused():
    data = compressed({"a": np.zeros(1_000_000, "u1")})
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        size = archive.infolist()[0].file_size
    with pytest.raises(DecodeError, match="another size than declared"):
        decode(
            "npz",
            data.replace(size.to_bytes(4, "little"), (200).to_bytes(4, "little")),
            decode_spec(True, max_bytes=999),
        )


@pytest.mark.parametrize(
    "data", [encode("npz", {"a": np.arange(9)}), compressed({"a": np.arange(9)})], ids=["plain", "deflated"]
)
def test_an_npz_with_any_bit_flipped_is_whole_or_refused(data):
    for position in range(len(data)):
        damaged = bytearray(data)
        damaged[position] ^= 4
        try:
            decoded = decode("npz", damaged, TRUE)
        except DecodeError:
            continue
        assert all(np.array_equal(array, np.arange(9)) for array in decoded.values() if isinstance(array, np.ndarray))


def test_a_name_twice_in_an_npz_is_refused():
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("a.npy", saved(np.arange(2)))
        with pytest.warns(UserWarning, match="Duplicate"):
            archive.writestr("a.npy", saved(np.arange(3)))
    with pytest.raises(DecodeError, match="one name twice"):
        decode("npz", stream.getvalue(), TRUE)


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_an_npz_compressed_otherwise_is_refused(method):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", method) as archive:
        archive.writestr("a.npy", saved(np.arange(2)))
    with pytest.raises(DecodeError, match="NumPy does not use"):
        decode("npz", stream.getvalue(), TRUE)


@pytest.mark.parametrize("value", [np.arange(3), [np.arange(3)], {1: np.arange(3)}, {"a\0": np.arange(3)}, {"a": [1]}])
def test_what_is_no_npz_is_refused(value):
    with pytest.raises(EncodeError):
        encode("npz", value)


tensors = hnp.arrays(st.sampled_from(TENBIN).map(np.dtype), hnp.array_shapes(max_dims=4, min_side=0, max_side=6))


@pytest.mark.parametrize("extension", ["ten", "tenbin", "tb"])
@given(value=st.lists(tensors, max_size=4))
def test_tenbin_comes_back(extension, value):
    decoded = decode(extension, encode(extension, value), TRUE)
    assert len(decoded) == len(value)
    assert all(map(identical, decoded, value))


@given(value=st.lists(tensors.filter(lambda array: array.dtype != np.uint32), max_size=4))
def test_tenbin_is_webdatasets(wds_decode, wds_encode, value):
    assert encode("ten", value) == wds_encode("ten", value)
    assert all(map(identical, wds_decode("tb", encode("tb", value)), value))


def test_tenbin_of_one_array_is_a_list_of_one(wds_encode):
    assert encode("ten", np.arange(3)) == wds_encode("ten", np.arange(3)) == encode("ten", [torch.arange(3)])


def test_tenbin_is_a_view():
    data = encode("ten", [np.arange(1000)])
    assert np.shares_memory(decode("ten", data, TRUE)[0], np.frombuffer(data, np.uint8))


def test_tenbin_of_big_endian_is_the_same_numbers():
    assert identical(decode("ten", encode("ten", np.arange(3, dtype=">i4")), TRUE)[0], np.arange(3, dtype="<i4"))


@pytest.mark.parametrize("value", [np.ones(2, bool), np.ones(2, complex), np.array(["a"]), "text", [[1, 2]]])
def test_what_tenbin_cannot_hold_is_refused(value):
    with pytest.raises(EncodeError):
        encode("ten", value)


TEN = encode("ten", [np.arange(6, dtype="f4").reshape(2, 3)])


@pytest.mark.parametrize("size", [*range(1, 120)])
def test_tenbin_cut_inside_is_refused(size):
    with pytest.raises(DecodeError):
        decode("ten", TEN[:size], TRUE)


@pytest.mark.parametrize(
    "position, value",
    [(0, 0), (8, 255), (15, 128), (16, ord("z")), (32, 3), (39, 255), (40, 9), (47, 128), (80, 1), (88, 20)],
    ids=["magic", "length", "negative", "type", "rank", "rank<0", "dim", "dim<0", "magic 2", "length 2"],
)
def test_tenbin_that_lies_is_refused(position, value):
    damaged = bytearray(TEN)
    damaged[position] = value
    with pytest.raises(DecodeError) as caught:
        decode("ten", damaged, TRUE)
    assert caught.value.field == "ten"
