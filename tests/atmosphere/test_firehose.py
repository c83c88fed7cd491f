"""Following: every event once, whatever happens to whoever follows."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest
from tests.scale import times

import shoal
from shoal.atmosphere import AtUri, Cid, Event, Followed, Patience
from shoal.errors import AtmosphereError, OptionError
from shoal.local import LocalIndex

FOLLOWER = """
import sys
from shoal.atmosphere import AtmosphereClient
pds, plc, path, did = sys.argv[1:]
client = AtmosphereClient(pds, plc, allow_private=True, followed=path)
print("ready", flush=True)
client.watch(pds, handles=[did], on_event=lambda event: print("event", flush=True))
"""


def follow(client, handle, events, **options):
    """Follow until so many events came; returns how many did."""
    count, ends = 0, time.monotonic() + 60
    while count < events and time.monotonic() < ends:
        count += client.watch(handles=[handle], idle=0.1, **options)
    return count


def labels_of(client, made, count, first=0):
    """Publish many small records, quickly."""
    value = {"$type": "science.alt.dataset.label", "datasetUri": str(made), "createdAt": "2026-01-01T00:00:00Z"}
    for number in range(first, first + count):
        body = {"repo": client.did, "collection": value["$type"], "record": {**value, "name": f"n{number}"}}
        client._network.own.procedure("com.atproto.repo.createRecord", body)


def test_what_is_followed_is_found(alice, bob, pds, folder):
    made = alice.publish_dataset(folder, name="pets", description="small animals", tags=["fur"])
    follow(bob, alice.handle, 2)
    assert bob.search("small fur") == [made]
    assert bob.search("small feathers") == []
    assert bob.search("100%") == bob.search("_") == []
    assert bob.followed.accounts() == [alice.did]
    events = []
    alice.publish_label("best", made.uri)
    assert follow(bob, alice.handle, 1, on_event=events.append) == 1
    assert [(event.action, event.uri.collection) for event in events] == [("create", "science.alt.dataset.label")]
    alice.publish_dataset(folder, name="pets", license="CC0-1.0")
    alice.delete(next(alice.list_labels()).uri)
    events.clear()
    assert follow(bob, alice.handle, 2, on_event=events.append) == 2
    assert [event.action for event in events] == ["update", "delete"]
    assert bob.search("CC0-1.0") == [alice.get_dataset(str(made.uri))]
    alice.delete(made.uri)
    assert follow(bob, alice.handle, 1) == 1
    assert bob.search("") == []


def test_records_that_came_by_the_stream_are_those_that_were_written(alice, bob, folder, pds):
    bob.watch(handles=[alice.handle], idle=0.1)  # nothing is there yet: from here on by the stream
    made = alice.publish_dataset(folder, name="pets", metadata={"x": [1, 2.5, b"bytes"]})
    follow(bob, alice.handle, 2)
    assert bob.followed.search("pets") == [made]
    assert made.metadata["x"] == [1, 2.5, b"bytes"]


def test_a_whole_server_is_followed(alice, pds, connect, new_handle, folder):
    other = connect(pds, new_handle())
    alice.publish_dataset(folder, name="pets-of-alice")
    other.publish_dataset(folder, name="pets-of-the-other")
    bob = connect(pds)
    bob.watch(idle=0.1)
    assert {one.name for one in bob.search("pets-of")} == {"pets-of-alice", "pets-of-the-other"}


def test_killed_and_restarted_no_event_is_missed_and_none_doubled(alice, pds, plc, folder, tmp_path):
    """While one process publishes, another follows and is killed, again and again."""
    made = alice.publish_dataset(folder, name="pets").uri
    path = str(tmp_path / "followed.db")
    command = [sys.executable, "-c", FOLLOWER, pds.url, plc, path, alice.did]
    kills, each = times(3, 30), 15
    publisher = threading.Thread(target=labels_of, args=(alice, made, kills * each))
    for number in range(kills):
        follower = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert follower.stdout.readline() == "ready\n"
        if number == 0:
            publisher.start()
        for _ in range(5):
            follower.stdout.readline()
        follower.send_signal(signal.SIGKILL)
        follower.communicate()
    publisher.join()
    with (
        Followed(path) as followed,
        shoal.atmosphere.AtmosphereClient(pds.url, plc, allow_private=True, followed=followed) as client,
    ):
        ends = time.monotonic() + 60
        while time.monotonic() < ends and len(followed.events(pds.url)) < kills * each:
            client.watch(pds.url, handles=[alice.did], idle=0.2)
        seen = [uri for _, _, uri in followed.events(pds.url)]
        held = {str(one.uri) for one in alice.list_labels()}
        assert len(held) == kills * each
        labels = [uri for uri in seen if "label" in uri]
        assert len(labels) == len(set(labels))  # none doubled
        stored = {
            uri for (uri,) in followed._database.execute("SELECT uri FROM records WHERE collection LIKE '%label'")
        }
        assert stored == held  # none missed


def test_an_old_word_does_not_undo_a_newer_one(tmp_path):
    uri = AtUri.parse("at://did:plc:abc/science.alt.dataset.entry/3jzfcijpj2z2a")
    cid = Cid.of_bytes(b"")
    storage = {"$type": "science.alt.dataset.storageExternal", "urls": ["http://a/b.tar"]}
    value = {"name": "pets", "schemaRef": "at://did:plc:abc", "storage": storage}
    with Followed(tmp_path / "f.db") as followed:
        followed.apply("one", 5, "3kb", [Event("create", uri, cid, value)])
        followed.apply("two", 9, "3ka", [Event("create", uri, cid, {**value, "name": "older"})])
        assert [one.name for one in followed.search("")] == ["pets"]
        followed.apply("two", 10, "3kc", [Event("delete", uri)])
        assert followed.search("") == []
        assert len(followed) == 0
        assert (followed.cursor("one"), followed.cursor("two"), followed.cursor("three")) == (5, 10, None)


def test_what_cannot_be_followed_says_so(bob, plc, connect, tmp_path):
    with pytest.raises(OptionError, match="there is nothing to follow"):
        connect(None).watch()
    nowhere = connect("http://127.0.0.1:9", patience=Patience(tries=1))
    nowhere.followed.apply("http://127.0.0.1:9", 1, "", ())
    with pytest.raises(AtmosphereError, match="the stream cannot be read"):
        nowhere.watch("http://127.0.0.1:9")
    (tmp_path / "no.db").write_text(json.dumps("this is no database" * 100))
    with pytest.raises(AtmosphereError, match="what was followed cannot be opened"):
        Followed(tmp_path / "no.db").cursor("a")
    assert os.path.exists(tmp_path / "no.db")


def test_the_local_index_is_filled(alice, bob, folder, tmp_path):
    with LocalIndex(tmp_path / "index.db") as index:
        made = alice.publish_dataset(folder, name="pets", description="small animals", tags=["fur"])
        follow(bob, alice.handle, 2, index=index)
        [entry] = index.search("animals", tags=["fur"])
        assert (entry.name, entry.samples, entry.metadata["uri"]) == (f"{alice.handle}/pets", 20, str(made.uri))
        assert entry.schema_ref == made.schema_ref
        assert list(entry.checksums.values()) == [blob.checksum.digest for blob in made.storage.blobs]
        other = alice.publish_dataset(folder, name="more pets!", description="small animals")
        follow(bob, alice.handle, 1, index=index)
        assert {entry.name for entry in index.search("animals")} == {entry.name, f"{alice.handle}/more-pets"}
        before = index.history(f"{alice.handle}/pets")
        with Followed(tmp_path / "other.db") as anew:  # the same events once more change nothing
            bob._followed = anew
            follow(bob, alice.handle, 3, index=index)
            assert index.history(f"{alice.handle}/pets") == before
            alice.delete(other.uri)
            follow(bob, alice.handle, 1, index=index)
        assert [entry.name for entry in index.search("animals")] == [f"{alice.handle}/pets"]
