"""Each field's decoder, found when the field is first met: shards need not all have the same fields."""

from __future__ import annotations

from typing import Any

from shoal.codec import DecodeSpec, decoders

__all__ = ["LazyDecoders"]


class LazyDecoders(dict[str, Any]):
    """Decoders by field, of those fields that are decoded at all; ``but`` names one that stays bytes."""

    def __init__(self, spec: DecodeSpec, but: str | None = None) -> None:
        super().__init__()
        self._spec = spec
        self._known: set[object] = {but}

    def __contains__(self, field: object) -> bool:
        if field not in self._known and isinstance(field, str):
            self.update(decoders(self._spec, [field]))
            self._known.add(field)  # last: another thread takes a known field without a decoder for bytes
        return super().__contains__(field)
