"""Arrow arrays built without ``pa.array`` equal those that it builds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.shard._arrow_arrays import (
    as_arrow,
    as_numpy,
    scalar_array,
    text_array,
)

INTEGERS = st.integers(-(2**63), 2**63 - 1)
KINDS: list[st.SearchStrategy[Any]] = [st.booleans(), INTEGERS, st.floats(allow_nan=False), st.text()]


@given(st.sampled_from(KINDS).flatmap(lambda kind: st.lists(kind | st.none())))
def test_scalars_are_as_arrow_makes_them(values: list[Any]) -> None:
    made = scalar_array(values)
    made.validate(full=True)
    assert made.equals(pa.array(values))


@given(st.lists(st.text()))
def test_texts_are_as_arrow_makes_them(texts: list[str]) -> None:
    made = text_array(texts)
    made.validate(full=True)
    assert made.equals(pa.array(texts, pa.string()))


@given(st.lists(INTEGERS), st.integers(0, 5), st.integers(1, 3))
def test_numbers_go_there_and_back(values: list[int], start: int, step: int) -> None:
    some = np.array(values, np.int64)[start::step]
    assert as_arrow(some).to_pylist() == some.tolist()
    assert as_numpy(pa.array(values, pa.int64())[start:]).tolist() == values[start:]


@pytest.mark.parametrize("values", [[1, 2.5, None], [None, None], []])
def test_what_is_stranger_is_left_to_arrow(values: list[Any]) -> None:
    assert scalar_array(values).equals(pa.array(values))


@pytest.mark.parametrize("values, error", [([2**63], OverflowError), (["\ud800"], UnicodeEncodeError)])
def test_what_arrow_cannot_hold_is_refused(values: list[Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        scalar_array(values)
