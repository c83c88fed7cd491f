"""webdataset as the oracle, and a registry that each test may change."""

from __future__ import annotations

import pytest
from webdataset.autodecode import Decoder, imagehandler
from webdataset.writer import default_handlers, encode_based_on_extension

from shoal.codec import _registry


@pytest.fixture
def registry(monkeypatch):
    """The codecs as they are built in, put back after the test."""
    monkeypatch.setattr(_registry, "_codecs", dict(_registry.BUILT_IN))


@pytest.fixture(scope="session")
def wds_decode():
    """What webdataset makes of one field's bytes."""

    def decode(field, data, imagespec=None):
        handlers = [imagehandler(imagespec)] if imagespec else []
        return Decoder(handlers).decode({field: bytes(data)})[field]

    return decode


@pytest.fixture(scope="session")
def wds_encode():
    """The bytes that webdataset's writer makes of one field's value."""
    return lambda field, value: bytes(encode_based_on_extension({field: value}, default_handlers)[field])
