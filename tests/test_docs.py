"""The documentation cannot rot: its Python runs, its links lead somewhere, its pages can be found, its site builds."""

from __future__ import annotations

import contextlib
import doctest
import importlib
import re
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from tests.atmosphere.servers import page_network

from shoal.store import _options

ROOT = Path(__file__).parents[1]
SRC = ROOT / "src"
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])
MODULES = sorted(path for path in SRC.rglob("*.py") if ">>> " in path.read_text("utf-8"))

FENCE = re.compile(
    r"^(?P<indent>[ ]*)(?P<ticks>`{3,}|~{3,})[ ]*(?P<language>[\w-]*)[^\n]*\n(?P<code>.*?)^(?P=indent)(?P=ticks)[ ]*$",
    re.MULTILINE | re.DOTALL,
)
REASON = re.compile(r"<!-- not run: \S.*-->\s*$")
LINK = re.compile(r"\]\((?P<target>[^)\s]+)(?:\s+\"[^\"]*\")?\)|^\[[^\]]+\]:\s+(?P<reference>\S+)", re.MULTILINE)
PYTHON = {"py", "python", "python3", "pycon"}


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced piece of Python on a page."""

    line: int
    code: str
    runs: bool


def blocks(text: str) -> list[Block]:
    """The Python blocks of a page, in order; one whose line before says why it is not run, does not run."""
    found = []
    for fence in FENCE.finditer(text):
        if fence["language"].lower() in PYTHON:
            before = text[: fence.start()].rstrip("\n")
            line = text.count("\n", 0, fence.start("code")) + 1
            found.append(
                Block(line, textwrap.dedent(fence["code"]), runs=not REASON.search(before.rpartition("\n")[2]))
            )
    return found


def run_block(block: Block, page: str, namespace: dict[str, object]) -> None:
    """Run a block in the page's namespace; lines of a traceback, or of a failed example, are the page's lines."""
    if block.code.lstrip().startswith(">>>"):
        test = doctest.DocTestParser().get_doctest(block.code, namespace, page, page, block.line - 1)
        failed = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test, clear_globs=False).failed
        namespace.update(test.globs)
        assert not failed
    else:
        exec(compile("\n" * (block.line - 1) + block.code, page, "exec", dont_inherit=True), namespace)


NEEDS = {"docs/how-to/atmosphere.md": page_network, "docs/how-to/promotion.md": page_network}
"""What a page runs on, where that is more than this process."""


def page_name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(SRC).with_suffix("").parts).removesuffix(".__init__")


@pytest.fixture(autouse=True)
def _own_options(monkeypatch):
    """What a page configures is gone after it."""
    monkeypatch.setattr(_options, "_CHOSEN", {})


@pytest.mark.parametrize("page", [p for p in PAGES if any(b.runs for b in blocks(p.read_text("utf-8")))], ids=page_name)
def test_every_python_block_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {"__name__": "__page__"}
    with NEEDS.get(page_name(page), contextlib.nullcontext)():
        for block in blocks(page.read_text("utf-8")):
            if block.runs:
                run_block(block, str(page), namespace)


@pytest.mark.parametrize("path", MODULES, ids=module_name)
def test_every_docstring_example_runs(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    module = importlib.import_module(module_name(path))
    outcome = doctest.testmod(module, optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    assert outcome.failed == 0
    assert outcome.attempted > 0, "the module has a `>>>` that doctest does not find"


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_links_lead_somewhere(page):
    text = FENCE.sub("", page.read_text("utf-8"))
    targets = [match["target"] or match["reference"] for match in LINK.finditer(text)]
    local = [target.partition("#")[0] for target in targets if not re.match(r"[a-z]+:", target)]
    assert [target for target in local if target and not (page.parent / target).exists()] == []


def test_the_navigation_lists_every_page_once():
    listed = list(leaves(yaml.safe_load((ROOT / "mkdocs.yml").read_text("utf-8"))["nav"]))
    assert sorted(listed) == sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md"))


def leaves(nav: object) -> list[str]:
    if isinstance(nav, str):
        return [nav]
    return [leaf for entry in (nav.values() if isinstance(nav, dict) else nav) for leaf in leaves(entry)]


def test_every_public_package_has_a_reference_page():
    reference = "\n".join(path.read_text("utf-8") for path in (DOCS / "reference").glob("*.md"))
    shown = set(re.findall(r"^::: (\S+)$", reference, re.MULTILINE))
    inside = [*(SRC / "shoal").glob("[!_]*.py"), *(path.parent for path in (SRC / "shoal").glob("[!_]*/__init__.py"))]
    assert {f"shoal.{path.stem}" for path in inside} <= shown


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_the_site_builds(site):
    assert (site / "index.html").exists()


def test_examples_of_docstrings_are_rendered_as_code(site):
    pages = {path.parent.name: path.read_text("utf-8") for path in (site / "reference").rglob("index.html")}
    assert "&gt;&gt;&gt;" in pages["dataset"]
    assert [name for name, text in pages.items() if "<blockquote>" in text] == []


@pytest.mark.parametrize("page, name", [("dataset", "shoal.dataset.Dataset"), ("load", "shoal.load.DataLoader")])
def test_the_reference_has_every_method(site, page, name):
    text = (site / "reference" / page / "index.html").read_text("utf-8")
    package, _, cls = name.rpartition(".")
    methods = [method for method in dir(getattr(importlib.import_module(package), cls)) if not method.startswith("_")]
    assert [method for method in methods if f'id="{name}.{method}"' not in text] == []


def test_the_architecture_page_shows_every_module_where_it_is():
    text = (DOCS / "explanation" / "architecture.md").read_text("utf-8")
    shown, package = set(), ""
    for line in next(fence["code"] for fence in FENCE.finditer(text) if fence["language"] == "text").splitlines():
        if line.startswith(" " * 16):
            shown |= {f"{package}/{module}.py" for module in line.split()}
        else:
            package = line[4:].split()[0]
            shown.add(f"{package}.py")
    modules = {path.relative_to(SRC / "shoal").as_posix() for path in (SRC / "shoal").rglob("*.py")}
    packages = {path.removesuffix("/__init__.py") + ".py" for path in modules if path.endswith("/__init__.py")}
    there = {path for path in modules if not path.endswith(("__init__.py", "__main__.py"))} | packages
    assert shown == there
    named = re.findall(r"`((?:\w+/)+_?\w+\.py)`", text)
    assert len(named) > 20
    assert [path for path in named if not any((root / path).exists() for root in (SRC / "shoal", ROOT, SRC))] == []


PAGE = """
<!-- not run: needs a bucket -->
```python
raise AssertionError
```

```sh
shoal info
```

1. a step

    ```py
    x = 1
    ```

```pycon
>>> x + 1
2
```
"""


def test_the_reader_of_blocks_reads():
    assert blocks(PAGE) == [
        Block(4, "raise AssertionError\n", runs=False),
        Block(14, "x = 1\n", runs=True),
        Block(18, ">>> x + 1\n2\n", runs=True),
    ]


def test_a_wrong_block_fails_at_its_line():
    namespace: dict[str, object] = {}
    for block in blocks(PAGE)[1:]:
        run_block(block, "page.md", namespace)
    assert namespace["x"] == 1
    with pytest.raises(ZeroDivisionError) as raised:
        run_block(Block(40, "x = 1\nx / 0\n", runs=True), "page.md", namespace)
    assert raised.traceback[-1].lineno == 40  # counted from 0
    with pytest.raises(AssertionError):
        run_block(Block(50, ">>> x + 1\n3\n", runs=True), "page.md", namespace)
