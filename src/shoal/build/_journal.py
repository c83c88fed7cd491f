"""The journal that makes builds restartable, and where their output goes.

A shard is done when its tar stands under its name, its index beside it, and a line in the journal says so, in this
order. A rerun that is asked the same does the others; one that is asked something else, or whose source has changed, is
refused and told what differs. Beside a dataset that is there already, shards wait in the staging folder until all are
whole (`shoal.shard.commit_staged`).
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from shoal.errors import ObjectExistsError, ObjectNotFoundError, OptionError, WriteError
from shoal.shard import (
    Manifest,
    ShardRecord,
    commit_staged,
    index_url,
    joined_schema,
    load_manifest,
    merge_shards,
    recover,
    staging_url,
    update_manifest,
)
from shoal.store import base_name, join_url, local_path, relative_url, scheme_of, store_for

from ._report import BuildReport
from ._tasks import BuiltShard, Failure

__all__ = ["BuildJournal", "BuildStart", "BuildTarget", "place_of"]

_SEGMENT = 256
"""Lines of one file: object stores write a whole file for each line."""
_DIFFERS = {
    "source": "the source has changed: its files, their sizes or times",
    "count": "the source has another number of items",
    "function": "the function has changed",
    "plan": "the plan has changed",
}
_NUMBER = re.compile(r"%0?\d*d|\{:0?\d*d?\}")


@dataclass(frozen=True, slots=True)
class BuildStart:
    """Where a build begins."""

    folder: str
    """Where shards are written."""
    done: dict[str, BuiltShard]
    """What earlier runs finished, by path, in the order in which it was finished."""
    finished: bool = False
    """Whether that is all, and the dataset is there."""


class BuildJournal:
    """The journal of one build, and its end."""

    def __init__(self, place: BuildTarget, facts: dict[str, Any]) -> None:
        self._place = place
        self.facts = facts
        self._staged = False
        self._replaced: list[str] = []
        self._segment = 0
        self._lines = 0

    # ------------------------------------------------------------------------------------------------------ the begin

    def start(self, *, overwrite: bool, retry: bool = False, may_be_finished: bool = True) -> BuildStart:
        """See what is there. Raises WriteError or ObjectExistsError where the build cannot go on.

        With ``retry`` shards that lack failed items are not done.
        """
        recover(self._place.root)
        lines = self._read()
        if lines is not None and lines[0].get("options") != self.facts and not overwrite:
            raise _asked_otherwise(dict(lines[0].get("options") or {}), self.facts)
        if lines is not None and lines[0].get("options") == self.facts:
            self._staged = bool(lines[0].get("staged"))
            return self._resumed(lines[1:], retry)
        if lines is not None:
            self._clear(lines)
        return self._begun(overwrite, retry, may_be_finished)

    def _begun(self, overwrite: bool, retry: bool, may_be_finished: bool) -> BuildStart:
        finished = None if overwrite or not may_be_finished else self._finished()
        if finished is not None:
            kept = {one.record.path: one for one in finished if not (retry and one.failures)}
            if len(kept) == len(finished):
                return BuildStart(self._place.root, kept, finished=True)
            self._staged = True  # what is done again takes the place of what is there when all of it is whole
            self._open_segment(kept.values())
            return BuildStart(self._folder, kept)
        self._replaced = self._there()
        if self._replaced and not overwrite:
            raise ObjectExistsError(
                "a dataset is there already",
                found=join_url(self._place.root, self._replaced[0]),
                hint="write elsewhere, or pass overwrite=True to replace it",
            )
        self._staged = bool(self._replaced)
        self._open_segment()
        return BuildStart(self._folder, {})

    def _resumed(self, lines: Sequence[dict[str, Any]], retry: bool) -> BuildStart:
        builts = [_built(line) for line in lines]
        places = (self._folder, self._place.root)
        kept = {one.record.path: one for one in builts if _is_there(one, places) and not (retry and one.failures)}
        self._replaced = self._there() if self._staged else []
        self._rewrite(kept.values())
        return BuildStart(self._folder, kept)

    @property
    def _folder(self) -> str:
        return staging_url(self._place.root) if self._staged else self._place.root

    def _there(self) -> list[str]:
        """Shards under our names: of the manifest, or else of the folder."""
        manifest = load_manifest(self._place.root)
        listed = [] if manifest is None else [record.path for record in manifest.shards]
        found = [path for path in listed if self._place.is_ours(path)]
        return found or [path for path in _paths_below(self._place.root) if self._place.is_ours(path)]

    @property
    def _report_url(self) -> str:
        return self._place.side(f"build-{self._place.mark}-report.json")

    def _finished(self) -> list[BuiltShard] | None:
        """The shards of an earlier build, if it was asked the same and they are the dataset still."""
        try:
            document = msgspec.json.decode(store_for(self._report_url).read_all(self._report_url), type=dict[str, Any])
        except (ObjectNotFoundError, msgspec.DecodeError):
            return None
        manifest = load_manifest(self._place.root)
        if document.get("facts") != self.facts or manifest is None:
            return None
        builts = [_built(line) for line in document["shards"]]
        wanted = {one.record.path: one.record for one in builts if one.record.samples}
        listed = {record.path: record for record in manifest.shards if self._place.is_ours(record.path)}
        same = {path: record.bytes for path, record in wanted.items()} == {
            path: record.bytes for path, record in listed.items()
        }
        return builts if same else None

    def write_plan(self, shards: Iterable[dict[str, Any]]) -> None:
        """Write the plan down, for people to read."""
        document = {"shoal": 1, "name": self._place.name, "facts": self.facts, "shards": list(shards)}
        url = self._place.side(f"build-{self._place.mark}.json")
        store_for(url).write_all(url, msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n")

    # --------------------------------------------------------------------------------------------------------- lines

    def _url(self, segment: int) -> str:
        return self._place.side(f"journal-build-{self._place.mark}-{segment:04d}.jsonl")

    def _segments(self) -> list[str]:
        prefix = f"journal-build-{self._place.mark}-"
        listed = store_for(self._place.root).list(join_url(self._place.root, ".shoal"))
        return sorted(info.url for info in listed if base_name(info.url).startswith(prefix))

    def _read(self) -> list[dict[str, Any]] | None:
        """The head and the lines of all segments; None without a journal. Half a line counts for nothing."""
        found: list[dict[str, Any]] = []
        for url in self._segments():
            lines = store_for(url).read_all(url).split(b"\n")[:-1]
            try:
                decoded = [msgspec.json.decode(line, type=dict[str, Any]) for line in lines]
            except msgspec.DecodeError as error:
                raise WriteError("the journal of the build cannot be read", found=str(error), shard=url) from error
            found += decoded if not found else decoded[1:]
        return found or None

    def _head(self) -> bytes:
        head = {"pattern": self._place.name, "options": self.facts, "staged": self._staged}
        return msgspec.json.encode(head) + b"\n"

    def _open_segment(self, builts: Iterable[BuiltShard] = ()) -> None:
        url = self._url(self._segment)
        lines = [_line(built) for built in builts]
        store_for(url).write_all(url, self._head() + b"".join(lines))
        self._lines = len(lines)

    def _rewrite(self, builts: Iterable[BuiltShard]) -> None:
        """Begin anew with what is kept, in one file, which is in place before the others go."""
        old = self._segments()
        lines = [_line(built) for built in builts]
        store_for(old[0]).write_all(old[0], self._head() + b"".join(lines))
        for url in old[1:]:
            store_for(url).delete(url)
        self._segment = int(base_name(old[0]).rpartition("-")[2].partition(".")[0])
        self._lines = len(lines)

    def add(self, built: BuiltShard) -> None:
        """Note a shard that is done, for good."""
        if self._lines >= _SEGMENT:
            self._segment += 1
            self._open_segment()
        url = self._url(self._segment)
        store_for(url).append(url, _line(built))
        self._lines += 1

    def _clear(self, lines: Sequence[dict[str, Any]]) -> None:
        """Take away what a build left that was asked something else."""
        self._staged = bool(lines[0].get("staged"))
        folder = self._folder
        store = store_for(folder)
        for path in [path for path in _paths_below(folder) if self._place.is_ours(path)]:
            store.delete(index_url(folder, path))
            store.delete(join_url(folder, path))
        self._staged = False
        self._remove()

    def _remove(self) -> None:
        for url in self._segments():
            store_for(url).delete(url)

    # ------------------------------------------------------------------------------------------------------- the end

    def publish(
        self,
        report: BuildReport,
        builts: Sequence[BuiltShard],
        metadata: dict[str, Any],
        schema: dict[str, Any] | None = None,
    ) -> None:
        """Make the shards the dataset: the manifest, the report, and no journal any more."""
        root = self._place.root

        def change(before: Manifest) -> Manifest:
            return self._manifest(before, report, metadata, schema)

        if self._staged:
            commit_staged(root, change, [record.path for record in report.shards], self._replaced)
        else:
            update_manifest(root, change)
        shards = [_document(built) for built in builts]
        document = msgspec.json.encode({**report.to_json(), "facts": self.facts, "shards": shards})
        store_for(self._report_url).write_all(self._report_url, msgspec.json.format(document, indent=1) + b"\n")
        self._remove()

    def _manifest(
        self, before: Manifest, report: BuildReport, metadata: dict[str, Any], schema: dict[str, Any] | None
    ) -> Manifest:
        """What was there and stays, with the new shards; the schema is the one that reads both, as a writer has it."""
        others = {
            split: tuple(record for record in records if not self._place.is_ours(record.path))
            for split, records in before.splits.items()
        }
        if not any(others.values()):
            before = Manifest({})
        joined = joined_schema(replace(before, splits=others), schema, report.shards)
        manifest = Manifest(others, {**before.metadata, **metadata}, joined, before.rule)
        for split, records in report.splits.items():
            manifest = merge_shards(manifest, split, records)
        return manifest

    def sweep(self) -> None:
        """Take away the unfinished files that killed processes left on this disk."""
        if scheme_of(self._place.root) != "file":
            return
        for folder in {self._place.root, self._folder}:
            for path, _, names in os.walk(local_path(folder)):
                for name in names:
                    found = re.fullmatch(r"\.(.+)\.[0-9a-f]{16}\.partial", name)
                    below = os.path.relpath(os.path.join(path, found[1]), local_path(folder)) if found else ""
                    if found and self._place.wrote(below.replace(os.sep, "/")):
                        with contextlib.suppress(FileNotFoundError):
                            os.unlink(os.path.join(path, name))


def _paths_below(root: str) -> list[str]:
    return [relative_url(info.url, root) for info in store_for(root).list(root)]


def _is_there(built: BuiltShard, folders: Sequence[str]) -> bool:
    if not built.record.samples:
        return True
    return any(_size(join_url(folder, built.record.path)) == built.record.bytes for folder in folders)


def _size(url: str) -> int | None:
    try:
        return store_for(url).info(url).size
    except ObjectNotFoundError:
        return None


def _line(built: BuiltShard) -> bytes:
    """A shard's record, and what a build says of it: readers of journals look at the record only."""
    return msgspec.json.encode(_document(built)) + b"\n"


def _document(built: BuiltShard) -> dict[str, Any]:
    document: dict[str, Any] = msgspec.to_builtins(built)
    return {**document.pop("record"), "built": document}


def _built(line: dict[str, Any]) -> BuiltShard:
    try:
        rest = dict(line["built"])
        failures = tuple(msgspec.convert(rest.pop("failures"), list[Failure]))
        record = msgspec.convert({name: value for name, value in line.items() if name != "built"}, ShardRecord)
        return BuiltShard(record=record, failures=failures, **rest)
    except (KeyError, TypeError, msgspec.ValidationError) as error:
        raise WriteError("the journal of the build cannot be read", found=str(error)) from error


def _asked_otherwise(before: dict[str, Any], now: dict[str, Any]) -> WriteError:
    names = [name for name in now if before.get(name) != now[name]] or ["plan"]
    if names == ["plan", "options"] or "options" in names:
        old, new = (dict(facts.get("options") or {}) for facts in (before, now))
        said = [f"{name}: {old.get(name)!r}, now {new.get(name)!r}" for name in new if old.get(name) != new[name]]
        problem = f"other options were given ({'; '.join(said)})" if said else "other options were given"
    else:
        problem = _DIFFERS.get(names[0], f"{names[0]} is another")
    return WriteError(
        f"an interrupted build is there that was asked something else: {problem}",
        hint="run it with what it was asked, or pass overwrite=True to start over",
    )


@dataclass(frozen=True, slots=True)
class BuildTarget:
    """Where a build goes."""

    root: str
    name: str
    """What shards are called, below the root."""

    @property
    def mark(self) -> str:
        """Tells builds into one folder apart."""
        return hashlib.sha256(self.name.encode()).hexdigest()[:12]

    def side(self, name: str) -> str:
        """A file of the build's own, in the folder of sidecars."""
        return join_url(self.root, ".shoal", name)

    def wrote(self, path: str) -> bool:
        """Whether a file below the root is of this build alone: a shard, its index, a journal, a report, hashes."""
        if re.fullmatch(rf"\.shoal/((journal-)?build-{self.mark}\b.*\.jsonl?|build/hashes-\w+/\d+\.bin)", path):
            return True
        return self.is_ours(path.removeprefix(".shoal/index/").removesuffix(".arrow"))

    def is_ours(self, path: str) -> bool:
        """Whether a shard is called as those of this build are."""
        parts = re.split(r"(\{split\}|%0?\d*d|\{:0?\d*d?\})", self.name)
        pattern = "".join(
            r"[A-Za-z0-9_][\w.-]*" if part == "{split}" else r"\d+" if at % 2 else re.escape(part)
            for at, part in enumerate(parts)
        )
        return re.fullmatch(pattern, path) is not None


def place_of(out: str) -> BuildTarget:
    """A folder, or a pattern whose first part with a place for a split or a number begins the names of shards.

    Example:
        >>> place_of("a/b"), place_of("a/{split}/x-%04d.tar")
        (BuildTarget(root='a/b', name='{split}-%06d.tar'), BuildTarget(root='a', name='{split}/x-%04d.tar'))
    """
    parts = out.split("/")
    at = next((at for at, part in enumerate(parts) if "{split}" in part or _NUMBER.search(part)), None)
    if at is None:
        if out.endswith((".tar", ".tgz", ".gz", ".zst")):
            raise OptionError("shards need a number in their name", expected="such as out-%06d.tar", found=out)
        return BuildTarget(out.rstrip("/") if len(out) > 1 else out, "{split}-%06d.tar")
    name = "/".join(parts[at:])
    if len(_NUMBER.findall(name)) != 1:
        raise OptionError("a name of shards has one place for a number", expected="such as %06d", found=name)
    return BuildTarget("/".join(parts[:at]) or ("/" if out.startswith("/") else "."), name)
