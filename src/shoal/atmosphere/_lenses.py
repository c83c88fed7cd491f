"""Lenses on the network: records that say where the code is, and the code once somebody said yes to it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from shoal.errors import LensError, OptionError
from shoal.sample import Lens, class_from_schema, schema_of
from shoal.schema import Schema, schema_hash

from ._at_uri import AtUri
from ._code import CodeOffer, Trust, fetch_code, run_trusted
from ._lexicon import LENS, LENS_VERIFICATION
from ._network import Network
from ._publish import now, publish_schema
from ._read import get_schema
from ._records import (
    CodeReference,
    PublishedLens,
    PublishedVerification,
    lens_from_record,
    lens_to_record,
    verification_from_record,
    verification_to_record,
)
from ._tid import key_of

__all__ = ["get_lens", "list_lenses", "list_verifications", "load_lens", "offer_of", "publish_lens", "verify_lens"]

METHODS = ("codeReview", "formalProof", "signedHash", "automatedTest")


def publish_lens(
    network: Network, lens: Lens[Any, Any], *, getter: CodeReference, putter: CodeReference | None, description: str
) -> PublishedLens:
    """Publish where a lens's code is, and the schemas of both its types. The code itself stays where it is."""
    source = publish_schema(network, lens.source_type)
    view = publish_schema(network, lens.view_type)
    key = key_of("lens", lens.name, str(source.uri), str(view.uri), getter.repository, getter.commit, getter.path)
    uri = AtUri(str(network.own.did), LENS, key)
    code = getter, putter or getter
    draft = PublishedLens(uri, None, lens.name, source.uri, view.uri, *code, description, {}, now())
    record = {
        **lens_to_record(draft),
        "sourceSchemaVersion": source.version,
        "targetSchemaVersion": view.version,
        "language": "python",
    }
    found = network.put(LENS, key, record)
    return replace(draft, cid=found.cid, created_at=str(found.value["createdAt"]))


def get_lens(network: Network, uri: AtUri) -> PublishedLens:
    """What is known of a lens; no code is fetched. Raises RecordNotFoundError."""
    found = network.get(uri)
    return lens_from_record(found.uri, found.cid, found.value)


def list_lenses(network: Network, account: str | None) -> Iterator[PublishedLens]:
    """Every lens of an account."""
    return (lens_from_record(one.uri, one.cid, one.value) for one in network.list(account, LENS))


def list_verifications(network: Network, account: str | None) -> Iterator[PublishedVerification]:
    """Every verification of an account."""
    found = network.list(account, LENS_VERIFICATION)
    return (verification_from_record(one.uri, one.cid, one.value) for one in found)


def verify_lens(network: Network, uri: AtUri, method: str, description: str) -> PublishedVerification:
    """Publish one's word that a lens, with the code it has now, does what it says."""
    if method not in METHODS:
        raise OptionError("there is no such way to verify", expected=" or ".join(METHODS), found=method)
    lens = get_lens(network, uri)
    if lens.cid is None:
        raise LensError("a lens without a CID cannot be vouched for", found=str(uri))
    offer = fetch_code(lens.getter, network.guard)
    key = key_of("verification", str(lens.uri), str(lens.cid), method)
    draft = PublishedVerification(
        AtUri(str(network.own.did), LENS_VERIFICATION, key),
        None,
        lens.uri,
        lens.cid,
        method,
        offer.sha256,
        description,
        now(),
    )
    found = network.put(LENS_VERIFICATION, key, verification_to_record(draft))
    return replace(draft, cid=found.cid, created_at=str(found.value["createdAt"]))


def offer_of(network: Network, lens: PublishedLens, vouchers: tuple[str, ...] = ()) -> CodeOffer:
    """The code of a lens, to be looked at, and who of ``vouchers`` verified this very file."""
    offer = fetch_code(lens.getter, network.guard)
    said = [
        network.account(who).did
        for who in vouchers
        for one in list_verifications(network, who)
        if one.lens == lens.uri and one.lens_cid == lens.cid and one.code_sha256 == offer.sha256
    ]
    return replace(offer, vouched=tuple(dict.fromkeys(said)))


def load_lens(network: Network, uri: AtUri, trust: Trust, vouchers: tuple[str, ...] = ()) -> Lens[Any, Any]:
    """A published lens, ready to be used, once ``trust`` said yes to its code. Raises UntrustedError, LensError."""
    lens = get_lens(network, uri)
    source, view = (get_schema(network, end).schema for end in (lens.source_schema, lens.target_schema))
    found = run_trusted(offer_of(network, lens, vouchers), trust)
    if isinstance(found, Lens):
        for schema, kind in ((source, found.source_type), (view, found.view_type)):
            _check_same(schema, schema_of(kind))
        return found
    put = None
    if lens.putter != lens.getter:
        put = run_trusted(fetch_code(lens.putter, network.guard), trust)
    return Lens(found, put, source=class_from_schema(source), view=class_from_schema(view))


def _check_same(published: Schema, own: Schema) -> None:
    if schema_hash(published) != schema_hash(own):
        raise LensError(
            "a lens's code is for other types than its record says", expected=str(published), found=str(own)
        )
