"""Every test that is written is run, with the same examples every time: pytest passes over folders of some names, and
says nothing."""

from __future__ import annotations

import fnmatch
import re
import sys
from pathlib import Path
from types import ModuleType

from hypothesis import given, settings
from hypothesis import strategies as st

TESTS = Path(__file__).parent


def test_no_folder_of_tests_is_passed_over(pytestconfig):
    passed_over = pytestconfig.getini("norecursedirs")
    folders = {
        folder
        for file in TESTS.rglob("test_*.py")
        for folder in file.relative_to(TESTS).parents
        if "node_modules" not in file.parts
    }
    names = {part for folder in folders for part in folder.parts}
    assert {"build", "shard", "viewer"} <= names
    assert [name for name in sorted(names) if any(fnmatch.fnmatch(name, each) for each in passed_over)] == []


def test_every_file_is_named_so_that_it_is_found(pytestconfig):
    """A file with tests in it that is called otherwise would not be run either."""
    assert pytestconfig.getini("python_files") == ["test_*.py", "*_test.py"]
    unseen = [
        file.relative_to(TESTS).as_posix()
        for file in TESTS.rglob("*.py")
        if "node_modules" not in file.parts
        and not file.name.startswith("test_")
        and "\ndef test_" in file.read_text(encoding="utf-8")
    ]
    assert unseen == []


def test_examples_do_not_depend_on_what_was_imported_before(tmp_path, monkeypatch):
    """Two processes share the tests as they get on with them. `make soak` draws other examples every time."""
    drawn: list[list[int]] = []

    @settings(max_examples=200)
    @given(st.lists(st.integers()))
    def draw(numbers):
        drawn.append(numbers)

    draw()
    first = drawn.copy()
    drawn.clear()
    module = ModuleType("constants_of_ours")
    module.__file__ = str(tmp_path / "constants_of_ours.py")
    Path(module.__file__).write_text(f"NUMBERS = {list(range(1_000_000, 1_000_100))}\n", "utf-8")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    draw()
    assert (drawn == first) is settings.default.derandomize


def test_the_tests_that_the_guarantees_name_exist():
    page = (TESTS.parent / "docs" / "explanation" / "guarantees.md").read_text("utf-8")
    file, missing = TESTS, []
    names = re.findall(r"`((?:[\w/]+\.py)?(?:::\w+)*)`", page)
    assert len(names) > 50
    for name in filter(None, names):
        path, *functions = name.split("::")
        if path:
            file = TESTS / "everyday" / path if "/" not in path else TESTS.parent / path
        text = file.read_text("utf-8") if file.exists() else ""
        missing += [
            name for function in functions or [""] if not text or not re.search(rf"(def|class) {function}", text)
        ]
    assert missing == []
