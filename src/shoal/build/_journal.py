"""The journal that makes builds resumable, and the target that they write to.

A shard is done when its tar, then its index, then a line in the journal have been written. A rerun with the same source
and options builds the other shards; a rerun with others is refused with an error that says what differs. Where the
build replaces an existing dataset, shards stay in the staging folder until all are done (`shoal.shard.commit_staged`).
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from shoal.errors import ObjectExistsError, ObjectNotFoundError, OptionError, WriteError
from shoal.shard._destination import Destination, check_payload_fits, load_destination
from shoal.shard._journal import commit, recover, staging_url
from shoal.shard._manifest import Manifest, ShardRecord, check_schema_fits, joined_schema, load_manifest, merge_shards
from shoal.shard._stored_rows import remove_shards
from shoal.shard._write_target import fits_pattern
from shoal.store._pattern import number_in_name
from shoal.store._registry import store_for
from shoal.store._url import base_name, join_url, local_path, relative_url, scheme_of

from ._report import BuildReport
from ._tasks import BuiltShard, Failure

__all__ = ["BuildJournal", "BuildStart", "BuildTarget", "parse_build_target"]

_MAX_SEGMENT_LINES = 256
"""Lines of one journal file: object stores rewrite the file for each line."""
_DIFFERS = {
    "source": "the source has changed: its files, their sizes or times",
    "count": "the source has another number of items",
    "function": "the function has changed",
    "plan": "the plan has changed",
}
_NUMBER = re.compile(r"%0?\d*d|\{:0?\d*d?\}")


@dataclass(frozen=True, slots=True)
class BuildTarget:
    """Where a build writes its shards, and how they are named."""

    root: str
    name: str
    """The pattern of shard names, relative to the root."""

    @property
    def mark(self) -> str:
        """A digest that distinguishes builds into one folder."""
        return hashlib.sha256(self.name.encode()).hexdigest()[:12]

    def side(self, name: str) -> str:
        """Return the URL of a file in the folder of sidecars."""
        return join_url(self.root, ".shoal", name)

    def wrote(self, path: str) -> bool:
        """Whether a file below the root belongs to this build: a shard, its index, a journal, a report, hashes."""
        if re.fullmatch(rf"\.shoal/((journal-)?build-{self.mark}\b.*\.jsonl?|build/hashes-\w+/\d+\.bin)", path):
            return True
        return self.is_ours(path.removeprefix(".shoal/index/").removesuffix(".arrow"))

    def is_ours(self, path: str) -> bool:
        """Whether the name of a shard fits the pattern of this build."""
        return fits_pattern(self.name, path)


def parse_build_target(out: str) -> BuildTarget:
    """Parse a folder, or a pattern: names of shards start with the first part that has a split or a number in it.

    Examples:
        >>> parse_build_target("a/b"), parse_build_target("a/{split}/x-%04d.tar")
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


@dataclass(frozen=True, slots=True)
class BuildStart:
    """What a build starts from."""

    folder: str
    """Where shards are written."""
    done: dict[str, BuiltShard]
    """The shards that earlier runs finished, by path, in the order in which they were finished."""
    finished: bool = False
    """Whether those are all shards, and the dataset is published."""


class BuildJournal:
    """The journal of one build, from its start to the publication of the dataset."""

    def __init__(
        self,
        target: BuildTarget,
        facts: dict[str, Any],
        splits: Collection[str] = (),
        schema: dict[str, Any] | None = None,
    ) -> None:
        self._target = target
        self._splits = frozenset(splits)
        self._schema = schema
        self._destination = Destination(target.root, Manifest({}), (), ())
        self.facts = facts
        self._staged = False
        self._replaced: list[str] = []
        self._segment = 0
        self._lines = 0

    def start(self, *, overwrite: bool, retry: bool = False, may_be_finished: bool = True) -> BuildStart:
        """Resume or start the build. Raises WriteError or ObjectExistsError where neither is possible.

        With ``retry`` shards that lack failed items are not done.
        """
        recover(self._target.root)
        lines = self._read()
        if lines is not None and lines[0].get("options") != self.facts and not overwrite:
            raise _changed_build_error(dict(lines[0].get("options") or {}), self.facts)
        if lines is not None and lines[0].get("options") == self.facts:
            self._staged = bool(lines[0].get("staged"))
            return self._resume(lines[1:], retry)
        if lines is not None:
            self._clear(lines)
        return self._begin(overwrite, retry, may_be_finished)

    def _begin(self, overwrite: bool, retry: bool, may_be_finished: bool) -> BuildStart:
        finished = None if overwrite or not may_be_finished else self._load_finished()
        if finished is not None:
            kept = {one.record.path: one for one in finished if not (retry and one.failures)}
            if len(kept) == len(finished):
                return BuildStart(self._target.root, kept, finished=True)
            self._staged = True  # new shards replace the existing ones when all are done
            self._open_segment(kept.values())
            return BuildStart(self._folder, kept)
        self._replaced = self._existing_shards(overwrite=overwrite)
        if self._schema is not None:
            self._check_schema(self._destination.manifest, ())
        self._staged = bool(self._replaced)
        self._open_segment()
        return BuildStart(self._folder, {})

    def _resume(self, lines: Sequence[dict[str, Any]], retry: bool) -> BuildStart:
        builts = [_parse_built_shard(line) for line in lines]
        places = (self._folder, self._target.root)
        kept = {one.record.path: one for one in builts if _is_there(one, places) and not (retry and one.failures)}
        self._replaced = self._existing_shards(overwrite=self._staged, resume=True)
        self._rewrite(kept.values())
        return BuildStart(self._folder, kept)

    @property
    def _folder(self) -> str:
        return staging_url(self._target.root) if self._staged else self._target.root

    def _existing_shards(self, *, overwrite: bool, resume: bool = False) -> list[str]:
        """Return the shards that this build replaces: of the manifest, or else of the folder.

        Raises ObjectExistsError where the build may not write into the folder.
        """
        destination = self._destination = load_destination(self._target.root, self._target.name)
        if resume and not self._staged:  # shards with these names are ours
            unlisted = tuple(path for path in destination.unlisted if not self._is_written(path))
            replace(destination, unlisted=unlisted).paths_to_replace(
                self._splits, lambda path: False, join=True, can_append=False
            )
            return []
        replaced = destination.paths_to_replace(
            self._splits, self._is_written, overwrite=overwrite, join=resume, can_append=False
        )
        if replaced or not destination.manifest.shards:
            return replaced
        there = [path for path in _paths_below(self._target.root) if self._is_written(path)]
        if there and not overwrite:
            raise ObjectExistsError(
                "Dataset already exists",
                found=join_url(self._target.root, there[0]),
                hint="Choose another folder or name, or pass overwrite=True to replace it",
            )
        return there

    def _check_schema(self, before: Manifest, records: Sequence[ShardRecord]) -> None:
        stay, hint = self._without_replaced(before), "Choose another folder"
        check_schema_fits(stay, self._schema, records, hint=hint)
        if self._schema is None and records:
            check_payload_fits(stay, join_url(self._folder, records[0].path), hint=hint)

    def _without_replaced(self, before: Manifest) -> Manifest:
        """Return the manifest with the shards that stay."""
        stay = {
            split: tuple(record for record in records if not self._is_replaced(record.path))
            for split, records in before.splits.items()
        }
        return replace(before, splits=stay)

    def _is_replaced(self, path: str) -> bool:
        return path in self._replaced or self._is_written(path)

    def _is_written(self, path: str) -> bool:
        """Whether a path is the name of a shard of this build's splits."""
        names = (self._target.name.replace("{split}", split) for split in self._splits)
        return any(number_in_name(name, path) is not None for name in names)

    @property
    def _report_url(self) -> str:
        return self._target.side(f"build-{self._target.mark}-report.json")

    def _load_finished(self) -> list[BuiltShard] | None:
        """Return the shards of an earlier build with the same source and options, if they still are the dataset."""
        try:
            document = msgspec.json.decode(store_for(self._report_url).read_all(self._report_url), type=dict[str, Any])
        except (ObjectNotFoundError, msgspec.DecodeError):
            return None
        manifest = load_manifest(self._target.root)
        if document.get("facts") != self.facts or manifest is None:
            return None
        builts = [_parse_built_shard(line) for line in document["shards"]]
        built = {one.record.path: one.record.bytes for one in builts if one.record.samples}
        listed = {record.path: record.bytes for record in manifest.shards if self._is_written(record.path)}
        return builts if built == listed else None

    def write_plan(self, shards: Iterable[dict[str, Any]]) -> None:
        """Write the plan as a JSON file, for people to read."""
        document = {"shoal": 1, "name": self._target.name, "facts": self.facts, "shards": list(shards)}
        url = self._target.side(f"build-{self._target.mark}.json")
        store_for(url).write_all(url, msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n")

    def _url(self, segment: int) -> str:
        return self._target.side(f"journal-build-{self._target.mark}-{segment:04d}.jsonl")

    def _segments(self) -> list[str]:
        prefix = f"journal-build-{self._target.mark}-"
        listed = store_for(self._target.root).list(join_url(self._target.root, ".shoal"))
        return sorted(info.url for info in listed if base_name(info.url).startswith(prefix))

    def _read(self) -> list[dict[str, Any]] | None:
        """Return the head and the lines of all segments; None without a journal. An incomplete last line is ignored."""
        journal: list[dict[str, Any]] = []
        for url in self._segments():
            lines = store_for(url).read_all(url).split(b"\n")[:-1]
            try:
                decoded = [msgspec.json.decode(line, type=dict[str, Any]) for line in lines]
            except msgspec.DecodeError as error:
                raise WriteError("the journal of the build cannot be read", found=str(error), shard=url) from error
            journal += decoded if not journal else decoded[1:]
        return journal or None

    def _head(self) -> bytes:
        head = {"pattern": self._target.name, "options": self.facts, "staged": self._staged}
        return msgspec.json.encode(head) + b"\n"

    def _open_segment(self, builts: Iterable[BuiltShard] = ()) -> None:
        url = self._url(self._segment)
        lines = [_journal_line(built) for built in builts]
        store_for(url).write_all(url, self._head() + b"".join(lines))
        self._lines = len(lines)

    def _rewrite(self, builts: Iterable[BuiltShard]) -> None:
        """Write the journal anew as one file, before the other segments are deleted."""
        old = self._segments()
        lines = [_journal_line(built) for built in builts]
        store_for(old[0]).write_all(old[0], self._head() + b"".join(lines))
        for url in old[1:]:
            store_for(url).delete(url)
        self._segment = int(base_name(old[0]).rpartition("-")[2].partition(".")[0])
        self._lines = len(lines)

    def add(self, built: BuiltShard) -> None:
        """Record a shard that is done."""
        if self._lines >= _MAX_SEGMENT_LINES:
            self._segment += 1
            self._open_segment()
        url = self._url(self._segment)
        store_for(url).append(url, _journal_line(built))
        self._lines += 1

    def _clear(self, lines: Sequence[dict[str, Any]]) -> None:
        """Delete what an interrupted build with other options left."""
        self._staged = bool(lines[0].get("staged"))
        folder = self._folder
        manifest = None if self._staged else load_manifest(folder)
        listed = set() if manifest is None else {record.path for record in manifest.shards}
        ours = [path for path in _paths_below(folder) if self._target.is_ours(path) and path not in listed]
        remove_shards(folder, ours)
        self._staged = False
        self._delete_segments()

    def _delete_segments(self) -> None:
        for url in self._segments():
            store_for(url).delete(url)

    def publish(
        self,
        report: BuildReport,
        builts: Sequence[BuiltShard],
        metadata: dict[str, Any],
        schema: dict[str, Any] | None = None,
    ) -> None:
        """Write the manifest and the report, and delete the journal."""
        root = self._target.root

        def change(before: Manifest) -> Manifest:
            return self._manifest(before, report, metadata, schema)

        if self._staged:
            commit(root, change, staged=[record.path for record in report.shards], replaced=self._replaced)
        else:
            commit(root, change)
        shards = [_built_shard_document(built) for built in builts]
        document = msgspec.json.encode({**report.to_json(), "facts": self.facts, "shards": shards})
        store_for(self._report_url).write_all(self._report_url, msgspec.json.format(document, indent=1) + b"\n")
        self._delete_segments()

    def _manifest(
        self, before: Manifest, report: BuildReport, metadata: dict[str, Any], schema: dict[str, Any] | None
    ) -> Manifest:
        """Return the manifest with the new shards, and with a schema that reads them and the shards that stay."""
        if not self._staged:
            self._destination.refuse_new(before, tuple(report.splits), [record.path for record in report.shards])
        self._check_schema(before, report.shards)
        others = self._without_replaced(before)
        if not others.shards:
            others = Manifest({})
        joined = joined_schema(others, schema, report.shards)
        manifest = replace(others, metadata={**others.metadata, **metadata}, schema=joined)
        for split, records in report.splits.items():
            manifest = merge_shards(manifest, split, records)
        return manifest

    def sweep(self) -> None:
        """Delete the partial files that killed processes left on this disk."""
        if scheme_of(self._target.root) != "file":
            return
        for folder in {self._target.root, self._folder}:
            for path, _, names in os.walk(local_path(folder)):
                for name in names:
                    found = re.fullmatch(r"\.(.+)\.[0-9a-f]{16}\.partial", name)
                    below = os.path.relpath(os.path.join(path, found[1]), local_path(folder)) if found else ""
                    if found and self._target.wrote(below.replace(os.sep, "/")):
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


def _journal_line(built: BuiltShard) -> bytes:
    """A line of the journal. Other readers of journals use only the shard's record, without ``built``."""
    return msgspec.json.encode(_built_shard_document(built)) + b"\n"


def _built_shard_document(built: BuiltShard) -> dict[str, Any]:
    document: dict[str, Any] = msgspec.to_builtins(built)
    return {**document.pop("record"), "built": document}


def _parse_built_shard(line: dict[str, Any]) -> BuiltShard:
    try:
        rest = dict(line["built"])
        failures = tuple(msgspec.convert(rest.pop("failures"), list[Failure]))
        record = msgspec.convert({name: value for name, value in line.items() if name != "built"}, ShardRecord)
        return BuiltShard(record=record, failures=failures, **rest)
    except (KeyError, TypeError, msgspec.ValidationError) as error:
        raise WriteError("the journal of the build cannot be read", found=str(error)) from error


def _changed_build_error(before: dict[str, Any], now: dict[str, Any]) -> WriteError:
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
