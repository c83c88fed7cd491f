"""How long does a condition on a million samples take?"""

from __future__ import annotations

import pathlib
from collections.abc import Iterator
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute

import shoal

from ._data import FOLDER
from ._measure import Contender, Question, measure

__all__ = ["run"]

SAMPLES = 1_000_000
CONDITIONS = (
    "width >= 900",
    "width >= 512 and label = 'cat'",
    "score > 0.25 and score < 0.5 or label in ('dog', 'owl')",
    "label like 'c%' and not flag",
)
pc: Any = pyarrow.compute


def run(rounds: int = 5) -> Question:
    """Compare ``where`` and ``where_sql`` with bare pyarrow and bare duckdb on the same columns in memory."""
    dataset = shoal.Dataset(_made())
    question = Question(
        "where over 1 M samples",
        "A hundred shards with their indexes open; `where_sql` starts duckdb each time. The limits hold the columns in "
        "one table of their own: pyarrow.compute's kernels called by hand, and duckdb on the same table.",
        ("condition", "engine", "ms", "samples kept"),
    )
    table = dataset.table(["json.width", "json.height", "json.label", "json.score", "json.flag"])
    for condition in CONDITIONS:
        kept = len(dataset.where(condition))
        found = measure(_contenders(dataset, table, condition), rounds)
        question.rows.extend(
            (f"`{condition}`", name, f"{one.median * 1000:.1f}", f"{kept:,}") for name, one in found.items()
        )
    return question


def _contenders(dataset: shoal.Dataset[Any], table: pa.Table, condition: str) -> list[Contender]:
    short = table.rename_columns([name.rpartition(".")[2] for name in table.column_names])
    connection = duckdb.connect()
    connection.register("samples", short)
    query = f"select count(*) from samples where {condition}"
    return [
        Contender("shoal, where", lambda: _once(len(dataset.where(condition)))),
        Contender("shoal, where_sql", lambda: _once(len(dataset.where_sql(condition)))),
        Contender("limit: pyarrow.compute", lambda: _once(_by_hand(condition, short))),
        Contender("limit: duckdb, count only", lambda: _once(connection.execute(query).fetchall())),
    ]


def _once(_: object) -> int:
    return 1


def _by_hand(condition: str, table: pa.Table) -> int:
    """What each condition comes to in kernels, and the numbers of the rows."""
    width, label, score, flag = (table.column(name) for name in ("width", "label", "score", "flag"))
    if condition == CONDITIONS[0]:
        truth = pc.greater_equal(width, 900)
    elif condition == CONDITIONS[1]:
        truth = pc.and_kleene(pc.greater_equal(width, 512), pc.equal(label, "cat"))
    elif condition == CONDITIONS[2]:
        inside = pc.and_kleene(pc.greater(score, 0.25), pc.less(score, 0.5))
        truth = pc.or_kleene(inside, pc.is_in(label, pa.array(["dog", "owl"])))
    else:
        truth = pc.and_kleene(pc.starts_with(label, "c"), pc.invert(flag))
    return len(np.flatnonzero(pc.fill_null(truth, False).to_numpy()))


def _made() -> str:
    folder = pathlib.Path(FOLDER) / "where_million"
    if not (folder / ".shoal" / "manifest.json").exists():
        with shoal.ShardWriter(str(folder / "data-%06d.tar"), max_samples=10_000, overwrite=True) as writer:
            for sample in _samples():
                writer.write(sample)
    return str(folder)


def _samples() -> Iterator[dict[str, Any]]:
    rng = np.random.default_rng(5)
    widths, heights = rng.integers(1, 1024, (2, SAMPLES)).tolist()
    scores, flags = rng.random(SAMPLES).tolist(), (rng.random(SAMPLES) < 0.5).tolist()
    labels = np.array(["cat", "dog", "owl", "cow", "fox"])[rng.integers(0, 5, SAMPLES)].tolist()
    for number, (width, height, label, score, flag) in enumerate(
        zip(widths, heights, labels, scores, flags, strict=True)
    ):
        scalars = {"width": width, "height": height, "label": label, "score": score, "flag": flag}
        yield {"__key__": f"{number:09d}", "json": scalars}


if __name__ == "__main__":
    print(run().markdown())
