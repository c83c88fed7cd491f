"""Typed samples: classes whose samples are stored as one MessagePack map, and lenses between them.

::

    _packable        @packable, pack and unpack, unique keys, equality
    _annotations     classes and their annotations -> records, field types and schemas
    _class_factory   schemas -> classes
    _stored_values   arrays, images and audio as stored, and the error of a value that does not fit
    _converters      a field's value <-> its stored form, checked
    _serializer      the compiled functions that pack and unpack the samples of a class
    _payload_layout  byte ranges of the fields in a payload
    _dict_sample     data without a class
    _field_mapping   plain WebDataset samples as typed ones, also with some fields only
    _lens            views of one type as another

Examples:
    >>> import numpy as np
    >>> from numpy.typing import NDArray
    >>> from shoal.sample import packable
    >>> @packable
    ... class ImageSample:
    ...     image: NDArray[np.float32]
    ...     label: str
    >>> sample = ImageSample(np.zeros((2, 2), np.float32), "cat")
    >>> ImageSample.from_bytes(sample.packed) == sample
    True
"""

from __future__ import annotations

from ._annotations import is_record, schema_of
from ._class_factory import class_from_schema
from ._dict_sample import DictSample
from ._field_mapping import Fields, fields_needed, from_fields, keeps_fields, partial_mapper, partial_unpacker
from ._lens import BrokenLaw, LawReport, Lens, LensNetwork, check_laws, default_network, lens, structural_lens
from ._packable import PackableSample, as_wds, pack, packable, same, unique_key, unpack
from ._payload_layout import ArraySpan, Span, array_span, field_spans

__all__ = [
    "ArraySpan",
    "BrokenLaw",
    "DictSample",
    "Fields",
    "LawReport",
    "Lens",
    "LensNetwork",
    "PackableSample",
    "Span",
    "array_span",
    "as_wds",
    "check_laws",
    "class_from_schema",
    "default_network",
    "field_spans",
    "fields_needed",
    "from_fields",
    "is_record",
    "keeps_fields",
    "lens",
    "pack",
    "packable",
    "partial_mapper",
    "partial_unpacker",
    "same",
    "schema_of",
    "structural_lens",
    "unique_key",
    "unpack",
]
