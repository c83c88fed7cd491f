"""Resolvers: references that are not paths."""

import contextlib
import os
import subprocess
import sys
import textwrap

import pytest

import shoal
from shoal import ShardWriter, load_dataset
from shoal.dataset import _resolvers, register_resolver, resolvers
from shoal.errors import FormatError, OptionError
from shoal.protocols import Resolved

COUNTS = {"train": 7, "val": 3, "test": 5}


SPLITS = {"train": 7, "validation": 3, "test": 5}


def fill(root, names=COUNTS):
    """One shard a name, its samples called after it."""
    for name, count in names.items():
        with ShardWriter(f"{root}/{name}-%06d.tar", max_samples=4) as writer:
            for number in range(count):
                writer.write({"__key__": f"{name}{number}", "txt": f"{name} {number}", "json": {"width": number}})


@pytest.fixture
def folder(tmp_path):
    fill(tmp_path / "pets")
    return tmp_path / "pets"


class Source:
    """Shards by name, each opened by a function; counts how often."""

    def __init__(self, openers):
        self.openers = openers
        self.opened = []

    @property
    def shards(self):
        return ((name, self.open_shard(name)) for name in self.list_shards())

    def list_shards(self):
        return list(self.openers)

    def open_shard(self, shard_id):
        self.opened.append(shard_id)
        return self.openers[shard_id]()


def opened(path):
    return open(path, "rb")


def run(script, variables):
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


class Lab:
    def __init__(self, resolved, scheme="lab"):
        self.resolved = resolved
        self.scheme = scheme
        self.asked = []

    def matches(self, reference):
        return reference.startswith(self.scheme)

    def resolve(self, reference, *, split=None, data_files=None):
        self.asked.append((reference, split, data_files))
        return self.resolved


@contextlib.contextmanager
def registered(resolver):
    """With this resolver as the only one that is registered."""
    before = dict(_resolvers._REGISTERED)
    _resolvers._REGISTERED.clear()
    register_resolver("lab", resolver)
    try:
        yield resolver
    finally:
        _resolvers._REGISTERED.clear()
        _resolvers._REGISTERED.update(before)


def test_a_resolver_may_give_files_folders_splits_and_sources(folder):
    source = Source({"a.tar": lambda: opened(folder / "test-000000.tar")})
    cases = [
        (folder, SPLITS),
        (f"{folder}/test-*.tar", {"test": 5}),
        ([f"{folder}/val-*.tar", folder / "test-000000.tar"], {"validation": 3, "test": 4}),
        ({"x": folder / "test-000000.tar", "y": [f"{folder}/val-*.tar"], "z": source}, {"x": 4, "y": 3, "z": 4}),
        (source, {"train": 4}),
    ]
    for files, counts in cases:
        with registered(Lab(Resolved(files))):
            assert load_dataset("lab://pets").num_samples == counts


def test_a_resolver_may_know_the_type_and_the_user_knows_better(folder):
    @shoal.packable
    class Note:
        txt: str

    with registered(Lab(Resolved(folder, Note))):
        assert load_dataset("lab://pets", split="test")[0] == Note("test 0")
        assert load_dataset("lab://pets").sample_type is Note
        assert load_dataset("lab://pets", split="test", sample_type=dict)[0]["txt"] == "test 0"


def test_a_resolver_is_told_what_was_asked(folder):
    with registered(Lab(Resolved(folder), scheme="@")) as lab:
        for split in (None, "val", "train[:2]", "train+test", "all"):
            load_dataset("@pets/cats", split=split)
        load_dataset("@pets/cats", data_files={"train": "a-*.tar"})
    assert [split for _, split, _ in lab.asked] == [None, "val", "train", None, None, None]
    assert lab.asked[-1] == ("@pets/cats", None, {"train": "a-*.tar"})


def test_paths_and_urls_of_stores_are_never_asked_about(folder):
    fill("memory://test_load/never")
    with registered(Lab(Resolved("nowhere"), scheme="")) as lab:
        load_dataset(folder)
        load_dataset(f"file://{folder}")
        load_dataset("memory://test_load/never")
    assert lab.asked == []


def test_registering(folder):
    with registered(Lab(Resolved(folder))):
        assert "lab" in resolvers()
        with pytest.raises(OptionError, match=r"registered already.*replace=True"):
            register_resolver("lab", Lab(None))
        register_resolver("lab", Lab(Resolved(f"{folder}/val-*.tar")), replace=True)
        assert list(load_dataset("lab://x")) == ["validation"]
    for wrong, shown in ((3, "int"), (Lab, "the class Lab")):
        with pytest.raises(OptionError, match=shown):
            register_resolver("wrong", wrong)


def test_a_resolver_that_breaks_its_promise(folder):
    with registered(Lab(["a.tar"])), pytest.raises(OptionError, match="expected a Resolved, found list"):
        load_dataset("lab://x")


@pytest.mark.parametrize(
    "reference, match",
    [
        ("@user/data", r"@ references.*shoal\[atmosphere\]"),
        ("odd://x", r"odd:// references.*shoal\.resolvers.*register_resolver"),
    ],
)
def test_a_reference_that_nobody_understands(reference, match):
    with registered(Lab(None)), pytest.raises(FormatError, match=match) as caught:
        load_dataset(reference)
    assert "lab" in str(caught.value)


def installed(site, name, points, module):
    """A package with entry points, as an installer leaves it."""
    info = site / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[shoal.resolvers]\n" + "\n".join(points) + "\n")
    (site / f"{name}.py").write_text(textwrap.dedent(module))


def test_an_installed_resolver(folder, tmp_path):
    module = f"""
        from shoal.protocols import Resolved
        class Zoo:
            def matches(self, reference):
                return reference.startswith("zoo://")
            def resolve(self, reference, *, split=None, data_files=None):
                return Resolved({str(folder)!r})
        zoo = Zoo()
    """
    installed(tmp_path / "site", "zoo_for_shoal", ["zoo = zoo_for_shoal:zoo"], module)
    installed(
        tmp_path / "site", "torn", ["torn = torn:resolver", "kind = zoo_for_shoal:Zoo"], "raise ImportError('no wings')"
    )
    script = """
        import shoal
        from shoal.dataset import resolvers
        import sys
        assert "zoo_for_shoal" not in sys.modules, "only a reference asks for resolvers"
        print(shoal.load_dataset("zoo://pets").num_samples)
        assert "zoo" in resolvers() and "torn" not in resolvers(), resolvers()
        try:
            shoal.load_dataset("odd://pets")
        except shoal.ShoalError as error:
            print(error)
    """
    first, second = run(script, {"PYTHONPATH": str(tmp_path / "site")}).splitlines()
    assert first == str(SPLITS)
    assert "zoo" in second
    assert "torn (cannot be loaded: ImportError: no wings)" in second
    assert "kind (cannot be loaded: OptionError" in second
