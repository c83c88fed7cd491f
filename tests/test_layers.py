"""The architecture, as a test: who may import whom, and where frameworks may appear."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

SRC = Path(__file__).parents[1] / "src" / "shoal"

# A package imports only from smaller numbers. Imports inside functions count, imports inside one package do not.
LAYERS = {
    **dict.fromkeys(["errors", "protocols", "_crc32", "_typing", "__version__"], 0),
    **dict.fromkeys(["schema", "store", "order", "_optional"], 1),
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
# Modules of a package, in the order in which they may use each other while loading: each imports only those before it.
STAGES = {
    "store": [
        *["_base", "_fork", "_url", "_ranges", "_read_only", "_concurrency", "_local", "_memory", "_options", "_cache"],
        *["_error_mapping", "_hub_access", "_registry", "_statistics", "_clients", "_pattern", "_snapshot", "_http"],
        *["_operations", "_prefetch_queue", "_readers", "_requests", "_obstore", "_huggingface"],
    ],
    "shard": [
        *["_row_view", "_background_thread", "_tar_header", "_member_names", "_tar_scan", "_compression"],
        *["_arrow_arrays", "_metadata_columns", "_shard_rows", "_index", "_stored_rows", "_byte_reader"],
        *["_index_build", "_dataset_schema", "_manifest", "_table", "_shard", "_extents", "_read_plan", "_read"],
        *["_stream", "_foreign_index", "_foreign_formats", "_shard_file", "_shard_rows_table", "_open_shards"],
        *["_split_names", "_journal", "_energon_splits", "_sequential", "_memory_cache"],
        *["_layout", "_generation", "_records", "_parquet_files", "_rows_file", "_column_plan", "_key_table"],
        *["_segment", "_split_shards", "_split_members", "_split_columns", "_segment_reader", "_split_table"],
        *["_file_lock", "_commit", "_writing", "_segment_table", "_new_segments", "_changes", "_foreign_tars"],
        *["_source", "_shuffle_window", "_discovery", "_folder_index", "_write_target", "_destination"],
        *["_dataset_write", "_journaled_write", "_writer", "_sharding_service", "_copy", "_compact", "_verify"],
    ],
    "load": [
        *["_options", "_stats", "_autotune", "_buffers", "_msgpack_scan", "_columns", "_collate"],
        *["_stages", "_sources", "_stream_stages", "_sample_stages", "_sampler_shares", "_pipeline", "_cursor"],
        *["_tasks", "_executor", "_methods", "_loader", "_estimate", "_monitoring"],
    ],
    "dataset": [
        *["_arrow_types", "_data_source", "_query", "_deletion", "_tombstones", "_arrow_batches", "_description"],
        *["_query_parser", "_query_executor", "_decoding", "_fingerprint", "_column_stages", "_columns", "_metadata"],
        *["_loader_source", "_token_windows", "_output_format", "_base", "_batches", "_shard_processing"],
        *["_splits", "_append", "_transforms", "_webdataset_methods", "_combine", "_parquet", "_update", "_mixture"],
        *["_tabular", "_dataset", "_format_datasets", "_resolvers", "_load", "_write"],
    ],
}
FRAMEWORKS = {"torch": "torch", "lightning": "torch", "tensorflow": "tf", "jax": "jax", "ray": "ray"}
FRAMEWORK_HOMES = {
    "tf.py": {"tf"},
    "jax.py": {"jax"},
    "ray.py": {"ray"},
    "codec/_frameworks.py": {"torch", "jax", "tf"},
    "build/_engines.py": {"ray"},
}
FRAMEWORK_PACKAGES = {"torch"}
PACKAGES = {path.parent.name for path in SRC.glob("*/__init__.py")}
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
        yield from (f"{where}{problem}" for problem in [*direction(tree, where), *naming(path)])


def direction(tree: ast.AST, where: Path) -> Iterator[str]:
    home = where.parts[0].removesuffix(".py")
    if home not in LAYERS:
        yield f": `{home}` has no layer; give it one in {Path(__file__).name}"
        return
    for line, name in imports(tree, ["shoal", *where.parts[:-1]]):
        top, _, rest = name.partition(".")
        target = rest.split(".")[0]
        if top in FRAMEWORKS and FRAMEWORKS[top] not in frameworks_of(where):
            yield f":{line}: {top} is imported outside its adapter"
        if top == "shoal" and target != home and LAYERS.get(target, 12) >= LAYERS[home] and home != "__init__":
            yield f":{line}: {home} (layer {LAYERS[home]}) imports {name} (layer {LAYERS.get(target, 'front door')})"
        elif (
            top == "shoal"
            and home != "__init__"
            and target in PACKAGES - {home}
            and re.fullmatch(r"\w+\.[^_]\w*", rest)
        ):
            yield f":{line}: {name} comes through the front of {target}; import it from the module that defines it"
    for line, name in imports(loaded(tree), ["shoal", *where.parts[:-1]]):
        top, _, rest = name.partition(".")
        if top == "shoal" and rest.split(".")[0] == home and len(where.parts) > 1:
            problem = against_stages(home, where.parts[1].removesuffix(".py"), rest.split(".")[1:])
            if problem:
                yield f":{line}: {problem}"


def loaded(tree: ast.AST) -> ast.AST:
    """The statements that run when a module is loaded: what is in functions, or only for type checkers, does not."""
    assert isinstance(tree, ast.Module)
    body = [node for node in tree.body if not (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test))]
    return ast.Module([node for node in body if isinstance(node, ast.Import | ast.ImportFrom | ast.Try)], [])


def against_stages(package: str, module: str, imported: list[str]) -> str | None:
    """What is wrong with an import inside a package whose modules have an order."""
    stages = STAGES.get(package, [])
    if package not in STAGES or module == "__init__":
        return None
    if module not in stages:
        return f"{package}/{module} has no place in STAGES"
    if imported and imported[0] in stages and stages.index(imported[0]) < stages.index(module):
        return None
    return f"{package}/{module} imports {'.'.join(imported)}, which is not before it"


def layers_of_picture(text: str) -> dict[str, int]:
    """The layer of each package in the picture of the architecture page: a number stands at the first of its layer."""
    found, layer = {}, -1
    for line in text.partition("```text\n")[2].partition("```")[0].splitlines():
        if not line.startswith(" " * 16):
            layer = int(line[:2].strip() or layer)
            found[line[4:].split()[0]] = layer
    return found


def frameworks_of(where: Path) -> set[str]:
    """The frameworks that a module is for."""
    if where.parts[0] in FRAMEWORK_PACKAGES:
        return {where.parts[0]}
    return FRAMEWORK_HOMES.get(where.as_posix(), set())


def naming(path: Path) -> Iterator[str]:
    if path.stem.strip("_") in DRAWERS or path.parent.name.strip("_") in DRAWERS:
        yield ": a module is called after what is in it"


def import_graph(root: Path) -> dict[str, set[str]]:
    """The modules of shoal that each module imports; imports inside functions count, those for type checkers do not.

    A name that a package re-exports leads to the module that defines it, so a package is not a node on the way.
    """
    trees = {}
    for path in sorted(root.rglob("*.py")):
        parts = ["shoal", *path.relative_to(root).with_suffix("").parts]
        is_package = parts[-1] == "__init__"
        package = parts[:-1]
        trees[".".join(package if is_package else parts)] = (without_type_checking(path), package, is_package)
    exports = {
        (name, imported.rpartition(".")[2]): imported
        for name, (tree, package, is_package) in trees.items()
        if is_package
        for _, imported in imports(tree, package)
    }

    def module_of(imported: str) -> str | None:
        seen: set[str] = set()
        while imported not in trees and imported not in seen:
            seen.add(imported)
            home, _, name = imported.rpartition(".")
            imported = exports.get((home, name), home)
        return imported if imported in trees else None

    return {
        name: {found for _, imported in imports(tree, package) if (found := module_of(imported))} - {name}
        for name, (tree, package, _) in trees.items()
    }


def without_type_checking(path: Path) -> ast.AST:
    tree = ast.parse(path.read_text("utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            node.body = [ast.Pass()]
    return tree


def import_cycle(root: Path) -> list[str]:
    """Modules that import each other in a circle, the first one again at the end; empty where there is none."""
    graph, done = import_graph(root), set[str]()

    def search(module: str, path: list[str]) -> list[str]:
        if module in path:
            return [*path[path.index(module) :], module]
        if module in done:
            return []
        for imported in sorted(graph[module]):
            if cycle := search(imported, [*path, module]):
                return cycle
        done.add(module)
        return []

    return next((cycle for module in graph if (cycle := search(module, []))), [])


def test_every_module_keeps_to_its_layer():
    assert list(violations(SRC)) == []


def test_no_modules_import_each_other_in_a_circle():
    assert import_cycle(SRC) == []


@pytest.mark.parametrize(
    "modules, cycle",
    [
        ({"a/_x.py": "from ._y import f", "a/_y.py": "def f():\n    from ._x import g"}, ["shoal.a._x", "shoal.a._y"]),
        (
            {"a/__init__.py": "from ._x import f", "a/_x.py": "from . import _y", "a/_y.py": "from shoal.a import f"},
            ["shoal.a._x", "shoal.a._y"],
        ),
        ({"a/_x.py": "from ._y import f", "a/_y.py": "if TYPE_CHECKING:\n    from ._x import g"}, []),
        ({"a/__init__.py": "from ._x import f", "a/_x.py": "from ._y import g", "a/_y.py": "import os"}, []),
    ],
)
def test_a_circle_of_imports_is_found(tmp_path, modules, cycle):
    for module, source in modules.items():
        write(tmp_path, module, source)
    assert import_cycle(tmp_path)[:-1] == cycle


def test_the_table_for_contributors_is_the_rule():
    table = (SRC.parents[1] / "CONTRIBUTING.md").read_text("utf-8")
    rows = re.findall(r"^\| (\d+) \| ([^|]+) \|", table, re.MULTILINE)
    told = {name: int(number) for number, names in rows for name in re.findall(r"`(\w+)`", names)}
    assert told == {name: layer for name, layer in LAYERS.items() if not name.startswith("__")}


def test_the_picture_of_the_layers_is_the_rule():
    page = (SRC.parents[1] / "docs" / "explanation" / "architecture.md").read_text("utf-8")
    assert layers_of_picture(page) == {name: layer for name, layer in LAYERS.items() if not name.startswith("__")}


@pytest.mark.parametrize("package", STAGES)
def test_the_order_of_a_package_names_its_modules(package):
    assert set(STAGES[package]) == {path.stem for path in (SRC / package).glob("*.py")} - {"__init__"}


@pytest.mark.parametrize(
    "module, source, complaint",
    [
        ("store/_local.py", "from shoal.shard import scan", "store (layer 1) imports shoal.shard.scan (layer 4)"),
        ("store/_local.py", "from ..order import permute", "store (layer 1) imports shoal.order.permute (layer 1)"),
        ("store/__init__.py", "from .. import shard", "store (layer 1) imports shoal.shard (layer 4)"),
        ("store/_local.py", "def f():\n    import shoal.cli.main", "imports shoal.cli.main (layer 11)"),
        ("cli/__init__.py", "from shoal import Dataset", "imports shoal.Dataset (layer front door)"),
        ("load/_executor.py", "def f():\n    import torch.utils.data", "torch is imported outside its adapter"),
        ("load/_tasks.py", "import importlib\nimportlib.import_module('jax')", "jax is imported outside its adapter"),
        ("tf.py", "import torch", "torch is imported outside its adapter"),
        ("build/_engines.py", "import torch", "torch is imported outside its adapter"),
        ("shard/_copy.py", "from shoal.load._stages import Map", "shard (layer 4) imports shoal.load._stages.Map"),
        ("shard/_tar_scan.py", "from ._index import load_index", "imports _index.load_index, which is not before it"),
        ("shard/_tar_scan.py", "from . import _index", "shard/_tar_scan imports _index, which is not before it"),
        ("shard/_shard.py", "from shoal.shard import scan", "shard/_shard imports scan, which is not before it"),
        ("shard/_surprise.py", "from . import _index", "shard/_surprise has no place in STAGES"),
        ("load/_tasks.py", "from shoal.store import get", "shoal.store.get comes through the front of store"),
        ("load/_tasks.py", "def f():\n    from ..store import get", "shoal.store.get comes through the front of store"),
        ("surprise/__init__.py", "", "`surprise` has no layer"),
        ("store/_utils.py", "", "called after what is in it"),
        ("store/helpers/x.py", "", "called after what is in it"),
    ],
)
def test_a_breach_is_seen(tmp_path, module, source, complaint):
    write(tmp_path, module, source)
    assert complaint in "\n".join(violations(tmp_path))


@pytest.mark.parametrize(
    "module, source",
    [
        (
            "shard/_shard.py",
            "from shoal.store._url import join_url\nfrom ..codec._dispatch import decode\nfrom shoal import errors",
        ),
        ("shard/_shard.py", "from ._tar_scan import scan\nfrom . import _index\nfrom shoal.shard import _tar_scan"),
        ("shard/_index.py", "def f():\n    from ._shard import Shard"),
        ("plaid/_arrays.py", "from shoal.shard._tar_header import BLOCK\nfrom shoal.shard import _index"),
        ("torch/_loader.py", "import lightning\nimport torch"),
        ("codec/_frameworks.py", "def f():\n    import torch"),
        ("codec/_frameworks.py", "def f():\n    import jax"),
        ("codec/_frameworks.py", "def f():\n    import tensorflow"),
        ("__init__.py", "def f():\n    import shoal.cli"),
    ],
)
def test_what_is_allowed_is_not_reported(tmp_path, module, source):
    write(tmp_path, module, source)
    assert list(violations(tmp_path)) == []


def write(root: Path, module: str, source: str) -> None:
    (root / module).parent.mkdir(parents=True, exist_ok=True)
    (root / module).write_text(source, "utf-8")
