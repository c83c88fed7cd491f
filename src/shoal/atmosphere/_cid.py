"""CIDs as parsed values: names of content, made of its hash."""

from __future__ import annotations

import base64
import binascii
import hashlib
from dataclasses import dataclass
from typing import Any

from shoal.errors import AtmosphereError

__all__ = ["DAG_CBOR", "RAW", "Cid", "cid_of_record"]

RAW, DAG_CBOR = 0x55, 0x71
_VERSION, _SHA256, _SHA256_SIZE = 1, 0x12, 32
_HEAD = 4


@dataclass(frozen=True, slots=True)
class Cid:
    """The name of some bytes: what they hold (a record or raw bytes) and their SHA-256.

    Only the kind that the AT Protocol uses: version 1, SHA-256, base32.

    Example:
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

    def __str__(self) -> str:
        data = bytes((_VERSION, self.codec, _SHA256, _SHA256_SIZE)) + self.digest
        return "b" + base64.b32encode(data).decode().rstrip("=").lower()


def cid_of_record(record: dict[str, Any]) -> Cid:
    """The name of a record, given in its JSON form: what a repository must call it.

    Example:
        >>> str(cid_of_record({"$type": "a.b.c", "n": 1}))
        'bafyrei...'
    """
    from shoal._optional import need

    encoded: bytes = need("libipld").encode_dag_cbor(_as_ipld(record))
    return Cid(DAG_CBOR, hashlib.sha256(encoded).digest())


def _as_ipld(value: Any) -> Any:
    """JSON with ``$link`` and ``$bytes`` as the encoder takes it."""
    if isinstance(value, dict):
        if value.keys() == {"$link"}:
            return _link(value["$link"])
        if value.keys() == {"$bytes"}:
            text = value["$bytes"]
            return base64.b64decode(text + "=" * (-len(text) % 4))
        return {name: _as_ipld(inner) for name, inner in value.items()}
    return [_as_ipld(inner) for inner in value] if isinstance(value, list) else value


def _link(text: str) -> bytes:
    cid = Cid.parse(text)
    return bytes((_VERSION, cid.codec, _SHA256, _SHA256_SIZE)) + cid.digest
