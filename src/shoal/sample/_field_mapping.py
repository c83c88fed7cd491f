"""Plain WebDataset fields as typed samples, also of some fields only."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, is_dataclass, replace
from functools import lru_cache
from typing import Any, TypeVar, cast

import msgspec

from shoal import schema
from shoal.codec import Buffer, codec_for, decode, decode_spec
from shoal.errors import CodecError, OptionError, SchemaMismatchError, ShoalError
from shoal.schema import FieldType

from ._annotations import Member, Record, read_record
from ._serializer import Plan, plan_of
from ._stored_values import ValueMismatch, mismatch, rooted

__all__ = ["Fields", "fields_needed", "from_fields", "keeps_fields", "partial_mapper", "partial_unpacker"]

T = TypeVar("T")
_BYTES = (bytes, bytearray, memoryview)
_AUTOMATIC = decode_spec(True)
_PIXELS = decode_spec("numpy")
_SOUND = decode_spec("audio")


@dataclass(frozen=True, slots=True)
class Fields:
    """Where a typed field is found in plain samples, written in an annotation.

    ``Annotated[NDArray[np.uint8], Fields("jpg|png|webp")]`` takes the first of these that a sample has.
    ``Annotated[list[NDArray[np.uint8]], Fields("img*.jpg")]`` takes all that match, in the order of their names,
    numbers by value. ``Annotated[int, Fields("json.size.width")]`` takes an entry of a JSON object, as ``where`` names
    it.

    Example:
        >>> Fields("jpg|png").alternatives
        ('jpg', 'png')
    """

    pattern: str

    def __post_init__(self) -> None:
        if not all(self.alternatives):
            raise OptionError("a name is empty", expected="names with | between them", found=repr(self.pattern))

    @property
    def alternatives(self) -> tuple[str, ...]:
        """The names, or patterns of names, in the order they are tried."""
        return tuple(self.pattern.split("|"))


def from_fields(cls: type[T], sample: Mapping[str, Any]) -> T:
    """A plain sample, with fields such as ``jpg`` and ``json``, as a sample of ``cls``.

    For each field of the class, the first that is found of:

    1. what its `Fields` annotation names;
    2. the sample's field of the same name, with or without an extension (``seg`` finds ``seg.png``);
    3. the entry of the same name in the sample's JSON objects;
    4. the field's aliases, by 2 and 3;
    5. its default.

    Bytes are decoded by the field's extension where the class wants more than bytes.

    Raises:
        SchemaMismatchError: A field is not found, or does not fit; the message lists what the sample has.
        DecodeError: A field's bytes are not what its extension says.

    Example:
        >>> from shoal.sample import packable
        >>> @packable
        ... class Captioned:
        ...     txt: str
        ...     width: int
        ...     split: str = "train"
        >>> from_fields(Captioned, {"__key__": "001", "txt": b"a cat", "json": b'{"width": 640}'})
        Captioned(txt='a cat', width=640, split='train')
    """
    made: T = mapped(plan_of(cls), sample)
    return made


def mapped(plan: Plan, sample: Mapping[str, Any]) -> Any:
    """A plain sample as what a plan makes; see `from_fields`."""
    found: dict[str, Any] = {}
    try:
        entries = _json_entries(sample)
        for member in plan.members:
            value = _find(member, sample, entries)
            if value is not _ABSENT:
                found[member.name] = value
            elif member.required:
                raise _missing(member, sample, entries)
        return plan.from_mapping(found)
    except ValueMismatch as misfit:
        raise mismatch(misfit, f"a sample does not fit {plan.schema.name}").at(key=_key(sample)) from None
    except CodecError as error:
        raise rooted(error).at(key=_key(sample)) from None
    except ShoalError as error:
        raise error.at(key=_key(sample)) from None


def fields_needed(cls: type, names: Iterable[str] | None, present: Mapping[str, bool], /) -> tuple[str, ...] | None:
    """The fields of plain samples that `from_fields` may look at; None for all, where one it must have is nowhere.

    Args:
        cls: The class they are read as.
        names: The fields of the class that are wanted; None for all.
        present: The fields of the samples, and whether every sample has it. Where all have ``txt``, a class's ``txt``
            is not looked for in JSON.

    Raises:
        FieldError: The class has no such field.

    Example:
        >>> from shoal.sample import packable
        >>> @packable
        ... class Captioned:
        ...     txt: str
        ...     width: int
        >>> fields_needed(Captioned, ["txt"], {"jpg": True, "txt": True, "json": True})
        ('txt',)
        >>> fields_needed(Captioned, None, {"jpg": True, "txt": True, "json": True})
        ('txt', 'json')
    """
    record = read_record(cls)
    chosen = None if names is None else {record.schema[name].name for name in names}
    wanted: set[str] = set()
    for member in record.members:
        if chosen is None or member.name in chosen:
            found = _candidates(member, present)
            if not found and member.required:
                return None
            wanted.update(found)
    return tuple(name for name in present if name in wanted)


def _candidates(member: Member, present: Mapping[str, bool]) -> list[str]:
    """The fields one of which holds a member, as far as samples must be looked into."""
    fields = tuple(present)
    json = [name for name in fields if _is_json(name)]
    marked = next((mark for mark in member.marks if isinstance(mark, Fields)), None)
    if marked is not None:
        steps = [_holding(part, fields) for part in marked.alternatives]
    else:
        named = [[field for field in fields if _is_named(field, name)] for name in (member.name, *member.aliases)]
        steps = [step for direct in named for step in ((tuple(direct), True), (tuple(json), False))]
    found: list[str] = []
    for step, is_whole in steps:
        found += step
        # JSON may lack the entry; a field that every sample has ends the search.
        if is_whole and any(present[name] for name in step):
            break
    return found


def _holding(part: str, fields: tuple[str, ...]) -> tuple[tuple[str, ...], bool]:
    """The fields that one alternative means, and whether it means them whole, not an entry of their JSON."""
    if _is_glob(part):
        return _matching(part, fields), True
    if part in fields:
        return (part,), True
    return tuple(name for name in fields if part.startswith(f"{name}.") and _is_json(name)), False


_ABSENT: Any = object()


def _key(sample: Mapping[str, Any]) -> str | None:
    key = sample.get("__key__")
    return key if isinstance(key, str) else None


def _json_entries(sample: Mapping[str, Any]) -> dict[str, Any]:
    """The entries of all JSON objects of a sample; those of ``json`` itself count before those of ``meta.json``."""
    names = [name for name in sample if not name.startswith("__") and _is_json(name)]
    objects = (_plain(sample[name], name) for name in sorted(names, key=lambda name: name.count("."), reverse=True))
    return {key: value for one in objects if isinstance(one, Mapping) for key, value in one.items()}


def _is_json(name: str) -> bool:
    found = codec_for(name)
    return found is not None and found.name == "json"


def _find(member: Member, sample: Mapping[str, Any], entries: Mapping[str, Any]) -> Any:
    marked = next((mark for mark in member.marks if isinstance(mark, Fields)), None)
    of = member.node.type
    if marked is not None:
        return _find_marked(marked, of, sample)
    for name in (member.name, *member.aliases):
        field = _named(name, tuple(sample))
        if field is not None:
            return _value(sample[field], field, of)
        if name in entries:
            return entries[name]
    return _ABSENT


def _find_marked(marked: Fields, of: FieldType, sample: Mapping[str, Any]) -> Any:
    for pattern in marked.alternatives:
        if _is_glob(pattern):
            names = _matching(pattern, tuple(sample))
            if names:
                inner = of.of if isinstance(of, schema.OptionalType) else of
                item = _item_type(inner)
                return [_value(sample[name], name, item) for name in names]
        elif pattern in sample:
            return _value(sample[pattern], pattern, of)
        elif (entry := _entry(pattern, sample)) is not _ABSENT:
            return entry
    return _ABSENT


def _entry(path: str, sample: Mapping[str, Any]) -> Any:
    """What a path such as ``json.size.width`` leads to in a sample's JSON objects."""
    for name in _holding(path, tuple(sample))[0]:
        value = _plain(sample[name], name)
        for part in path.removeprefix(f"{name}.").split("."):
            value = value.get(part, _ABSENT) if isinstance(value, Mapping) else _ABSENT
        if value is not _ABSENT:
            return value
    return _ABSENT


def _is_glob(pattern: str) -> bool:
    return "*" in pattern or "?" in pattern


def _item_type(of: FieldType) -> FieldType:
    if isinstance(of, schema.ListType):
        return of.items
    if isinstance(of, schema.TupleType) and of.variadic:
        return of.items[0]
    raise ValueMismatch("a list, for a pattern that may match several fields", str(of))


@lru_cache(maxsize=4096)
def _matching(pattern: str, names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(sorted((name for name in names if fnmatch.fnmatchcase(name, pattern)), key=_natural))


def _natural(name: str) -> list[tuple[int, str]]:
    """A sort key under which img2 comes before img10."""
    words = re.split(r"(\d+)", name)
    return [(int(word), "") if word.isdecimal() else (-1, word) for word in words]


@lru_cache(maxsize=4096)
def _named(name: str, names: tuple[str, ...]) -> str | None:
    """The sample's field of this name, exactly or with one more extension."""
    if name in names:
        return name
    return next((field for field in names if _is_named(field, name)), None)


def _is_named(field: str, name: str) -> bool:
    return name in (field, field.rpartition(".")[0])


def _value(value: Any, field: str, of: FieldType) -> Any:
    """A field's value, decoded where it is bytes and the class wants more than bytes."""
    inner = of.of if isinstance(of, schema.OptionalType) else of
    if not isinstance(value, _BYTES) or isinstance(inner, schema.BytesType | schema.Image | schema.Audio):
        return value
    return _plain(value, field)


def _plain(value: Any, field: str) -> Any:
    if not isinstance(value, _BYTES):
        return value
    found = codec_for(field)
    spec = {"image": _PIXELS, "audio": _SOUND}.get(found.kind if found else "", _AUTOMATIC)
    return decode(field, value, spec)


def _missing(member: Member, sample: Mapping[str, Any], entries: Iterable[str]) -> ShoalError:
    marked = next((mark.pattern for mark in member.marks if isinstance(mark, Fields)), None)
    has = ", ".join(name for name in sample if not name.startswith("__"))
    within = ", ".join(entries)
    return SchemaMismatchError(
        "the sample lacks a field",
        expected=f"{marked or ' or '.join((member.name, *member.aliases))} for {member.name}: {member.node.type}",
        found=f"{has or 'nothing'}{f' (json: {within})' if within else ''}",
        field=member.name,
        hint=None if marked else 'name it in the annotation: Annotated[..., Fields("jpg|png")]',
    )


def partial_unpacker(cls: type[T], fields: Iterable[str], *, writable: bool = False) -> Callable[[Buffer], T] | None:
    """The function that reads only these fields of a payload; the others are passed over, not decoded.

    What it gives is a sample of ``cls`` that has these attributes only, arrays as copies where ``writable``. None where
    that is no whole truth: the class computes something in ``__post_init__``, or is not a plain dataclass.

    Raises:
        FieldError: The class has no such field.

    Example:
        >>> from shoal.sample import packable
        >>> @packable
        ... class Full:
        ...     label: str
        ...     score: float
        >>> read = partial_unpacker(Full, ["label"])
        >>> sample = read(Full("cat", 0.5).packed)
        >>> sample.label, hasattr(sample, "score")
        ('cat', False)
    """
    plan = _partial_plan(cls, fields, writable)
    return None if plan is None else plan.unpack


def partial_mapper(cls: type[T], fields: Iterable[str]) -> Callable[[Mapping[str, Any]], T] | None:
    """As `partial_unpacker`, for plain samples that are read by field name.

    Raises:
        FieldError: The class has no such field.

    Example:
        >>> from shoal.sample import packable
        >>> @packable
        ... class Captioned:
        ...     txt: str
        ...     width: int
        >>> partial_mapper(Captioned, ["txt"])({"__key__": "001", "txt": "a cat"}).txt
        'a cat'
    """
    plan = _partial_plan(cls, fields)
    return None if plan is None else lambda sample: cast("T", mapped(plan, sample))


def _partial_plan(cls: type, fields: Iterable[str], writable: bool = False) -> Plan | None:
    """The plan of a class's samples that have these attributes only."""
    record = read_record(cls)
    names = {record.schema[name].name for name in fields}
    if not keeps_fields(cls) or not is_dataclass(cls) or cls.__dictoffset__ == 0:
        return None
    members = tuple(replace(member, keyword=member.name) for member in record.members if member.name in names)
    schema = replace(record.schema, fields=tuple(field for field in record.schema.fields if field.name in names))

    def make(**values: Any) -> Any:
        sample: Any = object.__new__(cls)
        sample.__dict__.update(values)
        return sample

    return Plan(Record(cls, members, schema), writable=writable, make=make)


def keeps_fields(cls: type) -> bool:
    """Whether a sample is what is stored and nothing else: its class computes, checks and changes nothing.

    Then one field can be had without the others, and without making a sample. A pydantic model is never so.

    Example:
        >>> from shoal.sample import packable
        >>> @packable
        ... class Loud:
        ...     label: str
        ...
        ...     def __post_init__(self):
        ...         self.label = self.label.upper()
        >>> keeps_fields(Loud)
        False
    """
    if hasattr(cls, "__post_init__"):
        return False
    if issubclass(cls, msgspec.Struct):
        return cls.__init__ is msgspec.Struct.__init__
    constructor = getattr(cls.__init__, "__code__", None)
    # What dataclasses write is compiled from text.
    return is_dataclass(cls) and constructor is not None and constructor.co_filename == "<string>"
