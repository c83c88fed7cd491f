"""``shoal view``: a local web page to look at a dataset with."""

from __future__ import annotations

import importlib
import signal
import sys
import threading
from contextlib import suppress
from typing import Annotated, Any

import typer

from shoal.errors import OptionError

from ._options import JsonOption, SplitOption
from ._output import print_json, print_text

__all__ = ["view"]


def view(
    path: Annotated[str, typer.Argument(metavar="PATH_OR_URL", help="A tar, a pattern, a folder, a URL or a name.")],
    split: SplitOption = None,
    port: Annotated[int, typer.Option("--port", min=0, max=65535, metavar="N", help="The port; 0 is a free one.")] = 0,
    share: Annotated[
        str | None,
        typer.Option("--share", metavar="ADDRESS", help="Let others reach it by this address; 0.0.0.0 is all."),
    ] = None,
    sample_type: Annotated[
        str | None, typer.Option("--type", metavar="MODULE:CLASS", help="The class of the samples.")
    ] = None,
    lenses: Annotated[
        list[str] | None,
        typer.Option("--lens", metavar="MODULE:NAME", help="A lens to look through; may be given several times."),
    ] = None,
    browser: Annotated[bool, typer.Option("--browser", help="Open the page in the browser.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Look at a dataset in the browser.

    Samples, columns, shards, schema, lenses, and a build while it runs.

    Prints a link with a token and serves the page until Ctrl-C. Only this machine can reach it, unless --share says
    by which address others can. Shards are never downloaded: what is shown is read by range.

    \b
    Examples:
      shoal view data/
      shoal view s3://bucket/data --split validation
      shoal view data/ --type my_types:Full --lens my_types:thumbnail
      shoal view data/ --share 192.168.1.20
    """  # noqa: D301 - click's own mark for a paragraph that is not to be wrapped
    from shoal.viewer import viewing

    chosen = None if sample_type is None else _named(sample_type, "--type")
    through = [_named(name, "--lens") for name in lenses or ()]
    with (
        suppress(KeyboardInterrupt),
        viewing(path, split=split, sample_type=chosen, lenses=through, port=port, share=share) as address,
    ):
        if as_json:
            print_json({"url": address.url, "others": list(address.others), "reach": address.reach})
        else:
            print_text("\n".join((address.url, *address.others, f"{address.reach} Ctrl-C stops it.")))
        sys.stdout.flush()
        if browser:
            typer.launch(address.url)
        _wait()


def _wait() -> None:
    """Until Ctrl-C, or until the process is asked to end."""
    over = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        over.wait()
        return
    before = signal.signal(signal.SIGTERM, lambda *_: over.set())
    try:
        over.wait()
    finally:
        signal.signal(signal.SIGTERM, before)


def _named(text: str, option: str) -> Any:
    """What ``module:name`` names; modules beside the working folder count. Raises OptionError."""
    module, _, name = text.partition(":")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise OptionError(
            f"{option} names nothing that can be imported", expected="MODULE:NAME", found=f"{text!r}: {error}"
        ) from error
