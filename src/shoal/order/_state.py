"""How far a run has come, as a value that is saved and loaded (`State`), and orders from JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from shoal.errors import LoaderStateError, OptionError

from ._block_shuffle import BlockShuffle
from ._epoch_plan import EpochPlan, Split, Tail, plan_epoch
from ._orders import GlobalShuffle, Order, Sequential, WithReplacement, fingerprint_of

__all__ = ["PartitionState", "PendingElement", "State", "order_from_json"]

PendingElement = tuple[int, int, int]
"""A value that was read and is in no element yet: the sample's position on the infinite line, the number of the value
among those made from the sample, and how much of it (tokens) is consumed already."""
VERSION = 1
_ABSENT = "(none)"
_DIGESTS = {
    "data": "the data differs (other samples, or other shards)",
    "view": "the selected samples, or their order, differ",
    "fields": "fields differs",
    "decode": "decode differs",
    "type": "sample_type differs",
}
"""What to say of settings that a state has only digests of."""
_ORDERS_BY_NAME: dict[str, Callable[..., Order]] = {
    "sequential": Sequential,
    "global": GlobalShuffle,
    "block": BlockShuffle,
    "replacement": WithReplacement,
}


@dataclass(frozen=True, slots=True)
class PartitionState:
    """The state of one partition, for stages whose number of results is not known: a filter, packing, bucketing.

    Position ``p`` of an epoch is of partition ``p mod of``. All samples before ``position``, counted on the infinite
    line, are consumed, and so are ``part`` of the values made from the sample there. ``pending`` values went into a
    stage and have not come out: they are read again on resuming, in the groups they were in.
    """

    index: int
    of: int
    position: int
    part: int = 0
    pending: tuple[tuple[PendingElement, ...], ...] = ()

    def to_list(self) -> list[Any]:
        """As plain values."""
        return [self.index, self.of, self.position, self.part, [[list(key) for key in group] for group in self.pending]]


@dataclass(frozen=True, slots=True)
class State:
    """How far all ranks together have come in an epoch. One rank's state is every rank's.

    ``position`` counts what was consumed, not what was read ahead. ``settings`` are those that fix the order,
    readable, so that a state which belongs to another order can say what differs. ``end`` and ``global_batch`` keep
    an epoch that goes on elsewhere ending where it would have ended here.

    Examples:
        >>> from shoal.order import GlobalShuffle
        >>> state = State(GlobalShuffle(1000, seed=1).to_json(), epoch=2, position=640, end=1000, global_batch=64)
        >>> State.from_dict(state.to_dict()) == state
        True
        >>> state.check_fingerprint(GlobalShuffle(1000, seed=2).to_json())
        Traceback (most recent call last):
        ...
        shoal.errors.LoaderStateError: the loader state does not match: seed is 2 here but 1 in the state; ...
    """

    settings: Mapping[str, Any]
    epoch: int = 0
    position: int = 0
    start: int = 0
    """Where the epoch began: 0, unless the one before carried its last batch into it."""
    end: int | None = None
    """Where it ends, if it has begun."""
    global_batch: int | None = None
    """How many samples all ranks took in a step when ``end`` was fixed."""
    steps: int = 0
    """How many elements this epoch has given to each rank."""
    shares: tuple[PartitionState, ...] = field(default=())
    """For stages of unknown yield, how far each share of the line has come; empty where ``position`` says it all."""
    drawn: str = ""
    """Checksum of what a sampler of the user has drawn up to ``position``."""
    generation: str = ""
    """Of data that others may change, the committed state that was read; it may be opened again to finish the epoch."""
    first_epoch: int = 0
    """Where several epochs make one iteration, the one that it began with; any that is as many epochs away will do."""

    def __post_init__(self) -> None:
        for name in ("epoch", "position", "start", "steps", "first_epoch"):
            _check_counter(name, getattr(self, name))
        for name in ("end", "global_batch"):
            if getattr(self, name) is not None:
                _check_counter(name, getattr(self, name))

    @property
    def fingerprint(self) -> str:
        """The short name of the settings."""
        return fingerprint_of(self.settings)

    @property
    def seed(self) -> int | None:
        """The seed, where the order has one."""
        return self.settings.get("seed")

    def to_dict(self) -> dict[str, Any]:
        """The state as plain values, ready for JSON: some 200 bytes where stages keep nothing."""
        document: dict[str, Any] = {
            "version": VERSION,
            "fingerprint": self.fingerprint,
            "settings": dict(self.settings),
            "epoch": self.epoch,
            "position": self.position,
            "start": self.start,
            "end": self.end,
            "global_batch": self.global_batch,
            "steps": self.steps,
        }
        if self.shares:
            document["shares"] = [share.to_list() for share in self.shares]
        if self.drawn:
            document["drawn"] = self.drawn
        if self.generation:
            document["generation"] = self.generation
        if self.first_epoch:
            document["first_epoch"] = self.first_epoch
        return document

    @classmethod
    def from_dict(cls, document: Any) -> State:
        """The state that ``to_dict`` wrote.

        Raises:
            LoaderStateError: it is not one, is of a newer version, or was changed.
        """
        if not isinstance(document, Mapping) or not isinstance(document.get("settings"), Mapping):
            raise LoaderStateError(
                "this is not a state", expected="what state_dict() or to_dict() gave", found=type(document).__name__
            )
        if document.get("version") != VERSION:
            raise LoaderStateError(
                "this version of a state is not known", expected=VERSION, found=document.get("version")
            )
        known = {each.name for each in fields(cls)} - {"shares"}
        shares = _parse_shares(document.get("shares", ()))
        state = cls(**{name: document[name] for name in known & set(document)}, shares=shares)
        if state.fingerprint != document.get("fingerprint"):
            raise LoaderStateError(
                "the state was changed after it was saved",
                expected=f"fingerprint {state.fingerprint}",
                found=document.get("fingerprint"),
            )
        return state

    @classmethod
    def merge(cls, states: Iterable[State]) -> State:
        """One state from those of all ranks: of each share, the state of the rank that reads it.

        Raises:
            LoaderStateError: there is none, or they do not stand at the same place.
        """
        every = list(states)
        if not every:
            raise LoaderStateError("there is no state to merge", expected="one for each rank", found="none")
        shares: dict[tuple[int, int], PartitionState] = {}
        for state in every:
            _check_same_position(every[0], state)
            for one in state.shares:
                if shares.setdefault((one.of, one.index), one) != one:
                    found = shares[one.of, one.index]
                    raise LoaderStateError(f"share {one.index} stands at two places", expected=found, found=one)
        # A rank that is through with the epoch already waits for the others: its share has nothing left in it.
        epoch = min(state.epoch for state in every)
        return replace(every[0], epoch=epoch, shares=tuple(shares[place] for place in sorted(shares)))

    def check_fingerprint(self, expected: Mapping[str, Any] | str) -> None:
        """Refuse to go on with other settings than those the state was saved under.

        ``expected`` are the settings of the order at hand, as its ``to_json`` gives them, or only their fingerprint.

        Raises:
            LoaderStateError: a setting differs; the message names those that do.
        """
        now = expected if isinstance(expected, str) else fingerprint_of(expected)
        if now == self.fingerprint:
            return
        settings = {"fingerprint": now} if isinstance(expected, str) else expected
        saved = {"fingerprint": self.fingerprint} if isinstance(expected, str) else self.settings
        names = [name for name in {**settings, **saved} if settings.get(name, _ABSENT) != saved.get(name, _ABSENT)]
        differences = "; ".join(
            _DIGESTS.get(
                name, f"{name} is {settings.get(name, _ABSENT)} here but {saved.get(name, _ABSENT)} in the state"
            )
            for name in names
        )
        hint = "use the same data and settings, or start a new run"
        raise LoaderStateError(f"the loader state does not match: {differences}", hint=hint)

    @classmethod
    def after(cls, plan: EpochPlan, steps: int, settings: Mapping[str, Any]) -> State:
        """The state when every rank has done ``steps`` steps of a plan."""
        return cls(settings, plan.epoch, plan.consumed(steps), plan.epoch_start, plan.end, plan.global_batch)

    def plan(
        self, count: int, *, batch_size: int, split: Split | None = None, tail: Tail = "pad", drop_last: bool = False
    ) -> EpochPlan:
        """What is left of the epoch for one rank, or the whole next one when nothing is left.

        With the global batch of the run that saved the state, the epoch ends where it would have ended there; with
        another, its tail is cut anew.
        """
        split = split or Split()
        same = self.global_batch == split.readers * batch_size
        plan = plan_epoch(
            count,
            epoch=self.epoch,
            start=self.position,
            epoch_start=self.start,
            end=self.end if same else None,
            batch_size=batch_size,
            split=split,
            tail=tail,
            drop_last=drop_last,
        )
        finished = self.end is not None and self.position >= self.end > self.start  # an empty one is not over yet
        return replace(plan, end=max(self.position, self.end or 0)).next_epoch() if finished else plan


def _check_counter(name: str, value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise LoaderStateError(f"{name} of a state cannot be this", expected="a whole number from 0", found=repr(value))


def _parse_shares(listed: Any) -> tuple[PartitionState, ...]:
    try:
        return tuple(
            PartitionState(int(index), int(of), int(position), int(part), _parse_pending(pending))
            for index, of, position, part, pending in listed
        )
    except (TypeError, ValueError):
        expected = "[index, of, position, part, [[[position, part, used]]]]"
        raise LoaderStateError("shares of a state cannot be this", expected=expected, found=listed) from None


def _parse_pending(pending: Any) -> tuple[tuple[PendingElement, ...], ...]:
    return tuple(tuple((int(place), int(part), int(used)) for place, part, used in group) for group in pending)


def _without_shares(state: State) -> State:
    """What must be the same on all ranks: after a filter they do not keep step, and the shares say where each is."""
    return replace(state, shares=(), steps=0, epoch=0) if state.shares else state


def _check_same_position(first: State, other: State) -> None:
    bare, found = _without_shares(first), _without_shares(other)
    for each in fields(State):
        if getattr(bare, each.name) != getattr(found, each.name):
            raise LoaderStateError(
                f"the states differ in {each.name}",
                expected=getattr(bare, each.name),
                found=getattr(found, each.name),
                hint="merge states that were saved after the same step",
            )


def order_from_json(document: Mapping[str, Any]) -> Order:
    """The order that wrote ``document`` with ``to_json``.

    Weights are not written, only named, so a weighted order is made from its weights instead.

    Raises:
        OptionError: no order is written like this.

    Examples:
        >>> order = BlockShuffle(1000, seed=1, block_samples=10, window=2, lanes=4)
        >>> order_from_json(order.to_json()) == order
        True
    """
    settings = dict(document)
    kind = _ORDERS_BY_NAME.get(settings.pop("order", ""))
    if kind is None:
        raise OptionError(
            "no order is written like this", expected=" or ".join(_ORDERS_BY_NAME), found=document.get("order")
        )
    try:
        return kind(**settings)
    except TypeError as error:
        raise OptionError("no order is written like this", expected="what to_json gave", found=error) from None
