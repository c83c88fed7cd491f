"""Datasets in an index: their versions, their names, and what they are found by."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, time
from typing import Any

from shoal.errors import CatalogConflictError, CatalogError, CatalogKeyError, OptionError
from shoal.schema import Schema

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
    decoded,
    encoded,
)
from ._entry import Entry, Storage, StoredShard
from ._refs import FIRST_VERSION, Reference, Weight, bumped, newest, parse_thing

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


# ------------------------------------------------------------------------------------------------- datasets in an index


_TRIES = 100
"""How often a reader looks again when what it reads is being changed."""


@dataclass(frozen=True, slots=True)
class EntryDraft:
    """An entry that is to be: what is known before the index has given it a version."""

    name: str
    cid: str
    storage: Storage
    shards: tuple[StoredShard, ...]
    place: str
    """What data of one content is kept once in: a repository, or the folder where it lies."""
    schema_ref: str = ""
    version: str | None = None
    metadata: dict[str, Any] | None = None
    """None for what the version before had, where the data is the same."""
    tags: tuple[str, ...] = ()
    description: str | None = None
    """None for what the version before had."""


# ------------------------------------------------------------------------------------------------------------ writing


def record(change: Transaction, draft: EntryDraft, now: float) -> Entry:
    """Write an entry down under its name and a version.

    Data that the place holds already is not recorded twice: the entry then stands for the data that was there first.
    Raises CatalogConflictError when the version is something else already.
    """
    data_at, data = _data(change, draft)
    return _recorded(change, draft, data_at, data, now)


def label(
    change: Transaction, asked: Reference, to: str, version: str | None, tags: tuple[str, ...], now: float
) -> Entry:
    """Let another name stand for the data of a version too. Raises CatalogKeyError, CatalogConflictError."""
    head = _head_or_raise(change, asked.name)
    known = asked.version or newest(one.version for one in head.versions)
    data_at = next((("data", one.data) for one in head.versions if one.version == known), None)
    if data_at is None:
        raise _no_version(asked, head)
    said, data = _said(change, asked.name, known), _data_of(change, head, known)
    draft = EntryDraft(to, data.cid, data.storage, data.shards, "", said.schema_ref, version, said.metadata, tags)
    return _recorded(change, replace(draft, description=said.description), data_at, data, now)


def move_data(change: Transaction, draft: EntryDraft) -> DataRecord:
    """Let the data of this content and place be where the draft has it: what lay there before is damaged."""
    key, data = _data(change, draft)
    moved = replace(data, storage=draft.storage, shards=draft.shards)
    change.put(key, encoded(moved))
    return moved


def _recorded(change: Transaction, draft: EntryDraft, data_at: Key, data: DataRecord, now: float) -> Entry:
    head = _head(change, draft.name)
    same = None if head is None else _same(change, head, draft, data_at)
    if head is not None and same is not None:
        return _retagged(change, draft.name, head, (*head.tags, *draft.tags), same)
    version = draft.version or _next_version(change, head, draft)
    description = draft.description if draft.description is not None else _description_before(change, draft.name, head)
    said = EntryRecord(draft.schema_ref, now, draft.metadata, description)
    change.put(("entry", f"{draft.name}@{version}"), encoded(said))
    refs = tuple(dict.fromkeys((*data.refs, f"{draft.name}@{version}")))
    change.put(data_at, encoded(replace(data, refs=refs)))
    before = () if head is None else head.versions
    tags = tuple(sorted({*(() if head is None else head.tags), *draft.tags}))
    made = Head(change.next_number(), (*before, VersionRecord(version, data_at[1])), tags)
    _put_head(change, draft.name, made)
    return _entry(draft.name, made, version, said, data)


def _data(change: Transaction, draft: EntryDraft) -> tuple[Key, DataRecord]:
    key = data_key(draft.cid, draft.place)
    found = change.get(key)
    if found is not None:
        return key, decoded(found, DataRecord, key)
    return key, DataRecord(draft.cid, draft.storage, draft.shards)


def _same(change: Transaction, head: Head, draft: EntryDraft, data_at: Key) -> str | None:
    """The version that this very thing has already: the newest, or the one that is asked for."""
    version = draft.version or newest(one.version for one in head.versions)
    known = next((one for one in head.versions if one.version == version), None)
    if known is None:
        return None
    said = _said(change, draft.name, version)
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
    return "" if head is None else _said(change, name, newest(one.version for one in head.versions)).description


def _next_version(change: Transaction, head: Head | None, draft: EntryDraft) -> str:
    if head is None:
        return FIRST_VERSION
    last = newest(one.version for one in head.versions)
    known = next(one for one in head.versions if one.version == last)
    weight = _weight(_said(change, draft.name, last).schema_ref, known.data.partition(".")[0], draft)
    version = bumped(last, weight)
    taken = {one.version for one in head.versions}
    while version in taken:  # a version that was asked for may lie beyond a pre-release
        version = bumped(version, "patch")
    return version


def _weight(schema_before: str, cid_before: str, draft: EntryDraft) -> Weight:
    """Major where old samples and new ones are of types that do not read each other, minor for other data."""
    if schema_before != draft.schema_ref:
        if not schema_before or not draft.schema_ref:
            return "major"
        old, new = (parse_thing("schema", ref) for ref in (schema_before, draft.schema_ref))
        if old.name != new.name or str(old.version).split(".")[0] != str(new.version).split(".")[0]:
            return "major"
        return "minor"
    return "patch" if cid_before == draft.cid else "minor"


def _put_head(change: Transaction, name: str, head: Head) -> None:
    """Write the head and, with it, what the newest version is found by."""
    change.put(("head", name), encoded(head))
    version = newest(one.version for one in head.versions)
    said, data = _said(change, name, version), _data_of(change, head, version)
    entry = _entry(name, head, version, said, data)
    change.put_row(row_of(entry, head.number, _schema(change, said.schema_ref), said.created_at))


def _schema(change: Transaction, ref: str) -> Schema | None:
    if not ref or not ref.startswith("shoal://local/"):
        return None
    asked = parse_thing("schema", ref)
    key = ("schema", f"{asked.name}@{asked.version}")
    found = change.get(key)
    if found is None:
        raise CatalogKeyError("the index has no such schema", found=ref, hint="publish it first")
    return _schemas_lenses.schema_of_record(decoded(found, _schemas_lenses.SchemaRecord, key))


def _retagged(change: Transaction, name: str, head: Head, tags: Sequence[str], version: str) -> Entry:
    kept = tuple(sorted(set(tags)))
    if kept != head.tags:
        head = replace(head, tags=kept)
        _put_head(change, name, head)
    return _entry(name, head, version, _said(change, name, version), _data_of(change, head, version))


def retag(change: Transaction, name: str, choose: Callable[[tuple[str, ...]], tuple[str, ...]]) -> Entry:
    """Give a name other tags. Raises CatalogKeyError."""
    head = _head_or_raise(change, name)
    return _retagged(change, name, head, choose(head.tags), newest(one.version for one in head.versions))


def delete(change: Transaction, asked: Reference) -> int:
    """Forget a version, or without one all of a name; returns how many versions. Raises CatalogKeyError."""
    head = _head_or_raise(change, asked.name)
    gone = [one for one in head.versions if asked.version in (None, one.version)]
    if not gone:
        raise _no_version(asked, head)
    for one in gone:
        change.delete(("entry", f"{asked.name}@{one.version}"))
        _unrefer(change, one.data, f"{asked.name}@{one.version}")
    kept = tuple(one for one in head.versions if one not in gone)
    if kept:
        _put_head(change, asked.name, replace(head, versions=kept))
    else:
        change.delete(("head", asked.name))
        change.delete_row(asked.name)
    return len(gone)


def _unrefer(change: Transaction, data: str, ref: str) -> None:
    key = ("data", data)
    found = change.get(key)
    if found is None:
        return
    known = decoded(found, DataRecord, key)
    refs = tuple(one for one in known.refs if one != ref)
    if refs:
        change.put(key, encoded(replace(known, refs=refs)))
    else:
        change.delete(key)


def rename(change: Transaction, name: str, to: str) -> Entry:
    """Give all versions of a name another one. Raises CatalogKeyError, or CatalogConflictError when it is taken."""
    head = _head_or_raise(change, name)
    if _head(change, to) is not None:
        raise CatalogConflictError("the name is taken", found=to, hint="delete that one first, or choose another")
    for one in head.versions:
        said = _said(change, name, one.version)
        change.delete(("entry", f"{name}@{one.version}"))
        change.put(("entry", f"{to}@{one.version}"), encoded(said))
        key = ("data", one.data)
        data = _data_of(change, head, one.version)
        refs = (f"{to}@{one.version}" if ref == f"{name}@{one.version}" else ref for ref in data.refs)
        change.put(key, encoded(replace(data, refs=tuple(refs))))
    change.delete(("head", name))
    change.delete_row(name)
    _put_head(change, to, head)
    last = newest(one.version for one in head.versions)
    return _entry(to, head, last, _said(change, to, last), _data_of(change, head, last))


# ------------------------------------------------------------------------------------------------------------ reading


def _head(change: Transaction, name: str) -> Head | None:
    key = ("head", name)
    found = change.get(key)
    return None if found is None else decoded(found, Head, key)


def _head_or_raise(change: Transaction, name: str) -> Head:
    head = _head(change, name)
    if head is None:
        raise CatalogKeyError("the index has no such dataset", found=name)
    return head


def _said(change: Transaction, name: str, version: str) -> EntryRecord:
    key = ("entry", f"{name}@{version}")
    found = change.get(key)
    if found is None:
        raise CatalogError("the index lost a record", found=f"entry {name}@{version}")
    return decoded(found, EntryRecord, key)


def _data_of(change: Transaction, head: Head, version: str) -> DataRecord:
    key = ("data", next(one.data for one in head.versions if one.version == version))
    found = change.get(key)
    if found is None:
        raise CatalogError("the index lost a record", found=f"data {key[1]}")
    return decoded(found, DataRecord, key)


def _no_version(asked: Reference, head: Head) -> CatalogKeyError:
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
    for _ in range(_TRIES):
        value = backend.get_many([key])[0]
        if value is None:
            break
        head = decoded(value, Head, key)
        found = _read(backend, [(asked.name, head, asked.version)])
        if found:
            return found[0]
        if asked.version is not None and all(one.version != asked.version for one in head.versions):
            raise _no_version(asked, head)
        # What the head named was deleted, or renamed, before it was read: look again.
    near = backend.scan("head", prefix=asked.name[:3], limit=5) if len(asked.name) > 3 else []
    known = ", ".join(name for name, _ in near) or None
    raise CatalogKeyError("the index has no such dataset", found=str(asked), hint=known and f"there is {known}")


def read_many(backend: Backend, asked: Sequence[Reference]) -> list[Entry]:
    """The entries of those references that there are, in this order."""
    keys: list[Key] = [("head", one.name) for one in asked]
    heads = [
        (one, decoded(found, Head, key))
        for one, key, found in zip(asked, keys, backend.get_many(keys), strict=True)
        if found is not None
    ]
    return _read(backend, [(one.name, head, one.version) for one, head in heads])


def _read(backend: Backend, wanted: Sequence[tuple[str, Head, str | None]]) -> list[Entry]:
    """Entries whose heads are known; one that was deleted meanwhile is left out."""
    plans: list[tuple[str, Head, str, str]] = []
    for name, head, asked in wanted:
        version = newest(one.version for one in head.versions) if asked is None else asked
        data = next((one.data for one in head.versions if one.version == version), None)
        if data is not None:
            plans.append((name, head, version, data))
    keys: list[Key] = [key for name, _, version, data in plans for key in _keys_of(name, version, data)]
    values = backend.get_many(keys)
    entries = []
    for at, (name, head, version, _) in enumerate(plans):
        said, data_value = values[2 * at], values[2 * at + 1]
        if said is not None and data_value is not None:
            record = decoded(said, EntryRecord, keys[2 * at])
            entries.append(_entry(name, head, version, record, decoded(data_value, DataRecord, keys[2 * at + 1])))
    return entries


def _keys_of(name: str, version: str, data: str) -> tuple[Key, Key]:
    return ("entry", f"{name}@{version}"), ("data", data)


def history(backend: Backend, name: str) -> list[Entry]:
    """All versions of a name, in the order they came. Raises CatalogKeyError."""
    key: Key = ("head", name)
    for _ in range(_TRIES):
        value = backend.get_many([key])[0]
        if value is None:
            break
        head = decoded(value, Head, key)
        found = _read(backend, [(name, head, one.version) for one in head.versions])
        if len(found) == len(head.versions):
            return found
    raise CatalogKeyError("the index has no such dataset", found=name)


def list_entries(backend: Backend, prefix: str = "") -> Iterator[Entry]:
    """The newest version of every dataset, by name, a page at a time."""
    after = ""
    while page := backend.scan("head", prefix=prefix, after=after, limit=200):
        yield from _read(backend, [(name, decoded(value, Head, ("head", name)), None) for name, value in page])
        after = page[-1][0]


def entries_of(backend: Backend, cid: str) -> list[Entry]:
    """Every version, of any name, that stands for this content."""
    found = backend.scan("data", prefix=f"{cid}.", limit=10_000)
    refs = [ref for key, value in found for ref in decoded(value, DataRecord, ("data", key)).refs]
    return read_many(backend, [Reference(*ref.split("@", 1)) for ref in refs])


def roots_in_use(backend: Backend) -> set[str]:
    """The folder of all data that an entry stands for."""
    roots: set[str] = set()
    after = ""
    while page := backend.scan("data", after=after, limit=200):
        roots |= {decoded(value, DataRecord, ("data", key)).storage.root for key, value in page}
        after = page[-1][0]
    return roots


# ------------------------------------------------------------------------------------------- what a dataset is found by


_WORD = re.compile(r"[^\W_]+")
_ASKED = re.compile(r"[^\W_]+\*?")
_MOST_WORDS = 1000
_LONGEST_WORD = 64
_MOST_RESULTS = 10_000


def _words(text: str) -> list[str]:
    return [word[:_LONGEST_WORD] for word in _WORD.findall(_folded(text))]


def _folded(text: str) -> str:
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())


# ------------------------------------------------------------------------------------------------------ what is kept


def row_of(entry: Entry, number: int, schema: Schema | None, created: float) -> Row:
    """What the newest version of a dataset is found by."""
    terms = dict.fromkeys(_terms(entry, schema))
    return Row(entry.name, number, tuple(terms), entry.samples or 0, entry.bytes, created)


def _terms(entry: Entry, schema: Schema | None) -> Iterator[str]:
    yield from (f"t:{_folded(tag)}" for tag in entry.tags)
    if schema is not None:
        yield f"s:{schema.name}"
        yield f"s:{schema.name}@{schema.version}"
        yield from (f"f:{field.name}" for field in schema.fields)
    words = (word for text in _texts(entry, schema) for word in _words(text))
    distinct = dict.fromkeys(words)
    yield from (f"w:{word}" for word, _ in zip(distinct, range(_MOST_WORDS), strict=False))


def _texts(entry: Entry, schema: Schema | None) -> Iterator[str]:
    """All that people wrote, the name first."""
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


# ----------------------------------------------------------------------------------------------------- what is asked


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
    """A search as databases take it. Raises OptionError for what cannot be meant."""
    if not 1 <= limit <= _MOST_RESULTS or offset < 0:
        raise OptionError("a search gives some results", expected=f"a limit of 1 to {_MOST_RESULTS}", found=limit)
    if isinstance(tags, str) or isinstance(fields, str):
        raise OptionError("tags and fields are lists", expected="['a', 'b']", found=repr(tags or fields))
    terms = [
        *_asked_words(text),
        *(Term(f"t:{_folded(tag.strip())}") for tag in tags),
        *([] if schema is None else [_schema_term(schema)]),
        *(Term(f"f:{name}") for name in fields),
    ]
    after, before = (_seconds(when) for when in created)
    return Query(tuple(dict.fromkeys(terms)), samples, sizes, (after, before), limit, offset)


def _asked_words(text: str | None) -> Iterator[Term]:
    if not text or not text.strip():
        return
    found = _ASKED.findall(_folded(text))
    if not found:
        raise OptionError("there is no word to look for", expected="letters or digits", found=repr(text)[:80])
    for word in found:
        yield Term(f"w:{word.removesuffix('*')[:_LONGEST_WORD]}", prefix=word.endswith("*"))


def _schema_term(ref: str) -> Term:
    asked = parse_thing("schema", ref)
    return Term(f"s:{asked}")


def _seconds(when: When) -> float | None:
    if when is None or isinstance(when, int | float):
        return when
    if isinstance(when, datetime):
        return when.timestamp()
    return datetime.combine(when, time.min).astimezone().timestamp()
