"""Published lenses, whose code runs only after consent."""

from __future__ import annotations

import hashlib
import os
import subprocess
import tempfile
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlsplit

from shoal.errors import AtmosphereError, LensError, OptionError, UntrustedError
from shoal.sample._annotations import schema_of
from shoal.sample._class_factory import class_from_schema
from shoal.sample._lens import Lens
from shoal.schema._json_schema import schema_hash
from shoal.schema._schema import Schema

from ._http import Guard
from ._identifiers import AtUri, key_of
from ._lexicons import LENS, LENS_VERIFICATION
from ._open import get_schema
from ._publish import now, publish_schema
from ._records import (
    CodeReference,
    PublishedLens,
    PublishedVerification,
    lens_from_record,
    lens_to_record,
    verification_from_record,
    verification_to_record,
)
from ._repositories import Network

__all__ = [
    "CodeOffer",
    "Trust",
    "fetch_code",
    "get_lens",
    "list_lenses",
    "load_lens",
    "offer_of",
    "publish_lens",
    "verify_lens",
]

METHODS = ("codeReview", "formalProof", "signedHash", "automatedTest")
_MOST_BYTES = 1 << 20
_LONGEST = 120
_KEPT = ("PATH", "SSL_CERT_FILE", "https_proxy", "HTTPS_PROXY")


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


@dataclass(frozen=True, slots=True)
class CodeOffer:
    """Code that somebody published, before anybody runs it: what a yes is said to.

    Examples:
        >>> offer = CodeOffer("https://example.org/r.git", "0" * 40, "views.py:shorten", "ab" * 32, "def shorten...")
        >>> print(offer)
        views.py:shorten of https://example.org/r.git at commit 000000000000, sha256 abababababab
    """

    repository: str
    commit: str
    path: str
    sha256: str
    """Of the file."""
    source: str
    """The file itself, to be read."""
    vouched: tuple[str, ...] = ()
    """Who published a verification of this very file: their DIDs."""

    def __str__(self) -> str:
        return f"{self.path} of {self.repository} at commit {self.commit[:12]}, sha256 {self.sha256[:12]}"


Trust = Callable[[CodeOffer], bool] | str | None
"""A function that looks at the offer and says yes or no, or the sha256 of the file that a yes was said to before."""


def fetch_code(code: CodeReference, guard: Guard) -> CodeOffer:
    """The file that a reference names, by git; nothing of it is run. Raises AtmosphereError, UntrustedError."""
    scheme = urlsplit(code.repository).scheme
    if scheme not in ("http", "https", "file") or (scheme == "file" and not guard.allow_private):
        raise UntrustedError("code is fetched from https:// repositories only", found=code.repository[:200])
    if scheme != "file":
        guard.check(code.repository)
    if code.file.startswith(("/", "-")) or ".." in code.file.split("/"):
        raise UntrustedError("a path leads out of its repository", found=code.path)
    with tempfile.TemporaryDirectory(prefix="shoal-code-") as folder:
        _git(["init", "--quiet", folder])
        _git(["-C", folder, "fetch", "--quiet", "--depth", "1", code.repository, code.commit])
        data = _git(["-C", folder, "show", f"{code.commit}:{code.file}"])
    if len(data) > _MOST_BYTES:
        raise UntrustedError("published code is too large to be looked at", expected=f"at most {_MOST_BYTES} bytes")
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise LensError("published code is no text", found=code.path) from error
    return CodeOffer(code.repository, code.commit, code.path, hashlib.sha256(data).hexdigest(), text)


def _git(arguments: list[str]) -> bytes:
    """Run git with no shell, no questions, no transports that run programs, and none of the user's settings."""
    kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
    settings = {
        "GIT_ALLOW_PROTOCOL": "https:http:file",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "HOME": os.devnull,
    }
    command = ["git", "-c", "http.followRedirects=false", "-c", "safe.directory=*", *arguments]
    try:
        done = subprocess.run(  # noqa: S603 - a fixed program, no shell
            command, env={**kept, **settings}, capture_output=True, timeout=_LONGEST, check=False
        )
    except FileNotFoundError as error:
        raise AtmosphereError("published code is fetched by git, which is not installed") from error
    except subprocess.TimeoutExpired as error:
        raise AtmosphereError("a repository gave no answer in time", found=arguments[-2]) from error
    if done.returncode != 0:
        words = " ".join(done.stderr.decode(errors="replace").split())[:300]
        raise AtmosphereError("published code could not be fetched", found=words)
    return done.stdout


def run_trusted(offer: CodeOffer, trust: Trust) -> Any:
    """Run the code, and give what the path names in it. Raises UntrustedError without a yes."""
    said = trust == offer.sha256 if isinstance(trust, str) else trust is not None and trust(offer) is True
    if not said:
        raise UntrustedError(
            "published code runs only after a yes",
            expected=f"trust={offer.sha256!r}, or a function that looks at the offer",
            found=f"{offer.path} of {offer.repository} at commit {offer.commit}",
            hint="read the code, then say yes to its hash",
        )
    module = types.ModuleType(f"shoal_published_{offer.sha256[:12]}")
    module.__file__ = offer.path
    exec(compile(offer.source, f"<{offer}>", "exec", dont_inherit=True), module.__dict__)  # noqa: S102 - the yes above
    name = offer.path.rpartition(":")[2]
    try:
        return getattr(module, name)
    except AttributeError as error:
        raise LensError("the published code has no such function", found=name) from error
