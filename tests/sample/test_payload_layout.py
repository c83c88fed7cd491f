"""The byte ranges of fields in a payload are those that a MessagePack decoder finds."""

from __future__ import annotations

import msgpack
import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.sample.strategies import samples, schemas

from shoal.sample import array_span, class_from_schema, field_spans, same

SLOW = settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much])


@SLOW
@given(st.data())
def test_the_spans_are_where_the_decoder_finds_the_values(data):
    made = class_from_schema(data.draw(schemas()))
    sample = data.draw(samples(made))
    payload = sample.packed
    spans = field_spans(payload)
    whole = msgpack.unpackb(payload, strict_map_key=False)
    assert list(spans) == list(whole)
    for name, span in spans.items():
        value = msgpack.unpackb(payload[span.start : span.stop], strict_map_key=False)
        assert same(value, whole[name])
        if span.kind in ("str", "bytes"):
            content = payload[span.content : span.stop]
            assert content == (value.encode() if span.kind == "str" else value)
        if isinstance(getattr(sample, name), np.ndarray):
            found = array_span(payload, span)
            array = getattr(sample, name)
            assert (found.dtype, found.shape, found.nbytes) == (array.dtype, array.shape, array.nbytes)
            view = np.ndarray(found.shape, found.dtype, payload, found.offset, order=found.order)
            assert same(view, array)
