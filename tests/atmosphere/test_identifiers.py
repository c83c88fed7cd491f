"""AT URIs, CIDs and record keys as parsed values, compared with the SDK's."""

from __future__ import annotations

import atproto
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.atmosphere import (
    AtUri,
    Cid,
    DatasetRef,
    parse_ref,
)
from shoal.atmosphere._identifiers import cid_of_record, key_of, named_key, new_key
from shoal.atmosphere._lexicons import validate_rkey
from shoal.errors import AtmosphereError

DID = "did:plc:ewvi7nxzyoun6zhxrhs64oiz"
URI = AtUri(DID, "science.alt.dataset.entry", "3jzfcijpj2z2a")


@given(st.binary())
def test_a_cid_is_the_sdks(data):
    cid = Cid.of_bytes(data)
    assert Cid.parse(str(cid)) == cid == Cid.of_sha256(cid.sha256)
    theirs = atproto.CID.decode(str(cid))
    assert (theirs.codec, theirs.hash.digest) == (cid.codec, cid.digest)


@given(st.text(max_size=70))
def test_what_is_no_cid_is_refused(text):
    with pytest.raises(AtmosphereError, match="no CID"):
        Cid.parse(text)


def test_a_records_cid_is_the_one_that_a_real_server_gave():
    record = {
        "$type": "science.alt.dataset.label",
        "name": "x",
        "datasetUri": "at://a",
        "createdAt": "2026-01-01T00:00:00Z",
        "f": {"$bytes": "aGk="},
    }
    assert str(cid_of_record(record)) == "bafyreidttpxhu72kvtz64t2rioyack7giugkta3bmsdrnz2l6ehxavfjw4"


@pytest.mark.parametrize(
    "text",
    ["at://alice.test", f"at://{DID}/a.b.c", f"at://{DID}/science.alt.dataset.schema/Pet:1.0.0", str(URI)],
)
def test_at_uris_are_parsed(text):
    uri = AtUri.parse(text)
    theirs = atproto.AtUri.from_str(text)
    assert str(uri) == text
    assert (uri.authority, uri.collection or "", uri.rkey or "") == (theirs.host, theirs.collection, theirs.rkey)
    assert parse_ref(text) == uri


@pytest.mark.parametrize(
    "text",
    [
        "",
        "at://",
        "at://alice",
        "https://alice.test/a.b.c/x",
        "at://alice.test/nope/x",
        "at://alice.test/a.b.c/",
        "at://alice.test/a.b.c/x/y",
        "at://alice.test/a.b.c/..",
        "at://alice.test/a.b.c/a b",
        "at://did:plc:/a.b.c/x",
        f"at://{'a' * 300}.test",
        "@alice.test",
        "@alice/pets",
        "@alice.test//b",
        "@alice.test/pets@",
        "alice.test/pets",
    ],
)
def test_what_names_nothing_is_refused(text):
    with pytest.raises(AtmosphereError, match="this names nothing"):
        parse_ref(text)


def test_references_are_parsed():
    assert parse_ref("@alice.test/my pets@2.0.0-rc.1") == DatasetRef("alice.test", "my pets", "2.0.0-rc.1")
    assert parse_ref(f"@{DID}/team/pets") == DatasetRef(DID, "team/pets")


@given(st.lists(st.text(), min_size=1, max_size=4))
def test_keys_are_keys(parts):
    validate_rkey("science.alt.dataset.entry", key_of(*parts))
    validate_rkey("science.alt.dataset.entry", new_key())
    validate_rkey("science.alt.dataset.schema", named_key(parts[0] or "x", "1.0.0"))
    assert key_of(*parts) == key_of(*parts) != key_of(*parts, "")
