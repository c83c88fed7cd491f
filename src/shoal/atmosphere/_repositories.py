"""Repositories on the network: read records of any account, write one's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from shoal.errors import AtmosphereError, RecordError, RecordNotFoundError, SessionError, TooLargeError

from ._download import RemoteShard, fetch_shard
from ._http import Guard
from ._identifiers import AtUri, Cid, cid_of_record
from ._identity import Identities, Identity
from ._lexicons import validate_record, validate_rkey
from ._pds import Patience, Service

__all__ = ["FetchedRecord", "Network", "NetworkConfig"]

_PAGE = 100
_MOST_PAGES = 100_000


@dataclass(frozen=True, slots=True)
class NetworkConfig:
    """Where a client looks, and what it may ask."""

    base_url: str | None = None
    plc_url: str = "https://plc.directory"
    appview: str | None = None
    allow_private: bool = False
    patience: Patience = field(default_factory=Patience)
    max_shard_bytes: int = 16 << 30

    def guard(self) -> Guard:
        """What may be asked: what the user named is."""
        named = [url for url in (self.base_url, self.plc_url, self.appview) if url is not None]
        return Guard(allow_private=self.allow_private, named=named)


@dataclass(frozen=True, slots=True)
class FetchedRecord:
    """A record as it was found."""

    uri: AtUri
    cid: Cid | None
    value: dict[str, Any]


class Network:
    """Records of any repository, and one's own session. Connections open when they are first needed."""

    def __init__(self, reach: NetworkConfig) -> None:
        self.reach = reach
        self.guard = reach.guard()
        self.identities = Identities(reach.plc_url, self.guard, self._ask_own)
        self._services: dict[str, Service] = {}
        self._session: Service | None = None

    def service(self, url: str) -> Service:
        """The server at a URL, asked as nobody."""
        key = url.rstrip("/")
        if key not in self._services:
            self._services[key] = Service(key, self.guard, self.reach.patience)
        return self._services[key]

    def login(self, handle: str, password: str) -> None:
        """Become an account, at ``base_url`` or at the server that the account names."""
        url = self.reach.base_url or self.identities.find(handle).pds
        self._become(url, lambda made: made.login(handle.removeprefix("@"), password))

    def resume(self, session: str, url: str) -> None:
        """Become the account of an exported session of the server at ``url``."""
        self._become(url, lambda made: made.resume(session))

    def _become(self, url: str, enter: Callable[[Service], None]) -> None:
        made = Service(url, self.guard, self.reach.patience)
        try:
            enter(made)
        except BaseException:
            made.close()
            raise
        self.logout()
        self._session = made

    def logout(self) -> None:
        """Be nobody again."""
        if self._session is not None:
            self._session.close()
        self._session = None

    @property
    def own(self) -> Service:
        """One's own server. Raises SessionError when nobody is logged in."""
        if self._session is None or self._session.did is None:
            raise SessionError("nobody is logged in", hint="call login(handle, app_password), or run `shoal login`")
        return self._session

    @property
    def did(self) -> str | None:
        """Who is logged in; None for nobody."""
        return None if self._session is None else self._session.did

    def _ask_own(self, handle: str) -> str | None:
        """The DID of a handle, as one's own server says; None where there is none, or it does not know."""
        url = self._session.url if self._session is not None else self.reach.base_url
        if url is None:
            return None
        try:
            found = self.service(url).query("com.atproto.identity.resolveHandle", {"handle": handle})
        except RecordNotFoundError:
            return None
        return str(found.get("did"))

    def account(self, name: str | None) -> Identity:
        """The account of a handle or DID; one's own for None."""
        return self.identities.find(str(self.own.did) if name is None else name)

    def get(self, uri: AtUri) -> FetchedRecord:
        """A record. Raises RecordNotFoundError, and RecordError when its bytes are not those of its CID."""
        if uri.collection is None or uri.rkey is None:
            raise RecordError("this names no record", expected="at://ACCOUNT/COLLECTION/KEY", found=str(uri))
        account = self.identities.find(uri.authority)
        where = {"repo": account.did, "collection": uri.collection, "rkey": uri.rkey}
        try:
            answer = self.service(account.pds).query("com.atproto.repo.getRecord", where)
        except RecordNotFoundError:
            raise RecordNotFoundError("there is no such record", found=str(uri)) from None
        return _found(AtUri(account.did, uri.collection, uri.rkey), answer)

    def list(self, account: str | None, collection: str) -> Iterator[FetchedRecord]:
        """Every record of a collection, however many pages there are."""
        identity = self.account(account)
        service, cursor = self.service(identity.pds), None
        for _ in range(_MOST_PAGES):
            asked = {"repo": identity.did, "collection": collection, "limit": _PAGE, "cursor": cursor}
            answer = service.query("com.atproto.repo.listRecords", asked)
            records = answer.get("records") or []
            for record in records:
                uri = AtUri.parse(str(record.get("uri")))
                if (uri.authority, uri.collection) != (identity.did, collection):
                    raise RecordError("a server lists records of others", found=str(uri))
                yield _found(uri, record)
            before, cursor = cursor, answer.get("cursor")
            if not records or not cursor or cursor == before:
                return
        raise AtmosphereError("a list has no end", found=f"at://{identity.did}/{collection}")

    def put(self, collection: str, rkey: str, record: dict[str, Any]) -> FetchedRecord:
        """Write a record under its key, after a look whether it is what its lexicon says.

        One that is there already, and says the same, stays as it is. Raises RecordError, TooLargeError, SessionError.
        """
        validate_record(record, collection)
        validate_rkey(collection, rkey)
        own = self.own
        uri = AtUri(str(own.did), collection, rkey)
        try:
            there = self.get(uri)
        except RecordNotFoundError:
            there = None
        if there is not None and _same(there.value, record):
            return there
        body = {"repo": own.did, "collection": collection, "rkey": rkey, "record": record}
        try:
            answer = own.procedure("com.atproto.repo.putRecord", body)
        except TooLargeError as error:
            hint = "write fewer, larger shards: a record holds about 500 of them"
            raise TooLargeError("the record is too large for the server", found=error.found, hint=hint) from error
        return FetchedRecord(uri, Cid.parse(str(answer["cid"])), record)

    def delete(self, uri: AtUri) -> None:
        """Remove one's own record; the server then forgets blobs that no other record names.

        Raises RecordNotFoundError when there was none: a wrong name should not look like work done.
        """
        own, found = self.own, self.get(uri)
        if found.uri.authority != own.did:
            raise SessionError("a record of others cannot be deleted", expected=own.did, found=found.uri.authority)
        where = {"repo": own.did, "collection": found.uri.collection, "rkey": found.uri.rkey}
        own.procedure("com.atproto.repo.deleteRecord", where)

    def fetch(self, shard: RemoteShard, /) -> str:
        """The path of a checked local copy of a shard."""
        return fetch_shard(shard, self.guard, self.reach.patience, most=self.reach.max_shard_bytes)

    def blob_url(self, did: str, cid: Cid) -> str:
        """Where a blob can be read."""
        return f"{self.identities.find(did).pds}/xrpc/com.atproto.sync.getBlob?did={did}&cid={cid}"

    def close(self) -> None:
        """Close connections; the next use opens them again."""
        for service in [*self._services.values(), *([self._session] if self._session is not None else [])]:
            service.close()
        self._services.clear()
        self.identities.close()


def _same(one: dict[str, Any], two: dict[str, Any]) -> bool:
    """Whether two records say the same, whenever they were written."""
    return cid_of_record({**one, "createdAt": ""}) == cid_of_record({**two, "createdAt": ""})


def _found(uri: AtUri, answer: dict[str, Any]) -> FetchedRecord:
    value, cid = answer.get("value"), answer.get("cid")
    if not isinstance(value, dict):
        raise RecordError("a server's answer holds no record", found=str(uri))
    stated = Cid.parse(cid) if isinstance(cid, str) else None
    if stated is not None and cid_of_record(value) != stated:
        raise RecordError("a record's bytes are not those of its CID", expected=cid, found=str(uri))
    return FetchedRecord(uri, stated, value)
