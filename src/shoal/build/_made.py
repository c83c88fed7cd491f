"""From an item to what is written of it: the user's function, the key, the bytes of each member."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from shoal.codec import EncodeOptions
from shoal.errors import WriteError
from shoal.formats import as_member, member_key, member_name
from shoal.shard import EncodedSample, SampleEncoder, check_key

from ._mark import function_mark

__all__ = ["Maker"]


class Maker:
    """Turns items into encoded samples. Pickled to workers; the same item gives the same bytes in each."""

    def __init__(
        self,
        function: Callable[[Any], Any] | None = None,
        *,
        numbered: bool = False,
        prefixes: tuple[tuple[int, str], ...] = (),
        sort_fields: bool = False,
        allow_pickle: bool = False,
    ) -> None:
        self.function = function
        self._numbered = numbered
        self._prefixes = prefixes
        self._sort_fields = sort_fields
        self._allow_pickle = allow_pickle
        self._begin()

    def _begin(self) -> None:
        self._encoder = SampleEncoder(EncodeOptions(allow_pickle=self._allow_pickle), sort_fields=self._sort_fields)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_encoder"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin()

    @property
    def mark(self) -> list[Any]:
        """What changes when it would make something else."""
        return [function_mark(self.function), self._numbered, self._prefixes, self._sort_fields, self._allow_pickle]

    @property
    def copies(self) -> bool:
        """Whether samples stay as they are, keys and all."""
        return self.function is None and not self._numbered and not self._prefixes and not self._sort_fields

    def make(self, number: int, item: Any) -> list[EncodedSample]:
        """The samples of one item: one, none where the function gives None, or as many as its list has.

        Raises what the function raises, and WriteError, UnsafeNameError or EncodeError.
        """
        if self.function is None:
            return [self._encoded(number, item, None)]
        own = _key_in(item)  # asked before the function may change it
        made = self.function(item)
        if made is None:
            return []
        if isinstance(made, (Mapping, tuple)) or hasattr(type(made), "as_wds"):
            return [self._encoded(number, made, own)]
        if not isinstance(made, Iterable) or isinstance(made, (str, bytes)):
            raise _no_sample(made)
        return [self._encoded(number, one, own, f"-{place}") for place, one in enumerate(made)]

    def _encoded(self, number: int, sample: Any, own: Any, place: str = "") -> EncodedSample:
        given, fields = _taken(sample)
        key = self._key(number, own if given is None else given)
        if place and (given is None or self._numbered):  # several samples of one item
            key += place
        for name, value in fields.items():
            if type(value) is not bytes and not name.startswith("__"):
                fields = _as_members(fields)
                break
        if "." in key:
            key = member_key(key, fields)
        check_key(key)
        return self._encoder.encode(key, fields)

    def _key(self, number: int, key: Any) -> str:
        if key is None or self._numbered:
            return f"{number:09d}"
        text = key if isinstance(key, str) else str(key)
        for start, prefix in reversed(self._prefixes):
            if number >= start:
                return f"{prefix}/{text}"
        return text


def _key_in(item: Any) -> Any:
    return item.get("__key__") if isinstance(item, Mapping) else None


def _taken(sample: Any) -> tuple[Any, Mapping[str, Any]]:
    """The key, if it has one, and the fields of whatever a function or a source gives."""
    key, fields = sample if isinstance(sample, tuple) and len(sample) == 2 else (None, sample)
    if not isinstance(fields, Mapping):
        fields = getattr(fields, "as_wds", None)
    if not isinstance(fields, Mapping):
        raise _no_sample(sample)
    return fields.get("__key__") if key is None else key, fields


def _no_sample(value: Any) -> WriteError:
    expected = "a mapping, a (key, mapping) pair or a packable"
    return WriteError("this is no sample", expected=expected, found=type(value).__name__)


def _as_members(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Values under names that say their type; a field that is None is left out."""
    members: dict[str, Any] = {}
    for name, value in fields.items():
        if name.startswith("__") or value is None:
            continue
        if type(value) is bytes:
            members[name] = value
            continue
        field, data = as_member(member_name(name), value)
        members[field] = data
    return members
