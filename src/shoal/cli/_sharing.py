"""``shoal hub``, ``login``, ``publish``, ``find``, ``pull`` and ``atmosphere``: share datasets."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Annotated, Any

import typer

from shoal import store
from shoal.atmosphere._client import AtmosphereClient
from shoal.atmosphere._firehose import Event
from shoal.atmosphere._pds import session_file
from shoal.atmosphere._records import PublishedDataset
from shoal.dataset._load import load_dataset
from shoal.errors import OptionError
from shoal.hub._card import CardOptions, dataset_card
from shoal.hub._download import download as download_from_hub
from shoal.hub._push import push_to_hub
from shoal.local._index import default_index
from shoal.promote import promote_to_atmosphere
from shoal.store._url import base_name

from ._options import FieldsOption, JsonOption, PathArgument, command_group, parse_fields
from ._output import print_facts, print_json, print_table, print_text, printable, progress, show_bytes, show_count
from ._store import AtOnceOption, transfer_bar

__all__ = ["HUB_COMMANDS", "atmosphere_app", "find", "hub_app", "login", "publish", "pull"]

RepoArgument = Annotated[str, typer.Argument(metavar="REPO", help="A dataset on the Hub: org/name.")]
LicenseOption = Annotated[str | None, typer.Option("--license", metavar="ID", help="Such as mit or cc-by-4.0.")]
TitleOption = Annotated[str | None, typer.Option("--title", metavar="TEXT", help="What people call the dataset.")]
DescriptionOption = Annotated[str | None, typer.Option("--description", metavar="TEXT", help="Markdown, for people.")]
TagsOption = Annotated[list[str] | None, typer.Option("--tag", metavar="WORD", help="May be given several times.")]
PdsOption = Annotated[
    str | None,
    typer.Option(
        "--pds", metavar="URL", envvar="SHOAL_PDS_URL", help="The account's server, where its name is no help."
    ),
]
PlcOption = Annotated[
    str | None, typer.Option("--plc", metavar="URL", envvar="SHOAL_PLC_URL", help="The directory of accounts.")
]
AppViewOption = Annotated[
    str | None, typer.Option("--appview", metavar="URL", envvar="SHOAL_APPVIEW", help="An AppView to be asked first.")
]
AllowPrivateOption = Annotated[
    bool,
    typer.Option(
        "--allow-private",
        envvar="SHOAL_ALLOW_PRIVATE",
        help="Ask addresses on this machine and in private networks, and publish them: for a closed network.",
    ),
]
hub_app = command_group("hub")
atmosphere_app = command_group("atmosphere", help="Follow published datasets.")


@hub_app.callback()
def reach(
    endpoint: Annotated[str | None, typer.Option("--endpoint", metavar="URL", help="Of another hub.")] = None,
) -> None:
    """Push datasets to the Hugging Face Hub and fetch them.

    To look at one nothing needs to be fetched: every command takes hf://datasets/org/name as PATH. The token comes
    from HF_TOKEN or `hf auth login`, never from the command line.
    """
    if endpoint is not None:
        store.configure("hf://", endpoint=endpoint)


def push(
    path: PathArgument,
    repo: RepoArgument,
    private: Annotated[bool, typer.Option("--private", help="Make the repository a private one.")] = False,
    revision: Annotated[str, typer.Option("--revision", metavar="NAME", help="The branch.")] = "main",
    compact: Annotated[bool, typer.Option("--compact", help="Rewrite shards without their deleted samples.")] = False,
    message: Annotated[str | None, typer.Option("--message", "-m", metavar="TEXT", help="Of the commit.")] = None,
    license: LicenseOption = None,  # noqa: A002 - as the option is called
    title: TitleOption = None,
    description: DescriptionOption = None,
    tag: TagsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Push a folder of shards, with its indexes, its manifest and a card.

    Files that are there already are not sent again: a push that was interrupted is simply made again. What the last
    push named and this one does not is removed; what people wrote in the card stays.

    \b
    Examples:
      shoal hub push data/ org/pets --license cc-by-4.0
      shoal hub push data/ org/pets --private --revision next
    """  # noqa: D301 - click's own mark for a paragraph that is not to be wrapped
    card = _card_options(license, title, description, tag)
    with transfer_bar("pushing", as_json) as tell:
        done = push_to_hub(
            path,
            repo,
            private=private or None,
            revision=revision,
            compact=compact,
            message=message,
            card=card,
            progress=tell,
        )
    facts = {"repo": done.repo_id, "revision": done.revision, "commit": done.commit, "page": done.page, "url": done.url}
    if as_json:
        print_json({**facts, "files": done.files, "bytes": done.bytes})
    else:
        print_facts([*facts.items(), ("files", f"{done.files:,}"), ("size", show_bytes(done.bytes))])


def download(
    repo: RepoArgument,
    folder: Annotated[str, typer.Argument(metavar="FOLDER", help="Where it goes.")],
    split: Annotated[
        list[str] | None, typer.Option("--split", metavar="NAME", help="Only this; several times.")
    ] = None,
    fields: FieldsOption = None,
    revision: Annotated[str | None, typer.Option("--revision", metavar="NAME", help="Branch, tag or commit.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace shards with another content.")] = False,
    at_once: AtOnceOption = 8,
    as_json: JsonOption = False,
) -> None:
    """Fetch a dataset, or only some splits and fields of it.

    Each file is checked against its hash. What is there already is not fetched again.

    \b
    Examples:
      shoal hub download org/pets pets/
      shoal hub download org/pets pets/ --split test --fields json,txt
    """  # noqa: D301 - click's own mark for a paragraph that is not to be wrapped
    options: dict[str, Any] = {"splits": split or None, "columns": parse_fields(fields), "revision": revision}
    with transfer_bar("fetching", as_json) as tell:
        done = download_from_hub(repo, folder, overwrite=overwrite, progress=tell, at_once=at_once, **options)
    if as_json:
        print_json({"folder": folder, "samples": len(done), "shards": len(done.shards)})
    else:
        print_text(f"{len(done):,} samples in {len(done.shards):,} shards: {folder}")


def card(
    path: PathArgument,
    repo: Annotated[str, typer.Argument(metavar="REPO", help="The name that the card's examples use.")] = "org/name",
    license: LicenseOption = None,  # noqa: A002 - as the option is called
    title: TitleOption = None,
    description: DescriptionOption = None,
    tag: TagsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print the card that a push would make.

    \b
    Examples:
      shoal hub card data/ org/pets --license mit
      shoal hub card data/ > data/README.md
    """  # noqa: D301 - click's own mark for a paragraph that is not to be wrapped
    made = dataset_card(path, repo, options=_card_options(license, title, description, tag))
    if as_json:
        print_json({"text": made.text, "pictures": list(made.pictures)})
    else:
        print_text(made.text)


def _card_options(
    license: str | None,  # noqa: A002 - as the option is called
    title: str | None,
    description: str | None,
    tags: list[str] | None,
) -> CardOptions:
    return CardOptions(license=license, pretty_name=title, description=description, tags=tuple(tags or ()))


HUB_COMMANDS = (push, download, card)
for _command in HUB_COMMANDS:
    hub_app.command(_command.__name__)(_command)


@atmosphere_app.callback()
def atmosphere() -> None:
    """Follow what others publish."""


@atmosphere_app.command("watch")
def watch(
    handles: Annotated[
        list[str] | None, typer.Argument(metavar="[HANDLE]...", help="Accounts to follow; none for all of a service.")
    ] = None,
    service: Annotated[
        str | None, typer.Option("--service", metavar="URL", help="A server or a relay; else the first account's.")
    ] = None,
    idle: Annotated[
        float | None, typer.Option("--idle", min=0, metavar="S", help="Stop when nothing came for so many seconds.")
    ] = None,
    pds: PdsOption = None,
    plc: PlcOption = None,
    allow_private: AllowPrivateOption = False,
    as_json: JsonOption = False,
) -> None:
    """Follow the events of accounts, a server or a relay, until it is stopped.

    It goes on where it was, also after it was killed: no event is missed, and none is counted twice. Datasets are then
    found by `shoal find`, and in the local index (`shoal catalog search`) as handle/name.

    \b
    Examples:
      shoal atmosphere watch alice.bsky.social
      shoal atmosphere watch --service https://relay.example.org
    """  # noqa: D301 - click's own mark for a paragraph that is not to be wrapped
    with client_for(pds, plc, allow_private=allow_private) as client:
        tell = None if as_json else _print_event
        try:
            with default_index() as index:
                count = client.watch(service, handles=handles or None, index=index, on_event=tell, idle=idle)
        except KeyboardInterrupt:
            raise typer.Exit(130) from None
        if as_json:
            print_json({"events": count, "records": len(client.followed)})
        else:
            print_text(f"{show_count(count, 'event')}; {show_count(len(client.followed), 'record')} known")


def _print_event(event: Event) -> None:
    name = "" if event.value is None else str(event.value.get("name", ""))
    print_text(f"{event.action:<6}  {event.uri}  {printable(name)}")


def find(
    text: Annotated[
        str, typer.Argument(metavar="TEXT", help="Words that must all be there; none for everything.")
    ] = "",
    handles: Annotated[
        list[str] | None,
        typer.Option("--of", metavar="HANDLE", help="Look through this account; several times for more."),
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, metavar="N", help="At most this many.")] = 50,
    pds: PdsOption = None,
    plc: PlcOption = None,
    appview: AppViewOption = None,
    allow_private: AllowPrivateOption = False,
    as_json: JsonOption = False,
) -> None:
    """Find published datasets by words.

    The words are looked for in names, descriptions, tags and licenses: of what `shoal atmosphere watch` has followed,
    of the accounts named with --of, and by an AppView where one is configured.

    \b
    Examples:
      shoal find cats --of alice.bsky.social
      shoal find "small animals" --json
    """  # noqa: D301 - click's own mark for a paragraph that is not to be wrapped
    with client_for(pds, plc, appview=appview, allow_private=allow_private) as client:
        found = client.search(text, handles=handles or (), limit=limit)
    if as_json:
        print_json({"datasets": [_dataset_facts(dataset) for dataset in found]})
    elif found:
        rows = [(one.name, _format_count(one.samples), show_bytes(one.bytes or 0), str(one.uri)) for one in found]
        print_table(["name", "samples", "size", "uri"], rows, right=["samples", "size"])
    else:
        print_text("nothing was found; name accounts with --of, or follow some with `shoal atmosphere watch`")


def _format_count(count: int | None) -> str:
    return "?" if count is None else f"{count:,}"


def _dataset_facts(one: PublishedDataset) -> dict[str, Any]:
    words = {"name": one.name, "description": one.description, "tags": list(one.tags), "license": one.license}
    return {"uri": str(one.uri), **words, "schema": one.schema_ref, "samples": one.samples, "bytes": one.bytes}


def login(
    handle: Annotated[str | None, typer.Argument(metavar="HANDLE", help="Such as alice.bsky.social.")] = None,
    save: Annotated[bool, typer.Option("--save", help="Keep the session in a file that only you can read.")] = False,
    forget: Annotated[bool, typer.Option("--forget", help="Remove the session that was kept.")] = False,
    pds: PdsOption = None,
    plc: PlcOption = None,
    allow_private: AllowPrivateOption = False,
    as_json: JsonOption = False,
) -> None:
    """Log in to the AT Protocol network.

    The app password is asked for, or taken from SHOAL_APP_PASSWORD; it is never an argument, never shown and never
    written down. Without --save nothing is kept: set SHOAL_HANDLE and SHOAL_APP_PASSWORD for the other commands. With
    it the session's tokens are written, readable, into a file with mode 0600.

    \b
    Examples:
      shoal login alice.bsky.social --save
      shoal login --forget
    """  # noqa: D301 - click's own mark for a paragraph that is not to be wrapped
    if forget:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(session_file())
        if as_json:
            print_json({"forgotten": True})
        else:
            print_text("the session is forgotten")
        return
    if handle is None:
        raise OptionError("whose session?", expected="a handle")
    with client_for(pds, plc, allow_private=allow_private) as client:
        client.login(handle, _read_password())
        path = save_session(client) if save else None
        if as_json:
            print_json({"handle": client.handle, "did": client.did, "session": path})
        else:
            print_text(f"logged in as {client.handle} ({client.did})" + (f"; session kept in {path}" if path else ""))


def _read_password() -> str:
    given = os.environ.get("SHOAL_APP_PASSWORD")
    if given:
        return given
    if not sys.stdin.isatty():
        return sys.stdin.readline().rstrip("\n")
    answer: str = typer.prompt("app password", hide_input=True, err=True)
    return answer


@contextmanager
def client_for(
    pds: str | None, plc: str | None, *, appview: str | None = None, allow_private: bool = False, login: bool = False
) -> Iterator[AtmosphereClient]:
    """Open a client; with ``login``, logged in by the environment or by the saved session."""
    with AtmosphereClient(pds, plc, appview=appview, allow_private=allow_private) as client:
        uses_saved_session = login and _log_in(client)
        yield client
        if uses_saved_session:  # tokens may have been renewed, which makes the old ones invalid
            save_session(client)


def _log_in(client: AtmosphereClient) -> bool:
    """Log in; True where the saved session was used."""
    given = os.environ.get("SHOAL_SESSION"), os.environ.get("SHOAL_HANDLE"), os.environ.get("SHOAL_APP_PASSWORD")
    session, handle, password = given
    if session:
        client.import_session(session)
    elif handle and password:
        client.login(handle, password)
    elif os.path.exists(session_file()):
        with open(session_file(), encoding="utf-8") as file:
            client.import_session(file.read())
        return True
    else:
        client.require_login()
    return False


def save_session(client: AtmosphereClient) -> str:
    """Save the session in a file that only this user can read, and return its path."""
    path = session_file()
    os.makedirs(os.path.dirname(path), exist_ok=True)
    descriptor = os.open(f"{path}.new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(descriptor, "w", encoding="utf-8") as file:
        file.write(client.export_session())
    os.replace(f"{path}.new", path)
    return path


def publish(
    source: Annotated[str, typer.Argument(metavar="SRC", help="A folder, a pattern, a URL, or @local/NAME.")],
    name: Annotated[
        str | None, typer.Option("--name", metavar="NAME", help="What it is called; else SRC's own.")
    ] = None,
    storage: Annotated[str, typer.Option("--storage", metavar="KIND", help="auto, http, s3 or blobs.")] = "auto",
    description: Annotated[str, typer.Option("--description", metavar="TEXT", help="A few words about it.")] = "",
    tags: Annotated[list[str] | None, typer.Option("--tag", metavar="WORD", help="May be given several times.")] = None,
    license: Annotated[str, typer.Option("--license", metavar="NAME", help="Such as CC0-1.0.")] = "",  # noqa: A002
    version: Annotated[
        str | None, typer.Option("--version", metavar="V", help="Also publish a label, for @handle/name@V.")
    ] = None,
    schema: Annotated[
        str | None, typer.Option("--schema", metavar="URI", help="The schema, where the dataset does not say it.")
    ] = None,
    pds: PdsOption = None,
    plc: PlcOption = None,
    allow_private: AllowPrivateOption = False,
    as_json: JsonOption = False,
) -> None:
    """Publish a dataset on the AT Protocol network.

    Its record goes up, the schema of its samples, and its bytes where others could not read them: data at public URLs
    and in public buckets stays where it is, local files become blobs of the account's server. The same data again gives
    the same record.

    \b
    Examples:
      shoal publish photos-tar/ --name photos --description "Cats" --tag cats
      shoal publish 'https://example.org/train-{000000..000009}.tar' --name far --schema at://...
      shoal publish @local/photos
    """  # noqa: D301 - click's own mark for a paragraph that is not to be wrapped
    if storage not in ("auto", "http", "s3", "blobs"):
        raise OptionError("there is no such storage", expected="auto, http, s3 or blobs", found=storage)
    with client_for(pds, plc, allow_private=allow_private, login=True) as client, _publishing_bar(as_json) as tell:
        said: dict[str, Any] = {"description": description, "tags": tags or (), "license": license, "version": version}
        reach: dict[str, Any] = {"storage": storage, "allow_private": allow_private, "progress": tell}
        if source.startswith("@local/"):
            index = default_index()
            given: dict[str, Any] = {word: value or None for word, value in said.items() if word != "license"}
            uri = promote_to_atmosphere(
                index.get_dataset(source), index, client, name=name, license=license, **given, **reach
            )
            made = client.get_dataset(uri)
        else:
            called = name or base_name(source.rstrip("/")).partition(".")[0]
            made = client.publish_dataset(load_dataset(source), name=called, schema=schema, **said, **reach)
        _print_published(client, made, as_json)


@contextmanager
def _publishing_bar(quiet: bool) -> Iterator[Callable[[int, int], None]]:
    """Show a progress bar for a task whose size is known with its first step."""
    with ExitStack() as stack:
        steps: list[Callable[[int], None]] = []
        before = 0

        def tell(done: int, total: int) -> None:
            nonlocal before
            if not steps:
                steps.append(stack.enter_context(progress("publishing", total, quiet=quiet)))
            steps[0](done - before)
            before = done

        yield tell


def _print_published(client: AtmosphereClient, made: PublishedDataset, as_json: bool) -> None:
    kind = type(made.storage).__name__.removeprefix("Storage").lower()
    if as_json:
        facts = {"uri": str(made.uri), "cid": str(made.cid), "name": made.name, "storage": kind}
        print_json(
            {**facts, "samples": made.samples, "bytes": made.bytes, "reference": f"@{client.handle}/{made.name}"}
        )
        return
    size = f"{show_count(made.samples or 0, 'sample')}, {show_bytes(made.bytes or 0)} as {kind}"
    print_text(f"{made.uri}\n@{client.handle}/{made.name}: {size}")


def pull(
    ref: Annotated[str, typer.Argument(metavar="REF", help="at://..., @handle/name or @handle/name@version.")],
    folder: Annotated[str, typer.Argument(metavar="FOLDER", help="Where the copy goes.")],
    pds: PdsOption = None,
    plc: PlcOption = None,
    appview: AppViewOption = None,
    allow_private: AllowPrivateOption = False,
    as_json: JsonOption = False,
) -> None:
    """Copy a published dataset into a folder.

    Every shard is checked against its record, and the schema goes into the manifest. A copy that was cut short goes on
    where it was.

    \b
    Examples:
      shoal pull @alice.bsky.social/photos photos/
      shoal pull at://did:plc:.../science.alt.dataset.entry/3k... photos/ --json
    """  # noqa: D301 - click's own mark for a paragraph that is not to be wrapped
    with client_for(pds, plc, appview=appview, allow_private=allow_private) as client:
        dataset = client.get_dataset(ref)
        with progress("fetching", len(dataset.data_urls), quiet=as_json) as step:
            paths = client.pull(str(dataset.uri), folder, progress=lambda done, total: step(1))
    if as_json:
        print_json({"uri": str(dataset.uri), "folder": folder, "shards": paths})
    else:
        print_text(f"{show_count(len(paths), 'shard')} of {dataset.name}: {folder}")
