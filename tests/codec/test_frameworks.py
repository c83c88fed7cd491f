"""Files of torch weights."""

from __future__ import annotations

import io

import pytest
import torch

from shoal.codec import decode, decode_spec, encode
from shoal.errors import DecodeError, UnsafeCodecError


class Bomb:
    """An object whose pickle would run code."""

    def __reduce__(self):
        return (pytest.fail, ("a pickle was run",))


def test_pth_comes_back_and_is_webdatasets(wds_decode, wds_encode):
    value = {"weight": torch.arange(6.0).reshape(2, 3), "step": 3}
    ours = encode("pth", value)
    assert ours == encode("pth", value)
    for decoded in (
        decode("pth", ours, decode_spec("pth")),
        decode("pth", wds_encode("pth", value), decode_spec({"pth": True})),
    ):
        assert torch.equal(decoded["weight"], value["weight"])
        assert decoded["step"] == 3
    assert torch.equal(wds_decode("pth", ours)["weight"], value["weight"])


def test_pth_with_more_than_weights_is_refused():
    stream = io.BytesIO()
    torch.save(Bomb(), stream)
    with pytest.raises(UnsafeCodecError, match="more than weights"):
        decode("pth", stream.getvalue(), decode_spec("pth", allow_pickle=True))


def test_a_damaged_pth_is_refused():
    with pytest.raises((DecodeError, UnsafeCodecError)):
        decode("pth", encode("pth", torch.ones(3))[:100], decode_spec("pth"))
