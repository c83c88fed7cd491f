"""Lenses by code reference: fetched at a commit, shown, and run after a yes only."""

from __future__ import annotations

import subprocess

import numpy as np
import pytest
from tests.atmosphere.conftest import Pet, pets

import shoal
from shoal.atmosphere import CodeReference
from shoal.errors import AtmosphereError, LensError, RecordError, UntrustedError

CODE = """
import numpy as np
from numpy.typing import NDArray
import shoal

with open({mark!r}, "a") as file:
    file.write("ran")

@shoal.packable
class Pet:
    image: NDArray[np.float32]
    label: str
    weight: float = 0.5

@shoal.packable
class Name:
    label: str

view = shoal.Lens(lambda pet: Name(pet.label), source=Pet, view=Name)

def shout(pet):
    return Name(pet.label.upper())
"""


@shoal.packable
class Name:
    label: str


@pytest.fixture
def repository(tmp_path):
    """A git repository with published code; importing it leaves a mark."""
    root, mark = tmp_path / "repo", tmp_path / "mark"
    root.mkdir()
    (root / "views.py").write_text(CODE.format(mark=str(mark)))

    def git(*arguments):
        identity = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
        done = subprocess.run(["git", "-C", root, *identity, *arguments], capture_output=True, text=True, check=True)
        return done.stdout.strip()

    git("init", "--quiet")
    git("add", ".")
    git("commit", "--quiet", "-m", "views")
    return f"file://{root}", git("rev-parse", "HEAD"), mark


def published(alice, repository, path="views.py:view"):
    lens = shoal.Lens(lambda pet: Name(pet.label), source=Pet, view=Name)
    lens.name = "name-only"
    return alice.publish_lens(lens, getter=CodeReference(*repository[:2], path), description="only the name")


def test_no_code_runs_without_a_yes_that_saw_it(alice, bob, repository):
    lens, mark = published(alice, repository), repository[2]
    assert [one.uri for one in bob.list_lenses(alice.handle)] == [lens.uri]
    with pytest.raises(UntrustedError, match=r"only after a yes.*sha256|trust=.*at commit"):
        bob.load_lens(lens.uri)
    shown = []
    with pytest.raises(UntrustedError):
        bob.load_lens(lens.uri, trust=shown.append)  # None is no yes
    [offer] = shown
    assert (offer.repository, offer.commit) == repository[:2]
    assert offer.sha256[:12] in str(offer)
    assert "class Pet" in offer.source
    with pytest.raises(UntrustedError):
        bob.load_lens(lens.uri, trust="00" * 32)
    assert not mark.exists()
    assert bob.load_lens(lens.uri, trust=offer.sha256)(pets(3)[2]).label == "pet 2"
    assert mark.read_text() == "ran"


def test_a_function_becomes_a_lens_between_the_published_types(alice, bob, repository, folder):
    lens = published(alice, repository, "views.py:shout")
    loaded = bob.load_lens(lens.uri, trust=lambda offer: offer.commit == repository[1])
    assert [field.name for field in loaded.view_type.__schema__.fields] == ["label"]
    assert loaded(Pet(np.zeros(1, np.float32), "cat")).label == "CAT"


def test_a_verification_vouches_for_one_file(alice, bob, pds, connect, new_handle, repository):
    lens = published(alice, repository)
    carol = connect(pds, new_handle())
    said = carol.verify_lens(lens.uri, method="codeReview", description="read it all")
    assert bob.offer_lens(lens.uri, vouchers=[carol.handle]).vouched == (carol.did,)
    assert bob.offer_lens(lens.uri, vouchers=[alice.handle]).vouched == ()
    assert said.code_sha256 == bob.offer_lens(lens.uri).sha256
    assert bob.load_lens(lens.uri, trust=lambda offer: carol.did in offer.vouched, vouchers=[carol.handle])


def test_code_for_other_types_is_refused(alice, bob, repository):
    lens = shoal.Lens(lambda name: pets(1)[0], source=Name, view=Pet)
    made = alice.publish_lens(lens, getter=CodeReference(*repository[:2], "views.py:view"))
    with pytest.raises(LensError, match="for other types than its record says"):
        bob.load_lens(made.uri, trust=lambda offer: True)


@pytest.mark.parametrize(
    "where, path",
    [
        ("ext::sh -c 'touch {mark}'", "views.py:view"),
        ("ssh://host/repo", "views.py:view"),
        ("--upload-pack=touch", "views.py:view"),
        ("{url}", "../../etc/passwd:x"),
        ("{url}", "/etc/passwd:x"),
    ],
)
def test_references_that_would_run_or_leave_are_refused(alice, bob, repository, where, path):
    url, commit, mark = repository
    lens = shoal.Lens(lambda pet: Name(pet.label), source=Pet, view=Name)
    code = CodeReference(where.format(url=url, mark=mark), commit, path)
    made = alice.publish_lens(lens, getter=code)
    with pytest.raises(UntrustedError):
        bob.load_lens(made.uri, trust=lambda offer: True)
    assert not mark.exists()


def test_a_repository_on_this_machine_is_private(alice, pds, connect, repository):
    made = published(alice, repository)
    from shoal.atmosphere._http import Guard
    from shoal.atmosphere._lenses import fetch_code

    with pytest.raises(UntrustedError, match="https:// repositories only"):
        fetch_code(made.getter, Guard())


def test_a_commit_is_a_hash(repository, alice, bob):
    with pytest.raises(RecordError, match="code is published at a commit: expected 40 hex digits"):
        CodeReference("https://a/b", "main", "views.py:view")
    lens = shoal.Lens(lambda pet: Name(pet.label), source=Pet, view=Name)
    gone = alice.publish_lens(lens, getter=CodeReference(repository[0], "0" * 40, "views.py:view"))
    with pytest.raises(AtmosphereError, match="published code could not be fetched"):
        bob.load_lens(gone.uri, trust=lambda offer: True)
