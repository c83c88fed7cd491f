"""Which fields of the stored samples are looked at: found before anything is read."""

from __future__ import annotations

from typing import Any

from shoal.sample import Lens, is_record, schema_of

from ._description import Stage
from ._peer._column_steps import EVERYTHING, wanted_by

__all__ = ["fields_looked_at"]


def fields_looked_at(stored: type[Any], stages: tuple[Stage, ...]) -> frozenset[str] | None:
    """The fields that stages look at until one of them makes another sample; None where that may be all.

    Found in the functions' code, so a lens that reads two fields costs two fields. The fields of a sample that comes
    out as it is are all looked at.
    """
    if not is_record(stored):
        return None
    schema = schema_of(stored)
    if (wanted := wanted_by(stages)) != EVERYTHING:  # steps that say themselves which columns they look at
        return frozenset(name for name in schema.names if name in wanted)
    seen: frozenset[str] = frozenset()
    for stage in stages:
        lens: Any = stage.function
        if not isinstance(lens, Lens):
            lens = Lens(stage.function, source=stored, view=object)
        read = lens.reads(schema)
        if read is None:
            return None
        seen |= read
        if stage.kind != "filter":
            return seen
    return None
