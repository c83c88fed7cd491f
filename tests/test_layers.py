"""The architecture, as a test: who may import whom, where frameworks may appear, how large a piece may grow."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

SRC = Path(__file__).parents[1] / "src" / "shoal"

# A package imports only from smaller numbers. Imports inside functions count, imports inside one package do not.
LAYERS = {
    **dict.fromkeys(["errors", "protocols", "__version__"], 0),
    **dict.fromkeys(["schema", "store", "order"], 1),
    "codec": 2,
    "sample": 3,
    "shard": 4,
    "formats": 5,
    "load": 6,
    **dict.fromkeys(["dataset", "adapt"], 7),
    **dict.fromkeys(["build", "local", "hub", "torch", "tf", "jax", "ray", "hf"], 8),
    **dict.fromkeys(["atmosphere", "plaid"], 9),
    **dict.fromkeys(["promote", "viewer"], 10),  # promote carries local datasets to the atmosphere, so it is above both
    **dict.fromkeys(["cli", "testing"], 11),
    **dict.fromkeys(["__init__", "__main__"], 12),  # the front door: may import anything, is imported by nobody
}
# Folders inside a package, in the order in which they may use each other: a stage imports only from those before it.
STAGES = {
    "load": ["_columns", "_steps", "_engine"],
    "shard": ["_tar", "_compress", "_index", "_one", "_interop", "_folder", "_many", "_write", "_verify"],
}
FRAMEWORKS = {"torch": "torch", "lightning": "torch", "tensorflow": "tf", "jax": "jax", "ray": "ray"}
FRAMEWORK_PACKAGES = {"torch"}
FRAMEWORK_HOMES = {
    "tf.py",
    "jax.py",
    "ray.py",
    "codec/_torch.py",
    "codec/_jax.py",
    "codec/_tf.py",
    "build/_ray.py",
}
MODULE_LINES, FUNCTION_LINES = 450, 60
DRAWERS = {"utils", "util", "helpers", "common", "misc"}  # names that say nothing, so everything lands in them


def imports(tree: ast.AST, package: list[str]) -> Iterator[tuple[int, str]]:
    """Every absolute dotted name imported anywhere in the module, one entry for each name of a `from`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = [*package[: len(package) - node.level + 1]] if node.level else []
            base += node.module.split(".") if node.module else []
            yield from ((node.lineno, ".".join([*base, alias.name])) for alias in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "__import__")):
            yield from ((node.lineno, arg.value) for arg in node.args[:1] if isinstance(arg, ast.Constant))


def violations(root: Path) -> Iterator[str]:
    for path in sorted(root.rglob("*.py")):
        where = path.relative_to(root)
        tree = ast.parse(path.read_text("utf-8"))
        yield from (f"{where}{problem}" for problem in [*direction(tree, where), *size(path, tree)])


def direction(tree: ast.AST, where: Path) -> Iterator[str]:
    home = where.parts[0].removesuffix(".py")
    if home not in LAYERS:
        yield f": `{home}` has no layer; give it one in {Path(__file__).name}"
        return
    for line, name in imports(tree, ["shoal", *where.parts[:-1]]):
        top, _, rest = name.partition(".")
        target = rest.split(".")[0]
        if top in FRAMEWORKS and adapter_of(where) != FRAMEWORKS[top]:
            yield f":{line}: {top} is imported outside its adapter"
        if top == "shoal" and target != home and LAYERS.get(target, 12) >= LAYERS[home] and home != "__init__":
            yield f":{line}: {home} (layer {LAYERS[home]}) imports {name} (layer {LAYERS.get(target, 'front door')})"
        if top == "shoal" and target != home and re.search(r"\._[a-z]\w*(\.|$)", rest):
            yield f":{line}: {name} is private to `{target}`; have `{target}` export what others need"
        if top == "shoal" and target == home and (problem := against_stages(home, where.parts[1], rest.split(".")[1:])):
            yield f":{line}: {problem}"


def against_stages(package: str, stage: str, imported: list[str]) -> str | None:
    """What is wrong with an import inside a package that has stages."""
    stages = STAGES.get(package, [])
    if stage not in stages or not imported or imported[0] == stage:
        return None
    if imported[0] in stages and stages.index(imported[0]) < stages.index(stage):
        return None
    return f"{package}/{stage} imports {'.'.join(imported)}, which is not of a stage before it"


def adapter_of(where: Path) -> str | None:
    """The framework that a module is for."""
    if where.parts[0] in FRAMEWORK_PACKAGES:
        return where.parts[0]
    return where.stem.strip("_") if where.as_posix() in FRAMEWORK_HOMES else None


def size(path: Path, tree: ast.AST) -> Iterator[str]:
    if path.stem.strip("_") in DRAWERS or path.parent.name.strip("_") in DRAWERS:
        yield ": a module is called after what is in it"
    if (lines := len(path.read_text("utf-8").splitlines())) > MODULE_LINES:
        yield f": {lines} lines, more than {MODULE_LINES}; split it by noun"
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and (lines := body_lines(node)) > FUNCTION_LINES:
            yield f":{node.lineno}: {node.name} has {lines} lines, more than {FUNCTION_LINES}"


def body_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    first = node.body[0]
    documented = ast.get_docstring(node) is not None and first.end_lineno is not None
    docstring = first.end_lineno - first.lineno + 1 if documented else 0
    return node.end_lineno - node.lineno + 1 - docstring


def test_every_module_keeps_to_its_layer_and_size():
    assert list(violations(SRC)) == []


def test_the_table_for_contributors_is_the_rule():
    table = (SRC.parents[1] / "CONTRIBUTING.md").read_text("utf-8")
    rows = re.findall(r"^\| (\d+) \| ([^|]+) \|", table, re.MULTILINE)
    told = {name: int(number) for number, names in rows for name in re.findall(r"`(\w+)`", names)}
    assert told == {name: layer for name, layer in LAYERS.items() if not name.startswith("__")}


@pytest.mark.parametrize(
    "module, source, complaint",
    [
        ("store/_local.py", "from shoal.shard import scan", "store (layer 1) imports shoal.shard.scan (layer 4)"),
        ("store/_local.py", "from ..order import permute", "store (layer 1) imports shoal.order.permute (layer 1)"),
        ("store/__init__.py", "from .. import shard", "store (layer 1) imports shoal.shard (layer 4)"),
        ("store/_local.py", "def f():\n    import shoal.cli.main", "imports shoal.cli.main (layer 11)"),
        ("cli/__init__.py", "from shoal import Dataset", "imports shoal.Dataset (layer front door)"),
        ("load/_run.py", "def f():\n    import torch.utils.data", "torch is imported outside its adapter"),
        ("load/_run.py", "import importlib\nimportlib.import_module('jax')", "jax is imported outside its adapter"),
        ("tf.py", "import torch", "torch is imported outside its adapter"),
        ("codec/_tf.py", "import torch", "torch is imported outside its adapter"),
        ("plaid/_map.py", "from shoal.shard._tar import crc32", "shard._tar.crc32 is private to `shard`"),
        ("plaid/_map.py", "from shoal.shard import _tar", "shoal.shard._tar is private to `shard`"),
        ("shard/_tar/_scan.py", "from shoal.shard._index import load_index", "which is not of a stage before it"),
        ("shard/_tar/_scan.py", "from .. import _index", "shard/_tar imports _index, which is not of a stage"),
        ("shard/_one/_shard.py", "from shoal.shard import scan", "shard/_one imports scan, which is not of a stage"),
        ("surprise/__init__.py", "", "`surprise` has no layer"),
        ("store/_utils.py", "", "called after what is in it"),
        ("store/helpers/x.py", "", "called after what is in it"),
        ("store/_local.py", "x = 1\n" * 451, "451 lines"),
        ("store/_local.py", "def f():\n" + "    x = 1\n" * 60, "f has 61 lines"),
    ],
)
def test_a_breach_is_seen(tmp_path, module, source, complaint):
    write(tmp_path, module, source)
    assert complaint in "\n".join(violations(tmp_path))


@pytest.mark.parametrize(
    "module, source",
    [
        (
            "shard/_read.py",
            "from shoal.store import get\nfrom ..codec import decode\nfrom shoal import errors, __version__",
        ),
        ("shard/_read.py", "from ._scan import scan\nfrom . import _scan\nfrom shoal.shard import _scan"),
        ("shard/_one/_shard.py", "from shoal.shard._tar import scan\nfrom ._rows import Sample\nfrom . import _rows"),
        ("torch/_loader.py", "import lightning\nimport torch"),
        ("codec/_torch.py", "def f():\n    import torch"),
        ("codec/_jax.py", "def f():\n    import jax"),
        ("codec/_tf.py", "def f():\n    import tensorflow"),
        ("__init__.py", "def f():\n    import shoal.cli"),
        ("store/_local.py", 'def f():\n    """' + "words\n" * 80 + '"""'),
    ],
)
def test_what_is_allowed_is_not_reported(tmp_path, module, source):
    write(tmp_path, module, source)
    assert list(violations(tmp_path)) == []


def write(root: Path, module: str, source: str) -> None:
    (root / module).parent.mkdir(parents=True, exist_ok=True)
    (root / module).write_text(source, "utf-8")
