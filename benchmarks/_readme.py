"""README's tables: a few figures of the answers, put between two marks, so that nobody has to copy them by hand.

A cell is text with places to fill: ``{question | row | row | column}`` is the figure in the row that starts so. A line
of which no figure has been asked for yet is left out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from ._measure import Question

__all__ = ["BEGIN", "END", "filled_readme", "readme_tables"]

BEGIN, END = "<!-- written by make bench -->", "<!-- up to here -->"
_PLACE = re.compile(r"\{([^{}]+)\}")
_SMALL, _JPEG, _THEIRS = "1 KB x 3 fields", "20 KB jpg + json + cls", "20 KB, webdataset's own headers"
_VERIFIED = "shoal, verified (default)"

_Table = tuple[Sequence[str], Sequence[Sequence[str]]]
_SHARDS: _Table = (
    ("", "1 KB x 3 fields", "20 KB jpg + json + cls, as webdataset writes them"),
    (
        (
            "read in order, checksums verified",
            f"{{read_sequential | {_SMALL} | {_VERIFIED} | x webdataset}} x webdataset",
            (
                f"{{read_sequential | {_THEIRS} | {_VERIFIED} | x webdataset}} x webdataset, "
                f"{{read_sequential | {_THEIRS} | {_VERIFIED} | of the limit}} of the disk cache"
            ),
        ),
        (
            "read at random, by index",
            f"{{read_random | {_SMALL} | ds[[256 positions]] | of sequential}} of in order",
            f"{{read_random | {_JPEG} | ds[[256 positions]] | of sequential}} of in order (plain ustar)",
        ),
        (
            "index a foreign tar, with checksums and metadata",
            f"{{index_foreign | {_SMALL} | shoal, whole index | x tarfile}} x `tarfile` listing it",
            (
                f"{{index_foreign | {_THEIRS} | shoal, whole index | x tarfile}} x `tarfile` listing it "
                f"(plain ustar: {{index_foreign | {_JPEG} | shoal, whole index | x tarfile}} x)"
            ),
        ),
        (
            "write, with index, checksums and metadata",
            f"{{write | {_SMALL} | shoal.ShardWriter | x webdataset}} x webdataset",
            (
                f"{{write | {_JPEG} | shoal.ShardWriter | x webdataset}} x webdataset, "
                f"{{write | {_JPEG} | shoal.ShardWriter | of cat}} of `cat`"
            ),
        ),
    ),
)
_LOADERS: _Table = (
    ("shuffled batches", "x webdataset + `torch` DataLoader, 2 workers", "x the best peer", "of the limit"),
    (
        (
            "20 KB raw samples",
            "{loader_raw | shoal, auto | x webdataset}",
            "{loader_raw | shoal, auto | x the best peer}",
            "{loader_raw | shoal, auto | of the limit} (bytes cut from memory)",
        ),
        (
            "64 floats + text + number",
            "{loader_typed | shoal, auto | x webdataset}",
            "{loader_typed | shoal, auto | x the best peer}",
            "",
        ),
        (
            "JPEG decoded and resized to 224, 2 threads",
            "{loader_jpeg | shoal, 2 workers | x webdataset}",
            "{loader_jpeg | shoal, 2 workers | x the best peer}",
            "{loader_jpeg | shoal, 2 workers | of the limit} (the bare decoder)",
        ),
        (
            "the same as tensors in batches of 128",
            "{torch_input | shoal.torch, 2 threads | x webdataset}",
            "{torch_input | shoal.torch, 2 threads | x the best peer}",
            "{torch_input | shoal.torch, 2 threads | of the limit} (the bare decoder)",
        ),
    ),
)
_OTHERS: _Table = (
    ("also", ""),
    (
        (
            "read from S3, in order",
            (
                "{remote_read | loopback | shoal | of the limit} of the fastest raw GET of the same bytes, "
                "{remote_read | loopback | shoal | MB above start} MB of memory"
            ),
        ),
        (
            "write to S3, with index and checksums",
            "{remote_write | shoal | of the limit} of a raw multipart upload",
        ),
        (
            "build from a folder of pictures, 2 workers",
            "{build_imagefolder | shoal.build_shards | 2 | x webdataset} x webdataset's ShardWriter",
        ),
        (
            "reshard, every block checked",
            "{reshard | reshard | of cat} of `cat`, {reshard | reshard | MB above start} MB of memory",
        ),
        (
            "batches of typed samples, all fields",
            "{typed_batches | Fixed | shoal, in order, all fields | x the loop} x unpacking and stacking one by one",
        ),
        (
            "`where` over a million samples",
            "{where_million | `width >= 512 and label = 'cat'` | shoal, where | ms} ms",
        ),
        (
            "plan and resume at sample 9e11 of 1e12",
            (
                "{plan_huge | shoal, blocks | 1e+12 | median, ms} ms; Streaming takes "
                "{plan_huge | Streaming | 1e+08 | median, ms} ms at 9e7 of 1e8"
            ),
        ),
        ("stream a shard of 2.3 GB", "{memory_stream | stream | MB above start} MB of memory"),
    ),
)


def filled_readme(text: str, answers: Mapping[str, Question]) -> str:
    """README with its tables made anew. Raises ValueError where the marks are missing."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"README.md has lost its marks {BEGIN} and {END}")
    return f"{before}{BEGIN}\n\n{readme_tables(answers)}\n\n{END}{after}"


def readme_tables(answers: Mapping[str, Question]) -> str:
    """The tables, of the answers that there are."""
    return "\n\n".join(_table(header, rows, answers) for header, rows in (_SHARDS, _LOADERS, _OTHERS))


def _table(header: Sequence[str], rows: Sequence[Sequence[str]], answers: Mapping[str, Question]) -> str:
    known = [row for row in rows if all(place.split(" | ")[0] in answers for place in _PLACE.findall("".join(row)))]
    filled = [[_PLACE.sub(lambda place: _figure(place[1], answers), cell) for cell in row] for row in known]
    lines = [header, ["---"] * len(header), *filled]
    return "\n".join(f"| {' | '.join(cells)} |".replace("|  |", "| |") for cells in lines)


def _figure(place: str, answers: Mapping[str, Question]) -> str:
    """The figure that a place names, in two digits. Raises KeyError where its table has no such row or column."""
    name, *starts, column = place.split(" | ")
    question = answers[name]
    found = [row for row in question.rows if list(row[: len(starts)]) == starts]
    if not found or column not in question.header:
        raise KeyError(f"README wants {place}, and benchmarks/results/{name}.json has no such figure")
    return _two_digits(found[0][question.header.index(column)])


def _two_digits(cell: str) -> str:
    value = float(cell.replace(",", ""))
    return f"{value:,.0f}" if value >= 10 or value.is_integer() else f"{value:.1f}" if value >= 1 else f"{value:.2f}"
