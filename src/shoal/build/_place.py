"""Where a build goes, and what its shards are called."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

from shoal.errors import OptionError
from shoal.store import join_url

__all__ = ["Place", "place_of"]

_NUMBER = re.compile(r"%0?\d*d|\{:0?\d*d?\}")


@dataclass(frozen=True, slots=True)
class Place:
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


def place_of(out: str) -> Place:
    """A folder, or a pattern whose first part with a place for a split or a number begins the names of shards.

    Example:
        >>> place_of("a/b"), place_of("a/{split}/x-%04d.tar")
        (Place(root='a/b', name='{split}-%06d.tar'), Place(root='a', name='{split}/x-%04d.tar'))
    """
    parts = out.split("/")
    at = next((at for at, part in enumerate(parts) if "{split}" in part or _NUMBER.search(part)), None)
    if at is None:
        if out.endswith((".tar", ".tgz", ".gz", ".zst")):
            raise OptionError("shards need a number in their name", expected="such as out-%06d.tar", found=out)
        return Place(out.rstrip("/") if len(out) > 1 else out, "{split}-%06d.tar")
    name = "/".join(parts[at:])
    if len(_NUMBER.findall(name)) != 1:
        raise OptionError("a name of shards has one place for a number", expected="such as %06d", found=name)
    return Place("/".join(parts[:at]) or ("/" if out.startswith("/") else "."), name)
