"""Typed samples: classes whose samples are stored as one MessagePack map, and lenses between them.

::

    _annotation  annotations -> field types     _record     classes -> fields and schema
    _convert, _converters   one field's value <-> what is written, checked
    _plan        one class's pack and unpack, compiled       _packable   @packable and its functions
    _array _media _equal _key _misfit   arrays, files, equality, unique keys, paths of what does not fit
    _dict_sample  data without a class          _generate   classes from schemas
    _fields      plain WebDataset samples as typed ones      _layout     where fields lie in a payload
    _partial     only some fields of a sample
    _lens _network _reads _laws   views of one type as another

Example:
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

from shoal.sample._dict_sample import DictSample
from shoal.sample._lens import Lens, structural_lens
from shoal.sample._packable import PackableSample, as_wds, pack, packable, unpack

from ._annotations import is_record, schema_of
from ._class_factory import class_from_schema
from ._field_mapping import Fields, fields_needed, from_fields, keeps_fields, partial_mapper, partial_unpacker
from ._lens import BrokenLaw, LawReport, LensNetwork, check_laws, default_network, lens
from ._packable import same, unique_key
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
