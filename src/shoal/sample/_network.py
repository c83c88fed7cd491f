"""Lenses by the types they lead between: registering them, and finding a way over several."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from functools import reduce
from typing import Any, TypeVar, overload

from shoal.errors import LensError, LensNotFoundError
from shoal.sample._dict_sample import DictSample
from shoal.sample._lens import Lens, itself, lens_of, put_itself
from shoal.sample._plan import plan_of
from shoal.sample._record import is_record, schema_of

__all__ = ["LensNetwork", "default_network", "lens"]

S = TypeVar("S")
V = TypeVar("V")


class LensNetwork:
    """The lenses that are known, and the ways over them.

    Between two types there is at most one lens. A lens from a class also serves its subclasses.

    Example:
        >>> network = LensNetwork()
        >>> network.register(Lens(str, source=int, view=str))
        <Lens str: int -> str>
        >>> network.find(int, str)(7)
        '7'
    """

    def __init__(self) -> None:
        self._lenses: dict[tuple[Any, Any], Lens[Any, Any]] = {}
        self._lock = threading.Lock()

    def register(self, lens: Lens[S, V], *, replace: bool = False) -> Lens[S, V]:
        """Make a lens known.

        The same function, defined again, as when a notebook's cell is run twice, takes its own place.

        Raises:
            LensError: There is another lens between the two types, and ``replace`` is false.
        """
        pair = (lens.source_type, lens.view_type)
        with self._lock:
            former = self._lenses.get(pair)
            if former is not None and not replace and _origin(former) != _origin(lens):
                raise LensError(
                    "there is a lens between these types already", found=repr(former), hint="pass replace=True"
                )
            self._lenses[pair] = lens
        return lens

    def lenses(self) -> tuple[Lens[Any, Any], ...]:
        """All that are known, in the order they were registered."""
        return tuple(self._lenses.values())

    def find(self, source: type[S], view: type[V]) -> Lens[S, V]:
        """The lens from one type to another: a registered one, or the shortest way over several.

        A type is seen as itself, or as a class it inherits from, without any lens, and a `DictSample` as any packable
        class, unless a lens says otherwise.

        Raises:
            LensNotFoundError: No way leads there; the message lists the registered lenses.
            LensError: Several ways are equally short; the message lists them.
        """
        if source is view:
            return Lens(itself, put_itself, source=source, view=view)
        ways = self._shortest(source, view)
        if len(ways) > 1:
            shown = "; ".join(" | ".join(lens.name for lens in way) for way in ways)
            raise LensError(
                f"several ways lead from {_shown(source)} to {_shown(view)}",
                expected="one shortest way",
                found=shown,
                hint="register a lens between the two, or compose the one you mean",
            )
        if ways:
            return reduce(lambda one, two: one | two, ways[0])
        return self._without_lens(source, view)

    def __repr__(self) -> str:
        return f"<LensNetwork of {len(self._lenses)}: {', '.join(lens.name for lens in self.lenses()) or 'no lenses'}>"

    def _without_lens(self, source: type[S], view: type[V]) -> Lens[S, V]:
        if issubclass(source, view):
            upward: type[Any] = source  # without a put: a base's sample is not one of the subclass
            return Lens(itself, source=upward, view=view)
        if issubclass(source, DictSample) and is_record(view):
            return _as_class(source, view)
        known = ", ".join(map(repr, self.lenses())) or "none"
        raise LensNotFoundError(
            f"no lens leads from {_shown(source)} to {_shown(view)}",
            found=f"registered: {known}",
            hint=self._twin_hint(source)
            or "define one with @shoal.lens, or copy fields by name: as_type(V, lens=structural_lens(S, V))",
        )

    def _twin_hint(self, source: type) -> str | None:
        """Data opened without a type has a class made from its schema: alike, but not the one that lenses know."""
        if not is_record(source):
            return None
        kinds = [lens.source_type for lens in self.lenses() if is_record(lens.source_type)]
        if source in kinds:  # it is the one that lenses know
            return None
        twin = next((kind for kind in kinds if schema_of(kind).fields == schema_of(source).fields), None)
        name = _shown(twin)
        return (
            None if twin is None else f"lenses know {name}, which has the same fields: open the data as Dataset[{name}]"
        )

    def _shortest(self, source: Any, view: Any) -> list[list[Lens[Any, Any]]]:
        """All ways of the smallest number of lenses, found level by level."""
        seen = {source}
        level: list[tuple[Any, list[Lens[Any, Any]]]] = [(source, [])]
        while level:
            onward = [(lens.view_type, [*way, lens]) for kind, way in level for lens in self._from(kind)]
            arrived = [way for kind, way in onward if kind is view]
            if arrived:
                return arrived
            level = [(kind, way) for kind, way in onward if kind not in seen]
            seen |= {kind for kind, _ in level}
        return []

    def _from(self, kind: Any) -> Iterator[Lens[Any, Any]]:
        """The lenses that take a type: for each view, that of the class itself before those of its bases."""
        bases = kind.__mro__ if isinstance(kind, type) else (kind,)
        known = self.lenses()
        taken: set[Any] = set()
        for base in bases:
            for lens in known:
                if lens.source_type is base and lens.view_type not in taken:
                    taken.add(lens.view_type)
                    yield lens


def _as_class(source: type[S], view: type[V]) -> Lens[S, V]:
    """Data without a class as a class of the user's, field by field."""
    read: Any = plan_of(view).from_data
    made: Lens[S, V] = Lens(read, source=source, view=view)
    made._recipe = _as_class, (source, view)  # noqa: SLF001 - one package
    return made


def _origin(lens: Lens[Any, Any]) -> object:
    get = lens._get  # noqa: SLF001 - one package
    place = (getattr(get, "__module__", None), getattr(get, "__qualname__", None))
    return lens if None in place or "<lambda>" in str(place[1]) else place


def _shown(kind: Any) -> str:
    return getattr(kind, "__qualname__", str(kind))


_default = LensNetwork()


def default_network() -> LensNetwork:
    """The network that `lens` registers in and datasets look in.

    Example:
        >>> default_network() is default_network()
        True
    """
    return _default


@overload
def lens(get: Callable[[S], V], /) -> Lens[S, V]: ...
@overload
def lens(
    *, network: LensNetwork | None = ..., replace: bool = ..., register: bool = ...
) -> Callable[[Callable[[S], V]], Lens[S, V]]: ...
def lens(
    get: Callable[[Any], Any] | None = None,
    /,
    *,
    network: LensNetwork | None = None,
    replace: bool = False,
    register: bool = True,
) -> Any:
    """Make a lens of an annotated function ``S -> V``, and register it.

    Args:
        get: The function, where no options are given.
        network: Where to register it; the default network where left out.
        replace: Take the place of another lens between the two types.
        register: Whether to register it at all.

    Raises:
        LensError: The annotations do not say the types, or there is another lens between them.

    Example:
        >>> from shoal.sample import packable
        >>> @packable
        ... class Full:
        ...     label: str
        ...     score: float
        >>> @packable
        ... class Short:
        ...     label: str
        >>> @lens(register=False)
        ... def shorten(full: Full) -> Short:
        ...     return Short(full.label)
        >>> shorten(Full("cat", 0.5)), shorten.reads()
        (Short(label='cat'), frozenset({'label'}))
    """
    frame = sys._getframe(1)  # noqa: SLF001 - where the names in the annotations are

    def decorate(get: Callable[[Any], Any]) -> Lens[Any, Any]:
        made: Lens[Any, Any] = lens_of(get, frame)
        if register:
            (network or _default).register(made, replace=replace)
        return made

    return decorate if get is None else decorate(get)
