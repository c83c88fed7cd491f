"""`Lens`, the laws of lenses, and the network of registered lenses."""

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
from shoal.schema import Schema, reading_problems

from ._annotations import is_record, schema_of
from ._dict_sample import DictSample
from ._packable import same
from ._serializer import plan_of

__all__ = ["BrokenLaw", "LawReport", "Lens", "LensNetwork", "check_laws", "default_network", "lens", "structural_lens"]

S = TypeVar("S")
V = TypeVar("V")
W = TypeVar("W")
Law = Literal["GetPut", "PutGet", "PutPut"]


# --------------------------------------------------- lens: a typed view of one sample type as another, and the way back


class Lens(Generic[S, V]):
    """A view of samples of one type as another: ``get`` makes the view, ``put`` takes a changed view back.

    Made by the decorator `lens`, or from functions whose annotations say the types, or with the types given.

    Args:
        get: A function of one sample.
        put: A function of a view and the sample it is a view of; gives the sample with the view's content.
        source: The sample type, where ``get`` has no annotation.
        view: The type of the view, where ``get`` has no annotation.

    Raises:
        LensError: The types are not known.

    Example:
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
        hinted = _types_of(get, frame) if source is None or view is None else (source, view)
        self.source_type: type[S] = hinted[0] if source is None else source
        self.view_type: type[V] = hinted[1] if view is None else view
        self.name: str = getattr(get, "__name__", type(get).__name__)
        self._get = get
        self._put = put
        self._reads: Callable[[Schema], frozenset[str] | None] = lambda schema: attributes_read(get, schema)
        self._recipe: tuple[Callable[..., Any], tuple[Any, ...]] | None = None

    def get(self, source: S) -> V:
        """The view of a sample."""
        return self._get(source)

    def __call__(self, source: S) -> V:
        return self._get(source)

    @property
    def has_put(self) -> bool:
        """Whether a changed view can be taken back."""
        return self._put is not None

    def put(self, view: V, source: S) -> S:
        """The sample with the content of a changed view.

        Raises:
            LensError: The lens has no putter.
        """
        if self._put is None:
            hint = f"define one with @{self.name}.putter"
            raise LensError(f"the lens {self.name} has no putter, so views of it cannot be changed", hint=hint)
        return self._put(view, source)

    def putter(self, function: Callable[[V, S], S]) -> Callable[[V, S], S]:
        """Decorate the function that takes a view back.

        Raises:
            LensError: The lens has a putter already.
        """
        if self._put is not None:
            raise LensError(f"the lens {self.name} has a putter already")
        self._put = function
        return function

    def reads(self, schema: Schema | None = None) -> frozenset[str] | None:
        """The source fields that ``get`` looks at, or None where that cannot be known (then: all).

        Found in the function's code, without running it, so all branches count. A function that does more with the
        sample than read its fields, such as pass it on, gives None.

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
        """The lens that shows samples as they are."""
        made: Lens[W, W] = Lens(itself, put_itself, source=kind, view=kind)
        made.name = f"identity({kind.__name__})"
        made._recipe = Lens.identity, (kind,)
        return made

    def __or__(self, after: Lens[V, W]) -> Lens[S, W]:
        """This lens, then another: ``(one | two)(s) == two(one(s))``."""
        if not _follows(self.view_type, after.source_type):
            raise LensError(
                "these lenses do not follow each other",
                expected=f"a lens from {_shown(self.view_type)}",
                found=f"{after.name}, from {_shown(after.source_type)}",
            )
        first, second = self, after

        def put(view: W, source: S) -> S:
            return first.put(second.put(view, first.get(source)), source)

        whole: Lens[S, W] = Lens(
            lambda source: second.get(first.get(source)),
            put if first.has_put and second.has_put else None,
            source=first.source_type,
            view=second.view_type,
        )
        whole.name = f"{first.name} | {second.name}"
        whole._reads = second._reads if first._get is itself else first._reads
        whole._recipe = operator.or_, (first, second)
        return whole

    def __matmul__(self, before: Lens[W, S]) -> Lens[W, V]:
        """This lens, after another: ``(two @ one)(s) == two(one(s))``."""
        return before | self

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """How another process gets it: from its module, or made of its parts again."""
        place = getattr(self._get, "__module__", None), getattr(self._get, "__qualname__", None)
        if self._recipe is not None:
            return self._recipe
        if _is_at(self, *place):
            return _lens_at, place
        return _remade, (self._get, self._put, self.source_type, self.view_type, self.name)

    def __repr__(self) -> str:
        return f"<Lens {self.name}: {_shown(self.source_type)} -> {_shown(self.view_type)}>"


def itself(sample: Any) -> Any:
    """What the lens that changes nothing gives."""
    return sample


def put_itself(view: Any, _source: Any) -> Any:
    """The way back of `itself`."""
    return view


def _lens_at(module: str, name: str) -> Any:
    """What a module calls so: the name of a decorated function is its lens's there."""
    return operator.attrgetter(name)(importlib.import_module(module))


def _is_at(lens: Lens[Any, Any], module: str | None, name: str | None) -> bool:
    try:
        return module in sys.modules and _lens_at(str(module), str(name)) is lens
    except AttributeError:  # it is within a function, or nowhere
        return False


def _remade(get: Any, put: Any, source: Any, view: Any, name: str) -> Lens[Any, Any]:
    made: Lens[Any, Any] = Lens(get, put, source=source, view=view)
    made.name = name
    return made


def _follows(view: Any, source: Any) -> bool:
    return view is source or (isinstance(view, type) and isinstance(source, type) and issubclass(view, source))


def _shown(kind: Any) -> str:
    return getattr(kind, "__qualname__", str(kind))


def _types_of(get: Callable[..., Any], frame: types.FrameType | None) -> tuple[Any, Any]:
    """The types in a function's annotations, its enclosing functions' names included."""
    hints = _hints(get, frame)
    parameters = [kind for name, kind in hints.items() if name != "return"]
    # Of dict[str, Any], say, the class is what samples are looked up by.
    kinds = [typing.get_origin(kind) or kind for kind in (*parameters[:1], hints.get("return"))]
    if len(kinds) != 2 or not all(isinstance(kind, type) for kind in kinds):
        raise LensError(
            "a lens says what it takes and gives",
            expected="a function such as f(source: S) -> V",
            found=getattr(get, "__qualname__", repr(get)),
        )
    return kinds[0], kinds[1]


def _hints(function: Callable[..., Any], frame: types.FrameType | None) -> dict[str, Any]:
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


def lens_of(get: Callable[[S], V], frame: types.FrameType) -> Lens[S, V]:
    """The lens of an annotated function; ``frame`` is where its annotations' names are looked up."""
    source, view = _types_of(get, frame)
    return Lens(get, source=source, view=view)


def structural_lens(source: type[S], view: type[V]) -> Lens[S, V]:
    """The lens that copies fields of the same name, for a view whose fields the source has, with types that fit.

    Never found by itself: a name in common is not a meaning in common.

    Raises:
        LensError: The view needs a field that the source lacks, or has with another type.

    Example:
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

    made: Lens[S, V] = Lens(get, put, source=source, view=view)
    made.name = f"structural({source.__name__}, {view.__name__})"
    made._reads = lambda schema: frozenset(shared)  # noqa: SLF001
    made._recipe = structural_lens, (source, view)  # noqa: SLF001
    return made


# ---------------------------------------------------------------- the laws that make a lens a lens, checked on examples


@dataclass(frozen=True, slots=True)
class BrokenLaw:
    """One law that does not hold for one sample."""

    law: Law
    sample: int  # its number among those given
    expected: Any
    found: Any

    def __str__(self) -> str:
        return f"{self.law} for sample {self.sample}: expected {self.expected!r}, found {self.found!r}"


@dataclass(frozen=True, slots=True)
class LawReport:
    """What `check_laws` found: how many cases were tried, and which broke a law."""

    lens: str
    tried: int
    broken: tuple[BrokenLaw, ...]

    @property
    def ok(self) -> bool:
        """Whether every law held."""
        return not self.broken

    def require(self) -> None:
        """Raise LensError with the first broken law, where there is one."""
        if self.broken:
            raise LensError(
                f"the lens {self.lens} breaks {len(self.broken)} of {self.tried} cases", found=str(self.broken[0])
            )


def check_laws(lens: Lens[S, V], samples: Iterable[S], views: Iterable[V] = ()) -> LawReport:
    """Check on samples that views can be taken, changed and put back without surprises.

    GetPut: ``put(get(s), s) == s``; putting back what was seen changes nothing.
    PutGet: ``get(put(v, s)) == v``; what is put is what is seen.
    PutPut: ``put(v2, put(v1, s)) == put(v2, s)``; the last view wins.

    The views that are put are those of all the samples, and ``views``. Arrays are compared by dtype, shape and bytes.

    Raises:
        LensError: The lens has no putter, or there are no samples: nothing would be checked.

    Example:
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
    shown = [*map(lens.get, sources), *views]
    broken: list[BrokenLaw] = []
    tried = 0
    for number, source in enumerate(sources):
        # Each sample with every view would be quadratic: with its own, its neighbours', and those given.
        near = [shown[number], shown[(number + 1) % len(shown)], shown[number - 1], *shown[len(sources) :]]
        for law, expected, found in _cases(lens, source, near):
            tried += 1
            if not same(expected, found):
                broken.append(BrokenLaw(law, number, expected, found))
    return LawReport(lens.name, tried, tuple(broken))


def _cases(lens: Lens[Any, Any], source: Any, views: list[Any]) -> Iterator[tuple[Law, Any, Any]]:
    yield "GetPut", source, lens.put(lens.get(source), source)
    for number, view in enumerate(views):
        changed = lens.put(view, source)
        other = views[number - 1]
        yield "PutGet", view, lens.get(changed)
        yield "PutPut", lens.put(other, source), lens.put(other, changed)


# ----------------------------------------------------- which attributes of its argument a function reads, from its code


_ATTRIBUTES = ("LOAD_ATTR", "LOAD_METHOD")
_LOADS = ("LOAD_", "STORE_FAST_LOAD_FAST")
# With these a function gets at its variables behind the back of its code.
_ESCAPES = {"locals", "vars", "eval", "exec", "dir"}


class _UnknownError(Exception):
    """The argument is used in a way that says nothing about what is read of it."""


def attributes_read(function: Callable[..., Any], schema: Schema) -> frozenset[str] | None:
    """The fields of ``schema`` that a function reads of its first argument; None where that cannot be known."""
    if not isinstance(function, types.FunctionType) or function.__code__.co_argcount < 1:
        return None
    code = function.__code__
    try:
        read = frozenset(_attributes(code, code.co_varnames[0]))
    except _UnknownError:
        return None
    # A method, or a property, may read anything.
    return read if all(name in schema for name in read) else None


def _attributes(code: types.CodeType, name: str) -> Iterator[str]:
    if _ESCAPES & set(code.co_names):
        raise _UnknownError
    steps = [step for step in dis.get_instructions(code) if step.opname not in ("EXTENDED_ARG", "CACHE")]
    for step, following in pairwise([*steps, None]):
        if step is None or not _touches(step, name):
            continue
        if step.opname in ("LOAD_CLOSURE", "MAKE_CELL", "COPY_FREE_VARS") or _makes_closure(step, code, name):
            continue  # the inner functions that get it are looked into below
        if following is None or not _is_read(step, following, name):
            raise _UnknownError
        yield following.argval
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType) and name in inner.co_freevars:
            yield from _attributes(inner, name)


def _touches(step: dis.Instruction, name: str) -> bool:
    """Whether an instruction loads or stores the variable; since Python 3.13 one may do so with two variables."""
    if not any(word in step.opname for word in ("FAST", "DEREF", "CLOSURE", "CELL")):
        return False
    return name in step.argval if isinstance(step.argval, tuple) else name == step.argval


def _makes_closure(step: dis.Instruction, code: types.CodeType, name: str) -> bool:
    # Since Python 3.13 a cell is loaded as a fast variable to build a closure; its content is loaded with DEREF.
    return name in (*code.co_cellvars, *code.co_freevars) and step.opname.startswith("LOAD_FAST")


def _is_read(step: dis.Instruction, following: dis.Instruction, name: str) -> bool:
    if not step.opname.startswith(_LOADS) or following.opname not in _ATTRIBUTES:
        return False
    # Of two variables in one instruction, the second is the one whose attribute is read.
    return step.argval[-1] == name and step.argval[0] != name if isinstance(step.argval, tuple) else True


# -------------------------------------------------------------------------------- lenses by the types they lead between


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
