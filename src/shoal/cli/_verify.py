"""``shoal verify``: everything that is wrong with a dataset."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Annotated, Any

import typer

from shoal.codec import decode_spec, decoders
from shoal.errors import StoreError
from shoal.shard import (
    Decoders,
    Located,
    ShardReport,
    VerifyOptions,
    locate_shards,
    save_manifest,
    verify_dataset,
    with_hashes,
)
from shoal.store import relative_url, store_for

from ._options import JsonOption, PathArgument, SplitOption
from ._output import print_json, print_text, printable, progress, show_bytes, show_count

__all__ = ["verify"]


def verify(
    path: PathArgument,
    hashed: Annotated[
        bool, typer.Option("--hash", help="Compare each shard's sha256 with the manifest's, or fill it in there.")
    ] = False,
    deep: Annotated[
        bool, typer.Option("--deep", help="Decode every field too: json, text, arrays, and pictures where they can be.")
    ] = False,
    split: SplitOption = None,
    as_json: JsonOption = False,
) -> None:
    """Read every byte and report all that is wrong.

    That is headers, checksums, sizes, counts, stale indexes, missing and unlisted files. A shard with an index,
    beside it or in the cache, is compared with it member by member. The exit code is 1 when anything is wrong.

    \b
    Examples:
      shoal verify data/
      shoal verify data/ --hash
      shoal verify 'data/*.tar' --deep --json
    """  # noqa: D301 - click's own mark for a paragraph that is not to be wrapped
    located = locate_shards(path, split)
    reports: list[ShardReport] = []
    with progress("verifying", _size(located), quiet=as_json, sizes=True) as advance:
        options = VerifyOptions(hashed=hashed, decoders=_deep_decoders() if deep else None, on_bytes=advance)
        for report in verify_dataset(path, split=split, options=options):
            reports.append(report)
            if not as_json:
                _print(report)
    filled = _fill_hashes(located, reports) if hashed else 0
    _end(reports, filled, as_json)


def _size(located: Located) -> int:
    return sum(_object_size(ref.url) for ref in located.shards)


def _object_size(url: str) -> int:
    try:
        return store_for(url).info(url).size
    except StoreError:  # its absence is reported when its turn comes
        return 0


def _deep_decoders() -> Callable[[Sequence[str]], Decoders]:
    """What ``decode=True`` decodes, and pictures where a decoder for them is installed."""
    spec = decode_spec("numpy" if importlib.util.find_spec("PIL") else True)
    return lambda fields: decoders(spec, fields)


def _print(report: ShardReport) -> None:
    state = "ok" if report.ok else show_count(len(report.problems), "problem")
    counts = (
        f"{show_count(report.samples, 'sample')}, {show_count(report.members, 'member')}, {show_bytes(report.bytes)}"
    )
    print_text(f"{printable(report.url)}: {state} ({counts})")
    for problem in report.problems:
        print_text(f"  {printable(str(problem))}")
    for note in report.notes:
        print_text(f"  note: {printable(note.problem)}")


def _fill_hashes(located: Located, reports: list[ShardReport]) -> int:
    """Write the hashes of sound shards that had none into the manifest."""
    manifest, root = located.manifest, located.root
    if manifest is None or root is None:
        return 0
    missing = {record.path for record in manifest.shards if record.sha256 is None}
    sound = {relative_url(report.url, root): report.sha256 for report in reports if report.ok and report.sha256}
    hashes = {path: sha256 for path, sha256 in sound.items() if path in missing and sha256 is not None}
    if hashes:
        save_manifest(with_hashes(manifest, hashes), root)
    return len(hashes)


def _end(reports: list[ShardReport], filled: int, as_json: bool) -> None:
    problems = sum(len(report.problems) for report in reports)
    if as_json:
        print_json(
            {
                "ok": not problems,
                "problems": problems,
                "hashes_filled": filled,
                "shards": [_document(each) for each in reports],
            }
        )
    else:
        print_text(
            f"{show_count(len(reports), 'shard')}: {show_count(problems, 'problem') if problems else 'all is well'}"
        )
        if filled:
            print_text(f"filled in the sha256 of {show_count(filled, 'shard')}")
    if problems:
        raise typer.Exit(1)


def _document(report: ShardReport) -> dict[str, Any]:
    return {"ok": report.ok, **asdict(report)}
