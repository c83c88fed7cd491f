"""Schemas and lenses in an index: a lens is kept as a reference to its code, with a hash."""

from __future__ import annotations

import functools
import hashlib
import importlib
import inspect
import json
import operator
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import reduce
from typing import Any

from shoal.errors import CatalogKeyError, LensError, LensNotFoundError, OptionError, SchemaError
from shoal.sample._annotations import is_record, schema_of
from shoal.sample._class_factory import class_from_schema
from shoal.sample._lens import Lens
from shoal.schema._compatibility import compare, next_version
from shoal.schema._json_schema import schema_from_json, schema_hash, schema_to_json
from shoal.schema._schema import Schema
from shoal.schema._version import FIRST_VERSION, bump_version, newest_version, version_precedence

from ._backend import Backend, Key, Transaction, VersionList, decode_record, encode_record
from ._refs import (
    Reference,
    check_artifact_name,
    check_version,
    format_ref,
    parse_artifact_ref,
)

__all__ = [
    "LensRecord",
    "SchemaRecord",
    "check_schema",
    "compose_lenses",
    "draft_of",
    "find_path",
    "get_lens_record",
    "get_schema_record",
    "list_lens_records",
    "list_schema_records",
    "load_lens",
    "publish_lens",
    "publish_schema",
    "schema_class",
    "schema_of_record",
]


_MAX_SCHEMA_BYTES = 1 << 20
_MAX_FIELDS = 10_000


@dataclass(frozen=True, slots=True)
class SchemaRecord:
    """A schema as the index stores it."""

    name: str
    version: str
    hash: str
    """Of everything that decides how data is read; descriptions do not count."""
    document: dict[str, Any]
    """As JSON Schema."""
    created_at: float

    def shown(self) -> dict[str, Any]:
        """The record as users get it."""
        return {
            "$ref": format_ref("schema", self.name, self.version),
            "name": self.name,
            "version": self.version,
            "hash": self.hash,
            "description": self.document.get("description", ""),
            "createdAt": datetime.fromtimestamp(self.created_at, UTC).isoformat(),
            "schema": self.document,
        }


def check_schema(of: type[Any] | Schema) -> Schema:
    """The schema of a class, or the value itself, if an index can keep it. Raises SchemaError."""
    try:
        schema = of if isinstance(of, Schema) else schema_of(of)
        size = len(json.dumps(schema_to_json(schema)))
    except RecursionError:
        raise SchemaError("the schema is too deep", expected="64 levels") from None
    if len(schema.fields) > _MAX_FIELDS or size > _MAX_SCHEMA_BYTES:
        raise SchemaError(
            "the schema is too large to keep",
            expected=f"at most {_MAX_FIELDS} fields and {_MAX_SCHEMA_BYTES} bytes as JSON",
            found=f"{len(schema.fields)} fields, {size} bytes",
        )
    try:
        check_artifact_name("schema", schema.name)
    except OptionError as error:
        raise SchemaError(error.problem, expected=error.expected, found=error.found) from None
    schema_from_json(schema_to_json(schema))  # what cannot be read back is not kept
    return schema


def publish_schema(change: Transaction, schema: Schema, version: str | None, now: float) -> str:
    """Write a schema down; returns its reference. The same content again is the same version.

    Raises SchemaError when the version has another content already, or is too low for what changed.
    """
    key = ("schema-head", schema.name)
    found = change.get(key)
    head = VersionList() if found is None else decode_record(found, VersionList, key)
    same = _same_content(change, head, schema, version)
    if same is not None:
        return format_ref("schema", schema.name, same)
    chosen = _choose_schema_version(change, head, schema, version)
    kept = replace(schema, version=chosen)
    record = SchemaRecord(kept.name, chosen, schema_hash(kept), schema_to_json(kept), now)
    change.put(("schema", f"{kept.name}@{chosen}"), encode_record(record))
    change.put(key, encode_record(VersionList({**head.versions, chosen: record.hash})))
    return format_ref("schema", kept.name, chosen)


def _same_content(change: Transaction, head: VersionList, schema: Schema, version: str | None) -> str | None:
    """Return the version with equal content, the newest or the requested one; else None."""
    digest = schema_hash(schema)
    alike = [known for known, of in head.versions.items() if of == digest and version in (None, known)]
    same = [known for known in alike if not compare(_stored_schema(change, schema.name, known), schema)]
    return newest_version(same) if same else None


def _stored_schema(change: Transaction, name: str, version: str) -> Schema:
    key = ("schema", f"{name}@{version}")
    found = change.get(key)
    if found is None:
        raise CatalogKeyError("the index has no such schema", found=f"{name}@{version}")
    return schema_of_record(decode_record(found, SchemaRecord, key))


def _choose_schema_version(change: Transaction, head: VersionList, schema: Schema, version: str | None) -> str:
    if version is not None:
        check_version(version)
    if version in head.versions:
        raise SchemaError(
            f"{schema.name}@{version} is something else already",
            expected="the same fields, or a new version",
            found=_first_change(_stored_schema(change, schema.name, str(version)), schema),
            hint="leave the version out and it follows from what changed",
        )
    asked = version or schema.version
    below = [
        known for known in head.versions if version is None or version_precedence(known) < version_precedence(asked)
    ]
    if not below:
        return asked
    before = _stored_schema(change, schema.name, newest_version(below))
    least = next_version(before, schema)
    if version_precedence(asked) >= version_precedence(least):
        return asked
    if version is None:
        return _next_free_version(least, head)
    raise SchemaError(
        f"{version} is too low for what changed",
        expected=f"at least {least}",
        found=_first_change(before, schema),
        hint="leave the version out and it follows from what changed",
    )


def _next_free_version(version: str, head: VersionList) -> str:
    while version in head.versions:  # a pre-release, or a patch that was published apart
        version = bump_version(version, "patch")
    return version


def _first_change(before: Schema, schema: Schema) -> str:
    changes = compare(before, schema)
    return str(changes[0]) if changes else "no difference"


def get_schema_record(backend: Backend, ref: str) -> SchemaRecord:
    """The record that a reference names. Raises CatalogKeyError."""
    asked = parse_artifact_ref("schema", ref)
    version = asked.version or _newest_schema_version(backend, asked)
    key: Key = ("schema", f"{asked.name}@{version}")
    found = backend.get_many([key])[0]
    if found is None:
        raise _unknown_schema(backend, asked)
    return decode_record(found, SchemaRecord, key)


def _newest_schema_version(backend: Backend, asked: Reference) -> str:
    key: Key = ("schema-head", asked.name)
    found = backend.get_many([key])[0]
    if found is None:
        raise _unknown_schema(backend, asked)
    return newest_version(decode_record(found, VersionList, key).versions)


def _unknown_schema(backend: Backend, asked: Reference) -> CatalogKeyError:
    key: Key = ("schema-head", asked.name)
    found = backend.get_many([key])[0]
    known = ", ".join(decode_record(found, VersionList, key).versions) if found is not None else None
    return CatalogKeyError("the index has no such schema", expected=known, found=str(asked))


def list_schema_records(backend: Backend) -> Iterator[SchemaRecord]:
    """All schemas, by name and version as text."""
    after = ""
    while page := backend.scan("schema", after=after, limit=200):
        yield from (decode_record(value, SchemaRecord, ("schema", key)) for key, value in page)
        after = page[-1][0]


def schema_of_record(record: SchemaRecord) -> Schema:
    """The schema as a value. Raises SchemaError for a document that is too large or contains itself."""
    return schema_from_json(record.document)


@functools.lru_cache(maxsize=1024)
def _class_of(document: str) -> type[Any]:
    return class_from_schema(schema_from_json(json.loads(document)))


def schema_class(record: SchemaRecord) -> type[Any]:
    """A class with this schema; the same one for the same schema."""
    return _class_of(json.dumps(record.document))


@dataclass(frozen=True, slots=True)
class LensRecord:
    """A lens in an index: the schemas it connects, and where its code is."""

    name: str
    version: str
    source: str
    """The reference of the schema it takes."""
    view: str
    """The reference of the schema it gives."""
    module: str
    qualname: str
    sha256: str
    """Of the source text of its functions."""
    has_put: bool = False
    created_at: float = 0.0

    @property
    def reference(self) -> str:
        """Where it is found in the index."""
        return format_ref("lens", self.name, self.version)


@dataclass(frozen=True, slots=True)
class LensDraft:
    """A lens that is to be stored."""

    record: LensRecord
    source: Schema
    view: Schema


def draft_of(lens: Lens[Any, Any], name: str | None) -> LensDraft:
    """Return the draft of a lens. Raises LensError for one that cannot be imported."""
    module, qualname = _import_path(lens)
    for kind in (lens.source_type, lens.view_type):
        if not is_record(kind):
            raise LensError("only lenses between typed samples are stored", found=getattr(kind, "__name__", str(kind)))
    source, view = (check_schema(kind) for kind in (lens.source_type, lens.view_type))
    spelled = check_artifact_name("lens", name or lens.name)
    record = LensRecord(spelled, "", "", "", module, qualname, _code_hash(lens), lens.has_put)
    return LensDraft(record, source, view)


def _import_path(lens: Lens[Any, Any]) -> tuple[str, str]:
    """Return the module and the qualified name from which this lens can be imported."""
    get = lens._get  # noqa: SLF001 - has the name of the module it was defined in
    module, qualname = getattr(get, "__module__", None), getattr(get, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(qualname, str) or module == "__main__":
        raise _not_importable(lens)
    try:
        found = operator.attrgetter(qualname)(sys.modules[module])
    except (KeyError, AttributeError):
        raise _not_importable(lens) from None
    if found is not lens:
        raise _not_importable(lens)
    return module, qualname


def _not_importable(lens: Lens[Any, Any]) -> LensError:
    return LensError(
        "this lens cannot be found again by an import",
        expected="a function of a module, decorated with @shoal.lens",
        found=lens.name,
        hint="store the lenses it is compose_lenses of; a structural lens needs no storing",
    )


def _code_hash(lens: Lens[Any, Any]) -> str:
    digest = hashlib.sha256()
    for function in (lens._get, lens._put):  # noqa: SLF001 - as above
        if function is not None:
            digest.update(_source_code(function, lens).encode())
            digest.update(b"\0")
    return digest.hexdigest()


def _source_code(function: Callable[..., Any], lens: Lens[Any, Any]) -> str:
    try:
        return inspect.cleandoc(inspect.getsource(function))
    except (OSError, TypeError):
        raise LensError("the source of this lens is not to be had", found=lens.name) from None


def publish_lens(change: Transaction, draft: LensDraft, version: str | None, now: float) -> str:
    """Write a lens and the schemas of both its ends down; the same code between the same schemas is the same version.

    Raises LensError when the version is another lens already.
    """
    source, view = (publish_schema(change, schema, None, now) for schema in (draft.source, draft.view))
    record = replace(draft.record, source=source, view=view)
    content = hashlib.sha256(encode_record(record)).hexdigest()
    key = ("lens-head", record.name)
    found = change.get(key)
    head = VersionList() if found is None else decode_record(found, VersionList, key)
    same = [known for known, of in head.versions.items() if of == content and version in (None, known)]
    if same:
        return format_ref("lens", record.name, newest_version(same))
    chosen = _choose_lens_version(head, record.name, version)
    change.put(("lens", f"{record.name}@{chosen}"), encode_record(replace(record, version=chosen, created_at=now)))
    change.put(key, encode_record(VersionList({**head.versions, chosen: content})))
    return format_ref("lens", record.name, chosen)


def _choose_lens_version(head: VersionList, name: str, version: str | None) -> str:
    if version is None:
        return bump_version(newest_version(head.versions), "patch") if head.versions else FIRST_VERSION
    if check_version(version) in head.versions:
        raise LensError(f"{name}@{version} is another lens already", hint="leave the version out for the next one")
    return version


def get_lens_record(backend: Backend, asked: Reference) -> LensRecord:
    """One lens. Raises CatalogKeyError."""
    at: Key = ("lens-head", asked.name)
    head = backend.get_many([at])[0]
    if head is None:
        raise CatalogKeyError("the index has no such lens", found=str(asked))
    versions = decode_record(head, VersionList, at).versions
    key: Key = ("lens", f"{asked.name}@{asked.version or newest_version(versions)}")
    found = backend.get_many([key])[0]
    if found is None:
        raise CatalogKeyError("the lens has no such version", expected=", ".join(versions), found=str(asked))
    return decode_record(found, LensRecord, key)


def list_lens_records(backend: Backend) -> Iterator[LensRecord]:
    """All lenses, by name."""
    after = ""
    while page := backend.scan("lens", after=after, limit=200):
        yield from (decode_record(value, LensRecord, ("lens", key)) for key, value in page)
        after = page[-1][0]


def load_lens(record: LensRecord) -> Lens[Any, Any]:
    """Import a lens. Raises LensError where there is none, or one of other code."""
    try:
        found = operator.attrgetter(record.qualname)(importlib.import_module(record.module))
    except (ImportError, AttributeError) as error:
        raise LensError(
            "the code of this lens is not installed", found=f"{record.module}:{record.qualname}", hint=str(error)
        ) from error
    if not isinstance(found, Lens):
        raise LensError("there is no lens where it was stored from", found=f"{record.module}:{record.qualname}")
    digest = _code_hash(found)
    if digest != record.sha256:
        raise LensError(
            "the code of this lens is not the code that was stored",
            expected=f"sha256 {record.sha256[:16]}...",
            found=f"{digest[:16]}... in {record.module}:{record.qualname}",
            hint="store it again, or install the version it was stored from",
        )
    return found


def find_path(lenses: Iterable[LensRecord], source: str, view: str) -> tuple[LensRecord, ...]:
    """The shortest way from one schema to another, over the newest version of each lens."""
    if source == view:
        return ()
    onward: dict[str, list[LensRecord]] = {}
    for record in _newest_lenses(lenses):
        onward.setdefault(record.source, []).append(record)
    ways = _shortest_paths(onward, source, view)
    if not ways:
        known = ", ".join(sorted(record.name for records in onward.values() for record in records)) or "none"
        raise LensNotFoundError(f"no stored lens leads from {source} to {view}", found=f"stored: {known}")
    if len(ways) > 1:
        shown = "; ".join(" | ".join(record.name for record in way) for way in ways)
        raise LensError(f"several ways lead from {source} to {view}", expected="one shortest way", found=shown)
    return ways[0]


def _newest_lenses(lenses: Iterable[LensRecord]) -> list[LensRecord]:
    """Of each lens between two schemas the newest version: those between older schemas are still of use."""
    best: dict[tuple[str, str, str], LensRecord] = {}
    for record in lenses:
        at = (record.name, record.source, record.view)
        if at not in best or newest_version([best[at].version, record.version]) == record.version:
            best[at] = record
    return list(best.values())


def _shortest_paths(onward: dict[str, list[LensRecord]], source: str, view: str) -> list[tuple[LensRecord, ...]]:
    seen, level = {source}, [(source, ())]
    ways: list[tuple[str, tuple[LensRecord, ...]]] = list(level)
    while ways:
        further = [(one.view, (*way, one)) for at, way in ways for one in onward.get(at, ())]
        arrived = [way for at, way in further if at == view]
        if arrived:
            return arrived
        ways = [(at, way) for at, way in further if at not in seen]
        seen |= {at for at, _ in ways}
    return []


def compose_lenses(records: tuple[LensRecord, ...]) -> Lens[Any, Any]:
    """The lenses, imported, one after the other. Raises LensError where there is none."""
    if not records:
        raise LensError(
            "both are the same schema, so there is no lens between them", hint="use the samples as they are"
        )
    return reduce(lambda one, two: one | two, map(load_lens, records))
