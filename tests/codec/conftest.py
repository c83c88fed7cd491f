"""webdataset's decoder and encoder to compare with, and a registry that a test may change."""

from __future__ import annotations

import pytest
from webdataset.autodecode import Decoder, imagehandler
from webdataset.writer import default_handlers, encode_based_on_extension

from shoal.codec import _registry


@pytest.fixture
def registry(monkeypatch):
    """Only the built-in codecs; changes are undone after the test."""
    monkeypatch.setattr(_registry, "_codecs", dict(_registry.BUILT_IN))


@pytest.fixture(scope="session")
def wds_decode():
    """A function that decodes one field as webdataset does."""

    def decode(field, data, imagespec=None):
        handlers = [imagehandler(imagespec)] if imagespec else []
        return Decoder(handlers).decode({field: bytes(data)})[field]

    return decode


@pytest.fixture(scope="session")
def wds_encode():
    """A function that encodes one field as webdataset's writer does."""
    return lambda field, value: bytes(encode_based_on_extension({field: value}, default_handlers)[field])
