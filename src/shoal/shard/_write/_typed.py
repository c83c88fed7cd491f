"""Typed samples on their way into shards."""

from __future__ import annotations

from collections import Counter
from typing import Any

from shoal.errors import ShoalError
from shoal.sample import is_record, pack, schema_of
from shoal.schema import schema_to_json

__all__ = ["TypedSamples"]


class TypedSamples:
    """Packs what is no mapping, and remembers of which types it was."""

    def __init__(self) -> None:
        self._counts: Counter[type] = Counter()

    def stored(self, sample: Any, number: int) -> Any:
        """The mapping that is written; None for what is no sample. What does not fit is told with its number as key.

        It has no key of its own where the type is packed here, so the writer numbers it: keys that are unique in all
        the world would make other bytes each time.
        """
        kind = type(sample)
        try:
            if not is_record(kind) or (hasattr(kind, "as_wds") and not hasattr(kind, "__schema__")):
                return getattr(sample, "as_wds", None)
            fields = {"msgpack": pack(sample)}
        except ShoalError as error:
            raise error.at(key=f"{number:09d}") from error.__cause__
        self._counts[kind] += 1
        return fields

    def schema(self, samples: int) -> dict[str, Any] | None:
        """The schema of this many samples, where all were of one type."""
        found = [kind for kind, count in self._counts.items() if count == samples]
        return schema_to_json(schema_of(found[0])) if found else None
