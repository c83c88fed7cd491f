"""Lenses: typed views of one sample type as another and back, their laws, and the network of registered lenses."""

from __future__ import annotations

import dis
import importlib
import operator
import sys
import threading
import types
import typing
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise
from typing import Any, Generic, Literal, TypeVar, overload

from shoal.errors import LensError, LensNotFoundError
from shoal.schema._compatibility import reading_problems
from shoal.schema._schema import Schema

from ._annotations import is_record, schema_of
from ._dict_sample import DictSample
from ._packable import same
from ._serializer import plan_of

__all__ = ["BrokenLaw", "LawReport", "Lens", "LensNetwork", "check_laws", "default_network", "lens", "structural_lens"]

S = TypeVar("S")
V = TypeVar("V")
W = TypeVar("W")
Law = Literal["GetPut", "PutGet", "PutPut"]
_ATTRIBUTES = ("LOAD_ATTR", "LOAD_METHOD")
_LOADS = ("LOAD_", "STORE_FAST_LOAD_FAST")
# Functions that read variables without an instruction that names them.
_SCOPE_FUNCTIONS = {"locals", "vars", "eval", "exec", "dir"}


class Lens(Generic[S, V]):
    """A view of samples of one type as another: ``get`` returns the view, ``put`` writes a changed view back.

    Made by the decorator `lens`, from functions with annotations, or with the types as arguments.

    Args:
        get: Function of a sample; returns the view.
        put: Function of a view and its sample; returns the sample with the content of the view.
        source: The sample type, if ``get`` has no annotation.
        view: The type of the view, if ``get`` has no annotation.

    Raises:
        LensError: The types are neither annotated nor given.

    Examples:
        >>> from shoal.sample import packable
        >>> @packable
        ... class Full:
        ...     label: str
        ...     score: float
        >>> @packable
        ... class Short:
        ...     label: str
        >>> shorten = Lens(lambda full: Short(full.label), source=Full, view=Short)
        >>> shorten(Full("cat", 0.5))
        Short(label='cat')
        >>> @shorten.putter
        ... def _(short: Short, full: Full) -> Full:
        ...     return Full(short.label, full.score)
        >>> shorten.put(Short("dog"), Full("cat", 0.5))
        Full(label='dog', score=0.5)
    """

    def __init__(
        self,
        get: Callable[[S], V],
        put: Callable[[V, S], S] | None = None,
        *,
        source: type[S] | None = None,
        view: type[V] | None = None,
    ) -> None:
        frame = sys._getframe(1)  # noqa: SLF001 - a function's own names may be in the annotations
        hinted = _annotated_types(get, frame) if source is None or view is None else (source, view)
        self.source_type: type[S] = hinted[0] if source is None else source
        self.view_type: type[V] = hinted[1] if view is None else view
        self.name: str = getattr(get, "__name__", type(get).__name__)
        self._get = get
        self._put = put
        self._reads: Callable[[Schema], frozenset[str] | None] = lambda schema: _attributes_read(get, schema)
        self._recipe: tuple[Callable[..., Any], tuple[Any, ...]] | None = None

    def get(self, source: S) -> V:
        """Return the view of a sample."""
        return self._get(source)

    def __call__(self, source: S) -> V:
        return self._get(source)

    @property
    def has_put(self) -> bool:
        """Whether the lens has a putter."""
        return self._put is not None

    def put(self, view: V, source: S) -> S:
        """Return the sample with the content of a changed view.

        Raises:
            LensError: The lens has no putter.
        """
        if self._put is None:
            hint = f"define one with @{self.name}.putter"
            raise LensError(f"the lens {self.name} has no putter, so views of it cannot be changed", hint=hint)
        return self._put(view, source)

    def putter(self, function: Callable[[V, S], S]) -> Callable[[V, S], S]:
        """Decorate the function that writes a view back.

        Raises:
            LensError: The lens has a putter already.
        """
        if self._put is not None:
            raise LensError(f"the lens {self.name} has a putter already")
        self._put = function
        return function

    def reads(self, schema: Schema | None = None) -> frozenset[str] | None:
        """Return the source fields that ``get`` may read, or None if they cannot be determined (assume all).

        They are determined from the function's code, without running it, so all branches count. A function that uses
        the sample in other ways than reading its fields, such as passing it on, gives None.

        Args:
            schema: The fields that samples have; those of the source type by default.
        """
        if schema is None:
            if not is_record(self.source_type):
                return None
            schema = schema_of(self.source_type)
        return self._reads(schema)

    @staticmethod
    def identity(kind: type[W]) -> Lens[W, W]:
        """Return the lens from a type to itself, which changes nothing."""
        identity: Lens[W, W] = Lens(_return_sample, _return_view, source=kind, view=kind)
        identity.name = f"identity({kind.__name__})"
        identity._recipe = Lens.identity, (kind,)
        return identity

    def __or__(self, after: Lens[V, W]) -> Lens[S, W]:
        """Compose with a lens that is applied after this one: ``(first | second)(s) == second(first(s))``."""
        if not _accepts(self.view_type, after.source_type):
            raise LensError(
                "these lenses do not follow each other",
                expected=f"a lens from {_format_type(self.view_type)}",
                found=f"{after.name}, from {_format_type(after.source_type)}",
            )
        first, second = self, after

        def put(view: W, source: S) -> S:
            return first.put(second.put(view, first.get(source)), source)

        composed: Lens[S, W] = Lens(
            lambda source: second.get(first.get(source)),
            put if first.has_put and second.has_put else None,
            source=first.source_type,
            view=second.view_type,
        )
        composed.name = f"{first.name} | {second.name}"
        composed._reads = second._reads if first._get is _return_sample else first._reads
        composed._recipe = operator.or_, (first, second)
        return composed

    def __matmul__(self, before: Lens[W, S]) -> Lens[W, V]:
        """Compose with a lens that is applied before this one: ``(second @ first)(s) == second(first(s))``."""
        return before | self

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """Pickle a lens by its module and name if it can be imported, otherwise by its parts."""
        location = getattr(self._get, "__module__", None), getattr(self._get, "__qualname__", None)
        if self._recipe is not None:
            return self._recipe
        if _is_importable_as(self, *location):
            return _import_lens, location
        return _rebuild_lens, (self._get, self._put, self.source_type, self.view_type, self.name)

    def __repr__(self) -> str:
        return f"<Lens {self.name}: {_format_type(self.source_type)} -> {_format_type(self.view_type)}>"


def _return_sample(sample: Any) -> Any:
    """Get of the identity lens."""
    return sample


def _return_view(view: Any, _source: Any) -> Any:
    """Put of the identity lens."""
    return view


def _import_lens(module: str, name: str) -> Any:
    """Return the lens that a module has under the name of the decorated function."""
    return operator.attrgetter(name)(importlib.import_module(module))


def _is_importable_as(lens: Lens[Any, Any], module: str | None, name: str | None) -> bool:
    try:
        return module in sys.modules and _import_lens(str(module), str(name)) is lens
    except AttributeError:  # defined in a function, or under another name
        return False


def _rebuild_lens(get: Any, put: Any, source: Any, view: Any, name: str) -> Lens[Any, Any]:
    lens: Lens[Any, Any] = Lens(get, put, source=source, view=view)
    lens.name = name
    return lens


def _accepts(view: Any, source: Any) -> bool:
    return view is source or (isinstance(view, type) and isinstance(source, type) and issubclass(view, source))


def _format_type(kind: Any) -> str:
    return getattr(kind, "__qualname__", str(kind))


def _annotated_types(get: Callable[..., Any], frame: types.FrameType | None) -> tuple[Any, Any]:
    """Return the types in a function's annotations, which may use names of enclosing functions."""
    hints = _resolve_hints(get, frame)
    parameters = [kind for name, kind in hints.items() if name != "return"]
    # For dict[str, Any] and other generic types, lenses are registered by the class.
    kinds = [typing.get_origin(kind) or kind for kind in (*parameters[:1], hints.get("return"))]
    if len(kinds) != 2 or not all(isinstance(kind, type) for kind in kinds):
        raise LensError(
            "a lens says what it takes and gives",
            expected="a function such as f(source: S) -> V",
            found=getattr(get, "__qualname__", repr(get)),
        )
    return kinds[0], kinds[1]


def _resolve_hints(function: Callable[..., Any], frame: types.FrameType | None) -> dict[str, Any]:
    names: dict[str, Any] = {}
    while frame is not None:
        try:
            return typing.get_type_hints(function, localns=names or None)
        except NameError as error:
            if error.name in names:
                raise LensError("a lens's annotation names what is not there", found=error.name) from error
        except TypeError:
            return {}
        names = {**frame.f_locals, **names}
        frame = frame.f_back
    raise LensError("a lens's annotation names what is not there", found=getattr(function, "__qualname__", function))


def structural_lens(source: type[S], view: type[V]) -> Lens[S, V]:
    """Return the lens that copies fields of the same name, for a view whose fields the source has with types that fit.

    Never used automatically, because fields of the same name may have different meanings.

    Raises:
        LensError: The source lacks a field of the view, or has it with another type.

    Examples:
        >>> from shoal.sample import packable
        >>> @packable
        ... class Full:
        ...     label: str
        ...     score: float
        >>> @packable
        ... class Short:
        ...     label: str
        >>> shorten = structural_lens(Full, Short)
        >>> shorten(Full("cat", 0.5)), shorten.put(Short("dog"), Full("cat", 0.5))
        (Short(label='cat'), Full(label='dog', score=0.5))
    """
    have, want = schema_of(source), schema_of(view)
    problems = reading_problems(have, want)
    if problems:
        problem = problems[0]
        raise LensError(
            f"{have.name} cannot be seen as {want.name}",
            expected=problem.expected,
            found=problem.found,
            field=problem.path,
        )
    return _projection(source, view, [name for name in want.names if name in have])


def _projection(source: type[S], view: type[V], shared: list[str]) -> Lens[S, V]:
    view_plan, source_plan = plan_of(view), plan_of(source)

    def get(sample: S) -> V:
        seen: V = view_plan.from_data({name: getattr(sample, name) for name in shared})
        return seen

    def put(seen: V, sample: S) -> S:
        values = {name: getattr(sample, name) for name in source_plan.schema.names}
        changed: S = source_plan.from_data({**values, **{name: getattr(seen, name) for name in shared}})
        return changed

    lens: Lens[S, V] = Lens(get, put, source=source, view=view)
    lens.name = f"structural({source.__name__}, {view.__name__})"
    lens._reads = lambda schema: frozenset(shared)  # noqa: SLF001
    lens._recipe = structural_lens, (source, view)  # noqa: SLF001
    return lens


@dataclass(frozen=True, slots=True)
class BrokenLaw:
    """One law that does not hold for one sample."""

    law: Law
    sample: int  # index of the sample that was checked
    expected: Any
    found: Any

    def __str__(self) -> str:
        return f"{self.law} for sample {self.sample}: expected {self.expected!r}, found {self.found!r}"


@dataclass(frozen=True, slots=True)
class LawReport:
    """Result of `check_laws`: the number of cases checked, and those that broke a law."""

    lens: str
    tried: int
    broken: tuple[BrokenLaw, ...]

    @property
    def ok(self) -> bool:
        """Whether no law is broken."""
        return not self.broken

    def require(self) -> None:
        """Raise LensError with the first broken law, if there is one."""
        if self.broken:
            raise LensError(
                f"the lens {self.lens} breaks {len(self.broken)} of {self.tried} cases", found=str(self.broken[0])
            )


def check_laws(lens: Lens[S, V], samples: Iterable[S], views: Iterable[V] = ()) -> LawReport:
    """Check the lens laws on samples.

    GetPut: ``put(get(s), s) == s``; writing an unchanged view changes nothing.
    PutGet: ``get(put(v, s)) == v``; the view that is written is read.
    PutPut: ``put(v2, put(v1, s)) == put(v2, s)``; the last view that is written wins.

    The views that are written are those of the samples, and ``views``. Arrays are compared by dtype, shape and bytes.

    Raises:
        LensError: The lens has no putter, or there are no samples, so that nothing could be checked.

    Examples:
        >>> from shoal.sample import packable, structural_lens
        >>> @packable
        ... class Full:
        ...     label: str
        ...     score: float
        >>> @packable
        ... class Short:
        ...     label: str
        >>> check_laws(structural_lens(Full, Short), [Full("cat", 0.5), Full("dog", 0.25)]).ok
        True
    """
    sources = list(samples)
    if not lens.has_put or not sources:
        raise LensError("there is nothing to check", expected="a lens with a putter, and samples", found=repr(lens))
    all_views = [*map(lens.get, sources), *views]
    broken: list[BrokenLaw] = []
    tried = 0
    for number, source in enumerate(sources):
        # All pairs of samples and views would be quadratic, so only three of the samples' views are used for each.
        next_view = all_views[(number + 1) % len(all_views)]
        some_views = [all_views[number], next_view, all_views[number - 1], *all_views[len(sources) :]]
        for law, expected, actual in _law_cases(lens, source, some_views):
            tried += 1
            if not same(expected, actual):
                broken.append(BrokenLaw(law, number, expected, actual))
    return LawReport(lens.name, tried, tuple(broken))


def _law_cases(lens: Lens[Any, Any], source: Any, views: list[Any]) -> Iterator[tuple[Law, Any, Any]]:
    yield "GetPut", source, lens.put(lens.get(source), source)
    for number, view in enumerate(views):
        changed = lens.put(view, source)
        other = views[number - 1]
        yield "PutGet", view, lens.get(changed)
        yield "PutPut", lens.put(other, source), lens.put(other, changed)


class _UnknownError(Exception):
    """The argument is used in a way that does not show which fields are read."""


def _attributes_read(function: Callable[..., Any], schema: Schema) -> frozenset[str] | None:
    """Return the fields of ``schema`` that a function reads from its first argument, or None if unknown."""
    if not isinstance(function, types.FunctionType) or function.__code__.co_argcount < 1:
        return None
    code = function.__code__
    try:
        read = frozenset(_iter_attributes(code, code.co_varnames[0]))
    except _UnknownError:
        return None
    # A method or a property may read other fields.
    return read if all(name in schema for name in read) else None


def _iter_attributes(code: types.CodeType, name: str) -> Iterator[str]:
    if _SCOPE_FUNCTIONS & set(code.co_names):
        raise _UnknownError
    steps = [step for step in dis.get_instructions(code) if step.opname not in ("EXTENDED_ARG", "CACHE")]
    for step, following in pairwise([*steps, None]):
        if step is None or not _uses_variable(step, name):
            continue
        if step.opname in ("LOAD_CLOSURE", "MAKE_CELL", "COPY_FREE_VARS") or _makes_closure(step, code, name):
            continue  # the inner functions that use it are examined below
        if following is None or not _reads_attribute(step, following, name):
            raise _UnknownError
        yield following.argval
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType) and name in inner.co_freevars:
            yield from _iter_attributes(inner, name)


def _uses_variable(step: dis.Instruction, name: str) -> bool:
    """Whether an instruction loads or stores the variable; since Python 3.13 one may do so with two variables."""
    if not any(word in step.opname for word in ("FAST", "DEREF", "CLOSURE", "CELL")):
        return False
    return name in step.argval if isinstance(step.argval, tuple) else name == step.argval


def _makes_closure(step: dis.Instruction, code: types.CodeType, name: str) -> bool:
    # Since Python 3.13 a cell is loaded as a fast variable to build a closure; its content is loaded with DEREF.
    return name in (*code.co_cellvars, *code.co_freevars) and step.opname.startswith("LOAD_FAST")


def _reads_attribute(step: dis.Instruction, following: dis.Instruction, name: str) -> bool:
    if not step.opname.startswith(_LOADS) or following.opname not in _ATTRIBUTES:
        return False
    # If an instruction names two variables, the attribute of the second is read.
    return step.argval[-1] == name and step.argval[0] != name if isinstance(step.argval, tuple) else True


class LensNetwork:
    """Registered lenses, and paths over several of them.

    There is at most one lens between two types. A lens from a class also applies to its subclasses.

    Examples:
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
        """Register a lens.

        A function that is defined again, as when a notebook cell is run twice, replaces itself.

        Raises:
            LensError: Another lens is registered between the two types, and ``replace`` is false.
        """
        pair = (lens.source_type, lens.view_type)
        with self._lock:
            former = self._lenses.get(pair)
            if former is not None and not replace and _definition(former) != _definition(lens):
                raise LensError(
                    "there is a lens between these types already", found=repr(former), hint="pass replace=True"
                )
            self._lenses[pair] = lens
        return lens

    def lenses(self) -> tuple[Lens[Any, Any], ...]:
        """Return all lenses in the order of their registration."""
        return tuple(self._lenses.values())

    def find(self, source: type[S], view: type[V]) -> Lens[S, V]:
        """Return the lens from one type to another: a registered one, or the shortest path over several.

        No registered lens is needed from a type to itself or to a class that it inherits from, and from `DictSample` to
        any packable class.

        Raises:
            LensNotFoundError: No path exists; the message lists the registered lenses.
            LensError: Several paths have the shortest length; the message lists them.
        """
        if source is view:
            return Lens(_return_sample, _return_view, source=source, view=view)
        paths = self._shortest_paths(source, view)
        if len(paths) > 1:
            shown = "; ".join(" | ".join(lens.name for lens in path) for path in paths)
            raise LensError(
                f"several ways lead from {_format_type(source)} to {_format_type(view)}",
                expected="one shortest way",
                found=shown,
                hint="register a lens between the two, or compose the one you mean",
            )
        if paths:
            return reduce(operator.or_, paths[0])
        return self._without_lens(source, view)

    def __repr__(self) -> str:
        return f"<LensNetwork of {len(self._lenses)}: {', '.join(lens.name for lens in self.lenses()) or 'no lenses'}>"

    def _without_lens(self, source: type[S], view: type[V]) -> Lens[S, V]:
        if issubclass(source, view):
            subclass: type[Any] = source  # without a put: an instance of the base is not one of the subclass
            return Lens(_return_sample, source=subclass, view=view)
        if issubclass(source, DictSample) and is_record(view):
            return _as_class(source, view)
        known = ", ".join(map(repr, self.lenses())) or "none"
        raise LensNotFoundError(
            f"no lens leads from {_format_type(source)} to {_format_type(view)}",
            found=f"registered: {known}",
            hint=self._twin_hint(source)
            or "define one with @shoal.lens, or copy fields by name: as_type(V, lens=structural_lens(S, V))",
        )

    def _twin_hint(self, source: type) -> str | None:
        """Return a hint if a lens takes a class with the same fields: the class was then made from the schema."""
        if not is_record(source):
            return None
        kinds = [lens.source_type for lens in self.lenses() if is_record(lens.source_type)]
        if source in kinds:
            return None
        twin = next((kind for kind in kinds if schema_of(kind).fields == schema_of(source).fields), None)
        name = _format_type(twin)
        return (
            None if twin is None else f"lenses know {name}, which has the same fields: open the data as Dataset[{name}]"
        )

    def _shortest_paths(self, source: Any, view: Any) -> list[list[Lens[Any, Any]]]:
        """Return all paths with the smallest number of lenses, by breadth-first search."""
        seen = {source}
        level: list[tuple[Any, list[Lens[Any, Any]]]] = [(source, [])]
        while level:
            extended = [(lens.view_type, [*path, lens]) for kind, path in level for lens in self._lenses_from(kind)]
            complete = [path for kind, path in extended if kind is view]
            if complete:
                return complete
            level = [(kind, path) for kind, path in extended if kind not in seen]
            seen |= {kind for kind, _ in level}
        return []

    def _lenses_from(self, kind: Any) -> Iterator[Lens[Any, Any]]:
        """Yield the lenses that take a type: for each view, that of the class itself before those of its bases."""
        bases = kind.__mro__ if isinstance(kind, type) else (kind,)
        lenses = self.lenses()
        views: set[Any] = set()
        for base in bases:
            for lens in lenses:
                if lens.source_type is base and lens.view_type not in views:
                    views.add(lens.view_type)
                    yield lens


def _as_class(source: type[S], view: type[V]) -> Lens[S, V]:
    """Return the lens that reads data without a class as a class, field by field."""
    read: Any = plan_of(view).from_data
    lens: Lens[S, V] = Lens(read, source=source, view=view)
    lens._recipe = _as_class, (source, view)  # noqa: SLF001
    return lens


def _definition(lens: Lens[Any, Any]) -> object:
    """Return the module and name of a lens's function, or the lens itself if it has none."""
    get = lens._get  # noqa: SLF001
    location = (getattr(get, "__module__", None), getattr(get, "__qualname__", None))
    return lens if None in location or "<lambda>" in str(location[1]) else location


_default_network = LensNetwork()


def default_network() -> LensNetwork:
    """Return the network that `lens` registers in, and that datasets use.

    Examples:
        >>> default_network() is default_network()
        True
    """
    return _default_network


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
        get: The function, if the decorator is used without options.
        network: The network to register it in; the default network if None.
        replace: Whether to replace another lens between the two types.
        register: Whether to register it.

    Raises:
        LensError: The types are not annotated, or another lens is registered between them.

    Examples:
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
        source, view = _annotated_types(get, frame)
        new_lens: Lens[Any, Any] = Lens(get, source=source, view=view)
        if register:
            (network or _default_network).register(new_lens, replace=replace)
        return new_lens

    return decorate if get is None else decorate(get)
