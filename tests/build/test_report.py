"""The progress of a build."""

from __future__ import annotations

from tests.build.built import numbers

import shoal
from shoal.build import LocalEngine


def test_progress_is_told(tmp_path):
    seen = []
    shoal.build_shards(numbers(), tmp_path / "out", max_samples=10, engine=LocalEngine(2, "fork"), progress=seen.append)
    last = seen[-1]
    assert (last.phase, last.samples, last.total, last.shards, last.failures) == ("building", 50, 50, 5, 0)
    assert last.bytes == sum(512 * 4 for _ in range(50))
    assert last.rate > 0


def test_progress_is_shown_on_stderr(tmp_path, capsys):
    shoal.build_shards(numbers(), tmp_path / "out", workers=1, progress=True)
    captured = capsys.readouterr()
    assert "50/50" in captured.err
    assert captured.out == ""
