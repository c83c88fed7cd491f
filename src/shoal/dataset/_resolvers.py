"""Resolvers, which turn references that are not paths, such as ``@local/name``, into files.

They are registered by `register_resolver`, or installed as entry points of the group ``shoal.resolvers``.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass

from shoal.errors import FormatError, OptionError, StoreError
from shoal.protocols import DataFiles, Resolved, Resolver
from shoal.store._registry import store_for
from shoal.store._url import scheme_of

__all__ = ["is_reference", "register_resolver", "resolve_reference", "resolvers"]

RESOLVER_GROUP = "shoal.resolvers"
"""The entry point group in which packages install resolvers."""

_REGISTERED: dict[str, Resolver] = {}
_EXTRAS = {"at": "atmosphere", "@": "atmosphere"}


def register_resolver(name: str, resolver: Resolver, *, replace: bool = False) -> None:
    """Let ``load_dataset`` of this process understand what ``resolver`` matches, before installed ones are asked.

    Raises OptionError when the name is taken, unless ``replace``, or when the object is no :class:`Resolver`.

    Examples:
        >>> from shoal.protocols import Resolved
        >>> class Mirror:
        ...     def matches(self, reference):
        ...         return reference.startswith("mirror://")
        ...
        ...     def resolve(self, reference, *, split=None, data_files=None):
        ...         return Resolved("/mnt/mirror/" + reference.removeprefix("mirror://"))
        >>> register_resolver("mirror", Mirror(), replace=True)
        >>> "mirror" in resolvers()
        True
    """
    _check_resolver(name, resolver)
    if name in _REGISTERED and not replace:
        hint = "pass replace=True to take its place"
        raise OptionError("the resolver is registered already", found=name, hint=hint)
    _REGISTERED[name] = resolver


def resolvers() -> tuple[str, ...]:
    """The names of all resolvers, registered and installed, in the order they are asked."""
    return tuple(_all_resolvers())


def _all_resolvers() -> dict[str, Resolver]:
    return {**_REGISTERED, **{name: found for name, found in _installed().usable.items() if name not in _REGISTERED}}


def is_reference(text: str) -> bool:
    """Whether a text is for resolvers: it begins with ``@``, or no store serves its scheme."""
    if text.startswith("@"):
        return True
    try:
        store_for(text)
    except StoreError:
        return True
    return False


def resolve_reference(
    reference: str, split: str | None, data_files: DataFiles | Mapping[str, DataFiles] | None
) -> Resolved:
    """What the first resolver that matches says. Raises FormatError when none does, with what could be installed."""
    for name, resolver in _all_resolvers().items():
        if resolver.matches(reference):
            resolved = resolver.resolve(reference, split=split, data_files=data_files)
            if not isinstance(resolved, Resolved):
                raise OptionError(
                    f"the resolver {name} broke its promise", expected="a Resolved", found=_type_name(resolved)
                )
            return resolved
    raise _unknown_reference(reference, _installed().broken)


def _check_resolver(name: str, resolver: object) -> None:
    if isinstance(resolver, type) or not isinstance(resolver, Resolver):
        raise OptionError(
            "this is no resolver",
            expected="an object with matches and resolve",
            found=f"{name}: {_type_name(resolver)}",
        )


def _type_name(value: object) -> str:
    return f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__


@dataclass(frozen=True, slots=True)
class _Installed:
    usable: dict[str, Resolver]
    broken: dict[str, str]
    """Why an installed resolver cannot be used, by name."""


@functools.cache  # looking up entry points is slow, and they do not change while a process runs
def _installed() -> _Installed:
    import importlib.metadata  # only a reference needs it, and it takes longer to import than most of shoal

    usable: dict[str, Resolver] = {}
    broken: dict[str, str] = {}
    for point in sorted(importlib.metadata.entry_points(group=RESOLVER_GROUP), key=lambda point: point.name):
        try:
            resolver = point.load()
            _check_resolver(point.name, resolver)
        except Exception as error:  # noqa: BLE001 - one broken package must not hide the others; the error for unknown references names it
            broken[point.name] = f"{type(error).__name__}: {error}"
        else:
            usable[point.name] = resolver
    return _Installed(usable, broken)


def _unknown_reference(reference: str, unusable: Mapping[str, str]) -> FormatError:
    scheme = "@" if reference.startswith("@") else scheme_of(reference)
    names = ", ".join(resolvers()) or "none"
    broken = "".join(f", {name} (cannot be loaded: {why})" for name, why in unusable.items())
    hint = (
        f"pip install 'shoal[{_EXTRAS[scheme]}]'"
        if scheme in _EXTRAS
        else f"install a package with an entry point in the group {RESOLVER_GROUP}, or call register_resolver"
    )
    return FormatError(
        f"no resolver understands {'@' if scheme == '@' else scheme + '://'} references",
        expected=f"a path, a URL that a store serves, or a reference for a resolver; installed are {names}{broken}",
        found=repr(reference),
        hint=hint,
    )
