"""Answer the questions; write RESULTS.md, README's tables and the documentation's page."""

from __future__ import annotations

import sys

from . import (
    build_imagefolder,
    catalog,
    compare,
    formats_read,
    house,
    index_foreign,
    loader_autotune,
    loader_jpeg,
    loader_knobs,
    loader_raw,
    loader_shards,
    loader_typed,
    many_shards,
    memory_stream,
    plaid_backends,
    plan_huge,
    read_random,
    read_sequential,
    remote_read,
    remote_write,
    reshard,
    torch_input,
    typed_batches,
    viewer_million,
    where_million,
    write,
)
from ._answers import keep, write_pages

QUESTIONS = (
    read_sequential,
    read_random,
    index_foreign,
    write,
    many_shards,
    memory_stream,
    typed_batches,
    where_million,
    plan_huge,
    catalog,
    loader_raw,
    loader_typed,
    loader_shards,
    loader_jpeg,
    loader_autotune,
    loader_knobs,
    torch_input,
    formats_read,
    remote_read,
    remote_write,
    build_imagefolder,
    reshard,
    plaid_backends,
    viewer_million,
    house,
)


def main() -> None:
    """Answer all questions, or those named on the command line, and write the pages anew; ``pages`` asks nothing.

    ``compare`` compares two commits instead.
    """
    if sys.argv[1:2] == ["compare"]:
        compare.main(sys.argv[2:])
        return
    names = [module.__name__.rpartition(".")[2] for module in QUESTIONS]
    strange = [name for name in sys.argv[1:] if name not in (*names, "pages")]
    if strange:
        sys.exit(f"no such question: {', '.join(strange)}; there are {', '.join(names)}")
    for name, module in zip(names, QUESTIONS, strict=True):
        if not sys.argv[1:] or name in sys.argv[1:]:
            question = module.run()
            keep(name, question)
            print(question.markdown(), flush=True)
    write_pages(names)


if __name__ == "__main__":
    main()
