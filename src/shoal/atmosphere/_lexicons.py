"""Lexicons, and the validation of records against them."""

from __future__ import annotations

import base64
import binascii
import functools
import json
import re
from collections.abc import Callable
from datetime import datetime
from importlib.resources import files
from typing import Any

from shoal.errors import AtmosphereError, RecordError

from ._identifiers import AtUri, Cid, is_did, is_handle, is_nsid, is_record_key, is_tid

__all__ = [
    "ENTRY",
    "LABEL",
    "LEGACY_ENTRIES",
    "LEGACY_SCHEMAS",
    "LENS",
    "LENS_VERIFICATION",
    "NAMESPACE",
    "SCHEMA",
    "lexicon",
    "lexicons",
    "validate_record",
    "validate_rkey",
]

Def = dict[str, Any]
NAMESPACE = "science.alt.dataset"
"""The authority under which all of them are."""
SCHEMA = f"{NAMESPACE}.schema"
ENTRY = f"{NAMESPACE}.entry"
LABEL = f"{NAMESPACE}.label"
LENS = f"{NAMESPACE}.lens"
LENS_VERIFICATION = f"{NAMESPACE}.lensVerification"
LEGACY_SCHEMAS = ("ac.foundation.dataset.schema", "ac.foundation.dataset.sampleSchema")
"""Where schemas were before; read, never written."""
LEGACY_ENTRIES = ("ac.foundation.dataset.entry", "ac.foundation.dataset.record")
"""Where datasets were before; read, never written."""
_SAFE = 2**53 - 1
"""JSON numbers beyond this are not the same everywhere."""
_DEEPEST = 64
_DATETIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,20})?(Z|[+-]\d\d:\d\d)")
_URI = re.compile(r"[a-z][a-z.-]{0,80}:(?://)?[^\s/]\S*")


@functools.cache
def lexicons() -> dict[str, dict[str, Any]]:
    """Every lexicon of this package, by its name.

    Examples:
        >>> sorted(name.removeprefix("science.alt.dataset.") for name in lexicons())[:4]
        ['arrayFormat', 'entry', 'label', 'lens']
    """
    folder = files("shoal.atmosphere").joinpath("lexicons")
    documents = (json.loads(path.read_text("utf-8")) for path in folder.iterdir() if path.name.endswith(".json"))
    return {document["id"]: document for document in documents}


def lexicon(nsid: str) -> dict[str, Any]:
    """One lexicon. Raises RecordError for one that is not here.

    Examples:
        >>> lexicon("science.alt.dataset.label")["defs"]["main"]["key"]
        'tid'
    """
    try:
        return lexicons()[nsid]
    except KeyError:
        expected = ", ".join(sorted(lexicons()))
        raise RecordError("there is no such lexicon", expected=expected, found=repr(nsid)) from None


def validate_record(record: Any, nsid: str | None = None) -> None:
    """Raise RecordError where a record, in its JSON form, is not what its lexicon says.

    ``nsid`` names the lexicon; the record's own ``$type`` does otherwise.

    Examples:
        >>> label = {"$type": "science.alt.dataset.label", "name": "pets", "createdAt": "2026-01-01T00:00:00Z"}
        >>> validate_record(label)
        Traceback (most recent call last):
        shoal.errors.RecordError: the record does not fit its lexicon: expected a value, ...
        >>> validate_record({**label, "datasetUri": "at://alice.test/science.alt.dataset.entry/3jzfcijpj2z2a"})
    """
    _check_data(record, "$", 0)
    if not isinstance(record, dict) or not isinstance(record.get("$type"), str):
        raise _unfit("$.$type", "an object with the name of its lexicon", record)
    name = nsid or record["$type"]
    if record["$type"] != name:
        raise _unfit("$.$type", name, record["$type"])
    main = lexicon(name)["defs"]["main"]
    if main["type"] != "record":
        raise _unfit("$.$type", "the lexicon of a record", name)
    _check(record, main["record"], "$", name)


def validate_rkey(nsid: str, rkey: str) -> None:
    """Raise RecordError where a key is not of the kind that the lexicon asks for.

    Examples:
        >>> validate_rkey("science.alt.dataset.entry", "3jzfcijpj2z2a")
    """
    kind = lexicon(nsid)["defs"]["main"]["key"]
    if not is_record_key(rkey) or (kind == "tid" and not is_tid(rkey)):
        raise RecordError("the key of a record is not of its kind", expected=kind, found=repr(rkey))


def _unfit(path: str, expected: object, found: object) -> RecordError:
    shown = "nothing" if found is None else repr(found)
    return RecordError("the record does not fit its lexicon", expected=expected, found=shown[:120], field=path)


def _check_data(value: Any, path: str, depth: int) -> None:
    """What no record may hold: floats, unsafe integers, names that are no text."""
    if depth > _DEEPEST:
        raise _unfit(path, f"at most {_DEEPEST} levels", "more")
    if isinstance(value, dict):
        for name, inner in value.items():
            if not isinstance(name, str):
                raise _unfit(path, "names that are text", name)
            _check_data(inner, f"{path}.{name}", depth + 1)
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            _check_data(inner, f"{path}[{number}]", depth + 1)
    elif isinstance(value, int) and not isinstance(value, bool):
        if abs(value) > _SAFE:
            raise _unfit(path, "an integer of at most 53 bits", value)
    elif value is not None and not isinstance(value, str | bool):
        raise _unfit(path, "text, an integer, a boolean, a list or an object (records hold no floats)", value)


def _check(value: Any, of: Def, path: str, home: str) -> None:
    check = _CHECKS.get(of["type"])
    if check is None:
        raise RecordError("a lexicon has a type that is not known here", found=of["type"], field=path)
    check(value, of, path, home)


def _object(value: Any, of: Def, path: str, home: str) -> None:
    if not isinstance(value, dict):
        raise _unfit(path, "an object", value)
    nullable = of.get("nullable", ())
    for name in of.get("required", ()):
        if name not in value:
            raise _unfit(f"{path}.{name}", "a value", None)
    for name, inner in of.get("properties", {}).items():
        if name in value and not (value[name] is None and name in nullable):
            _check(value[name], inner, f"{path}.{name}", home)


def _array(value: Any, of: Def, path: str, home: str) -> None:
    if not isinstance(value, list):
        raise _unfit(path, "a list", value)
    _check_length(len(value), of, path, "items")
    for number, inner in enumerate(value):
        _check(inner, of["items"], f"{path}[{number}]", home)


def _check_length(length: int, of: Def, path: str, unit: str) -> None:
    if length > of.get("maxLength", length):
        raise _unfit(path, f"at most {of['maxLength']} {unit}", length)
    if length < of.get("minLength", 0):
        raise _unfit(path, f"at least {of['minLength']} {unit}", length)


def _string(value: Any, of: Def, path: str, home: str) -> None:
    if not isinstance(value, str):
        raise _unfit(path, "text", value)
    try:
        _check_length(len(value.encode()), of, path, "bytes")
    except UnicodeEncodeError:
        raise _unfit(path, "text that is Unicode", value) from None
    if value != of.get("const", value):
        raise _unfit(path, of["const"], value)
    if value not in of.get("enum", (value,)):
        raise _unfit(path, " or ".join(of["enum"]), value)
    if "format" in of and not _FORMATS[of["format"]](value):
        raise _unfit(path, f"text of the format {of['format']}", value)


def _integer(value: Any, of: Def, path: str, home: str) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        raise _unfit(path, "an integer", value)
    if not of.get("minimum", value) <= value <= of.get("maximum", value):
        raise _unfit(path, f"{of.get('minimum', '')} to {of.get('maximum', '')}", value)


def _boolean(value: Any, of: Def, path: str, home: str) -> None:
    if not isinstance(value, bool):
        raise _unfit(path, "true or false", value)


def _bytes(value: Any, of: Def, path: str, home: str) -> None:
    text = value.get("$bytes") if isinstance(value, dict) and value.keys() == {"$bytes"} else None
    if not isinstance(text, str):
        raise _unfit(path, 'bytes: {"$bytes": base64}', value)
    try:
        data = base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except (binascii.Error, ValueError):
        raise _unfit(path, "base64", text) from None
    _check_length(len(data), of, path, "bytes")


def _link(value: Any, of: Def, path: str, home: str) -> None:
    if not isinstance(value, dict) or value.keys() != {"$link"} or not _is_cid(value["$link"]):
        raise _unfit(path, 'a link: {"$link": CID}', value)


def _blob(value: Any, of: Def, path: str, home: str) -> None:
    if not isinstance(value, dict) or value.get("$type") != "blob":
        raise _unfit(path, "a blob, as the server gave it", value)
    _link(value.get("ref"), of, f"{path}.ref", home)
    _integer(value.get("size"), {"minimum": 0}, f"{path}.size", home)
    _string(value.get("mimeType"), {}, f"{path}.mimeType", home)
    if value["size"] > of.get("maxSize", value["size"]):
        raise _unfit(path, f"a blob of at most {of['maxSize']} bytes", value["size"])
    if not any(_accepts(pattern, value["mimeType"]) for pattern in of.get("accept", ["*/*"])):
        raise _unfit(f"{path}.mimeType", " or ".join(of["accept"]), value["mimeType"])


def _accepts(pattern: str, mime: str) -> bool:
    return pattern in ("*/*", mime) or (pattern.endswith("/*") and mime.startswith(pattern[:-1]))


def _unknown(value: Any, of: Def, path: str, home: str) -> None:
    if not isinstance(value, dict):
        raise _unfit(path, "an object", value)


def _target(ref: str, home: str) -> tuple[Def, str, str]:
    """The definition that a reference names, the lexicon it is in, and its full name."""
    nsid, _, part = ref.partition("#")
    nsid = nsid or home
    return lexicon(nsid)["defs"][part or "main"], nsid, f"{nsid}#{part}" if part and part != "main" else nsid


def _ref(value: Any, of: Def, path: str, home: str) -> None:
    found, nsid, _ = _target(of["ref"], home)
    _check(value, found, path, nsid)


def _union(value: Any, of: Def, path: str, home: str) -> None:
    kind = value.get("$type") if isinstance(value, dict) else None
    if not isinstance(kind, str):
        raise _unfit(path, "an object with a $type", value)
    options = [_target(ref, home) for ref in of["refs"]]
    for found, nsid, name in options:
        if kind.removesuffix("#main") == name:
            _check(value, found, path, nsid)
            return
    # An open union lets readers meet what is newer than they are. What is written here is always known.
    raise _unfit(f"{path}.$type", " or ".join(name for _, _, name in options), kind)


def _token(value: Any, of: Def, path: str, home: str) -> None:
    _string(value, {}, path, home)


_CHECKS: dict[str, Callable[[Any, Def, str, str], None]] = {
    "object": _object,
    "array": _array,
    "string": _string,
    "integer": _integer,
    "boolean": _boolean,
    "bytes": _bytes,
    "cid-link": _link,
    "blob": _blob,
    "unknown": _unknown,
    "ref": _ref,
    "union": _union,
    "token": _token,
}


def _is_cid(text: Any) -> bool:
    return isinstance(text, str) and _parses(Cid.parse, text)


def _is_datetime(text: str) -> bool:
    if _DATETIME.fullmatch(text) is None or text.endswith("-00:00"):
        return False
    return _parses(datetime.fromisoformat, re.sub(r"\.\d+", "", text))


def _parses(parse: Callable[[str], object], text: str) -> bool:
    try:
        parse(text)
    except (AtmosphereError, ValueError):
        return False
    return True


_FORMATS: dict[str, Callable[[str], bool]] = {
    "at-uri": lambda text: _parses(AtUri.parse, text),
    "at-identifier": lambda text: is_did(text) or is_handle(text),
    "cid": _is_cid,
    "datetime": _is_datetime,
    "did": is_did,
    "handle": is_handle,
    "nsid": is_nsid,
    "record-key": is_record_key,
    "tid": is_tid,
    "uri": lambda text: len(text) <= 8192 and _URI.fullmatch(text) is not None,
}
