"""`Lens`: a typed view of one sample type as another, and the way back."""

from __future__ import annotations

import importlib
import operator
import sys
import types
import typing
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from shoal.errors import LensError
from shoal.sample._plan import plan_of
from shoal.sample._reads import attributes_read
from shoal.sample._record import is_record, schema_of
from shoal.schema import Schema, reading_problems

__all__ = ["Lens", "itself", "lens_of", "put_itself", "structural_lens"]

S = TypeVar("S")
V = TypeVar("V")
W = TypeVar("W")


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
