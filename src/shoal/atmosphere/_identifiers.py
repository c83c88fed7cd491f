"""Names on the network, as parsed values: accounts, collections, records."""

from __future__ import annotations

import re
from dataclasses import dataclass

from shoal.errors import AtmosphereError

__all__ = ["AtUri", "DatasetRef", "is_did", "is_handle", "is_nsid", "is_record_key", "is_tid", "parse_ref"]

# The grammars of the AT Protocol's own specification.
_DID = re.compile(r"did:[a-z]+:[a-zA-Z0-9._:%-]*[a-zA-Z0-9._-]")
_LABEL = r"[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?"
_HANDLE = re.compile(rf"(?:{_LABEL}\.)+[a-zA-Z](?:[a-zA-Z0-9-]{{0,61}}[a-zA-Z0-9])?")
_NSID = re.compile(rf"[a-zA-Z](?:[a-zA-Z0-9-]{{0,61}}[a-zA-Z0-9])?(?:\.{_LABEL})+\.[a-zA-Z][a-zA-Z0-9]{{0,62}}")
_RECORD_KEY = re.compile(r"[a-zA-Z0-9_~.:-]{1,512}")
_TID = re.compile(r"[234567abcdefghij][234567abcdefghijklmnopqrstuvwxyz]{12}")
_REF = re.compile(r"@(?P<who>[^/@\s]+)/(?P<name>[^/@\s][^@]*?)(?:@(?P<version>[^@/\s]+))?")


def is_did(text: str) -> bool:
    """Whether a text is the lasting name of an account, such as ``did:plc:abc``.

    Example:
        >>> is_did("did:plc:ewvi7nxzyoun6zhxrhs64oiz"), is_did("did:web:example.org"), is_did("alice.test")
        (True, True, False)
    """
    return len(text) <= 2048 and _DID.fullmatch(text) is not None


def is_handle(text: str) -> bool:
    """Whether a text is the name that people know an account by: a host name.

    Example:
        >>> is_handle("alice.bsky.social"), is_handle("alice")
        (True, False)
    """
    return len(text) <= 253 and _HANDLE.fullmatch(text) is not None


def is_nsid(text: str) -> bool:
    """Whether a text names a kind of record, or a method: ``science.alt.dataset.entry``.

    Example:
        >>> is_nsid("science.alt.dataset.entry"), is_nsid("entry")
        (True, False)
    """
    return len(text) <= 317 and _NSID.fullmatch(text) is not None


def is_record_key(text: str) -> bool:
    """Whether a text may be the key of a record in its collection.

    Example:
        >>> is_record_key("ImageSample:1.0.0"), is_record_key("a/b"), is_record_key("..")
        (True, False, False)
    """
    return text not in (".", "..") and _RECORD_KEY.fullmatch(text) is not None


def is_tid(text: str) -> bool:
    """Whether a text has the form of a key made from the time.

    Example:
        >>> is_tid("3jzfcijpj2z2a"), is_tid("self")
        (True, False)
    """
    return _TID.fullmatch(text) is not None


@dataclass(frozen=True, slots=True)
class AtUri:
    """The address of an account, a collection in it, or a record.

    Raises:
        AtmosphereError: A part is not what it must be.

    Example:
        >>> uri = AtUri.parse("at://did:plc:abc/science.alt.dataset.entry/3jzfcijpj2z2a")
        >>> uri.authority, uri.collection, uri.rkey
        ('did:plc:abc', 'science.alt.dataset.entry', '3jzfcijpj2z2a')
        >>> str(uri)
        'at://did:plc:abc/science.alt.dataset.entry/3jzfcijpj2z2a'
    """

    authority: str
    collection: str | None = None
    rkey: str | None = None

    def __post_init__(self) -> None:
        if not (is_did(self.authority) or is_handle(self.authority)):
            raise _unparsed(f"at://{self.authority}", "a DID or a handle after at://")
        if self.collection is not None and not is_nsid(self.collection):
            raise _unparsed(str(self), "a collection such as science.alt.dataset.entry")
        if self.rkey is not None and (self.collection is None or not is_record_key(self.rkey)):
            raise _unparsed(str(self), "at://ACCOUNT/COLLECTION/KEY")

    @classmethod
    def parse(cls, text: str) -> AtUri:
        """The address that a text says. Raises AtmosphereError."""
        if not text.startswith("at://") or len(text) > 8192:
            raise _unparsed(text, "at://ACCOUNT/COLLECTION/KEY")
        parts = text.removeprefix("at://").split("/")
        if len(parts) > 3 or not all(parts):
            raise _unparsed(text, "at://ACCOUNT/COLLECTION/KEY")
        return cls(*parts)

    @property
    def is_record(self) -> bool:
        """Whether it names one record."""
        return self.rkey is not None

    def __str__(self) -> str:
        return "at://" + "/".join(part for part in (self.authority, self.collection, self.rkey) if part is not None)


@dataclass(frozen=True, slots=True)
class DatasetRef:
    """``@handle/name`` or ``@handle/name@version``: a dataset by the name its publisher gave it.

    Example:
        >>> parse_ref("@alice.test/pets@1.2.0")
        DatasetRef(account='alice.test', name='pets', version='1.2.0')
        >>> str(parse_ref("@alice.test/pets"))
        '@alice.test/pets'
    """

    account: str
    name: str
    version: str | None = None

    def __str__(self) -> str:
        return f"@{self.account}/{self.name}" + (f"@{self.version}" if self.version else "")


def parse_ref(text: str) -> AtUri | DatasetRef:
    """What a text names: ``at://...``, ``@handle/name`` or ``@handle/name@version``. Raises AtmosphereError."""
    if text.startswith("at://"):
        return AtUri.parse(text)
    found = _REF.fullmatch(text)
    if found is None or not (is_handle(found["who"]) or is_did(found["who"])):
        raise _unparsed(text, "at://..., @handle/name or @handle/name@version")
    return DatasetRef(found["who"], found["name"], found["version"])


def _unparsed(text: str, expected: str) -> AtmosphereError:
    return AtmosphereError("this names nothing on the AT Protocol network", expected=expected, found=repr(text[:200]))
