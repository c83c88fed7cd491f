"""The public surface is what `__all__` says, no more and no less, and each name in it is documented."""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path
from types import ModuleType

import pytest

SRC = Path(__file__).parents[1] / "src"


def public_modules() -> list[str]:
    """Every module whose dotted name has no private part; `__main__` and its like are not for importing."""
    paths = (path.relative_to(SRC).with_suffix("").parts for path in SRC.rglob("*.py"))
    names = (parts[:-1] if parts[-1] == "__init__" else parts for parts in paths)
    return sorted(".".join(parts) for parts in names if not any(part.startswith("_") for part in parts))


MODULES = public_modules()


def ruff_order(name: str) -> tuple[int, list[tuple[int, str]]]:
    """The order ruff keeps `__all__` in: constants, classes, the rest; digits by value."""
    kind = 0 if name.isupper() and len(name) > 1 else 1 if name[0].isupper() else 2
    return kind, [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]


def belongs(module: ModuleType, name: str) -> bool:
    """Whether a name met in a module is the module's own, rather than something it imported to work with."""
    value = getattr(module, name)
    if name.startswith("_") or name == "TYPE_CHECKING" or isinstance(value, ModuleType):
        return False
    origin = getattr(value, "__module__", None) or module.__name__
    # A package owns what its private modules define; a plain module owns only what it defines itself.
    return origin == module.__name__ or (hasattr(module, "__path__") and origin.startswith(f"{module.__name__}."))


def test_the_package_is_found_and_says_that_it_is_typed():
    assert {"shoal", "shoal.errors"} <= set(MODULES)
    assert (SRC / "shoal" / "py.typed").exists()


@pytest.mark.parametrize("module_name", MODULES)
def test_all_is_sorted_and_says_each_name_once(module_name):
    names = importlib.import_module(module_name).__all__
    assert list(names) == sorted(set(names), key=ruff_order)


@pytest.mark.parametrize("module_name", MODULES)
def test_all_equals_what_is_public(module_name):
    module = importlib.import_module(module_name)
    exported = set(module.__all__)
    # dir() rather than vars(): a lazy module has to list what it would load.
    assert exported <= set(dir(module)), "exported, but dir() does not show it"
    assert {name for name in dir(module) if belongs(module, name)} <= exported, "public, but not exported"
    assert {name for name in exported if name.startswith("_")} <= {"__version__"}


@pytest.mark.parametrize("module_name", MODULES)
def test_every_exported_name_is_there_and_documented(module_name):
    module = importlib.import_module(module_name)
    assert module.__doc__
    assert [name for name in module.__all__ if not documented(getattr(module, name))] == []


def documented(value: object) -> bool:
    """Functions, classes and modules have a docstring of their own; a constant is documented where it stands."""
    if not (inspect.isroutine(value) or inspect.isclass(value) or inspect.ismodule(value)):
        return True
    text = value.__doc__ or ""
    # What a dataclass or a NamedTuple writes for itself, `Name(field: type, ...)`, says nothing.
    return bool(text.strip()) and not text.startswith(f"{value.__name__}(")


def test_the_front_door_knows_nothing_else():
    shoal = importlib.import_module("shoal")
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = shoal.no_such_name


def test_star_import_gives_exactly_all():
    namespace: dict[str, object] = {}
    exec("from shoal import *", namespace)
    assert set(namespace) - {"__builtins__"} == set(importlib.import_module("shoal").__all__)
