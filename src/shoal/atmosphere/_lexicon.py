"""The lexicons: JSON documents in this package that say what every record looks like."""

from __future__ import annotations

import functools
import json
from importlib.resources import files
from typing import Any

from shoal.errors import RecordError

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
]

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


@functools.cache
def lexicons() -> dict[str, dict[str, Any]]:
    """Every lexicon of this package, by its name.

    Example:
        >>> sorted(name.removeprefix("science.alt.dataset.") for name in lexicons())[:4]
        ['arrayFormat', 'entry', 'label', 'lens']
    """
    folder = files("shoal.atmosphere").joinpath("lexicons")
    documents = (json.loads(path.read_text("utf-8")) for path in folder.iterdir() if path.name.endswith(".json"))
    return {document["id"]: document for document in documents}


def lexicon(nsid: str) -> dict[str, Any]:
    """One lexicon. Raises RecordError for one that is not here.

    Example:
        >>> lexicon("science.alt.dataset.label")["defs"]["main"]["key"]
        'tid'
    """
    try:
        return lexicons()[nsid]
    except KeyError:
        expected = ", ".join(sorted(lexicons()))
        raise RecordError("there is no such lexicon", expected=expected, found=repr(nsid)) from None
