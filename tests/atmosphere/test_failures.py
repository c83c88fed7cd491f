"""What goes wrong on a network: each a clear error, nothing half published, and a rerun that completes."""

from __future__ import annotations

import base64
import json
import threading
import time

import pytest
from tests.atmosphere.conftest import Pet, pets
from tests.atmosphere.servers import PASSWORD, personal_server
from tests.store.servers import Fault, ProxyHandler, ranged_server

import shoal
from shoal.atmosphere import AtmosphereClient, Patience, set_default_client
from shoal.atmosphere._download import RemoteShard, fetch_shard
from shoal.atmosphere._http import Guard
from shoal.atmosphere._identity import Identities
from shoal.atmosphere._storage import Checksum
from shoal.errors import (
    AtmosphereError,
    ChecksumError,
    RateLimitError,
    RecordNotFoundError,
    SessionError,
    TooLargeError,
    UntrustedError,
)

ENTRY = "science.alt.dataset.entry"


@pytest.fixture(scope="module")
def other(plc):
    """A second server: to be stopped and started, and strict about how often it is asked and what it takes."""
    strict = {"PDS_RATE_LIMITS_ENABLED": "true", "PDS_BLOB_UPLOAD_LIMIT": "1200000"}
    with personal_server(plc, **strict) as server:
        yield server


def test_a_server_that_goes_away_in_mid_publish_leaves_nothing_half_done(other, connect, new_handle, folder):
    alice = connect(other, new_handle(other), patience=Patience(tries=2, first_wait=0.01))
    seen = []

    def stop_after_the_first_blob(done, total):
        seen.append(done)
        if len(seen) == 1:
            other.stop()

    with pytest.raises(AtmosphereError, match=r"does not answer.*nothing is left half done"):
        alice.publish_dataset(folder, name="pets", progress=stop_after_the_first_blob)
    other.start()
    bob = connect(other)
    assert list(bob.list_datasets(alice.handle)) == []
    made = alice.publish_dataset(folder, name="pets")  # the same session goes on
    assert [dataset.uri for dataset in bob.list_datasets(alice.handle)] == [made.uri]
    assert len(list(bob.load(str(made.uri), split="train"))) == 20


def test_a_server_that_comes_back_in_time_is_not_noticed(other, connect, new_handle, folder):
    alice = connect(other, new_handle(other), patience=Patience(tries=12, first_wait=0.2, longest_wait=2))
    threads = []

    def restart(done, total):
        if not threads:
            other.stop()
            threads.append(threading.Thread(target=other.start))
            threads[0].start()

    made = alice.publish_dataset(folder, name="pets", progress=restart)
    threads[0].join()
    assert [dataset.uri for dataset in connect(other).list_datasets(alice.handle)] == [made.uri]


def test_a_stream_that_breaks_is_taken_up_again(other, connect, new_handle, folder):
    alice = connect(other, new_handle(other), patience=Patience(tries=20))
    bob, stop, seen = connect(other, patience=Patience(tries=20)), threading.Event(), threading.Semaphore(0)

    def on_event(event):
        if event.uri.collection.endswith(".label"):
            seen.release()

    options = {"handles": [alice.did], "stop": stop, "on_event": on_event}
    thread = threading.Thread(target=bob.watch, args=(other.url,), kwargs=options)
    made = alice.publish_dataset(folder, name="pets")
    thread.start()
    try:
        one = alice.publish_label("one", made.uri)
        assert seen.acquire(timeout=60)
        other.stop()
        other.start()
        two = alice.publish_label("two", made.uri)
        assert seen.acquire(timeout=60)
    finally:
        stop.set()
        thread.join()
    labels = [uri for _, _, uri in bob.followed.events(other.url) if ".label" in uri]
    assert labels == [str(one.uri), str(two.uri)]


def test_an_answer_that_is_lost_makes_no_second_record(alice, pds, faulty, connect, folder):
    behind = connect(faulty, alice.handle)
    behind._network.own._client.update_base_url(faulty.url)  # the account's document names the server itself
    faulty.faults.append(Fault("cut", method="POST", path="putRecord", times=2))
    made = behind.publish_dataset(folder, name="pets")
    assert faulty.happened["cut"] == 2
    assert [dataset.uri for dataset in alice.list_datasets()] == [made.uri]


def tokens_of(client):
    """The session's tokens, as the SDK keeps them."""
    return client._network.own._client._session


def expired(jwt):
    """A token whose text says that it is long over."""
    head, body, signature = jwt.split(".")
    told = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
    ended = base64.urlsafe_b64encode(json.dumps({**told, "exp": 1_000_000}).encode()).decode().rstrip("=")
    return f"{head}.{ended}.{signature}"


def test_a_session_is_renewed_when_its_token_is_over(alice, connect, pds):
    first, kept = tokens_of(alice).access_jwt, tokens_of(alice).refresh_jwt
    session = alice.export_session()
    document = json.loads(base64.urlsafe_b64decode(session))
    document["session"] = document["session"].replace(first, expired(first))
    again = connect(pds)
    again.import_session(base64.urlsafe_b64encode(json.dumps(document).encode()).decode())
    assert again.publish_schema(Pet).endswith("Pet:1.0.0")
    assert tokens_of(again).refresh_jwt != kept


def test_a_session_that_the_server_says_is_over_is_renewed(alice, faulty, connect, monkeypatch):
    behind = connect(faulty, alice.handle)
    behind._network.own._client.update_base_url(faulty.url)
    over = json.dumps({"error": "ExpiredToken", "message": "Token has expired"}).encode()
    faulty.faults.append(Fault("status", method="POST", path="putRecord"))
    serve = ProxyHandler.serve

    def told(handler, fault, body):
        if fault is not None and fault.kind == "status":
            return handler.answer(400, {"Content-Type": "application/json"}, over)
        return serve(handler, fault, body)

    monkeypatch.setattr(ProxyHandler, "serve", told)
    first = tokens_of(behind).refresh_jwt
    assert behind.publish_schema(Pet).endswith("Pet:1.0.0")
    assert tokens_of(behind).refresh_jwt != first


def test_a_session_that_has_ended_says_so(alice, connect, pds):
    session = alice.export_session()
    body = alice._network.own._client._get_refresh_auth_headers()
    alice._network.own._client.invoke_procedure("com.atproto.server.deleteSession", headers=body)
    tokens_of(alice).access_jwt = expired(tokens_of(alice).access_jwt)
    alice._network.own._client._session_dispatcher.set_session(
        type(tokens_of(alice)).decode(alice._network.own.export_session())
    )
    with pytest.raises(SessionError, match=r"the session has ended.*log in again"):
        alice.publish_schema(Pet)
    alice.login(alice.handle, PASSWORD)
    alice.publish_schema(Pet)
    assert session not in repr(alice)


def test_secrets_are_in_no_text(alice, pds, connect):
    session = alice.export_session()
    shown = f"{alice!r} {alice._network.own!r} {vars(alice)}"
    assert all(secret not in shown for secret in (session, PASSWORD, tokens_of(alice).access_jwt))
    wrong = connect(pds)
    with pytest.raises(SessionError, match=r"refused the account: .*Invalid identifier or password") as raised:
        wrong.login(alice.handle, "a-wrong-secret")
    assert "a-wrong-secret" not in str(raised.value)
    with pytest.raises(SessionError, match="this is no exported session") as raised:
        wrong.import_session(session[:-9])
    assert session[:-9] not in str(raised.value)
    wrong.import_session(session)
    assert wrong.did == alice.did
    wrong.logout()
    with pytest.raises(SessionError, match="nobody is logged in; call login"):
        wrong.publish_schema(Pet)


def test_a_server_that_is_asked_too_often_is_waited_for_or_told_of(alice, faulty, connect):
    behind = connect(faulty, patience=Patience(tries=3, first_wait=0.01, longest_wait=5))
    slow = Fault("status", path="resolveHandle", status=429, headers={"Retry-After": "0.05"}, times=2)
    faulty.faults.append(slow)
    assert list(behind.list_datasets(alice.handle)) == []
    assert faulty.happened["status"] == 2
    faulty.faults.append(Fault("status", path="resolveHandle", status=429, headers={"Retry-After": "900"}))
    with pytest.raises(RateLimitError, match=r"is asked too often.*try again in 900 s"):
        behind.list_datasets("somebody.test").__next__()
    reset = {"RateLimit-Reset": str(int(time.time()) + 700)}
    faulty.faults.append(Fault("status", path="resolveHandle", status=429, headers=reset))
    with pytest.raises(RateLimitError, match=r"try again in (69\d|700) s"):
        behind.list_datasets("somebody.else.test").__next__()


def test_a_real_servers_own_limit_is_understood(other, connect):
    """Of a PDS as it comes: fifteen lost passwords an hour."""
    service = connect(other, patience=Patience(tries=1, longest_wait=1))._network.service(other.url)
    errors = []
    for _ in range(16):
        try:
            service.procedure("com.atproto.server.requestPasswordReset", {"email": "nobody@mail.test"})
        except AtmosphereError as error:
            errors.append(error)
    assert [type(error) for error in errors if isinstance(error, RateLimitError)] == [RateLimitError]
    assert "is asked too often" in str(errors[-1])
    assert "try again in" in str(errors[-1])


def test_a_blob_that_is_too_large_for_the_server_is_cut_smaller(other, connect, new_handle, tmp_path):
    alice = connect(other, new_handle(other))
    shoal.write_samples(pets(30, size=25_000), tmp_path / "d")
    made = alice.publish_dataset(str(tmp_path / "d"), name="pets")
    assert len(made.storage.blobs) > 2
    assert max(blob.size for blob in made.storage.blobs) <= 1_000_000
    assert [pet.label for pet in connect(other).load(str(made.uri), split="train")] == [p.label for p in pets(30)]
    shoal.write_samples(pets(2, size=400_000), tmp_path / "e")
    with pytest.raises(TooLargeError, match="a single sample is larger than a blob may be"):
        alice.publish_dataset(str(tmp_path / "e"), name="large")
    with pytest.raises(TooLargeError, match="the server takes no blob that small"):
        alice.publish_dataset(str(tmp_path / "e"), name="large", blob_limit=5_000_000)
    assert [dataset.name for dataset in alice.list_datasets()] == ["pets"]


def test_a_record_that_is_too_large_says_what_to_do(alice, folder):
    shards = [
        shoal.atmosphere.SourceShard(f"http://127.0.0.1/{'x' * 200}/{number}.tar", "train", 1, "00" * 32, 1)
        for number in range(800)
    ]
    with pytest.raises(TooLargeError, match=r"the record is too large.*fewer, larger shards"):
        alice.publish_shards(shards, name="many", schema=Pet, storage="http", allow_private=True)
    assert list(alice.list_datasets()) == []


def test_what_is_not_there_is_not_found(bob, alice):
    unknown = "did:plc:ewvi7nxzyoun6zhxrhs64oiz"
    with pytest.raises(RecordNotFoundError, match=f"there is no such account: found {unknown}"):
        bob.get_dataset(f"at://{unknown}/{ENTRY}/3jzfcijpj2z2a")
    with pytest.raises(RecordNotFoundError, match=r"nobody knows this handle: found nobody.test"):
        bob.get_dataset("@nobody.test/pets")
    with pytest.raises(RecordNotFoundError, match="there is no such dataset"):
        bob.get_dataset(f"@{alice.handle}/pets")
    with pytest.raises(RecordNotFoundError, match="there is no such record"):
        bob.get_dataset(f"at://{alice.did}/{ENTRY}/3jzfcijpj2z2a")
    with pytest.raises(RecordNotFoundError, match="this kind of DID is not known"):
        bob.get_dataset(f"at://did:key:abc/{ENTRY}/3jzfcijpj2z2a")
    with pytest.raises(AtmosphereError, match="this names nothing on the AT Protocol network"):
        bob.get_dataset("pets")
    set_default_client(bob)
    with pytest.raises(RecordNotFoundError):
        shoal.load_dataset("@nobody.test/pets")


def test_an_account_by_did_web_is_found(alice, bob, pds, folder):
    alice.publish_dataset(folder, name="pets")
    with ranged_server() as host:
        did = f"did:web:localhost%3A{host.server_port}"
        service = {"id": "#atproto_pds", "type": "AtprotoPersonalDataServer", "serviceEndpoint": pds.url}
        host.objects["/.well-known/did.json"] = json.dumps({"id": did, "service": [service]}).encode()
        assert bob._network.account(did).pds == pds.url
        host.objects["/.well-known/did.json"] = json.dumps({"id": "did:web:other", "service": [service]}).encode()
        bob._network.identities.forget()
        with pytest.raises(AtmosphereError, match="the document of an account cannot be read"):
            bob._network.account(did)


def test_a_handle_must_be_named_back(alice, pds, connect):
    """A server that claims a handle for somebody's account is not believed."""
    bob = connect(pds)
    liar = Identities(bob._network.reach.plc_url, bob._network.guard, lambda handle: alice.did)
    with pytest.raises(UntrustedError, match="names an account that does not name it back"):
        liar.find("mallory.test")
    liar.close()


def test_private_addresses_are_not_asked_unless_allowed(alice, pds, plc, web, folder, connect):
    made = alice.publish_dataset(folder, name="pets")
    careful = connect(pds, allow_private=False)
    with pytest.raises(UntrustedError, match=r"private network is not asked.*allow_private=True"):
        careful.get_dataset(str(made.uri))  # the account's document names localhost
    guard = Guard(named=[pds.url])
    shard = RemoteShard("a.tar", f"{web.url}/a.tar", Checksum("sha256", "00" * 32))
    with pytest.raises(UntrustedError):
        fetch_shard(shard, guard, Patience(), most=1000)
    assert web.requests == []


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1/a.tar",
        "http://localhost:8000/",
        "http://[::1]/",
        "http://10.1.2.3/",
        "http://192.168.0.1/",
        "http://169.254.169.254/latest/meta-data/",
        "http://[::ffff:127.0.0.1]/",
        "http://0.0.0.0/",
        "http://2130706433/",
        "http://100.64.0.1/",
        "file:///etc/passwd",
        "gopher://1.1.1.1/",
    ],
)
def test_the_guard_knows_what_is_private(url):
    with pytest.raises(UntrustedError):
        Guard().check(url)


def test_a_redirect_does_not_lead_past_the_guard(web):
    """A host that may be asked sends to one that may not."""
    from shoal.atmosphere._http import http_client

    guard = Guard(named=[web.url])
    web.objects["/here"] = b"ok"
    answer = web.RequestHandlerClass.do_GET

    def redirecting(handler):
        if handler.path == "/away":
            return handler.answer(302, {"Location": "http://127.0.0.1:9/inside"})
        return answer(handler)

    web.RequestHandlerClass = type("Redirecting", (web.RequestHandlerClass,), {"do_GET": redirecting})
    with http_client(guard) as client:
        assert client.get(f"{web.url}/here").content == b"ok"
        with pytest.raises(UntrustedError):
            client.get(f"{web.url}/away")


def test_answers_and_shards_are_bounded(web):
    from shoal.atmosphere._http import http_client

    web.objects["/long"] = bytes(5000)
    with http_client(Guard(allow_private=True), most=1000) as client, pytest.raises(TooLargeError):
        client.get(f"{web.url}/long")
    shard = RemoteShard("a.tar", f"{web.url}/long", Checksum("sha256", "00" * 32))
    with pytest.raises(TooLargeError, match="larger than it may be: expected at most 1000 bytes"):
        fetch_shard(shard, Guard(allow_private=True), Patience(), most=1000)
    with pytest.raises(ChecksumError, match="cannot be computed"):
        fetch_shard(RemoteShard("a", "x", Checksum("crc", "00")), Guard(), Patience(), most=1)


def test_a_broken_download_goes_on_where_it_was(faulty, alice, connect, folder, pds):
    made = alice.publish_dataset(folder, name="pets")
    faulty.faults.append(Fault("cut", path="getBlob", after=1000))
    blob = made.storage.blobs[0]
    url = f"{faulty.url}/xrpc/com.atproto.sync.getBlob?did={alice.did}&cid={blob.cid}"
    shard = RemoteShard("a.tar", url, blob.checksum, blob.size)
    fetch_shard(shard, Guard(allow_private=True), Patience(first_wait=0.01), most=1 << 20)
    assert faulty.happened["cut"] == 1
    assert [asked for _, path, asked, _ in faulty.requests if "getBlob" in path] == [None, "bytes=1000-"]


def test_foreign_schemas_define_data_only(alice, bob):
    """Names that are code, deep nests and references to nowhere: refused, or plain data."""
    put = alice._network.own.procedure

    def publish(rkey, **words):
        record = {"name": "S", "version": "1.0.0", "schema": {"type": "object", **words}, "createdAt": ""}
        body = {"repo": alice.did, "collection": "science.alt.dataset.schema", "rkey": rkey, "record": record}
        return put("com.atproto.repo.putRecord", body)["uri"]

    nest = {"type": "string"}
    for _ in range(60):
        nest = {"type": "array", "items": nest}
    odd = publish("a", properties={"x": {"$ref": "#/nowhere"}})
    with pytest.raises(AtmosphereError, match="a schema's record cannot be read"):
        bob.find_schema(odd)
    code = bob.find_schema(publish("b", properties={"__import__('os')": {"type": "string"}})).schema
    with pytest.raises(shoal.ShoalError, match="not a Python name"):
        shoal.sample.class_from_schema(code)
    assert bob.find_schema(publish("c", properties={"x": {"type": "string", "default": "__import__('os')"}})).schema


def test_the_environment_says_which_client(monkeypatch, alice, pds, plc):
    monkeypatch.setenv("SHOAL_PDS_URL", pds.url)
    monkeypatch.setenv("SHOAL_PLC_URL", plc)
    monkeypatch.setenv("SHOAL_ALLOW_PRIVATE", "1")
    assert AtmosphereClient.from_env().did is None
    monkeypatch.setenv("SHOAL_HANDLE", alice.handle)
    monkeypatch.setenv("SHOAL_APP_PASSWORD", PASSWORD)
    with AtmosphereClient.from_env() as client:
        assert client.did == alice.did
    monkeypatch.setenv("SHOAL_SESSION", alice.export_session())
    monkeypatch.delenv("SHOAL_HANDLE")
    with AtmosphereClient.from_env() as client:
        assert client.did == alice.did
