"""``shoal verify``: everything that is wrong with a dataset."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from shoal.build import READERS, Finding, Verification, report_page
from shoal.build import verify as verify_all
from shoal.errors import StoreError
from shoal.shard import Located, ShardReport, locate_shards, update_manifest, with_hashes
from shoal.store import put, relative_url, store_for

from ._options import JsonOption, PathArgument, ReportOption, SplitOption, WorkersOption
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
    lint: Annotated[
        bool, typer.Option(help="Also say what webdataset, Hugging Face and DALI would make of it.")
    ] = True,
    strict: Annotated[bool, typer.Option("--strict", help="Warnings too make the exit code 1.")] = False,
    split: SplitOption = None,
    workers: WorkersOption = None,
    report: ReportOption = None,
    as_json: JsonOption = False,
) -> None:
    """Read every byte and report all that is wrong.

    That is headers, checksums, sizes, counts, stale indexes, missing and unlisted files. A shard with an index,
    beside it or in the cache, is compared with it member by member. Then what no shard shows by itself: keys that are
    there twice, samples with other fields than the rest, and what other readers trip over. The exit code is 1 when
    data is damaged, missing or contradicts itself; with --strict also when there is a warning.

    \b
    Examples:
      shoal verify data/
      shoal verify data/ --hash
      shoal verify 'data/*.tar' --deep --json
      shoal verify data/ --strict --report verified.html
    """  # noqa: D301 - click's own mark for a paragraph that is not to be wrapped
    located = locate_shards(path, split)
    with progress("verifying", _size(located), quiet=as_json, sizes=True) as advance:
        found = verify_all(
            path,
            split=split,
            hashed=hashed,
            decode=deep,
            readers=READERS if lint else (),
            workers=workers,
            on_shard=None if as_json else _print,
            on_bytes=advance,
        )
    filled = _fill_hashes(located, found.shards) if hashed else 0
    if report is not None:
        put(report, report_page(found).encode())
    _end(found, filled, as_json)
    if not found.ok or (strict and found.count("warning")):
        raise typer.Exit(1)


def _size(located: Located) -> int:
    return sum(_object_size(ref.url) for ref in located.shards)


def _object_size(url: str) -> int:
    try:
        return store_for(url).info(url).size
    except StoreError:  # its absence is reported when its turn comes
        return 0


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


def _fill_hashes(located: Located, reports: Sequence[ShardReport]) -> int:
    """Write the hashes of sound shards that had none into the manifest."""
    manifest, root = located.manifest, located.root
    if manifest is None or root is None:
        return 0
    missing = {record.path for record in manifest.shards if record.sha256 is None}
    sound = {relative_url(report.url, root): report.sha256 for report in reports if report.ok and report.sha256}
    hashes = {path: sha256 for path, sha256 in sound.items() if path in missing and sha256 is not None}
    if hashes:
        update_manifest(root, lambda before: with_hashes(before, hashes))
    return len(hashes)


def _end(found: Verification, filled: int, as_json: bool) -> None:
    problems = sum(len(report.problems) for report in found.shards)
    if as_json:
        print_json({**found.to_dict(), "problems": problems, "hashes_filled": filled})
        return
    for finding in found.findings:
        if finding.severity == "warning":
            _print_warning(finding)
    told = [show_count(count, word) for word, count in (("problem", problems), ("warning", found.count("warning")))]
    state = ", ".join(text for text in told if not text.startswith("0 ")) or "all is well"
    print_text(f"{show_count(len(found.shards), 'shard')}: {state}")
    if filled:
        print_text(f"filled in the sha256 of {show_count(filled, 'shard')}")


def _print_warning(finding: Finding) -> None:
    print_text(f"warning: {printable(str(finding))} [{finding.rule}]")
    print_text(f"  why: {printable(finding.why)}")
    print_text(f"  what to do: {printable(finding.advice)}")
