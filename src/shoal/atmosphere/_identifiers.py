"""AT URIs, CIDs and record keys as parsed values."""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
import time
from dataclasses import dataclass
from typing import Any

from shoal.errors import AtmosphereError

__all__ = [
    "AtUri",
    "Cid",
    "DatasetRef",
    "cid_of_record",
    "is_did",
    "is_handle",
    "is_nsid",
    "is_record_key",
    "is_tid",
    "key_of",
    "named_key",
    "new_key",
    "parse_ref",
]

# The grammars of the AT Protocol's own specification.
_DID = re.compile(r"did:[a-z]+:[a-zA-Z0-9._:%-]*[a-zA-Z0-9._-]")
_LABEL = r"[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?"
_HANDLE = re.compile(rf"(?:{_LABEL}\.)+[a-zA-Z](?:[a-zA-Z0-9-]{{0,61}}[a-zA-Z0-9])?")
_NSID = re.compile(rf"[a-zA-Z](?:[a-zA-Z0-9-]{{0,61}}[a-zA-Z0-9])?(?:\.{_LABEL})+\.[a-zA-Z][a-zA-Z0-9]{{0,62}}")
_RECORD_KEY = re.compile(r"[a-zA-Z0-9_~.:-]{1,512}")
_TID = re.compile(r"[234567abcdefghij][234567abcdefghijklmnopqrstuvwxyz]{12}")
_REF = re.compile(r"@(?P<who>[^/@\s]+)/(?P<name>[^/@\s][^@]*?)(?:@(?P<version>[^@/\s]+))?")
RAW, DAG_CBOR = 0x55, 0x71
_VERSION, _SHA256, _SHA256_SIZE = 1, 0x12, 32
_HEAD = 4
_LETTERS = "234567abcdefghijklmnopqrstuvwxyz"


def is_did(text: str) -> bool:
    """Whether a text is the lasting name of an account, such as ``did:plc:abc``.

    Examples:
        >>> is_did("did:plc:ewvi7nxzyoun6zhxrhs64oiz"), is_did("did:web:example.org"), is_did("alice.test")
        (True, True, False)
    """
    return len(text) <= 2048 and _DID.fullmatch(text) is not None


def is_handle(text: str) -> bool:
    """Whether a text is the name that people know an account by: a host name.

    Examples:
        >>> is_handle("alice.bsky.social"), is_handle("alice")
        (True, False)
    """
    return len(text) <= 253 and _HANDLE.fullmatch(text) is not None


def is_nsid(text: str) -> bool:
    """Whether a text names a kind of record, or a method: ``science.alt.dataset.entry``.

    Examples:
        >>> is_nsid("science.alt.dataset.entry"), is_nsid("entry")
        (True, False)
    """
    return len(text) <= 317 and _NSID.fullmatch(text) is not None


def is_record_key(text: str) -> bool:
    """Whether a text may be the key of a record in its collection.

    Examples:
        >>> is_record_key("ImageSample:1.0.0"), is_record_key("a/b"), is_record_key("..")
        (True, False, False)
    """
    return text not in (".", "..") and _RECORD_KEY.fullmatch(text) is not None


def is_tid(text: str) -> bool:
    """Whether a text has the form of a key made from the time.

    Examples:
        >>> is_tid("3jzfcijpj2z2a"), is_tid("self")
        (True, False)
    """
    return _TID.fullmatch(text) is not None


@dataclass(frozen=True, slots=True)
class AtUri:
    """The address of an account, a collection in it, or a record.

    Raises:
        AtmosphereError: A part is not what it must be.

    Examples:
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

    Examples:
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


@dataclass(frozen=True, slots=True)
class Cid:
    """The name of some bytes: what they hold (a record or raw bytes) and their SHA-256.

    Only the kind that the AT Protocol uses: version 1, SHA-256, base32.

    Examples:
        >>> cid = Cid.of_bytes(b"hello")
        >>> str(cid)
        'bafkreibm6jg3ux5qumhcn2b3flc3tyu6dmlb4xa7u5bf44yegnrjhc4yeq'
        >>> Cid.parse(str(cid)) == cid, cid.sha256[:8]
        (True, '2cf24dba')
    """

    codec: int
    digest: bytes

    @classmethod
    def parse(cls, text: str) -> Cid:
        """The CID that a text says. Raises AtmosphereError."""
        try:
            data = base64.b32decode(text[1:].upper() + "=" * (-len(text[1:]) % 8))
        except (binascii.Error, ValueError):
            data = b""
        good = text[:1] == "b" and text == text.lower() and len(data) == _HEAD + _SHA256_SIZE
        if not good or data[0] != _VERSION or data[1] not in (RAW, DAG_CBOR) or data[2:4] != b"\x12\x20":
            raise AtmosphereError(
                "this is no CID of the AT Protocol", expected="bafkrei... or bafyrei...", found=repr(text[:80])
            )
        return cls(data[1], data[_HEAD:])

    @classmethod
    def of_bytes(cls, data: bytes) -> Cid:
        """The name of a blob."""
        return cls(RAW, hashlib.sha256(data).digest())

    @classmethod
    def of_sha256(cls, digest: str) -> Cid:
        """The name of the blob with this SHA-256, in hex."""
        return cls(RAW, bytes.fromhex(digest))

    @property
    def sha256(self) -> str:
        """The hash, in hex: of the blob, or of the record's encoding."""
        return self.digest.hex()

    def _binary(self) -> bytes:
        return bytes((_VERSION, self.codec, _SHA256, _SHA256_SIZE)) + self.digest

    def __str__(self) -> str:
        return "b" + base64.b32encode(self._binary()).decode().rstrip("=").lower()


def cid_of_record(record: dict[str, Any]) -> Cid:
    """The name of a record, given in its JSON form: what a repository must call it.

    Examples:
        >>> str(cid_of_record({"$type": "a.b.c", "n": 1}))
        'bafyrei...'
    """
    from shoal._optional import require

    encoded: bytes = require("libipld", extra="atmosphere").encode_dag_cbor(_as_ipld(record))
    return Cid(DAG_CBOR, hashlib.sha256(encoded).digest())


def _as_ipld(value: Any) -> Any:
    """JSON with ``$link`` and ``$bytes`` as the encoder takes it."""
    if isinstance(value, dict):
        if value.keys() == {"$link"}:
            return Cid.parse(value["$link"])._binary()  # noqa: SLF001 - this module's
        if value.keys() == {"$bytes"}:
            text = value["$bytes"]
            return base64.b64decode(text + "=" * (-len(text) % 4))
        return {name: _as_ipld(inner) for name, inner in value.items()}
    return [_as_ipld(inner) for inner in value] if isinstance(value, list) else value


def _encoded(number: int) -> str:
    return "".join(_LETTERS[(number >> shift) & 31] for shift in range(60, -1, -5))


def new_key() -> str:
    """A key for now.

    Examples:
        >>> len(new_key())
        13
    """
    return _encoded((time.time_ns() // 1000) << 10)


def key_of(*parts: str) -> str:
    """The key of what these texts say: of the form of a TID, the same for the same texts.

    Whoever publishes the same thing twice, from two machines or after a failure, thereby writes one record.

    Examples:
        >>> key_of("pets", "1.0.0") == key_of("pets", "1.0.0"), key_of("pets", "1.0.0") == key_of("pets1", ".0.0")
        (True, False)
    """
    text = "".join(f"{len(part.encode())}:{part}" for part in parts)
    return _encoded(int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1)


def named_key(name: str, version: str) -> str:
    """A key that people can read, for a name and a version.

    Examples:
        >>> named_key("ImageSample", "1.0.0")
        'ImageSample:1.0.0'
    """
    text = f"{name}:{version}"
    return text if re.fullmatch(r"[a-zA-Z0-9_.:~-]{1,500}", text) else key_of(name, version)
