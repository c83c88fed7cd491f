"""``shoal publish``: a dataset onto the network."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Annotated, Any

import typer

from shoal.atmosphere import AtmosphereClient, PublishedDataset
from shoal.dataset import load_dataset
from shoal.errors import OptionError
from shoal.local import default_index
from shoal.promote import promote_to_atmosphere
from shoal.store import base_name

from ._network import AllowPrivateOption, PdsOption, PlcOption, client_for
from ._options import JsonOption
from ._output import print_json, print_text, progress, show_bytes, show_count

__all__ = ["publish"]


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
    with client_for(pds, plc, allow_private=allow_private, login=True) as client, _bar(as_json) as tell:
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
        _report(client, made, as_json)


@contextmanager
def _bar(quiet: bool) -> Iterator[Callable[[int, int], None]]:
    """A bar for a task whose size is told with its first step."""
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


def _report(client: AtmosphereClient, made: PublishedDataset, as_json: bool) -> None:
    kind = type(made.storage).__name__.removeprefix("Storage").lower()
    if as_json:
        facts = {"uri": str(made.uri), "cid": str(made.cid), "name": made.name, "storage": kind}
        print_json(
            {**facts, "samples": made.samples, "bytes": made.bytes, "reference": f"@{client.handle}/{made.name}"}
        )
        return
    size = f"{show_count(made.samples or 0, 'sample')}, {show_bytes(made.bytes or 0)} as {kind}"
    print_text(f"{made.uri}\n@{client.handle}/{made.name}: {size}")
