"""Many processes, killed processes, a server that goes away: index and store agree afterwards."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.local.conftest import namespace
from tests.local.servers import redis_server
from tests.scale import times

from shoal.errors import CatalogConnectionError
from shoal.local import LocalIndex, Repo

ROOT = Path(__file__).parents[2]
KINDS = ["sqlite", "redis", "postgres"]


def location(kind, request, tmp_path):
    return str(tmp_path / "index.db") if kind == "sqlite" else request.getfixturevalue(f"{kind}_url")


def crowd(*words):
    command = [sys.executable, "-W", "error", "-m", "tests.local.crowd", *map(str, words)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return json.loads(done.stdout)


@pytest.mark.parametrize("kind", KINDS)
def test_eight_processes_at_once_lose_and_double_nothing(kind, request, tmp_path):
    turns = times(2 if kind == "sqlite" else 1, 6)
    facts = crowd("insert", location(kind, request, tmp_path), tmp_path / "repo", namespace(), 8, turns)
    assert facts["codes"] == [0] * 8
    own = {f"own/{number}-{turn}" for number in range(8) for turn in range(turns)}
    assert set(facts["names"]) == {*own, "shared", *(f"same-{turn}" for turn in range(turns))}
    assert len(facts["names"]) == len(set(facts["names"]))
    assert len(facts["shared"]) == len(set(facts["shared"])) == facts["shared_cids"] == 8 * turns
    assert facts["same"] == [1] * turns
    assert facts["same_folders"] == 1
    assert facts["schemas"] == ["shoal://local/schema/Number@1.0.0"]
    assert facts["garbage"] == []
    assert facts["found"] == [turns] * 8
    assert facts["problems"] == []


@pytest.mark.parametrize("kind", KINDS)
def test_killed_at_any_moment_index_and_store_agree_after_gc(kind, request, tmp_path):
    rounds = times(10 if kind == "sqlite" else 3, 200)
    facts = crowd("kill", location(kind, request, tmp_path), tmp_path / "repo", namespace(), rounds, 7)
    assert facts["problems"] == []
    assert facts["entries"] > 0
    assert facts["unfinished"] > 0, "no kill met an insert, so nothing was shown"


def test_a_redis_that_goes_away_gives_errors_and_works_again_when_it_is_back(tmp_path):
    with redis_server("--save", "", "--appendonly", "yes", "--appendfsync", "always") as server:
        index = LocalIndex(server.url)
        repo = Repo(tmp_path / "repo", index=index)
        entry = repo.insert([{"txt": "a cat"}], name="pets")
        server.kill()
        for act in (
            lambda: index.get_dataset("pets"),
            lambda: index.search("pets"),
            lambda: repo.insert([{"txt": "a dog"}], name="pets"),
            lambda: list(index.list_datasets()),
            lambda: index.delete("pets"),
            repo.gc,
        ):
            with pytest.raises(CatalogConnectionError, match=r"127\.0\.0\.1"):
                act()
        server.start()
        assert index.get_dataset("pets") == entry
        assert repo.insert([{"txt": "a dog"}], name="pets").version == "1.1.0"
        assert [check.ok for check in repo.verify()] == [True, True]
        index.close()


def test_a_redis_that_goes_away_before_the_entry_is_written_leaves_data_that_gc_finds(tmp_path):
    with redis_server("--save", "", "--appendonly", "yes", "--appendfsync", "always") as server:
        index = LocalIndex(server.url)
        repo = Repo(tmp_path / "repo", index=index)
        repo.insert([{"txt": "a cat"}], name="pets")

        def samples():
            yield {"txt": "a dog"}
            server.kill()

        with pytest.raises(CatalogConnectionError):
            repo.insert(samples(), name="pets")
        server.start()
        assert [entry.version for entry in index.history("pets")] == ["1.0.0"]
        assert len(repo.gc().in_progress) == 1  # this process cannot know that its last word was not heard
        script = (
            "import sys; from shoal.local import *; r = Repo(sys.argv[2], index=LocalIndex(sys.argv[1]));"
            "g = r.gc(); print(len(g.removed), len(g.in_progress))"
        )
        done = subprocess.run(
            [sys.executable, "-c", script, server.url, str(tmp_path / "repo")], capture_output=True, check=False
        )
        assert done.stdout.split() == [b"0", b"1"], done.stderr  # its writer, this process, still lives
        index.close()
