"""The schema registry: a name has versions, a version has one content for ever."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from shoal.errors import CatalogKeyError, OptionError, SchemaError
from shoal.sample import class_from_schema, schema_of
from shoal.schema import Schema, compare, next_version, schema_from_json, schema_hash, schema_to_json

from ._backend import Backend, Key, Transaction
from ._records import ThingHead, decoded, encoded
from ._refs import Reference, check_thing, parse_thing, thing_ref
from ._version import bumped, check_version, newest, precedence

__all__ = ["SchemaRecord", "check_schema", "get_record", "list_records", "publish", "schema_class", "schema_of_record"]

_MOST_BYTES = 1 << 20
_MOST_FIELDS = 10_000


@dataclass(frozen=True, slots=True)
class SchemaRecord:
    """A schema as it is kept."""

    name: str
    version: str
    hash: str
    """Of what decides how data is read; words do not count."""
    document: dict[str, Any]
    """As JSON Schema."""
    created_at: float

    def shown(self) -> dict[str, Any]:
        """The record as users get it."""
        return {
            "$ref": thing_ref("schema", self.name, self.version),
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
    if len(schema.fields) > _MOST_FIELDS or size > _MOST_BYTES:
        raise SchemaError(
            "the schema is too large to keep",
            expected=f"at most {_MOST_FIELDS} fields and {_MOST_BYTES} bytes as JSON",
            found=f"{len(schema.fields)} fields, {size} bytes",
        )
    try:
        check_thing("schema", schema.name)
    except OptionError as error:
        raise SchemaError(error.problem, expected=error.expected, found=error.found) from None
    schema_from_json(schema_to_json(schema))  # what cannot be read back is not kept
    return schema


def publish(change: Transaction, schema: Schema, version: str | None, now: float) -> str:
    """Write a schema down; returns its reference. The same content again is the same version.

    Raises SchemaError when the version has another content already, or is too low for what changed.
    """
    key = ("schema-head", schema.name)
    found = change.get(key)
    head = ThingHead() if found is None else decoded(found, ThingHead, key)
    same = _same_content(change, head, schema, version)
    if same is not None:
        return thing_ref("schema", schema.name, same)
    chosen = _chosen_version(change, head, schema, version)
    kept = replace(schema, version=chosen)
    record = SchemaRecord(kept.name, chosen, schema_hash(kept), schema_to_json(kept), now)
    change.put(("schema", f"{kept.name}@{chosen}"), encoded(record))
    change.put(key, encoded(ThingHead({**head.versions, chosen: record.hash})))
    return thing_ref("schema", kept.name, chosen)


def _same_content(change: Transaction, head: ThingHead, schema: Schema, version: str | None) -> str | None:
    """The version that has this very content: the newest of them, or the one that was asked for."""
    digest = schema_hash(schema)
    alike = [known for known, of in head.versions.items() if of == digest and version in (None, known)]
    same = [known for known in alike if not compare(_kept(change, schema.name, known), schema)]
    return newest(same) if same else None


def _kept(change: Transaction, name: str, version: str) -> Schema:
    key = ("schema", f"{name}@{version}")
    found = change.get(key)
    if found is None:
        raise CatalogKeyError("the index has no such schema", found=f"{name}@{version}")
    return schema_of_record(decoded(found, SchemaRecord, key))


def _chosen_version(change: Transaction, head: ThingHead, schema: Schema, version: str | None) -> str:
    if version is not None:
        check_version(version)
    if version in head.versions:
        raise SchemaError(
            f"{schema.name}@{version} is something else already",
            expected="the same fields, or a new version",
            found=_first_change(_kept(change, schema.name, str(version)), schema),
            hint="leave the version out and it follows from what changed",
        )
    asked = version or schema.version
    below = [known for known in head.versions if version is None or precedence(known) < precedence(asked)]
    if not below:
        return asked
    before = _kept(change, schema.name, newest(below))
    least = next_version(before, schema)
    if precedence(asked) >= precedence(least):
        return asked
    if version is None:
        return _free(least, head)
    raise SchemaError(
        f"{version} is too low for what changed",
        expected=f"at least {least}",
        found=_first_change(before, schema),
        hint="leave the version out and it follows from what changed",
    )


def _free(version: str, head: ThingHead) -> str:
    while version in head.versions:  # a pre-release, or a patch that was published apart
        version = bumped(version, "patch")
    return version


def _first_change(before: Schema, schema: Schema) -> str:
    changes = compare(before, schema)
    return str(changes[0]) if changes else "no difference"


# ----------------------------------------------------------------------------------------------------------- reading


def get_record(backend: Backend, ref: str) -> SchemaRecord:
    """The record that a reference names. Raises CatalogKeyError."""
    asked = parse_thing("schema", ref)
    version = asked.version or _newest_of(backend, asked)
    key: Key = ("schema", f"{asked.name}@{version}")
    found = backend.get_many([key])[0]
    if found is None:
        raise _unknown(backend, asked)
    return decoded(found, SchemaRecord, key)


def _newest_of(backend: Backend, asked: Reference) -> str:
    key: Key = ("schema-head", asked.name)
    found = backend.get_many([key])[0]
    if found is None:
        raise _unknown(backend, asked)
    return newest(decoded(found, ThingHead, key).versions)


def _unknown(backend: Backend, asked: Reference) -> CatalogKeyError:
    key: Key = ("schema-head", asked.name)
    found = backend.get_many([key])[0]
    known = ", ".join(decoded(found, ThingHead, key).versions) if found is not None else None
    return CatalogKeyError("the index has no such schema", expected=known, found=str(asked))


def list_records(backend: Backend) -> Iterator[SchemaRecord]:
    """All schemas, by name and version as text."""
    after = ""
    while page := backend.scan("schema", after=after, limit=200):
        yield from (decoded(value, SchemaRecord, ("schema", key)) for key, value in page)
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
