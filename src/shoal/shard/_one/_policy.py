"""What to do about damage: stop, or go on within a budget and say what was lost."""

from __future__ import annotations

import threading
import warnings
from collections import Counter
from dataclasses import dataclass
from typing import Literal

import msgspec

from shoal.errors import ErrorBudgetExceeded, OptionError, ShoalError, ShoalWarning
from shoal.store import cache_dir, join_url, store_for

__all__ = ["ErrorLog", "ErrorPolicy", "OnError"]

OnError = Literal["raise", "skip", "quarantine"]
_KEPT = 1000


@dataclass(frozen=True, slots=True)
class ErrorPolicy:
    """``raise`` stops at the first damaged sample; ``skip`` goes on; ``quarantine`` goes on and writes each one down.

    ``budget`` is how many samples may be lost before that is an error itself (None: any number). ``quarantine`` names
    the JSON-lines file; by default one in shoal's cache folder.
    """

    on_error: OnError = "raise"
    budget: int | None = None
    quarantine: str | None = None

    def __post_init__(self) -> None:
        if self.on_error not in ("raise", "skip", "quarantine"):
            raise OptionError("no such on_error", expected="'raise', 'skip' or 'quarantine'", found=repr(self.on_error))
        if self.budget is not None and self.budget < 0:
            raise OptionError("an error budget counts samples", expected="0 or more", found=self.budget)


_STOP = ErrorPolicy()


class ErrorLog:
    """Counts and keeps what a policy let pass."""

    def __init__(self, policy: ErrorPolicy = _STOP) -> None:
        self.policy = policy
        self.count = 0
        self.kinds: Counter[str] = Counter()
        self.errors: list[ShoalError] = []
        self._lock = threading.Lock()
        self._told = 0

    @property
    def goes_on(self) -> bool:
        """Whether damage is passed over at all."""
        return self.policy.on_error != "raise"

    def handle(self, error: ShoalError) -> None:
        """Take note of one lost sample, or raise: the error itself, or ErrorBudgetExceeded."""
        if not self.goes_on:
            raise error
        with self._lock:
            self.count += 1
            self.kinds[type(error).__name__] += 1
            if len(self.errors) < _KEPT:
                self.errors.append(error)
        if self.policy.on_error == "quarantine":
            self._write_down(error)
        if self.policy.budget is not None and self.count > self.policy.budget:
            raise ErrorBudgetExceeded(
                "too much is damaged",
                expected=f"at most {self.policy.budget} errors",
                found=self.count,
                hint=f"last: {error}",
            ) from error

    def _write_down(self, error: ShoalError) -> None:
        url = self.policy.quarantine or join_url(cache_dir(), "quarantine.jsonl")
        facts = {
            "error": type(error).__name__,
            "problem": str(error),
            "shard": error.shard,
            "key": error.key,
            "field": error.field,
            "offset": error.offset,
        }
        store_for(url).append(url, msgspec.json.encode(facts) + b"\n")

    def __repr__(self) -> str:
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(self.kinds.items()))
        return f"<ErrorLog: {kinds or 'nothing was passed over'}>"

    def tell(self) -> None:
        """Warn once about what was lost since the last time: nothing is skipped without a word."""
        if self.count > self._told:
            lost, self._told = self.count - self._told, self.count
            kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(self.kinds.items()))
            warnings.warn(
                f"passed over {lost} damaged place{'s' if lost > 1 else ''} ({kinds}); the first: {self.errors[0]}",
                ShoalWarning,
                stacklevel=3,
            )
