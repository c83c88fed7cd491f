"""Map the fields of plain WebDataset samples to typed samples, also to samples with some fields only."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, is_dataclass, replace
from functools import lru_cache
from typing import Any, TypeVar, cast

import msgspec

from shoal import schema
from shoal.codec._codec import Buffer
from shoal.codec._dispatch import decode, decode_spec
from shoal.codec._registry import codec_for
from shoal.errors import CodecError, OptionError, SchemaMismatchError, ShoalError
from shoal.schema._types import FieldType

from ._annotations import Member, Record, read_record
from ._serializer import Plan, plan_of
from ._stored_values import BYTES_TYPES, ValueMismatch, mismatch_error, strip_path

__all__ = ["Fields", "fields_needed", "from_fields", "keeps_fields", "partial_mapper", "partial_unpacker"]

T = TypeVar("T")
_DATA_SPEC = decode_spec(True)
_IMAGE_SPEC = decode_spec("numpy")
_AUDIO_SPEC = decode_spec("audio")
_ABSENT: Any = object()


@dataclass(frozen=True, slots=True)
class Fields:
    """The fields of plain samples that a typed field is read from, written in its annotation.

    ``Annotated[NDArray[np.uint8], Fields("jpg|png|webp")]`` reads the first of these that a sample has.
    ``Annotated[list[NDArray[np.uint8]], Fields("img*.jpg")]`` reads all that match, sorted by name, with numbers in the
    names sorted by value. ``Annotated[int, Fields("json.size.width")]`` reads an entry of a JSON object, named as in
    ``where``.

    Examples:
        >>> Fields("jpg|png").alternatives
        ('jpg', 'png')
    """

    pattern: str

    def __post_init__(self) -> None:
        if not all(self.alternatives):
            raise OptionError("a name is empty", expected="names with | between them", found=repr(self.pattern))

    @property
    def alternatives(self) -> tuple[str, ...]:
        """The names, or patterns of names, in the order in which they are tried."""
        return tuple(self.pattern.split("|"))


def from_fields(cls: type[T], sample: Mapping[str, Any]) -> T:
    """Convert a plain sample, with fields such as ``jpg`` and ``json``, to a sample of ``cls``.

    Each field of the class gets the first value that exists of:

    1. the fields that its `Fields` annotation names;
    2. the sample's field of the same name, with or without an extension (``seg`` matches ``seg.png``);
    3. the entry of the same name in the sample's JSON objects;
    4. the field's aliases, by 2 and 3;
    5. its default.

    Bytes are decoded by the extension of the sample's field, unless the class's field has the type bytes.

    Raises:
        SchemaMismatchError: A field is missing, or does not fit; the message lists the fields of the sample.
        DecodeError: A field's bytes are not valid for its extension.

    Examples:
        >>> from shoal.sample import packable
        >>> @packable
        ... class Captioned:
        ...     txt: str
        ...     width: int
        ...     split: str = "train"
        >>> from_fields(Captioned, {"__key__": "001", "txt": b"a cat", "json": b'{"width": 640}'})
        Captioned(txt='a cat', width=640, split='train')
    """
    typed: T = map_fields(plan_of(cls), sample)
    return typed


def map_fields(plan: Plan, sample: Mapping[str, Any]) -> Any:
    """Convert a plain sample by a plan; see `from_fields`."""
    values: dict[str, Any] = {}
    try:
        entries = _json_entries(sample)
        for member in plan.members:
            value = _find(member, sample, entries)
            if value is not _ABSENT:
                values[member.name] = value
            elif member.required:
                raise _missing_error(member, sample, entries)
        return plan.from_mapping(values)
    except ValueMismatch as mismatch:
        error = mismatch_error(mismatch, f"a sample does not fit {plan.schema.name}")
        raise error.at(key=_sample_key(sample)) from None
    except CodecError as error:
        raise strip_path(error).at(key=_sample_key(sample)) from None
    except ShoalError as error:
        raise error.at(key=_sample_key(sample)) from None


def fields_needed(cls: type, names: Iterable[str] | None, present: Mapping[str, bool], /) -> tuple[str, ...] | None:
    """Return the fields of plain samples that `from_fields` may read; None for all, if a required one does not exist.

    Args:
        cls: The class that samples are read as.
        names: The fields of the class to read; None for all.
        present: The fields of the samples, and whether every sample has the field. If all have ``txt``, a class's
            ``txt`` is not read from JSON.

    Raises:
        FieldError: A name is not a field of the class.

    Examples:
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
    selected = None if names is None else {record.schema[name].name for name in names}
    needed: set[str] = set()
    for member in record.members:
        if selected is None or member.name in selected:
            candidates = _candidates(member, present)
            if not candidates and member.required:
                return None
            needed.update(candidates)
    return tuple(name for name in present if name in needed)


def _candidates(member: Member, present: Mapping[str, bool]) -> list[str]:
    """Return the fields of samples that a member may be read from."""
    fields = tuple(present)
    json = [name for name in fields if _is_json(name)]
    annotation = _fields_annotation(member)
    if annotation is not None:
        steps = [_fields_for(part, fields) for part in annotation.alternatives]
    else:
        named = [[field for field in fields if _is_named(field, name)] for name in (member.name, *member.aliases)]
        steps = [step for direct in named for step in ((tuple(direct), True), (tuple(json), False))]
    candidates: list[str] = []
    for step, is_field in steps:
        candidates += step
        # JSON may lack the entry; a field that every sample has ends the search.
        if is_field and any(present[name] for name in step):
            break
    return candidates


def _fields_annotation(member: Member) -> Fields | None:
    return next((item for item in member.metadata if isinstance(item, Fields)), None)


def _fields_for(part: str, fields: tuple[str, ...]) -> tuple[tuple[str, ...], bool]:
    """Return the fields that one alternative names, and whether it names the fields, not an entry of their JSON."""
    if _is_glob(part):
        return _match_glob(part, fields), True
    if part in fields:
        return (part,), True
    return tuple(name for name in fields if part.startswith(f"{name}.") and _is_json(name)), False


def _sample_key(sample: Mapping[str, Any]) -> str | None:
    key = sample.get("__key__")
    return key if isinstance(key, str) else None


def _json_entries(sample: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries of all JSON objects of a sample; entries of ``json`` override those of ``meta.json``."""
    names = [name for name in sample if not name.startswith("__") and _is_json(name)]
    values = (_decoded(sample[name], name) for name in sorted(names, key=lambda name: name.count("."), reverse=True))
    return {key: entry for value in values if isinstance(value, Mapping) for key, entry in value.items()}


def _is_json(name: str) -> bool:
    codec = codec_for(name)
    return codec is not None and codec.name == "json"


def _find(member: Member, sample: Mapping[str, Any], entries: Mapping[str, Any]) -> Any:
    annotation = _fields_annotation(member)
    field_type = member.node.type
    if annotation is not None:
        return _find_annotated(annotation, field_type, sample)
    for name in (member.name, *member.aliases):
        field = _find_by_name(name, tuple(sample))
        if field is not None:
            return _field_value(sample[field], field, field_type)
        if name in entries:
            return entries[name]
    return _ABSENT


def _find_annotated(annotation: Fields, field_type: FieldType, sample: Mapping[str, Any]) -> Any:
    for pattern in annotation.alternatives:
        if _is_glob(pattern):
            names = _match_glob(pattern, tuple(sample))
            if names:
                inner = field_type.of if isinstance(field_type, schema.OptionalType) else field_type
                item = _item_type(inner)
                return [_field_value(sample[name], name, item) for name in names]
        elif pattern in sample:
            return _field_value(sample[pattern], pattern, field_type)
        elif (entry := _entry(pattern, sample)) is not _ABSENT:
            return entry
    return _ABSENT


def _entry(path: str, sample: Mapping[str, Any]) -> Any:
    """Return the entry of a path such as ``json.size.width`` in a sample's JSON objects."""
    for name in _fields_for(path, tuple(sample))[0]:
        value = _decoded(sample[name], name)
        for part in path.removeprefix(f"{name}.").split("."):
            value = value.get(part, _ABSENT) if isinstance(value, Mapping) else _ABSENT
        if value is not _ABSENT:
            return value
    return _ABSENT


def _is_glob(pattern: str) -> bool:
    return "*" in pattern or "?" in pattern


def _item_type(field_type: FieldType) -> FieldType:
    if isinstance(field_type, schema.ListType):
        return field_type.items
    if isinstance(field_type, schema.TupleType) and field_type.variadic:
        return field_type.items[0]
    raise ValueMismatch("a list, for a pattern that may match several fields", str(field_type))


@lru_cache(maxsize=4096)
def _match_glob(pattern: str, names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(sorted((name for name in names if fnmatch.fnmatchcase(name, pattern)), key=_natural_key))


def _natural_key(name: str) -> list[tuple[int, str]]:
    """Return a sort key that puts img2 before img10."""
    words = re.split(r"(\d+)", name)
    return [(int(word), "") if word.isdecimal() else (-1, word) for word in words]


@lru_cache(maxsize=4096)
def _find_by_name(name: str, names: tuple[str, ...]) -> str | None:
    """Return the sample's field of this name, exactly or with one more extension."""
    if name in names:
        return name
    return next((field for field in names if _is_named(field, name)), None)


def _is_named(field: str, name: str) -> bool:
    return name in (field, field.rpartition(".")[0])


def _field_value(value: Any, field: str, field_type: FieldType) -> Any:
    """Return a field's value; bytes are decoded unless the class stores bytes or files."""
    inner = field_type.of if isinstance(field_type, schema.OptionalType) else field_type
    if not isinstance(value, BYTES_TYPES) or isinstance(inner, schema.BytesType | schema.Image | schema.Audio):
        return value
    return _decoded(value, field)


def _decoded(value: Any, field: str) -> Any:
    if not isinstance(value, BYTES_TYPES):
        return value
    codec = codec_for(field)
    spec = {"image": _IMAGE_SPEC, "audio": _AUDIO_SPEC}.get(codec.kind if codec else "", _DATA_SPEC)
    return decode(field, value, spec)


def _missing_error(member: Member, sample: Mapping[str, Any], entries: Iterable[str]) -> ShoalError:
    annotation = _fields_annotation(member)
    pattern = annotation.pattern if annotation else " or ".join((member.name, *member.aliases))
    fields = ", ".join(name for name in sample if not name.startswith("__"))
    json = ", ".join(entries)
    return SchemaMismatchError(
        "the sample lacks a field",
        expected=f"{pattern} for {member.name}: {member.node.type}",
        found=f"{fields or 'nothing'}{f' (json: {json})' if json else ''}",
        field=member.name,
        hint=None if annotation else 'name it in the annotation: Annotated[..., Fields("jpg|png")]',
    )


def partial_unpacker(cls: type[T], fields: Iterable[str], *, writable: bool = False) -> Callable[[Buffer], T] | None:
    """Return the function that reads only these fields of a payload; other fields are not decoded.

    It returns a sample of ``cls`` with these attributes only; arrays are copies if ``writable``. Returns None if such a
    sample could be wrong: the class has a ``__post_init__``, or is not a plain dataclass.

    Raises:
        FieldError: A name is not a field of the class.

    Examples:
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
    """Do as `partial_unpacker`, for plain samples that are read by field name.

    Raises:
        FieldError: A name is not a field of the class.

    Examples:
        >>> from shoal.sample import packable
        >>> @packable
        ... class Captioned:
        ...     txt: str
        ...     width: int
        >>> partial_mapper(Captioned, ["txt"])({"__key__": "001", "txt": "a cat"}).txt
        'a cat'
    """
    plan = _partial_plan(cls, fields)
    return None if plan is None else lambda sample: cast("T", map_fields(plan, sample))


def _partial_plan(cls: type, fields: Iterable[str], writable: bool = False) -> Plan | None:
    """Return the plan of samples of a class that have these attributes only, or None if there are none."""
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
    """Whether the constructor of a class only keeps the fields, without computing, checking or changing anything.

    Then a field can be read without the others, and without making a sample. False for every pydantic model.

    Examples:
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
    # The code that dataclasses generate is compiled from a string.
    return is_dataclass(cls) and constructor is not None and constructor.co_filename == "<string>"
