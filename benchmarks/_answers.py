"""Answers are kept, one file each; RESULTS.md, README's tables and the documentation's page are made of them.

So one question can be asked again without the hour that all of them take; each says when and where it was answered.
"""

from __future__ import annotations

import datetime as dt
import importlib.metadata
import json
import os
import pathlib
import platform
from dataclasses import asdict, dataclass, replace
from typing import Any

from ._bars import bars
from ._measure import Question
from ._readme import filled_readme

__all__ = ["Answer", "keep", "pages", "read", "write_pages"]

FOLDER = pathlib.Path(__file__).parent
KEPT = FOLDER / "results"
README = FOLDER.parent / "README.md"
PAGE = FOLDER.parent / "docs" / "explanation" / "performance.md"
PICTURES = PAGE.parent / "performance"
KNOB_GROUPS = {
    "batch": ("batch_size",),
    "order": ("shuffle", "window", "block_samples", "lanes"),
    "work": ("num_workers", "prefetch", "auto_tune", "memory_budget", "max_in_flight", "verify"),
}
_PACKAGES = ("shoal", "numpy", "pyarrow", "isal", "webdataset", "datasets")
_INTRODUCTION = """\
Written by `make bench`, which runs shoal, its peers and the physical limit side by side: contenders take turns, several
rounds, and the median counts. Figures are ratios, because seconds belong to one machine. Each table says when it was
measured. `make bench ARGS="read_random write"` asks some questions again.
"""


@dataclass(frozen=True)
class Answer:
    """A question with its table, and the circumstances."""

    question: Question
    machine: str
    day: str


def keep(name: str, question: Question) -> None:
    """Write an answer down."""
    KEPT.mkdir(exist_ok=True)
    day = dt.datetime.now(dt.UTC).date().isoformat()
    document: dict[str, Any] = {**asdict(question), "machine": machine(), "day": day}
    (KEPT / f"{name}.json").write_text(json.dumps(document, indent=1) + "\n")


def read(name: str) -> Answer | None:
    """The answer that is kept; None where there is none."""
    path = KEPT / f"{name}.json"
    if not path.exists():
        return None
    document = json.loads(path.read_text())
    rows = [tuple(row) for row in document["rows"]]
    question = Question(document["title"], document["text"], tuple(document["header"]), rows)
    return Answer(question, document["machine"], document["day"])


def write_pages(names: list[str]) -> None:
    """RESULTS.md, README's tables, and the page of the documentation with a picture of each table that compares."""
    PICTURES.mkdir(exist_ok=True)
    for path, text in pages(names).items():
        path.write_text(text)


def pages(names: list[str]) -> dict[pathlib.Path, str]:
    """All that is made of the answers, by path."""
    answers = {name: answer for name in names if (answer := read(name)) is not None}
    questions = {name: answer.question for name, answer in answers.items()}
    drawn = {name: bars(question) for name, question in questions.items()}
    if (knobs := questions.get("loader_knobs")) is not None:
        drawn |= {f"loader_knobs_{group}": bars(some) for group, some in knob_groups(knobs).items()}
    return {
        FOLDER / "RESULTS.md": _page("# Results", answers, pictures=False),
        README: filled_readme(README.read_text(), questions),
        PAGE: _page("# Performance", answers, pictures=True),
        **{PICTURES / f"{name}.svg": picture for name, picture in drawn.items() if picture is not None},
    }


def knob_groups(question: Question) -> dict[str, Question]:
    """The loader's options by what they are about, as the page of the loader has them."""
    return {
        group: replace(question, rows=[row for row in question.rows if row[0].partition("=")[0] in names])
        for group, names in KNOB_GROUPS.items()
    }


def _page(title: str, answers: dict[str, Answer], *, pictures: bool) -> str:
    parts = [title, _INTRODUCTION]
    for name, answer in answers.items():
        question = answer.question
        heading, _, rest = question.markdown().partition("\n\n")
        parts.append(heading)
        if pictures and bars(question) is not None:
            parts.append(f"![{question.title}](performance/{name}.svg)")
        parts.append(f"{rest.rstrip()}\n\n`benchmarks/{name}.py`, {answer.day}, {answer.machine}")
    return "\n\n".join(parts) + "\n"


def machine() -> str:
    """What it ran on."""
    model = next(
        (line.split(":")[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")),
        platform.processor(),
    )
    memory = next((int(line.split()[1]) // 2**20 for line in _lines("/proc/meminfo") if line.startswith("MemTotal")), 0)
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in _PACKAGES)
    return (
        f"{os.cpu_count()} cores ({model}), {memory} GiB, {platform.system()} {platform.release()}, "
        f"Python {platform.python_version()}; {versions}."
    )


def _lines(path: str) -> list[str]:
    file = pathlib.Path(path)
    return file.read_text().splitlines() if file.exists() else []
