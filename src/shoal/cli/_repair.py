"""``shoal repair``: save what is whole of a damaged dataset."""

from __future__ import annotations

from typing import Annotated

import typer

from shoal.build import Repair, ShardRepair, report_page
from shoal.build import repair as repair_all
from shoal.errors import OptionError, StoreError
from shoal.shard import locate_shards
from shoal.store import put, stat

from ._options import JsonOption, PathArgument, ReportOption, SplitOption, WorkersOption
from ._output import print_json, print_text, printable, progress, show_count

__all__ = ["repair"]

_TRUST = ("auto", "index", "tar")
_SHOWN = 10


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
    with progress("repairing", _size(path, split), quiet=as_json, sizes=True) as advance:
        done = repair_all(
            path,
            output=output,
            dry_run=dry_run,
            split=split,
            trust=trust,  # type: ignore[arg-type]  # it is one of them
            decode=deep,
            drop_missing=drop_missing,
            workers=workers,
            on_shard=None if as_json else _print,
            on_bytes=advance,
        )
    if report is not None:
        put(report, report_page(done).encode())
    _end(done, as_json)
    if not done.complete:
        raise typer.Exit(1)


def _size(path: str, split: str | None) -> int:
    return sum(_object_size(ref.url) for ref in locate_shards(path, split).shards)


def _object_size(url: str) -> int:
    try:
        return stat(url).size
    except StoreError:  # its absence is told when its turn comes
        return 0


def _print(shard: ShardRepair) -> None:
    if shard.action == "sound":
        return
    counts = f"{show_count(shard.saved, 'sample')} saved, {shard.lost_count:,} lost"
    proof = f", by {shard.proof}" if shard.proof else ""
    print_text(f"{printable(shard.url)}: {shard.action} ({counts}{proof})")
    for reason in shard.reasons[:_SHOWN]:
        print_text(f"  {printable(reason)}")
    for lost in shard.lost[:_SHOWN]:
        print_text(f"  lost {printable(lost.key)}: {printable(lost.reason)}")
    if len(shard.lost) > _SHOWN:
        print_text(f"  and {len(shard.lost) - _SHOWN:,} more")
    if shard.quarantine is not None:
        print_text(f"  kept at {printable(shard.quarantine)}")


def _end(done: Repair, as_json: bool) -> None:
    if as_json:
        print_json(done.to_dict())
        return
    counts = f"{show_count(done.saved, 'sample')}, {done.lost:,} lost"
    would = ", nothing was written" if done.dry_run else ""
    print_text(f"{show_count(len(done.shards), 'shard')}, {len(done.changed):,} not sound: {counts}{would}")
