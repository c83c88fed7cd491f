"""Content identifiers."""

from __future__ import annotations

import base64
import hashlib

import cbor2

from shoal.local._cid import data_cid


def test_a_cid_is_what_other_tools_compute():
    """By another encoder: canonical CBOR under sha2-256, as CID version 1 in base32."""
    shards = [("train", "00" * 32), ("train", "ff" * 32), *[(f"split {n}", f"{n:064x}") for n in range(300)]]
    encoded_document = cbor2.dumps([[split, bytes.fromhex(digest)] for split, digest in shards], canonical=True)
    digest = hashlib.sha256(encoded_document).digest()
    expected = "b" + base64.b32encode(b"\x01\x71\x12\x20" + digest).decode().lower().rstrip("=")
    assert data_cid(shards) == expected
