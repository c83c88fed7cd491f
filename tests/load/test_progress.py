"""The bar shows what comes, changes nothing, and is silent where nobody looks."""

from __future__ import annotations

import io

import pytest

from shoal.load import DataLoader, with_progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_batches_pass_unchanged_and_the_bar_ends_full():
    terminal = Terminal()
    loader = DataLoader(range(100), batch_size=10, shuffle=True)
    expected = list(DataLoader(range(100), batch_size=10, shuffle=True))
    assert list(with_progress(loader, "training", file=terminal)) == expected
    shown = terminal.getvalue()
    assert "training" in shown
    assert "10/10" in shown
    assert "samples/s" in shown


def test_a_resumed_loader_begins_where_it_was():
    loader = DataLoader(range(100), batch_size=10)
    batches = iter(loader)
    for _ in range(7):
        next(batches)
    again = DataLoader(range(100), batch_size=10)
    again.load_state_dict(loader.state_dict())
    terminal = Terminal()
    assert len(list(with_progress(again, file=terminal))) == 3
    assert "10/10" in terminal.getvalue()
    assert " 3/10" not in terminal.getvalue()


def test_a_line_without_a_length_has_no_end():
    terminal = Terminal()
    loader = DataLoader(iter(range(25)), batch_size=10)
    assert len(list(with_progress(loader, file=terminal))) == 3
    assert "3/?" in terminal.getvalue()


def test_nothing_is_shown_where_nobody_looks():
    stream = io.StringIO()
    assert len(list(with_progress(DataLoader(range(100), batch_size=10), file=stream))) == 10
    assert stream.getvalue() == ""


def test_leaving_early_stops_the_loader_and_the_bar():
    terminal = Terminal()
    loader = DataLoader(range(100), batch_size=10, num_workers=1)
    batches = with_progress(loader, file=terminal)
    next(batches)
    batches.close()
    assert loader.stats().ready == 0
    with pytest.raises(StopIteration):
        next(batches)
