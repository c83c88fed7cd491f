"""What is to be done with one shard. Nothing is changed here: a dry run ends where this ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Literal

from shoal.errors import MissingExtraError, ObjectNotFoundError, ShardIndexError, ShoalError, StoreError
from shoal.shard import (
    Decoders,
    KeyRule,
    Problem,
    ShardIndex,
    ShardRecord,
    ShardReport,
    VerifyOptions,
    find_index,
    index_shard,
    load_index,
    members_of,
    split_name,
    verify_shard,
)
from shoal.store import ObjectReader, store_for

from ._chains import TarReader, first_chain
from ._repaired import Action, LostSample
from ._salvage import Salvage, SavedSample, has_checksums, salvage_by_checksums
from ._salvage_structure import salvage_by_structure
from ._unpacked import Unpacked, unpacked

__all__ = ["Judgement", "RepairOptions", "ShardTask", "Trust", "judge"]

Trust = Literal["auto", "index", "tar"]
"""Whom to believe where a tar that is sound in itself and its index say different things."""

_MOST_REASONS = 20


@dataclass(frozen=True, slots=True)
class ShardTask:
    """A shard to look at. ``path`` is relative to the dataset's root."""

    url: str
    path: str
    rule: KeyRule
    record: ShardRecord | None = None
    """What the manifest says of it."""
    sidecar: str | None = None
    """Where its index must be, by the manifest."""


@dataclass(frozen=True, slots=True)
class RepairOptions:
    """How to judge."""

    trust: Trust = "auto"
    decoders: Callable[[Sequence[str]], Decoders] | None = None
    """For samples that no checksum speaks for: how their fields are decoded, to leave out what does not."""
    on_bytes: Callable[[int], None] | None = None


@dataclass(frozen=True, slots=True)
class Judgement:
    """What is to be done, and with what."""

    action: Action
    reasons: tuple[str, ...] = ()
    index: ShardIndex | None = None
    """The one that was there; where the shard is reindexed, the new one."""
    salvage: Salvage | None = None
    compression: str | None = None
    samples: int = 0


def judge(task: ShardTask, options: RepairOptions) -> Judgement:
    """Read all of a shard and say what is to be done with it."""
    try:
        reader = store_for(task.url).open(task.url)
    except StoreError as error:
        return Judgement("missing", (error.problem,))
    with closing(reader):
        index, wrong = _index_of(task, reader)
        report = verify_shard(task.url, index, VerifyOptions(rule=task.rule, on_bytes=options.on_bytes))
        if any(problem.kind == "shard" for problem in report.problems) and reader.info.size:
            return Judgement("missing", _reasons(wrong, report))
        with unpacked(reader, index) as tar:
            found = _Shard(task, options, reader, index, tar).judged(report, bool(wrong))
        return replace(found, reasons=(*_reasons(wrong, report), *found.reasons), compression=tar.compression)


def _reasons(wrong: list[str], report: ShardReport) -> tuple[str, ...]:
    told = [*wrong, *(_without_shard(problem) for problem in report.problems)]
    more = len(told) - _MOST_REASONS
    return (*told[:_MOST_REASONS], *((f"and {more} more",) if more > 0 else ()))


def _without_shard(problem: Problem) -> str:
    """What a problem says, on a line that has named the shard already."""
    return str(replace(problem, shard="")).replace(" (shard )", "").replace("shard , ", "")


def _index_of(task: ShardTask, reader: ObjectReader) -> tuple[ShardIndex | None, list[str]]:
    """The shard's index, and what is wrong with it where there should be one."""
    try:
        if task.sidecar is not None:
            return load_index(task.sidecar, whole=True), []
        return find_index(reader, task.rule, whole=True), []
    except ObjectNotFoundError:
        return None, ["the shard's index is missing"]
    except (ShardIndexError, StoreError) as error:
        return None, [error.problem]


@dataclass(frozen=True, slots=True)
class _Shard:
    """Everything that is known of one shard while it is judged."""

    task: ShardTask
    options: RepairOptions
    reader: ObjectReader
    index: ShardIndex | None
    tar: Unpacked

    def judged(self, report: ShardReport, index_is_wrong: bool) -> Judgement:
        if report.ok and self.index is not None:
            return self._sound(self.index)
        if report.ok and self._has_all():
            return (
                self._indexed() if index_is_wrong or self.task.sidecar else Judgement("sound", samples=report.samples)
            )
        if self.index is not None and has_checksums(self.index):
            return self._by_checksums(self.index)
        return self._saved(self._by_structure())

    def _sound(self, index: ShardIndex) -> Judgement:
        """Tar and index agree; does the manifest?"""
        record, facts = self.task.record, index.facts
        if record is None or (record.samples, record.bytes) == (len(index), facts.size):
            return Judgement("sound", index=index, samples=len(index))
        found = f"{len(index)} samples in {facts.size} bytes"
        reason = f"the manifest counts otherwise: {record.samples} samples in {record.bytes} bytes, found {found}"
        return Judgement("recorded", (reason,), index, samples=len(index))

    def _has_all(self) -> bool:
        """Whether a tar that is sound as far as it goes was not cut there."""
        if self._ends_in_order():
            return True
        return self.tar.size > 0 and not self._by_structure().lost

    def _ends_in_order(self) -> bool:
        return first_chain(self.tar.tar, self.tar.size, self.task.rule.encoding).end == "marker" and not self.tar.broken

    def _by_checksums(self, index: ShardIndex) -> Judgement:
        trust = self.options.trust
        if trust == "tar":
            return self._indexed()
        salvage = salvage_by_checksums(self.tar.tar, self.tar.size, index)
        if trust == "auto" and self._was_replaced(index, salvage):
            return self._indexed()
        return self._saved(salvage)

    def _was_replaced(self, index: ShardIndex, salvage: Salvage) -> bool:
        """Whether this is another tar than was indexed, and a sound one: then it is the index that is wrong.

        Damage does not make a tar longer, nor most of it wrong and yet in order.
        """
        longer = self.reader.info.size > index.facts.size
        mostly_other = 2 * len(salvage.saved) < len(index)
        return (longer or mostly_other) and self._has_others_than(index) and self._is_sound_alone()

    def _has_others_than(self, index: ShardIndex) -> bool:
        """Whether there are members of a name or a size that the index does not know: damage makes no such thing."""
        known = {
            (key, member.field, member.size)
            for row, key in enumerate(index.key_list(0, len(index)))
            for member in members_of(index, row)
        }
        chain = first_chain(self.tar.tar, self.tar.size, self.task.rule.encoding)
        pairs = (split_name(name, self.task.rule) for name in chain.names)
        members = zip(pairs, chain.sizes.tolist(), strict=True)
        return any(pair is not None and (*pair, size) not in known for pair, size in members)

    def _is_sound_alone(self) -> bool:
        return self._ends_in_order() and verify_shard(self.task.url, None, VerifyOptions(rule=self.task.rule)).ok

    def _indexed(self) -> Judgement:
        """The tar is in order: only its index is to be made anew."""
        try:
            index = index_shard(self.reader, self.task.rule)
        except ShoalError:
            return self._saved(self._by_structure())
        return Judgement("reindexed", index=index, samples=len(index))

    def _by_structure(self) -> Salvage:
        names = None if self.index is None or has_checksums(self.index) else self.index
        salvage = salvage_by_structure(self.tar.tar, self.tar.size, self.task.rule, names)
        return salvage if self.options.decoders is None else _decoded(salvage, self.tar.tar, self.options.decoders)

    def _saved(self, salvage: Salvage) -> Judgement:
        action: Action = "rewritten" if salvage.saved else "quarantined"
        return Judgement(action, index=self.index, salvage=salvage, samples=len(salvage.saved))


def _decoded(salvage: Salvage, tar: TarReader, decoders: Callable[[Sequence[str]], Decoders]) -> Salvage:
    """Without the samples that do not decode."""
    known = decoders(sorted({piece.field for sample in salvage.saved for piece in sample.pieces}))
    saved, lost = [], list(salvage.lost)
    for sample in salvage.saved:
        problem = _decode_problem(sample, tar, known)
        if problem is None:
            saved.append(sample)
        else:
            lost.append(LostSample(sample.key, problem, sample.pieces[0].offset))
    return replace(salvage, saved=tuple(saved), lost=tuple(lost))


def _decode_problem(sample: SavedSample, tar: TarReader, decoders: Decoders) -> str | None:
    for piece in sample.pieces:
        decode = decoders.get(piece.field)
        if decode is None:
            continue
        try:
            decode(tar.read(piece.offset, piece.offset + piece.size))
        except MissingExtraError:
            continue
        except ShoalError as error:
            return f"field {piece.field}: {error.problem}"
    return None
