"""Shard patterns, with the ``braceexpand`` package and ``glob`` as oracles."""

from __future__ import annotations

import glob
import os

import pytest
from braceexpand import braceexpand
from hypothesis import example, given, settings
from hypothesis import strategies as st

from shoal.errors import ObjectNotFoundError, PatternError
from shoal.store import (
    LocalStore,
    MemoryStore,
    expand_braces,
    expand_pattern,
    number_in_name,
    numbered_name,
    register_store,
)

_PIECES = st.sampled_from(
    [
        "{",
        "}",
        ",",
        "..",
        "a",
        "b",
        "1",
        "02",
        "-3",
        "{1..3}",
        "{09..11}",
        "{a..e}",
        "{e..a..2}",
        "{Y..b}",
        "{5..1..2}",
        "{x,y}",
        "{,z}",
        "{-2..02}",
        "{0..4..0}",
        "/",
        "-",
        "{}",
        "é",
    ]
)


def _balanced(pattern):
    """Where braces are not, braceexpand raises, or not, and a shell lets them stand."""
    depths = [pattern[:stop].count("{") - pattern[:stop].count("}") for stop in range(len(pattern) + 1)]
    return min(depths) == depths[-1] == 0


@settings(max_examples=1000)
@given(st.lists(_PIECES, max_size=5).map("".join).filter(_balanced))
@example("data-{000..002}.tar")
@example("{a,{b,c}{1..2}}")
@example("{{1..2},x}")
@example("{-02..2}{Z..a}")
def test_braces_expand_as_braceexpand_expands_them(pattern):
    assert expand_braces(pattern) == list(braceexpand(pattern))


@pytest.mark.parametrize(
    "pattern, expected", [("{a{1..2}", ["{a1", "{a2"]), ("a}{b,c}", ["a}b", "a}c"]), ("{{a,b}", ["{a", "{b"])]
)
def test_a_brace_that_is_not_closed_stands_for_itself_as_in_a_shell(pattern, expected):
    assert expand_braces(pattern) == expected


@settings(max_examples=300)
@given(st.text("{},.a1", max_size=8))
def test_any_text_expands_to_something(pattern):
    assert len(expand_braces(pattern)) >= 1


@pytest.mark.parametrize("pattern", ["{a,b", "a}b", "}{", "plain.tar", "{}", "{a}", "{1..}"])
def test_braces_without_a_choice_stand_for_themselves(pattern):
    assert expand_braces(pattern) == [pattern]


@pytest.mark.parametrize("pattern", ["{0..99999999999}", "{0..9}" * 9, "{-99999999..99999999}", "{0..99999}{0..99999}"])
def test_too_many_names_are_refused_before_they_are_made(pattern):
    with pytest.raises(PatternError, match="too many"):
        expand_braces(pattern)


def test_very_long_numbers_are_no_range():
    pattern = "{1.." + "9" * 5000 + "}"
    assert expand_braces(pattern) == [pattern]


_TREE = [
    "a.tar",
    "b.tar",
    "c.tar.gz",
    "ab.tar",
    ".hidden.tar",
    "x/a.tar",
    "x/y/a.tar",
    "x/y/z/b.tar",
    "x/.h/a.tar",
    "[1].tar",
    "a b.tar",
    "é.tar",
    "a?b.tar",
    "x.tar/inner.tar",
    "a/b",
    "n%41.tar",
    "x#y.tar",
]


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    root = tmp_path_factory.mktemp("tree")
    for name in _TREE:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(name.encode())
    return root


@pytest.fixture(scope="module")
def memory():
    store = MemoryStore()
    register_store("tree", store)
    for name in _TREE:
        store.write_all(f"tree://bucket/{name}", name.encode())


_GLOBS = st.lists(
    st.one_of(
        st.sampled_from(
            [
                "*",
                "**",
                "*.tar",
                "?.tar",
                "[ab].tar",
                "[!a]*",
                "x",
                "x*",
                ".*",
                "*b*",
                "y",
                "[[]1].tar",
                "a?b",
                "*.*",
                "[.]*",
                "a[/]b",
                "??.tar",
                "*[.*]tar",
            ]
        ),
        st.text("ab*?[]!x.-", min_size=1, max_size=5),
    ),
    min_size=1,
    max_size=4,
).map("/".join)


def _expected(root, pattern):
    """What glob finds, files only: folders are no shards."""
    return sorted({path for path in glob.glob(os.path.join(root, pattern), recursive=True) if os.path.isfile(path)})


def _found(pattern):
    try:
        return expand_pattern(pattern)
    except ObjectNotFoundError:
        return []


@settings(max_examples=600)
@given(
    _GLOBS.filter(lambda pattern: any(mark in pattern for mark in "*?[") and not {".", ".."} & set(pattern.split("/")))
)
@example("a?b")
@example("a[/]b")
@example("x/**/a.tar")
@example("**")
@example("**/.h/*")
@example("a[.*]b.tar")
def test_globs_match_what_glob_matches(tree, memory, pattern):
    expected = [os.path.relpath(path, tree) for path in _expected(str(tree), pattern)]
    literal = [pattern] if (tree / pattern).is_file() else expected
    assert _found(f"{tree}/{pattern}") == [f"{tree}/{name}" for name in literal]
    assert _found(f"tree://bucket/{pattern}") == [f"tree://bucket/{name}" for name in literal]


@pytest.mark.parametrize("pattern", ["*.tar", "./*.tar", "x/*.tar", "./x/**/a.tar", "**/*.tar", "x/../*.tar"])
def test_globs_from_the_working_folder(tree, pattern, monkeypatch):
    monkeypatch.chdir(tree)
    expected = sorted(os.path.normpath(path) for path in glob.glob(pattern, recursive=True) if os.path.isfile(path))
    assert sorted(os.path.normpath(path) for path in _found(pattern)) == expected
    assert expected


def test_globs_by_file_url(tree):
    found = expand_pattern(f"file://{tree}/*.tar")
    assert sorted(LocalStore().read_all(url).decode() for url in found) == sorted(
        name for name in _TREE if name.endswith(".tar") and "/" not in name and not name.startswith(".")
    )


def test_globs_from_home(tree, monkeypatch):
    monkeypatch.setenv("HOME", str(tree))
    assert expand_pattern("~/x/*.tar") == ["~/x/a.tar"]


def test_a_glob_at_the_root_of_a_store():
    store = MemoryStore()
    register_store("flat", store)
    store.write_all("flat://a.tar", b"")
    store.write_all("flat://f/b.tar", b"")
    assert expand_pattern("flat://*.tar") == ["flat://a.tar"]
    assert expand_pattern("flat://**/*.tar") == ["flat://a.tar", "flat://f/b.tar"]


def test_a_glob_looks_no_deeper_than_it_must(tmp_path, monkeypatch):
    (tmp_path / "x/y/z").mkdir(parents=True)
    (tmp_path / "x/a.tar").write_bytes(b"")
    (tmp_path / "x/y/z/a.tar").write_bytes(b"")
    scanned = []
    scandir = os.scandir
    with monkeypatch.context() as patched:
        patched.setattr(os, "scandir", lambda path: scanned.append(os.fspath(path)) or scandir(path))
        assert expand_pattern(f"{tmp_path}/*/*.tar") == [f"{tmp_path}/x/a.tar"]
    assert scanned == [str(tmp_path), str(tmp_path / "x")]


def test_a_file_that_looks_like_a_glob_is_that_file(tree):
    assert expand_pattern(f"{tree}/[1].tar") == [f"{tree}/[1].tar"]
    assert expand_pattern(f"{tree}/a?b.tar") == [f"{tree}/a?b.tar"]


def test_a_glob_that_matches_nothing_is_an_error(tree, memory):
    for pattern in (f"{tree}/*.zip", f"{tree}/none/*.tar", "tree://bucket/*.zip"):
        with pytest.raises(ObjectNotFoundError, match="matches no file") as caught:
            expand_pattern(pattern)
        assert pattern in str(caught.value)


def test_patterns_are_joined_and_listed_in_order(tree):
    assert expand_pattern("b.tar::a-{0..1}.tar") == ["b.tar", "a-0.tar", "a-1.tar"]
    assert expand_pattern(["z.tar", "a-{0..1}.tar", tree / "a.tar"]) == ["z.tar", "a-0.tar", "a-1.tar", f"{tree}/a.tar"]
    assert expand_pattern([]) == []
    assert expand_pattern(f"{tree}/{{b,a}}*.tar") == [
        f"{tree}/{name}" for name in ("b.tar", "a b.tar", "a.tar", "a?b.tar", "ab.tar")
    ]
    assert expand_pattern(name for name in ("a", "b")) == ["a", "b"]


@pytest.mark.parametrize(
    "pattern, number, name",
    [
        ("a-%06d.tar", 7, "a-000007.tar"),
        ("a-{:06d}.tar", 7, "a-000007.tar"),
        ("a-%d.tar", 12, "a-12.tar"),
        ("a-{:d}.tar", 12, "a-12.tar"),
        ("a-{:}.tar", 12, "a-12.tar"),
        ("a-%03d.tar", 12345, "a-12345.tar"),
        ("100%/a-%02d.tar", 1, "100%/a-01.tar"),
        ("a.tar", 0, "a.tar"),
    ],
)
def test_numbered_names(pattern, number, name):
    assert numbered_name(pattern, number) == name
    assert number_in_name(pattern, name) == number


@pytest.mark.parametrize("pattern, number", [("a.tar", 1), ("%d-%d.tar", 0), ("{:d}%d", 0), ("%d/%d.tar", 3)])
def test_a_number_needs_one_place(pattern, number):
    with pytest.raises(PatternError):
        numbered_name(pattern, number)


@settings(max_examples=200)
@given(st.integers(0, 10**9), st.sampled_from(["a-%06d.tar", "{:03d}", "x%dy", "1%d1", "é{:08d}.tar"]))
def test_a_number_is_read_back_from_its_name(number, pattern):
    name = numbered_name(pattern, number)
    assert number_in_name(pattern, name) == number
    assert number_in_name(pattern, name + "x") is None
    assert number_in_name(pattern, "x" + name) is None
