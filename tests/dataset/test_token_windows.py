"""Windows over long token arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import shoal
from shoal.errors import DecodeError, FieldError, OptionError
from shoal.load import DataLoader


def expected(documents: list[Any], length: int, stride: int, drop_last: bool) -> list[list[int]]:
    found = []
    for document in documents:
        start = 0
        while start + length <= len(document):
            found.append(document[start : start + length].tolist())
            start += stride
        covered = start - stride + length if start else 0
        if not drop_last and covered < len(document):
            rest = document[start : start + length].tolist()
            found.append(rest + [0] * (length - len(rest)))
    return found


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.integers(0, 30), min_size=1, max_size=8),
    st.integers(1, 9),
    st.integers(1, 9),
    st.booleans(),
    st.booleans(),
)
def test_windows_are_those_of_each_document(
    sizes: list[int], length: int, stride: int, drop_last: bool, typed: bool
) -> None:
    documents = [np.arange(size, dtype=np.uint16) + 100 * number for number, size in enumerate(sizes)]
    url = "memory://test-windows/one"
    if typed:
        samples = [
            {"__key__": f"k{number}", "tokens.msgpack": document.tolist()} for number, document in enumerate(documents)
        ]
        field = "tokens.msgpack"
    else:
        samples = [{"__key__": f"k{number}", "tokens.npy": document} for number, document in enumerate(documents)]
        field = "tokens.npy"
    with shoal.ShardWriter(url + "/t-%06d.tar", max_samples=3, overwrite=True) as writer:
        for sample in samples:
            writer.write(sample)
    windows = shoal.Dataset(url).token_windows(field, length, stride, drop_last=drop_last)
    wanted = expected(documents, length, stride, drop_last)
    assert [windows[number][field].tolist() for number in range(len(windows))] == wanted
    loader = DataLoader(windows, batch_size=3, shuffle=True, num_workers=0)
    found = [row for batch in loader for row in batch[field].tolist()]
    assert sorted(found) == sorted(wanted)


def test_only_a_windows_own_bytes_are_read_and_it_resumes() -> None:
    with shoal.ShardWriter("memory://test-windows/long/t-%06d.tar", overwrite=True) as writer:
        writer.write({"__key__": "long", "npy": np.arange(100_000, dtype=np.uint32)})
    windows = shoal.Dataset("memory://test-windows/long").token_windows("npy", 1000)
    loader = DataLoader(windows, batch_size=10, shuffle=True, num_workers=0)
    line = iter(loader)
    first = next(line)
    assert first["npy"].shape == (10, 1000)
    assert first["start"].tolist() == first["npy"][:, 0].tolist()
    again = DataLoader(windows, batch_size=10, shuffle=True, num_workers=0)
    again.load_state_dict(loader.state_dict())
    assert [batch["start"].tolist() for batch in again] == [batch["start"].tolist() for batch in line]


@shoal.packable
class Document:
    tokens: NDArray[np.int32]
    name: str


def test_typed_documents_and_views() -> None:
    samples = [Document(np.full(10, number, np.int32), str(number)) for number in range(6)]
    written = shoal.write_samples(samples, "memory://test-windows/typed", overwrite=True)
    windows = written.select([1, 3]).token_windows("tokens", 5)
    assert [windows[number]["tokens"].tolist() for number in range(4)] == [[1] * 5, [1] * 5, [3] * 5, [3] * 5]
    assert windows[2]["__key__"] == "000000003"


def test_what_cannot_be_cut_is_refused() -> None:
    with shoal.ShardWriter("memory://test-windows/bad/t-%06d.tar", overwrite=True) as writer:
        writer.write({"__key__": "a", "npy": np.zeros((2, 3))})
    dataset = shoal.Dataset("memory://test-windows/bad")
    with pytest.raises(DecodeError, match="one axis"):
        len(dataset.token_windows("npy", 2))
    with pytest.raises(FieldError, match="no such field"):
        len(dataset.token_windows("tokens", 2))
    with pytest.raises(OptionError, match="length"):
        dataset.token_windows("npy", 0)
