"""The README's table: six measured figures, written between two marks, so that nobody copies them by hand.

A cell is text with places to fill: ``{question | row | row | column}`` is the figure in the row that starts so. A row
with a figure that has not been measured yet is left out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from ._measure import Question

__all__ = ["BEGIN", "END", "filled_readme", "readme_table"]

BEGIN, END = "<!-- written by make bench -->", "<!-- up to here -->"
_PLACE = re.compile(r"\{([^{}]+)\}")
_JPEG, _THEIRS = "20 KB jpg + json + cls", "20 KB, webdataset's own headers"

_HEADER = ("job", "shoal")
_ROWS = (
    (
        "read a shard of 20 KB samples in order, checksums verified",
        f"{{read_sequential | {_THEIRS} | shoal, verified (default) | x webdataset}} x webdataset",
    ),
    (
        "shuffled batches of 20 KB raw samples",
        (
            "{loader_raw | shoal, auto | x webdataset} x webdataset with two workers, "
            "{loader_raw | shoal, auto | x the best peer} x the fastest peer"
        ),
    ),
    (
        "shuffled batches of typed samples (64 floats, a string, a number)",
        (
            "{loader_typed | shoal, auto | x webdataset} x webdataset with two workers, "
            "{loader_typed | shoal, auto | x the best peer} x the fastest peer"
        ),
    ),
    (
        "batches of JPEG images, decoded and resized to 224, as tensors",
        (
            "{torch_input | shoal.torch, 2 threads | x webdataset} x webdataset, "
            "{torch_input | shoal.torch, 2 threads | of the limit} of the bare decoder"
        ),
    ),
    (
        "write shards with index and checksums",
        f"{{write | {_JPEG} | shoal.ShardWriter | x webdataset}} x webdataset",
    ),
    (
        "`where` over a million samples",
        "{where_million | `width >= 512 and label = 'cat'` | shoal, where | ms} ms",
    ),
)


def filled_readme(text: str, answers: Mapping[str, Question]) -> str:
    """The README with its table written again. Raises ValueError where the marks are missing."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"README.md has lost its marks {BEGIN} and {END}")
    return f"{before}{BEGIN}\n\n{readme_table(answers)}\n\n{END}{after}"


def readme_table(answers: Mapping[str, Question]) -> str:
    """The table, with a row for each figure that has been measured."""
    known = [row for row in _ROWS if all(place.split(" | ")[0] in answers for place in _PLACE.findall("".join(row)))]
    filled = [[_PLACE.sub(lambda place: _figure(place[1], answers), cell) for cell in row] for row in known]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [_HEADER, ["---"] * len(_HEADER), *filled])


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
