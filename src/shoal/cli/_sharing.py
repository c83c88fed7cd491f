"""``shoal hub``: datasets to and from the Hugging Face Hub."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from shoal import hub, store
from shoal.hub import CardOptions

from ._options import FieldsOption, JsonOption, PathArgument, parse_fields
from ._output import print_facts, print_json, print_text, show_bytes
from ._store import AtOnceOption, transfer_bar

__all__ = ["HUB_COMMANDS", "hub_app"]

RepoArgument = Annotated[str, typer.Argument(metavar="REPO", help="A dataset on the Hub: org/name.")]
LicenseOption = Annotated[str | None, typer.Option("--license", metavar="ID", help="Such as mit or cc-by-4.0.")]
TitleOption = Annotated[str | None, typer.Option("--title", metavar="TEXT", help="What people call the dataset.")]
DescriptionOption = Annotated[str | None, typer.Option("--description", metavar="TEXT", help="Markdown, for people.")]
TagsOption = Annotated[list[str] | None, typer.Option("--tag", metavar="WORD", help="May be given several times.")]

hub_app = typer.Typer(
    name="hub",
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


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
        done = hub.push_to_hub(
            path, repo, private=private or None, revision=revision, message=message, card=card, progress=tell
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
        done = hub.download(repo, folder, overwrite=overwrite, progress=tell, at_once=at_once, **options)
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
    made = hub.dataset_card(path, repo, options=_card_options(license, title, description, tag))
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
