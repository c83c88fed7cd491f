"""``shoal repo``: datasets' bytes in a folder or a bucket, with an index."""

from __future__ import annotations

from contextlib import closing
from typing import Annotated, Any

import typer

from shoal.dataset import Dataset
from shoal.formats import detect
from shoal.local import LocalIndex, Repo
from shoal.shard import locate_shards
from shoal.store import store_for

from ._catalog import IndexOption, TagOption, entry_facts, parse_metadata
from ._options import JsonOption
from ._output import print_json, print_text, printable, progress, show_bytes, show_count

__all__ = ["REPO_COMMANDS", "repo_app"]

RepoArgument = Annotated[str, typer.Argument(metavar="REPO", help="A folder, or s3://bucket/prefix.")]
EnvOption = Annotated[
    str | None, typer.Option("--env", metavar="FILE", help="A .env file with AWS_ENDPOINT, AWS_ACCESS_KEY_ID, ...")
]

repo_app = typer.Typer(
    name="repo",
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@repo_app.callback()
def repo() -> None:
    """Keep datasets in a folder or a bucket, recorded in an index.

    Credentials come from the environment, an AWS profile or --env, and stay there.
    """


def insert(
    where: RepoArgument,
    path: Annotated[str, typer.Argument(metavar="PATH", help="A tar, a pattern, a folder or a URL.")],
    name: Annotated[str, typer.Option("--name", metavar="NAME", help="What it is to be called.")],
    version: Annotated[str | None, typer.Option("--version", metavar="1.2.0", help="By default the next one.")] = None,
    description: Annotated[str | None, typer.Option("--description", metavar="TEXT", help="What it is.")] = None,
    tag: TagOption = None,
    metadata: Annotated[str | None, typer.Option("--metadata", metavar="JSON", help="A JSON object, or @FILE.")] = None,
    env: EnvOption = None,
    index: IndexOption = None,
    as_json: JsonOption = False,
) -> None:
    """Copy a dataset into a repository and record it.

    \b
    Examples:
      shoal repo insert ~/datasets data/pets/ --name pets
      shoal repo insert s3://bucket/datasets data/pets/ --name team/pets --env minio.env --tag animals
    """  # noqa: D301 - click's own mark for a paragraph that is not to be wrapped
    with closing(LocalIndex(index)) as opened, progress("copying", _size(path), quiet=as_json, sizes=True) as tell:
        entry = Repo(where, s3_credentials=env, index=opened).insert(
            path,
            name=name,
            version=version,
            description=description,
            tags=tag or (),
            metadata=parse_metadata(metadata),
            progress=tell,
        )
    if as_json:
        print_json(entry_facts(entry))
    else:
        print_text(f"{entry.reference}: {show_count(len(entry.shards), 'shard')}, {show_bytes(entry.bytes)}")
        print_text(printable(entry.storage.root))


def _size(path: str) -> int:
    """How many bytes will be copied, where these are tars; else samples are written, as many as there are."""
    if store_for(path).is_folder(path) and detect(path) != "webdataset":
        return len(Dataset(path))
    return sum(store_for(ref.url).info(ref.url).size for ref in locate_shards(path).shards)


def verify(
    where: RepoArgument,
    ref: Annotated[str | None, typer.Argument(metavar="REF", help="Only this dataset.")] = None,
    env: EnvOption = None,
    index: IndexOption = None,
    as_json: JsonOption = False,
) -> None:
    """Read every byte and compare it with the checksums of the index.

    The exit code is 1 when something is damaged or missing.

    \b
    Examples:
      shoal repo verify ~/datasets
      shoal repo verify s3://bucket/datasets team/pets --json
    """  # noqa: D301 - click's own mark for a paragraph that is not to be wrapped
    with closing(LocalIndex(index)) as opened:
        repo = Repo(where, s3_credentials=env, index=opened)
        entries = list(repo.entries()) if ref is None else [opened.get_dataset(ref)]
        sizes = {entry.storage.root: entry.bytes for entry in entries}
        with progress("verifying", sum(sizes.values()), quiet=as_json, sizes=True) as tell:
            checks = list(repo.verify(ref, progress=tell))
    bad = [check for check in checks if not check.ok]
    if as_json:
        problems = [{"reference": one.reference, "url": one.url, "problem": one.problem} for one in bad]
        print_json({"shards": len(checks), "bytes": sum(one.bytes for one in checks), "problems": problems})
    else:
        for check in bad:
            print_text(f"{check.reference}: {printable(check.url)}: {printable(str(check.problem))}")
        state = show_count(len(bad), "damaged shard") if bad else "all is well"
        print_text(f"{show_count(len(checks), 'shard')}, {show_bytes(sum(one.bytes for one in checks))}: {state}")
    if bad:
        raise typer.Exit(1)


def gc(
    where: RepoArgument,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be removed.")] = False,
    patience: Annotated[
        float, typer.Option("--patience", min=0, metavar="HOURS", help="For inserts on other machines.")
    ] = 24.0,
    env: EnvOption = None,
    index: IndexOption = None,
    as_json: JsonOption = False,
) -> None:
    """Remove what no entry stands for: of interrupted inserts and forgotten versions.

    \b
    Examples:
      shoal repo gc ~/datasets --dry-run
      shoal repo gc s3://bucket/datasets --json
    """  # noqa: D301 - click's own mark for a paragraph that is not to be wrapped
    with closing(LocalIndex(index)) as opened:
        found = Repo(where, s3_credentials=env, index=opened).gc(dry_run=dry_run, patience=patience * 3600)
    facts: dict[str, Any] = {
        "removed": list(found.removed),
        "objects": found.objects,
        "bytes": found.bytes,
        "in_progress": list(found.in_progress),
        "foreign": list(found.foreign),
    }
    if as_json:
        print_json(facts)
        return
    for folder in found.removed:
        print_text(printable(folder))
    word = "would remove" if dry_run else "removed"
    print_text(f"{word} {show_count(len(found.removed), 'folder')}, {show_bytes(found.bytes)}")
    for text, folders in (("in progress", found.in_progress), ("of another index", found.foreign)):
        if folders:
            print_text(f"left alone, {text}: {show_count(len(folders), 'folder')}")


REPO_COMMANDS = (insert, verify, gc)
for _command in REPO_COMMANDS:
    repo_app.command(_command.__name__)(_command)
