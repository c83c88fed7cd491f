"""Datasets in an index: recording, versions, names, reading and search."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, time
from typing import Any

from shoal.errors import CatalogConflictError, CatalogError, CatalogKeyError, OptionError
from shoal.schema._schema import Schema
from shoal.schema._version import FIRST_VERSION, VersionPart, bump_version, newest_version

from . import _schemas_lenses
from ._backend import (
    Backend,
    DataRecord,
    EntryRecord,
    Head,
    Key,
    Query,
    Row,
    Term,
    Transaction,
    VersionRecord,
    data_key,
    decode_record,
    encode_record,
)
from ._entry import Entry, Storage, StoredShard
from ._refs import Reference, parse_artifact_ref

__all__ = [
    "EntryDraft",
    "delete",
    "entries_of",
    "get",
    "history",
    "label",
    "list_entries",
    "move_data",
    "query_of",
    "read_many",
    "record",
    "rename",
    "retag",
    "roots_in_use",
]

When = datetime | date | float | None
Bounds = tuple[int | None, int | None]

_MAX_READS = 100
"""How often a read is repeated while another process changes what it reads."""
_WORD = re.compile(r"[^\W_]+")
_QUERY_WORD = re.compile(r"[^\W_]+\*?")
_MAX_WORDS = 1000
_MAX_WORD_LETTERS = 64
_MAX_RESULTS = 10_000


@dataclass(frozen=True, slots=True)
class EntryDraft:
    """An entry that has no version yet."""

    name: str
    cid: str
    storage: Storage
    shards: tuple[StoredShard, ...]
    place: str
    """The repository or folder in which data of equal content is kept once."""
    schema_ref: str = ""
    version: str | None = None
    metadata: dict[str, Any] | None = None
    """None for that of the previous version, if the data is the same."""
    tags: tuple[str, ...] = ()
    description: str | None = None
    """None for that of the previous version."""


def record(change: Transaction, draft: EntryDraft, now: float) -> Entry:
    """Record an entry under its name and a version.

    Data that the place has already is not recorded twice: the entry then refers to the existing data.
    Raises CatalogConflictError when the version is something else already.
    """
    return _record_version(change, draft, *_find_or_make_data(change, draft), now)


def label(
    change: Transaction, asked: Reference, to: str, version: str | None, tags: tuple[str, ...], now: float
) -> Entry:
    """Record the data of a version under another name too. Raises CatalogKeyError, CatalogConflictError."""
    head = _head_or_raise(change, asked.name)
    known = asked.version or newest_version(one.version for one in head.versions)
    data_at = next((("data", one.data) for one in head.versions if one.version == known), None)
    if data_at is None:
        raise _unknown_version(asked, head)
    said, data = _entry_record(change, asked.name, known), _data_record(change, head, known)
    draft = EntryDraft(to, data.cid, data.storage, data.shards, "", said.schema_ref, version, said.metadata, tags)
    return _record_version(change, replace(draft, description=said.description), data_at, data, now)


def move_data(change: Transaction, draft: EntryDraft) -> DataRecord:
    """Replace the storage of this data by that of the draft, because the old shards are damaged."""
    key, data = _find_or_make_data(change, draft)
    moved = replace(data, storage=draft.storage, shards=draft.shards)
    change.put(key, encode_record(moved))
    return moved


def _record_version(change: Transaction, draft: EntryDraft, data_at: Key, data: DataRecord, now: float) -> Entry:
    head = _head(change, draft.name)
    same = None if head is None else _find_same_version(change, head, draft, data_at)
    if head is not None and same is not None:
        return _set_tags(change, draft.name, head, (*head.tags, *draft.tags), same)
    version = draft.version or _next_version(change, head, draft)
    description = draft.description if draft.description is not None else _description_before(change, draft.name, head)
    said = EntryRecord(draft.schema_ref, now, draft.metadata, description)
    change.put(("entry", f"{draft.name}@{version}"), encode_record(said))
    refs = tuple(dict.fromkeys((*data.refs, f"{draft.name}@{version}")))
    change.put(data_at, encode_record(replace(data, refs=refs)))
    before = () if head is None else head.versions
    tags = tuple(sorted({*(() if head is None else head.tags), *draft.tags}))
    made = Head(change.next_number(), (*before, VersionRecord(version, data_at[1])), tags)
    _put_head(change, draft.name, made)
    return _entry(draft.name, made, version, said, data)


def _find_or_make_data(change: Transaction, draft: EntryDraft) -> tuple[Key, DataRecord]:
    key = data_key(draft.cid, draft.place)
    found = change.get(key)
    if found is not None:
        return key, decode_record(found, DataRecord, key)
    return key, DataRecord(draft.cid, draft.storage, draft.shards)


def _find_same_version(change: Transaction, head: Head, draft: EntryDraft, data_at: Key) -> str | None:
    """Return the version that equals the draft already, the newest or the requested one; else None."""
    version = draft.version or newest_version(one.version for one in head.versions)
    known = next((one for one in head.versions if one.version == version), None)
    if known is None:
        return None
    said = _entry_record(change, draft.name, version)
    alike = (
        known.data == data_at[1]
        and said.schema_ref == draft.schema_ref
        and draft.metadata in (None, said.metadata)
        and draft.description in (None, said.description)
    )
    if alike:
        return version
    if draft.version is None:
        return None
    raise CatalogConflictError(
        f"{draft.name}@{version} is something else already",
        expected="the same data, schema, metadata and description",
        hint="leave the version out for the next one, or delete this one first",
    )


def _description_before(change: Transaction, name: str, head: Head | None) -> str:
    return (
        ""
        if head is None
        else _entry_record(change, name, newest_version(one.version for one in head.versions)).description
    )


def _next_version(change: Transaction, head: Head | None, draft: EntryDraft) -> str:
    if head is None:
        return FIRST_VERSION
    last = newest_version(one.version for one in head.versions)
    known = next(one for one in head.versions if one.version == last)
    weight = _change_weight(_entry_record(change, draft.name, last).schema_ref, known.data.partition(".")[0], draft)
    version = bump_version(last, weight)
    taken = {one.version for one in head.versions}
    while version in taken:  # a requested version may follow a pre-release
        version = bump_version(version, "patch")
    return version


def _change_weight(schema_before: str, cid_before: str, draft: EntryDraft) -> VersionPart:
    """Return major if old and new samples have incompatible types, minor for other data, else patch."""
    if schema_before != draft.schema_ref:
        if not schema_before or not draft.schema_ref:
            return "major"
        old, new = (parse_artifact_ref("schema", ref) for ref in (schema_before, draft.schema_ref))
        if old.name != new.name or str(old.version).split(".")[0] != str(new.version).split(".")[0]:
            return "major"
        return "minor"
    return "patch" if cid_before == draft.cid else "minor"


def _put_head(change: Transaction, name: str, head: Head) -> None:
    """Write the head and the search row of the newest version."""
    change.put(("head", name), encode_record(head))
    version = newest_version(one.version for one in head.versions)
    said, data = _entry_record(change, name, version), _data_record(change, head, version)
    entry = _entry(name, head, version, said, data)
    change.put_row(row_of(entry, head.number, _schema(change, said.schema_ref), said.created_at))


def _schema(change: Transaction, ref: str) -> Schema | None:
    if not ref or not ref.startswith("shoal://local/"):
        return None
    asked = parse_artifact_ref("schema", ref)
    key = ("schema", f"{asked.name}@{asked.version}")
    found = change.get(key)
    if found is None:
        raise CatalogKeyError("the index has no such schema", found=ref, hint="publish it first")
    return _schemas_lenses.schema_of_record(decode_record(found, _schemas_lenses.SchemaRecord, key))


def _set_tags(change: Transaction, name: str, head: Head, tags: Sequence[str], version: str) -> Entry:
    kept = tuple(sorted(set(tags)))
    if kept != head.tags:
        head = replace(head, tags=kept)
        _put_head(change, name, head)
    return _entry(name, head, version, _entry_record(change, name, version), _data_record(change, head, version))


def retag(change: Transaction, name: str, choose: Callable[[tuple[str, ...]], tuple[str, ...]]) -> Entry:
    """Give a name other tags. Raises CatalogKeyError."""
    head = _head_or_raise(change, name)
    return _set_tags(change, name, head, choose(head.tags), newest_version(one.version for one in head.versions))


def delete(change: Transaction, asked: Reference) -> int:
    """Forget a version, or without one all of a name; returns how many versions. Raises CatalogKeyError."""
    head = _head_or_raise(change, asked.name)
    gone = [one for one in head.versions if asked.version in (None, one.version)]
    if not gone:
        raise _unknown_version(asked, head)
    for one in gone:
        change.delete(("entry", f"{asked.name}@{one.version}"))
        _remove_ref(change, one.data, f"{asked.name}@{one.version}")
    kept = tuple(one for one in head.versions if one not in gone)
    if kept:
        _put_head(change, asked.name, replace(head, versions=kept))
    else:
        change.delete(("head", asked.name))
        change.delete_row(asked.name)
    return len(gone)


def _remove_ref(change: Transaction, data: str, ref: str) -> None:
    key = ("data", data)
    found = change.get(key)
    if found is None:
        return
    known = decode_record(found, DataRecord, key)
    refs = tuple(one for one in known.refs if one != ref)
    if refs:
        change.put(key, encode_record(replace(known, refs=refs)))
    else:
        change.delete(key)


def rename(change: Transaction, name: str, to: str) -> Entry:
    """Give all versions of a name another one. Raises CatalogKeyError, or CatalogConflictError when it is taken."""
    head = _head_or_raise(change, name)
    if _head(change, to) is not None:
        raise CatalogConflictError("the name is taken", found=to, hint="delete that one first, or choose another")
    for one in head.versions:
        said = _entry_record(change, name, one.version)
        change.delete(("entry", f"{name}@{one.version}"))
        change.put(("entry", f"{to}@{one.version}"), encode_record(said))
        key = ("data", one.data)
        data = _data_record(change, head, one.version)
        refs = (f"{to}@{one.version}" if ref == f"{name}@{one.version}" else ref for ref in data.refs)
        change.put(key, encode_record(replace(data, refs=tuple(refs))))
    change.delete(("head", name))
    change.delete_row(name)
    _put_head(change, to, head)
    last = newest_version(one.version for one in head.versions)
    return _entry(to, head, last, _entry_record(change, to, last), _data_record(change, head, last))


def _head(change: Transaction, name: str) -> Head | None:
    key = ("head", name)
    found = change.get(key)
    return None if found is None else decode_record(found, Head, key)


def _head_or_raise(change: Transaction, name: str) -> Head:
    head = _head(change, name)
    if head is None:
        raise CatalogKeyError("the index has no such dataset", found=name)
    return head


def _entry_record(change: Transaction, name: str, version: str) -> EntryRecord:
    key = ("entry", f"{name}@{version}")
    found = change.get(key)
    if found is None:
        raise CatalogError("the index lost a record", found=f"entry {name}@{version}")
    return decode_record(found, EntryRecord, key)


def _data_record(change: Transaction, head: Head, version: str) -> DataRecord:
    key = ("data", next(one.data for one in head.versions if one.version == version))
    found = change.get(key)
    if found is None:
        raise CatalogError("the index lost a record", found=f"data {key[1]}")
    return decode_record(found, DataRecord, key)


def _unknown_version(asked: Reference, head: Head) -> CatalogKeyError:
    expected = ", ".join(one.version for one in head.versions)
    return CatalogKeyError("the dataset has no such version", expected=expected, found=str(asked))


def _entry(name: str, head: Head, version: str, said: EntryRecord, data: DataRecord) -> Entry:
    return Entry(
        name,
        version,
        data.cid,
        said.schema_ref,
        data.storage,
        data.shards,
        said.metadata,
        head.tags,
        said.description,
        datetime.fromtimestamp(said.created_at, UTC),
    )


def get(backend: Backend, asked: Reference) -> Entry:
    """One entry. Raises CatalogKeyError."""
    key: Key = ("head", asked.name)
    for _ in range(_MAX_READS):
        value = backend.get_many([key])[0]
        if value is None:
            break
        head = decode_record(value, Head, key)
        found = _read_entries(backend, [(asked.name, head, asked.version)])
        if found:
            return found[0]
        if asked.version is not None and all(one.version != asked.version for one in head.versions):
            raise _unknown_version(asked, head)
        # The entry was deleted or renamed after the head was read: read again.
    near = backend.scan("head", prefix=asked.name[:3], limit=5) if len(asked.name) > 3 else []
    known = ", ".join(name for name, _ in near) or None
    raise CatalogKeyError("the index has no such dataset", found=str(asked), hint=known and f"there is {known}")


def read_many(backend: Backend, asked: Sequence[Reference]) -> list[Entry]:
    """The entries of those references that there are, in this order."""
    keys: list[Key] = [("head", one.name) for one in asked]
    heads = [
        (one, decode_record(found, Head, key))
        for one, key, found in zip(asked, keys, backend.get_many(keys), strict=True)
        if found is not None
    ]
    return _read_entries(backend, [(one.name, head, one.version) for one, head in heads])


def _read_entries(backend: Backend, wanted: Sequence[tuple[str, Head, str | None]]) -> list[Entry]:
    """Return the entries of heads that were read; those deleted since are left out."""
    plans: list[tuple[str, Head, str, str]] = []
    for name, head, asked in wanted:
        version = newest_version(one.version for one in head.versions) if asked is None else asked
        data = next((one.data for one in head.versions if one.version == version), None)
        if data is not None:
            plans.append((name, head, version, data))
    keys: list[Key] = [
        key for name, _, version, data in plans for key in (("entry", f"{name}@{version}"), ("data", data))
    ]
    values = backend.get_many(keys)
    entries = []
    for at, (name, head, version, _) in enumerate(plans):
        said, data_value = values[2 * at], values[2 * at + 1]
        if said is not None and data_value is not None:
            record = decode_record(said, EntryRecord, keys[2 * at])
            entries.append(_entry(name, head, version, record, decode_record(data_value, DataRecord, keys[2 * at + 1])))
    return entries


def history(backend: Backend, name: str) -> list[Entry]:
    """All versions of a name, in the order they came. Raises CatalogKeyError."""
    key: Key = ("head", name)
    for _ in range(_MAX_READS):
        value = backend.get_many([key])[0]
        if value is None:
            break
        head = decode_record(value, Head, key)
        found = _read_entries(backend, [(name, head, one.version) for one in head.versions])
        if len(found) == len(head.versions):
            return found
    raise CatalogKeyError("the index has no such dataset", found=name)


def list_entries(backend: Backend, prefix: str = "") -> Iterator[Entry]:
    """The newest version of every dataset, by name, a page at a time."""
    after = ""
    while page := backend.scan("head", prefix=prefix, after=after, limit=200):
        yield from _read_entries(
            backend, [(name, decode_record(value, Head, ("head", name)), None) for name, value in page]
        )
        after = page[-1][0]


def entries_of(backend: Backend, cid: str) -> list[Entry]:
    """Return every version, of any name, with this content."""
    found = backend.scan("data", prefix=f"{cid}.", limit=10_000)
    refs = [ref for key, value in found for ref in decode_record(value, DataRecord, ("data", key)).refs]
    return read_many(backend, [Reference(*ref.split("@", 1)) for ref in refs])


def roots_in_use(backend: Backend) -> set[str]:
    """Return the folders of all data that has an entry."""
    roots: set[str] = set()
    after = ""
    while page := backend.scan("data", after=after, limit=200):
        roots |= {decode_record(value, DataRecord, ("data", key)).storage.root for key, value in page}
        after = page[-1][0]
    return roots


def _words(text: str) -> list[str]:
    return [word[:_MAX_WORD_LETTERS] for word in _WORD.findall(_fold_case(text))]


def _fold_case(text: str) -> str:
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())


def row_of(entry: Entry, number: int, schema: Schema | None, created: float) -> Row:
    """Return the search row of the newest version of a dataset."""
    terms = dict.fromkeys(_terms(entry, schema))
    return Row(entry.name, number, tuple(terms), entry.samples or 0, entry.bytes, created)


def _terms(entry: Entry, schema: Schema | None) -> Iterator[str]:
    yield from (f"t:{_fold_case(tag)}" for tag in entry.tags)
    if schema is not None:
        yield f"s:{schema.name}"
        yield f"s:{schema.name}@{schema.version}"
        yield from (f"f:{field.name}" for field in schema.fields)
    words = (word for text in _texts(entry, schema) for word in _words(text))
    distinct = dict.fromkeys(words)
    yield from (f"w:{word}" for word, _ in zip(distinct, range(_MAX_WORDS), strict=False))


def _texts(entry: Entry, schema: Schema | None) -> Iterator[str]:
    """Yield everything that users wrote, the name first."""
    yield entry.name
    yield from entry.tags
    yield entry.description
    if schema is not None:
        yield schema.name
        yield from schema.names
    yield from _strings(entry.metadata)


def _strings(node: Any) -> Iterator[str]:
    if isinstance(node, str):
        yield node
    elif isinstance(node, dict):
        for name, inner in node.items():
            yield name
            yield from _strings(inner)
    elif isinstance(node, list):
        for inner in node:
            yield from _strings(inner)


def query_of(
    text: str | None,
    tags: Iterable[str],
    schema: str | None,
    fields: Iterable[str],
    samples: Bounds,
    sizes: Bounds,
    created: tuple[When, When],
    limit: int,
    offset: int,
) -> Query:
    """Return the query of a search. Raises OptionError for invalid arguments."""
    if not 1 <= limit <= _MAX_RESULTS or offset < 0:
        raise OptionError("a search gives some results", expected=f"a limit of 1 to {_MAX_RESULTS}", found=limit)
    if isinstance(tags, str) or isinstance(fields, str):
        raise OptionError("tags and fields are lists", expected="['a', 'b']", found=repr(tags or fields))
    terms = [
        *_query_words(text),
        *(Term(f"t:{_fold_case(tag.strip())}") for tag in tags),
        *([] if schema is None else [Term(f"s:{parse_artifact_ref('schema', schema)}")]),
        *(Term(f"f:{name}") for name in fields),
    ]
    after, before = (_to_timestamp(when) for when in created)
    return Query(tuple(dict.fromkeys(terms)), samples, sizes, (after, before), limit, offset)


def _query_words(text: str | None) -> Iterator[Term]:
    if not text or not text.strip():
        return
    found = _QUERY_WORD.findall(_fold_case(text))
    if not found:
        raise OptionError("there is no word to look for", expected="letters or digits", found=repr(text)[:80])
    for word in found:
        yield Term(f"w:{word.removesuffix('*')[:_MAX_WORD_LETTERS]}", prefix=word.endswith("*"))


def _to_timestamp(when: When) -> float | None:
    if when is None or isinstance(when, int | float):
        return when
    if isinstance(when, datetime):
        return when.timestamp()
    return datetime.combine(when, time.min).astimezone().timestamp()
