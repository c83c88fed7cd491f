"""``shoal verify`` and ``shoal repair``: find damage, and save what is intact."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from shoal.build._findings import Finding, Repair, ShardRepair, Verification, report_page
from shoal.build._lint import READERS
from shoal.build._repair import repair as repair_all
from shoal.build._verify import verify as verify_all
from shoal.errors import OptionError, StoreError
from shoal.shard._discovery import ShardList, locate_shards
from shoal.shard._journal import commit
from shoal.shard._verify import ShardReport, with_hashes
from shoal.store._operations import put, stat
from shoal.store._url import relative_url

from ._options import JsonOption, PathArgument, ReportOption, SplitOption, WorkersOption
from ._output import print_json, print_text, printable, progress, show_bytes, show_count

__all__ = ["repair", "verify"]

_TRUST = ("auto", "index", "tar")
_MAX_LINES = 10


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
    with progress("verifying", _shards_size(located), quiet=as_json, sizes=True) as advance:
        verification = verify_all(
            path,
            split=split,
            hashed=hashed,
            decode=deep,
            readers=READERS if lint else (),
            workers=workers,
            on_shard=None if as_json else _print_verified_shard,
            on_bytes=advance,
        )
    filled = _fill_hashes(located, verification.shards) if hashed else 0
    if report is not None:
        put(report, report_page(verification).encode())
    _print_verification(verification, filled, as_json)
    if not verification.ok or (strict and verification.count("warning")):
        raise typer.Exit(1)


def _shards_size(located: ShardList) -> int:
    return sum(_object_size(ref.url) for ref in located.shards)


def _object_size(url: str) -> int:
    try:
        return stat(url).size
    except StoreError:  # a missing shard is reported when it is verified
        return 0


def _print_verified_shard(report: ShardReport) -> None:
    state = "ok" if report.ok else show_count(len(report.problems), "problem")
    counts = (
        f"{show_count(report.samples, 'sample')}, {show_count(report.members, 'member')}, {show_bytes(report.bytes)}"
    )
    print_text(f"{printable(report.url)}: {state} ({counts})")
    for problem in report.problems:
        print_text(f"  {printable(str(problem))}")
    for note in report.notes:
        print_text(f"  note: {printable(note.problem)}")


def _fill_hashes(located: ShardList, reports: Sequence[ShardReport]) -> int:
    """Write the hashes of undamaged shards that had none into the manifest, and return their number."""
    manifest, root = located.manifest, located.root
    if manifest is None or root is None:
        return 0
    missing = {record.path for record in manifest.shards if record.sha256 is None}
    sound = {relative_url(report.url, root): report.sha256 for report in reports if report.ok and report.sha256}
    hashes = {path: sha256 for path, sha256 in sound.items() if path in missing and sha256 is not None}
    if hashes:
        commit(root, lambda before: with_hashes(before, hashes))
    return len(hashes)


def _print_verification(verification: Verification, filled: int, as_json: bool) -> None:
    problems = sum(len(report.problems) for report in verification.shards)
    if as_json:
        print_json({**verification.to_dict(), "problems": problems, "hashes_filled": filled})
        return
    for finding in verification.findings:
        if finding.severity == "warning":
            _print_warning(finding)
    counts = (("problem", problems), ("warning", verification.count("warning")))
    state = ", ".join(show_count(count, word) for word, count in counts if count) or "all is well"
    print_text(f"{show_count(len(verification.shards), 'shard')}: {state}")
    if filled:
        print_text(f"filled in the sha256 of {show_count(filled, 'shard')}")


def _print_warning(finding: Finding) -> None:
    print_text(f"warning: {printable(str(finding))} [{finding.rule}]")
    print_text(f"  why: {printable(finding.why)}")
    print_text(f"  what to do: {printable(finding.advice)}")


def repair(
    path: PathArgument,
    output: Annotated[
        str | None,
        typer.Option(
            "--output", "-o", metavar="FOLDER", help="Write the repaired dataset there; touch nothing in PATH."
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and write nothing.")] = False,
    trust: Annotated[
        str,
        typer.Option(
            metavar="|".join(_TRUST), help="Whom to believe where a tar is in order and its index says otherwise."
        ),
    ] = "auto",
    deep: Annotated[
        bool, typer.Option("--deep", help="Where there are no checksums, also leave out samples that do not decode.")
    ] = False,
    drop_missing: Annotated[
        bool, typer.Option("--drop-missing", help="Take shards that are not there off the manifest.")
    ] = False,
    split: SplitOption = None,
    workers: WorkersOption = None,
    report: ReportOption = None,
    as_json: JsonOption = False,
) -> None:
    """Save every sample that is whole, and keep the rest.

    Sound shards are not touched. Missing and stale indexes are made anew. Of a damaged shard the samples that are whole
    are written into a new one of the same name; the shard as it was is kept in .shoal/quarantine, and nothing is
    deleted. With an index every saved byte is checked. The exit code is 1 when a sample is lost or a shard is missing.

    \b
    Examples:
      shoal repair data/ --dry-run
      shoal repair data/ --report repaired.html
      shoal repair data/ --output whole/ --json
    """  # noqa: D301 - click's own mark for a paragraph that is not to be wrapped
    if trust not in _TRUST:
        raise OptionError("--trust has no such choice", expected=" or ".join(_TRUST), found=trust)
    with progress("repairing", _shards_size(locate_shards(path, split)), quiet=as_json, sizes=True) as advance:
        done = repair_all(
            path,
            output=output,
            dry_run=dry_run,
            split=split,
            trust=trust,  # type: ignore[arg-type]  # it is one of them
            decode=deep,
            drop_missing=drop_missing,
            workers=workers,
            on_shard=None if as_json else _print_repaired_shard,
            on_bytes=advance,
        )
    if report is not None:
        put(report, report_page(done).encode())
    _print_repair(done, as_json)
    if not done.complete:
        raise typer.Exit(1)


def _print_repaired_shard(shard: ShardRepair) -> None:
    if shard.action == "sound":
        return
    counts = f"{show_count(shard.saved, 'sample')} saved, {shard.lost_count:,} lost"
    proof = f", by {shard.proof}" if shard.proof else ""
    print_text(f"{printable(shard.url)}: {shard.action} ({counts}{proof})")
    for reason in shard.reasons[:_MAX_LINES]:
        print_text(f"  {printable(reason)}")
    for lost in shard.lost[:_MAX_LINES]:
        print_text(f"  lost {printable(lost.key)}: {printable(lost.reason)}")
    if len(shard.lost) > _MAX_LINES:
        print_text(f"  and {len(shard.lost) - _MAX_LINES:,} more")
    if shard.quarantine is not None:
        print_text(f"  kept at {printable(shard.quarantine)}")


def _print_repair(done: Repair, as_json: bool) -> None:
    if as_json:
        print_json(done.to_dict())
        return
    counts = f"{show_count(done.saved, 'sample')}, {done.lost:,} lost"
    would = ", nothing was written" if done.dry_run else ""
    print_text(f"{show_count(len(done.shards), 'shard')}, {len(done.changed):,} not sound: {counts}{would}")
