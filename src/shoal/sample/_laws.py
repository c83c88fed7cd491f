"""The laws that make a lens a lens, checked on examples."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from shoal.errors import LensError
from shoal.sample._equal import same
from shoal.sample._lens import Lens

__all__ = ["BrokenLaw", "LawReport", "check_laws"]

S = TypeVar("S")
V = TypeVar("V")

Law = Literal["GetPut", "PutGet", "PutPut"]


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
