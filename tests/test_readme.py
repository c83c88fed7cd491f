"""What is made of the measurements agrees with them: README's table, RESULTS.md, the documentation's page."""

from __future__ import annotations

import ast
import dataclasses
import re

import pytest
from benchmarks._answers import FOLDER, KEPT, PAGE, README, pages, read
from benchmarks._measure import Question
from benchmarks._readme import BEGIN, END, filled_readme, readme_table


def questions() -> list[str]:
    """The names in the order of `make bench`, without importing its peers."""
    tree = ast.parse((FOLDER / "__main__.py").read_text("utf-8"))
    found = next(node for node in tree.body if isinstance(node, ast.Assign) and node.targets[0].id == "QUESTIONS")
    return [element.id for element in found.value.elts]


@pytest.fixture(scope="module")
def answers():
    return {name: answer.question for name in questions() if (answer := read(name)) is not None}


def test_what_make_bench_wrote_is_what_is_there():
    made = pages(questions())
    assert {README, PAGE, FOLDER / "RESULTS.md"} < made.keys()
    stale = [path.name for path, text in made.items() if not path.exists() or path.read_text("utf-8") != text]
    assert stale == [], "`make bench ARGS=pages` writes them anew"


def test_every_kept_answer_is_one_of_the_questions():
    assert {path.stem for path in KEPT.glob("*.json")} <= set(questions())


def test_every_figure_of_the_readme_is_one_that_was_measured(answers):
    text = README.read_text("utf-8").partition(BEGIN)[2].partition(END)[0]
    figures = re.findall(r"(?<![\w.])(\d[\d,]*(?:\.\d+)?) (?:x webdataset|of `cat`|of in order|ms)\b", text)
    measured = {_number(cell) for question in answers.values() for row in question.rows for cell in row} - {None}
    assert len(figures) == 6  # five times webdataset, one in milliseconds
    for figure in figures:
        asked = _number(figure)
        assert any(abs(one - asked) <= max(0.5 * 10 ** -_decimals(figure), 0.001) for one in measured), figure


def test_another_measurement_gives_another_readme(answers):
    faster = _changed(answers["write"], "shoal.ShardWriter", "x webdataset", "77.7")
    assert "| write shards with index and checksums | 78 x webdataset |" in readme_table({**answers, "write": faster})
    assert filled_readme(README.read_text("utf-8"), {**answers, "write": faster}) != README.read_text("utf-8")


def test_a_line_that_was_never_measured_is_left_out_and_a_lost_row_is_named(answers):
    without = {name: question for name, question in answers.items() if name != "write"}
    assert "write shards with index" not in readme_table(without)
    lost = dataclasses.replace(answers["write"], rows=[])
    with pytest.raises(KeyError, match=r"README wants write \| 20 KB jpg"):
        readme_table({**answers, "write": lost})
    with pytest.raises(ValueError, match="lost its marks"):
        filled_readme("# shoal", answers)


def _changed(question: Question, row: str, column: str, cell: str) -> Question:
    at = question.header.index(column)
    rows = [(*each[:at], cell, *each[at + 1 :]) if row in each else each for each in question.rows]
    return dataclasses.replace(question, rows=rows)


def _number(cell: str) -> float | None:
    return float(cell.replace(",", "")) if re.fullmatch(r"\d[\d,]*(\.\d+)?", cell) else None


def _decimals(figure: str) -> int:
    return len(figure.partition(".")[2])
