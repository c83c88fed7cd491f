"""``shoal catalog`` and ``shoal repo``: the datasets of an index, and their bytes."""

from __future__ import annotations

import json
import os
from contextlib import closing
from datetime import date
from typing import Annotated, Any

import typer

from shoal.dataset._dataset import Dataset
from shoal.errors import OptionError
from shoal.formats._registry import detect
from shoal.local._entry import Entry
from shoal.local._index import LocalIndex
from shoal.local._repo import Repo
from shoal.shard._discovery import locate_shards
from shoal.store._registry import store_for

from ._options import JsonOption, command_group, parse_bytes
from ._output import print_facts, print_json, print_table, print_text, printable, progress, show_bytes, show_count

__all__ = ["CATALOG_COMMANDS", "REPO_COMMANDS", "catalog_app", "repo_app"]

IndexOption = Annotated[
    str | None,
    typer.Option("--index", metavar="WHERE", help="A path, redis:// or postgresql://; by default your own index."),
]
RefArgument = Annotated[str, typer.Argument(metavar="REF", help="name, name@1.2.0 or name@latest.")]
TagOption = Annotated[list[str] | None, typer.Option("--tag", metavar="TAG", help="May be given several times.")]
RepoArgument = Annotated[str, typer.Argument(metavar="REPO", help="A folder, or s3://bucket/prefix.")]
EnvOption = Annotated[
    str | None, typer.Option("--env", metavar="FILE", help="A .env file with AWS_ENDPOINT, AWS_ACCESS_KEY_ID, ...")
]

catalog_app = command_group("catalog")


@catalog_app.callback()
def catalog() -> None:
    """Find, add and forget datasets in an index.

    The index is the one of --index, else of SHOAL_INDEX, else the Redis of REDIS_URL, else a SQLite file of yours.
    """


def add(
    name: Annotated[str, typer.Argument(metavar="NAME", help="What it is to be called: pets, team/pets.")],
    path: Annotated[str, typer.Argument(metavar="PATH", help="A tar, a pattern, a folder or a URL.")],
    version: Annotated[str | None, typer.Option("--version", metavar="1.2.0", help="By default the next one.")] = None,
    description: Annotated[str | None, typer.Option("--description", metavar="TEXT", help="What it is.")] = None,
    tag: TagOption = None,
    metadata: Annotated[str | None, typer.Option("--metadata", metavar="JSON", help="A JSON object, or @FILE.")] = None,
    hashed: Annotated[bool, typer.Option("--hash/--no-hash", help="Read every byte for its sha256.")] = True,
    where: IndexOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write a dataset down where it lies; its bytes stay there.

    \b
    Examples:
      shoal catalog add pets data/pets/ --tag animals --description "Cats and dogs"
      shoal catalog add team/laion 's3://bucket/laion-{000000..000099}.tar' --no-hash
    """  # noqa: D301 - click's own mark for a paragraph that is not to be wrapped
    with closing(LocalIndex(where)) as index:
        entry = index.insert_dataset(
            path,
            name=name,
            version=version,
            description=description,
            tags=tag or (),
            metadata=parse_metadata(metadata),
            hashed=hashed,
        )
    if as_json:
        print_json(entry_facts(entry))
    else:
        print_text(f"{entry.reference}: {_format_counts(entry)}")


def parse_metadata(text: str | None) -> dict[str, Any] | None:
    """Parse the JSON object, or the file with it, of ``--metadata``. Raises OptionError."""
    if text is None:
        return None
    try:
        if text.startswith("@"):
            with open(os.path.expanduser(text[1:]), encoding="utf-8") as file:
                text = file.read()
        found = json.loads(text)
    except ValueError as error:
        raise OptionError("the metadata is not JSON", found=str(error)) from None
    if not isinstance(found, dict):
        raise OptionError("the metadata is no JSON object", found=type(found).__name__)
    return found


def ls(
    prefix: Annotated[str, typer.Argument(metavar="PREFIX", help="Only names that begin so.")] = "",
    history: Annotated[bool, typer.Option("--history", help="Every version, not only the newest.")] = False,
    where: IndexOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the datasets of an index, by name.

    \b
    Examples:
      shoal catalog ls
      shoal catalog ls team/ --history --json
    """  # noqa: D301 - click's own mark for a paragraph that is not to be wrapped
    with closing(LocalIndex(where)) as index:
        newest = list(index.list_datasets(prefix))
        found = [entry for one in newest for entry in index.history(one.name)] if history else newest
    _print_entries(found, as_json)


def show(ref: RefArgument, where: IndexOption = None, as_json: JsonOption = False) -> None:
    """Show all that is known of a dataset.

    \b
    Examples:
      shoal catalog show pets
      shoal catalog show pets@1.0.0 --json
    """  # noqa: D301 - click's own mark for a paragraph that is not to be wrapped
    with closing(LocalIndex(where)) as index:
        entry = index.get_dataset(ref)
        versions = [one.version for one in index.history(entry.name)]
    facts = {**entry_facts(entry), "versions": versions}
    if as_json:
        print_json(facts)
        return
    shown = {**facts, "bytes": show_bytes(entry.bytes), "shards": len(entry.shards), "splits": _format_splits(entry)}
    shown.pop("urls")
    print_facts([(name, _format_value(value)) for name, value in shown.items() if value not in (None, "", [], {})])


def _format_splits(entry: Entry) -> str:
    return ", ".join(f"{name} ({show_count(len(urls), 'shard')})" for name, urls in entry.splits.items())


def _format_value(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict) else str(value)


def search(
    words: Annotated[list[str] | None, typer.Argument(metavar="WORDS", help="All must be there; 'photo*' too.")] = None,
    tag: TagOption = None,
    schema: Annotated[str | None, typer.Option("--schema", metavar="NAME", help="Name or Name@1.0.0.")] = None,
    field: Annotated[list[str] | None, typer.Option("--field", metavar="NAME", help="That samples have.")] = None,
    min_samples: Annotated[int | None, typer.Option("--min-samples", metavar="N", help="At least.")] = None,
    max_samples: Annotated[int | None, typer.Option("--max-samples", metavar="N", help="At most.")] = None,
    min_bytes: Annotated[str | None, typer.Option("--min-bytes", metavar="SIZE", help="At least: 10GB.")] = None,
    max_bytes: Annotated[str | None, typer.Option("--max-bytes", metavar="SIZE", help="At most.")] = None,
    after: Annotated[
        str | None, typer.Option("--after", metavar="2026-01-31", help="Added on this day or later.")
    ] = None,
    before: Annotated[str | None, typer.Option("--before", metavar="DAY", help="Added before this day.")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=10_000, metavar="N", help="At most this many.")] = 50,
    where: IndexOption = None,
    as_json: JsonOption = False,
) -> None:
    """Find datasets by words, tags, schema, fields, sizes and dates.

    \b
    Examples:
      shoal catalog search cats photo*
      shoal catalog search --tag animals --field image --min-samples 1000 --json
    """  # noqa: D301 - click's own mark for a paragraph that is not to be wrapped
    low, high = (None if size is None else parse_bytes(size) for size in (min_bytes, max_bytes))
    with closing(LocalIndex(where)) as index:
        found = index.search(
            " ".join(words or ()),
            tags=tag or (),
            schema=schema,
            fields=field or (),
            samples=(min_samples, max_samples),
            bytes=(low, high),
            created=(_parse_day(after), _parse_day(before)),
            limit=limit,
        )
    _print_entries(found, as_json)


def _parse_day(text: str | None) -> date | None:
    try:
        return None if text is None else date.fromisoformat(text)
    except ValueError:
        raise OptionError("this is no day", expected="such as 2026-01-31", found=repr(text)) from None


def rm(ref: RefArgument, where: IndexOption = None, as_json: JsonOption = False) -> None:
    """Forget a version, or all of a dataset; bytes stay until `shoal repo gc`.

    \b
    Examples:
      shoal catalog rm pets@1.0.0
      shoal catalog rm pets
    """  # noqa: D301 - click's own mark for a paragraph that is not to be wrapped
    with closing(LocalIndex(where)) as index:
        removed = index.delete(ref)
    if as_json:
        print_json({"removed": removed})
    else:
        print_text(f"forgot {show_count(removed, 'version')}")


def tag(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Of a dataset.")],
    tags: Annotated[list[str], typer.Argument(metavar="TAG...", help="To add.")],
    remove: Annotated[bool, typer.Option("--remove", help="Remove these tags instead.")] = False,
    where: IndexOption = None,
    as_json: JsonOption = False,
) -> None:
    """Add tags to a dataset, or remove them.

    \b
    Examples:
      shoal catalog tag pets animals small
      shoal catalog tag pets small --remove
    """  # noqa: D301 - click's own mark for a paragraph that is not to be wrapped
    with closing(LocalIndex(where)) as index:
        entry = (index.untag if remove else index.tag)(name, *tags)
    if as_json:
        print_json({"name": entry.name, "tags": list(entry.tags)})
    else:
        print_text(f"{entry.name}: {printable(', '.join(entry.tags)) or 'no tags'}")


CATALOG_COMMANDS = (add, ls, show, search, rm, tag)
for _command in CATALOG_COMMANDS:
    catalog_app.command(_command.__name__)(_command)


def entry_facts(entry: Entry) -> dict[str, Any]:
    """Return an entry as a JSON document."""
    return {
        "reference": entry.reference,
        "name": entry.name,
        "version": entry.version,
        "cid": entry.cid,
        "description": entry.description,
        "tags": list(entry.tags),
        "schema": entry.schema_ref,
        "samples": entry.samples,
        "bytes": entry.bytes,
        "root": entry.storage.root,
        "endpoint": entry.storage.endpoint,
        "region": entry.storage.region,
        "created": None if entry.created_at is None else entry.created_at.isoformat(timespec="seconds"),
        "metadata": entry.metadata,
        "splits": {name: len(urls) for name, urls in entry.splits.items()},
        "urls": entry.data_urls,
    }


def _print_entries(found: list[Entry], as_json: bool) -> None:
    if as_json:
        print_json({"datasets": [entry_facts(entry) for entry in found]})
        return
    if found:
        columns = ["dataset", "samples", "size", "schema", "tags", "description"]
        print_table(columns, [_table_row(entry) for entry in found], right=["samples", "size"])
    print_text(show_count(len(found), "dataset"))


def _table_row(entry: Entry) -> tuple[str, ...]:
    schema = entry.schema_ref.rpartition("/")[2]
    words = " ".join(entry.description.split())
    short = words if len(words) <= 60 else f"{words[:57]}..."
    samples = "?" if entry.samples is None else f"{entry.samples:,}"
    return entry.reference, samples, show_bytes(entry.bytes), schema, ", ".join(entry.tags), short


def _format_counts(entry: Entry) -> str:
    samples = "samples not counted" if entry.samples is None else show_count(entry.samples, "sample")
    return f"{show_count(len(entry.shards), 'shard')}, {samples}, {show_bytes(entry.bytes)}"


repo_app = command_group("repo")


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
    with closing(LocalIndex(index)) as opened, progress("copying", _copy_size(path), quiet=as_json, sizes=True) as tell:
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


def _copy_size(path: str) -> int:
    """Return the bytes to copy where these are tars, else the number of samples to write."""
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
for _repo_command in REPO_COMMANDS:
    repo_app.command(_repo_command.__name__)(_repo_command)
