"""What ``split=`` may say: ``train``, ``train[:10%]``, ``train[5:]+test``, as Hugging Face writes it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from shoal.errors import OptionError
from shoal.shard import find_split

__all__ = ["SplitPart", "parse_split", "rows_of"]

_NUMBER = r"-?[0-9]+(?:_[0-9]+)*%?"
_PART = re.compile(
    r"(?P<split>[^\[\]()+]*[^\[\]()+\s])"
    rf"(?P<slice>\[(?P<start>{_NUMBER})?:(?P<stop>{_NUMBER})?\](?:\((?P<rounding>closest|pct1_dropremainder)\))?)?"
)


@dataclass(frozen=True, slots=True)
class SplitPart:
    """One split, or a slice of it."""

    split: str
    start: int | None = None
    stop: int | None = None
    percent: bool = False
    drop_remainder: bool = False
    """Whether a percent is the same number of samples everywhere, so that what is left at the end is in none."""

    @property
    def whole(self) -> bool:
        """Whether it is all of the split."""
        return self.start is None and self.stop is None


def parse_split(spec: str, present: Iterable[str]) -> tuple[SplitPart, ...]:
    """The parts that ``spec`` names of the splits there are. Raises FieldError, or OptionError when it makes no sense.

    Example:
        >>> parse_split("train[:10%]", ["train", "test"])
        (SplitPart(split='train', start=None, stop=10, percent=True, drop_remainder=False),)
    """
    names = list(present)
    if spec in names:  # whatever is in it
        return (SplitPart(spec),)
    if spec == "all" and names:
        return tuple(SplitPart(name) for name in names)
    return tuple(_part(text.strip(), spec, names) for text in spec.split("+"))


def _part(text: str, spec: str, names: list[str]) -> SplitPart:
    found = _PART.fullmatch(text)
    if found is None:
        raise OptionError(
            "a split cannot be read", expected="'train', 'train[:10%]', 'train[5:20]' or 'train+test'", found=repr(spec)
        )
    split = find_split(found["split"], names)
    bounds = [bound for bound in (found["start"], found["stop"]) if bound is not None]
    percents = [bound for bound in bounds if bound.endswith("%")]
    if len(percents) not in (0, len(bounds)):
        raise OptionError("a slice mixes percents and samples", expected="both with % or none", found=repr(spec))
    start, stop = (None if found[side] is None else int(found[side].rstrip("%")) for side in ("start", "stop"))
    if percents and any(abs(bound) > 100 for bound in (start, stop) if bound is not None):
        raise OptionError("a percent is outside the split", expected="-100% to 100%", found=repr(spec))
    if found["rounding"] is not None and not percents:
        raise OptionError("only percents are rounded", expected="% in the slice", found=repr(spec))
    return SplitPart(split, start, stop, bool(percents), found["rounding"] == "pct1_dropremainder")


def rows_of(part: SplitPart, length: int) -> range:
    """Which samples of a split of this length are meant; what lies outside is left out, as in a list's slice.

    Example:
        >>> rows_of(SplitPart("train", None, 10, percent=True), 25), rows_of(SplitPart("train", -5), 25)
        (range(0, 2), range(20, 25))
    """
    start = 0 if part.start is None else _bound(part.start, part, length)
    stop = length if part.stop is None else _bound(part.stop, part, length)
    return range(start, max(start, stop))


def _bound(bound: int, part: SplitPart, length: int) -> int:
    if part.percent and part.drop_remainder and length < 100:
        raise OptionError(
            "a split too short for pct1_dropremainder",
            expected="100 samples or more",
            found=length,
            hint="leave it out",
        )
    if part.percent:
        bound = length // 100 * bound if part.drop_remainder else round(bound * length / 100)
    return min(bound if bound >= 0 else max(length + bound, 0), length)
