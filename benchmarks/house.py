"""How large and how tangled is the code, beside packages that people admire?

``python -m benchmarks.house`` measures this checkout and the peers as PyPI has them; folders given on the command line
(``old/src/shoal``) are measured too, for a comparison of two commits.

An import inside a function counts, one under ``TYPE_CHECKING`` does not. Imports count as they are written: a name
that comes through a package's front leads to the package.
"""

from __future__ import annotations

import ast
import io
import pathlib
import subprocess
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ._data import FOLDER
from ._measure import Question
from .path_length import count_batches

__all__ = ["run"]

SHOAL = pathlib.Path(__file__).parents[1] / "src" / "shoal"
PEERS = ("webdataset", "httpx", "grain", "zarr", "datasets", "huggingface_hub")
_TEST_FILES = ("_test.py", "conftest.py")

Graph = dict[str, set[str]]


@dataclass(frozen=True)
class House:
    """What was counted in one package."""

    modules: int
    code_lines: int
    function_p90: int
    longest_chain: int
    one_importer: int
    cycles: int
    first_batch: str


def run(rounds: int = 1) -> Question:
    """Count."""
    question = Question(
        "The code",
        "Lines without blanks, comments and docstrings; the length of functions at the 90th percentile; the longest "
        "chain of modules that import each other (a circle counts with all of its modules); modules that one other "
        "imports; circles of imports. Last: files and functions of the package that run from opening to the first "
        "shuffled batch, without workers, as `python -m benchmarks.path_length` counts them.",
        (
            "package",
            "modules",
            "code lines",
            "function p90",
            "longest chain",
            "one importer",
            "cycles",
            "files (functions) to the first batch",
        ),
    )
    folders = [(str(path), pathlib.Path(path)) for path in sys.argv[1:] if pathlib.Path(path).is_dir()]
    for name, folder in [("shoal", SHOAL), *folders, *((peer, installed(peer)) for peer in PEERS)]:
        house = counted(folder)
        question.rows.append(
            (name, *(f"{value:,}" if isinstance(value, int) else value for value in vars(house).values()))
        )
    return question


def installed(peer: str) -> pathlib.Path:
    """The newest release of a peer, without what it depends on: its files are read, not imported."""
    folder = FOLDER / "house" / peer
    if not folder.exists():
        pip = [sys.executable, "-m", "pip", "install", "-qq", "--disable-pip-version-check", "--no-deps"]
        subprocess.run([*pip, "--target", str(folder), peer], check=True)
    return folder / peer


def counted(folder: pathlib.Path) -> House:
    """Count what is in a package's folder; tests inside it are left out."""
    paths = [path for path in sorted(folder.rglob("*.py")) if not path.name.endswith(_TEST_FILES)]
    paths = [path for path in paths if "tests" not in path.relative_to(folder).parts]
    sources = {path: path.read_text("utf-8") for path in paths}
    trees = {path: ast.parse(source) for path, source in sources.items()}
    lengths = [count for path in paths for count in function_lengths(sources[path], trees[path])]
    graph = import_graph(folder, trees)
    importers = Counter(imported for targets in graph.values() for imported in targets)
    return House(
        modules=len(paths),
        code_lines=sum(len(code_lines(sources[path], trees[path])) for path in paths),
        function_p90=int(np.percentile(lengths, 90)),
        longest_chain=longest_chain(graph),
        one_importer=sum(count == 1 for count in importers.values()),
        cycles=sum(len(group) > 1 for group in circles(graph)),
        first_batch=first_batch(folder),
    )


def code_lines(source: str, tree: ast.Module) -> set[int]:
    """The numbers of the lines that hold code."""
    skipped = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in skipped:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            lines.difference_update(range(node.lineno, node.end_lineno + 1))
    return lines


def function_lengths(source: str, tree: ast.Module) -> Iterator[int]:
    """The lines of code of each function, its signature included."""
    lines = code_lines(source, tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield len(lines.intersection(range(node.lineno, node.end_lineno + 1)))


def import_graph(folder: pathlib.Path, trees: dict[pathlib.Path, ast.Module]) -> Graph:
    """The modules of the package that each of its modules imports."""
    packages = {path: [folder.name, *path.relative_to(folder).parent.parts] for path in trees}
    names = {path: ".".join([*packages[path], *([] if path.stem == "__init__" else [path.stem])]) for path in trees}
    known = set(names.values())

    def module_of(dotted: str) -> str | None:
        while dotted and dotted not in known:
            dotted = dotted.rpartition(".")[0]
        return dotted or None

    return {
        names[path]: {found for dotted in imports(tree, packages[path]) if (found := module_of(dotted))} - {names[path]}
        for path, tree in trees.items()
    }


def imports(node: ast.AST, package: list[str]) -> Iterator[str]:
    """Every absolute dotted name that is imported at run time."""
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
        for child in node.orelse:
            yield from imports(child, package)
    elif isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        base = package[: len(package) - node.level + 1] if node.level else []
        base = [*base, *(node.module.split(".") if node.module else [])]
        yield from (".".join([*base, alias.name]) for alias in node.names)
    else:
        for child in ast.iter_child_nodes(node):
            yield from imports(child, package)


def circles(graph: Graph) -> list[set[str]]:
    """The strongly connected components: modules that reach each other."""
    reached = {name: reachable(graph, name) for name in graph}
    groups: list[set[str]] = []
    for name in graph:
        if not any(name in group for group in groups):
            groups.append({name, *(other for other in reached[name] if name in reached[other])})
    return groups


def reachable(graph: Graph, start: str) -> set[str]:
    """All modules that importing this one may load."""
    seen: set[str] = set()
    waiting = [start]
    while waiting:
        fresh = graph[waiting.pop()] - seen
        seen |= fresh
        waiting.extend(fresh)
    return seen


def longest_chain(graph: Graph) -> int:
    """How many modules the longest chain of imports has; a circle counts with all of its modules."""
    groups = circles(graph)
    group_of = {name: number for number, group in enumerate(groups) for name in group}
    below = [
        {group_of[other] for name in group for other in graph[name]} - {number} for number, group in enumerate(groups)
    ]
    lengths: dict[int, int] = {}

    def length(number: int) -> int:
        if number not in lengths:
            lengths[number] = len(groups[number]) + max(
                (length(other) for other in below[number] - {number}), default=0
            )
        return lengths[number]

    return max(length(number) for number in range(len(groups)))


def first_batch(folder: pathlib.Path) -> str:
    """Files and functions that run until the first shuffled batch; nothing for packages that have no such job."""
    way = {"shoal": "typed", "webdataset": "webdataset"}.get(folder.name)
    if way is None:
        return "-"
    first = count_batches(way, folder).first
    return f"{first.files} ({first.functions})"


if __name__ == "__main__":
    print(run().markdown())
