"""What is wrong with a dataset that no shard shows by itself."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from shoal.errors import StoreError
from shoal.shard import SHARD_ENDINGS, Located, shards_by_split, split_of
from shoal.store import base_name, join_url, relative_url, store_for

from ._finding import Finding
from ._lint import lint_finding
from ._profile import ShardProfile

__all__ = ["across"]

_MANY_FIELDS = 50
_OUTWEIGH_TAR = (".parquet", ".lance", ".arrow", ".jsonl", ".json", ".csv")
"""Of as many files of one kind as there are tars, Hugging Face takes these rather."""


def across(profiles: Sequence[ShardProfile], located: Located) -> Iterator[Finding]:
    """Look at all shards together."""
    yield from _same_keys(profiles, located)
    yield from _split_samples(profiles)
    yield from _fields(profiles)
    yield from _first_samples(profiles)
    yield from _breaches(profiles)
    yield from _neighbours(located)


def _same_keys(profiles: Sequence[ShardProfile], located: Located) -> Iterator[Finding]:
    """Keys in more than one shard. They are compared by hash first: eight bytes each, however many there are."""
    hashes = [np.unique(np.fromiter(map(hash, profile.keys.to_pylist()), np.int64)) for profile in profiles]
    values, counts = np.unique(np.concatenate([np.empty(0, np.int64), *hashes]), return_counts=True)
    doubled = values[counts > 1]
    if not len(doubled):
        return
    homes: dict[str, list[int]] = {}
    for number, profile in enumerate(profiles):
        if np.isin(hashes[number], doubled).any():
            for key in set(profile.keys.to_pylist()):
                if _is_among(hash(key), doubled):
                    homes.setdefault(key, []).append(number)
    splits = _splits(profiles, located)
    inside, between = {}, {}
    for key, numbers in homes.items():
        if len({splits[number] for number in numbers}) < len(numbers):
            inside[key] = numbers
        elif len(numbers) > 1:
            between[key] = numbers
    for rule, again in (("key-twice", inside), ("key-in-splits", between)):
        if again:
            yield _doubled(rule, again, profiles)


def _doubled(rule: str, again: dict[str, list[int]], profiles: Sequence[ShardProfile]) -> Finding:
    key = min(again, key=lambda each: (again[each], each))
    first, second = (base_name(profiles[number].report.url) for number in again[key][:2])
    shard = profiles[again[key][1]].report.url
    return lint_finding(rule, shard, key, found=f"in {first} and in {second}", count=len(again))


def _splits(profiles: Sequence[ShardProfile], located: Located) -> list[str]:
    """The split of each shard: the manifest's, or what its name says."""
    urls = [profile.report.url for profile in profiles]
    known = {url: split for split, those in shards_by_split(urls, located.root).items() for url in those}
    if located.manifest is not None and located.root is not None:
        for split, records in located.manifest.splits.items():
            known |= {join_url(located.root, record.path): split for record in records}
    return [known[url] for url in urls]


def _is_among(value: int, among: npt.NDArray[np.int64]) -> bool:
    at = int(np.searchsorted(among, value))
    return at < len(among) and int(among[at]) == value


def _split_samples(profiles: Sequence[ShardProfile]) -> Iterator[Finding]:
    for before, after in itertools.pairwise(profiles):
        if len(before.keys) and len(after.keys) and before.keys[-1].as_py() == after.keys[0].as_py():
            yield lint_finding("split-sample", after.report.url, after.keys[0].as_py())


def _fields(profiles: Sequence[ShardProfile]) -> Iterator[Finding]:
    """Samples that have other fields than most."""
    totals: Counter[tuple[str, ...]] = Counter()
    for profile in profiles:
        totals.update({fields: breach.count for fields, breach in profile.field_sets.items()})
    names = {name for fields in totals for name in fields}
    samples = sum(totals.values())
    if len(names) > max(_MANY_FIELDS, samples // 2):
        yield lint_finding("fields-like-keys", found=f"{len(names)} fields in {samples} samples")
    if len(totals) < 2:
        return
    usual, _ = totals.most_common(1)[0]
    shard, fields = next((shard, other) for shard in profiles for other in shard.field_sets if other != usual)
    finding = lint_finding("mixed-fields", shard.report.url, shard.field_sets[fields].first)
    count = samples - totals[usual]
    yield replace(finding, expected=", ".join(usual), found=", ".join(fields), count=count)


def _first_samples(profiles: Sequence[ShardProfile]) -> Iterator[Finding]:
    """Hugging Face learns the columns from the first samples it meets: of each split's first shard, then."""
    first = [profile for number, profile in enumerate(profiles) if number == 0 or _is_other_split(profiles, number)]
    for profile in first:
        if len(set(profile.hf_first)) > 1:
            yield lint_finding("hf-first-samples", profile.report.url, found=_listed(profile.hf_first))
            return
    known = {name.lower() for profile in first for fields in profile.hf_first for name in fields}
    for profile in profiles:
        for fields, breach in profile.field_sets.items():
            late = [name for name in fields if name.lower() not in known]
            if late and profile.hf_first:
                finding = lint_finding("hf-late-field", profile.report.url, breach.first)
                yield replace(finding, field=late[0])
                return


def _is_other_split(profiles: Sequence[ShardProfile], number: int) -> bool:
    before, here = (split_of(base_name(profiles[at].report.url)) for at in (number - 1, number))
    return before != here


def _listed(sets: Sequence[tuple[str, ...]]) -> str:
    return " and ".join(dict.fromkeys(", ".join(fields) for fields in sets))


def _breaches(profiles: Sequence[ShardProfile]) -> Iterator[Finding]:
    """The rules that shards break by themselves: each told once, where it is broken first."""
    totals: Counter[str] = Counter()
    first: dict[str, tuple[ShardProfile, str]] = {}
    for profile in profiles:
        for rule, breach in profile.breaches.items():
            totals[rule] += breach.count
            first.setdefault(rule, (profile, breach.first))
    for rule, count in totals.items():
        profile, name = first[rule]
        found = None if name == profile.report.url else name
        yield lint_finding(rule, profile.report.url, found=found, count=count)


def _neighbours(located: Located) -> Iterator[Finding]:
    """Files beside the tars that make Hugging Face take the folder for something else."""
    if located.root is None:
        return
    try:
        paths = [relative_url(info.url, located.root) for info in store_for(located.root).list(located.root)]
    except StoreError:
        return
    seen = [path for path in paths if not any(part.startswith((".", "__")) for part in path.split("/"))]
    near = [path for path in seen if ".tar." in path and not path.endswith(SHARD_ENDINGS)]
    kinds = Counter("." + base_name(path).rpartition(".")[2].lower() for path in seen if "." in base_name(path))
    tars = sum(path.lower().endswith(SHARD_ENDINGS) for path in seen)
    more = [kind for kind in _OUTWEIGH_TAR if kinds[kind] >= tars]
    if near:
        yield lint_finding("hf-neighbours", found=near[0], count=len(near))
    if more:
        yield lint_finding("hf-neighbours", found=f"{kinds[more[0]]} {more[0]} files beside {tars} tars")
