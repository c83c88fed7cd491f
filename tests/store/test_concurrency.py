"""Limits on requests in flight: waiters are served in order, and streams leave room for short requests."""

from __future__ import annotations

import threading

from shoal.store._concurrency import ConcurrencyLimit


def test_who_asks_for_much_is_not_overtaken_for_ever():
    gate, order, waiting = ConcurrencyLimit(2), [], []

    def take(name, count):
        with gate.hold(count):
            order.append(name)

    with gate.hold(1):
        for name, count in (("two", 2), ("one", 1)):
            waiting.append(threading.Thread(target=take, args=(name, count)))
            waiting[-1].start()
            while len(gate._waiting) < len(waiting):
                threading.Event().wait(0.001)
    for thread in waiting:
        thread.join()
    assert order == ["two", "one"]
    assert gate._taken == 0


def test_more_places_than_there_are_is_all_of_them():
    gate = ConcurrencyLimit(2)
    with gate.hold(100):
        assert gate._taken == 2


def test_shares_leave_half_of_the_places():
    gate = ConcurrencyLimit(7)
    assert (gate.take_share(2), gate.take_share(4), gate.take_share(4)) == (2, 1, 0)
    with gate.hold(4):
        assert gate._taken == 7
    gate.give_back_share(3)
    assert (gate._taken, ConcurrencyLimit(1).take_share(4)) == (0, 0)
