"""Which schema a dataset has after a write: the rule that joins the schemas of two writes, and what does not fit."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from shoal.errors import CodecError, SchemaError, SchemaMismatchError
from shoal.sample._class_factory import class_from_schema
from shoal.sample._packable import unpack
from shoal.schema._compatibility import compare, reading_problems
from shoal.schema._json_schema import schema_from_json
from shoal.schema._schema import Schema

__all__ = ["check_payload_fits", "check_schema_fits", "join_schemas"]

_Document = dict[str, Any]
_PAYLOADS = {"msgpack"}
_MISFIT = "The samples do not fit the schema of the dataset"


def join_schemas(before: _Document | None, schema: _Document | None, fields: Collection[str]) -> _Document | None:
    """Return the schema of a dataset with samples, once samples with these fields are added: the one that reads all.

    None where neither does: the samples are of several types then, and each is asked for by name.

    Examples:
        >>> join_schemas({"name": "Image"}, None, ["msgpack"]), join_schemas({"name": "Image"}, None, ["jpg"])
        ({'name': 'Image'}, None)
    """
    if schema == before:
        return schema
    if schema is None:  # writers of packed samples need not say of which type
        return before if set(fields) <= _PAYLOADS else None
    if before is None:
        return None
    return next((new for old, new in ((before, schema), (schema, before)) if _can_read(new, old)), None)


def check_schema_fits(
    before: _Document | None, schema: _Document | None, fields: Collection[str], *, hint: str
) -> None:
    """Raise SchemaMismatchError unless samples can be added to others without changing how those are read."""
    if before is None or join_schemas(before, schema, fields) is not None:
        return
    stored = _read_schema(before)
    if schema is None:
        got = f"fields {', '.join(sorted(fields))}"
    else:
        new = _read_schema(schema)
        changes = [] if stored is None or new is None else [str(each) for each in compare(stored, new)]
        got = f"{'another schema' if new is None else new.name}{': ' if changes else ''}{'; '.join(changes)}"
    raise SchemaMismatchError(_MISFIT, expected=stored or "its schema", found=got, hint=hint)


def check_payload_fits(before: _Document | None, payload: bytes, url: str, *, hint: str) -> None:
    """Raise SchemaMismatchError unless the schema of the dataset can read a payload of the new shard ``url``.

    For writers of packed samples that name no schema.
    """
    if before is None:
        return
    try:
        unpack(class_from_schema(schema_from_json(before)), payload)
    except (SchemaError, CodecError) as error:
        raise SchemaMismatchError(_MISFIT, found=str(error), shard=url, hint=hint) from error


def _read_schema(document: _Document) -> Schema | None:
    try:
        return schema_from_json(document)
    except SchemaError:
        return None


def _can_read(new: _Document, old: _Document) -> bool:
    try:
        return not reading_problems(schema_from_json(old), schema_from_json(new))
    except SchemaError:
        return False
