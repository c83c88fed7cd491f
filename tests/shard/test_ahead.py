"""Work that is done before it is asked for keeps to its memory, and goes on as what it holds is used."""

from __future__ import annotations

import threading

from shoal.shard._prefetch import Prefetcher, _Line


class Task:
    """Done at once; remembers that it was."""

    def __init__(self, name: int, size: int) -> None:
        self.name = name
        self.size = size
        self.done = threading.Event()

    def begin(self) -> None: ...

    def run(self) -> None:
        self.done.set()

    def drop(self) -> None: ...


def begun(tasks: list[Task], ahead: Prefetcher, count: int) -> bool:
    """Whether these many tasks are done, and no more are held."""
    return all(task.done.wait(20) for task in tasks[:count]) and [ahead.is_held(task.name) for task in tasks] == [
        at < count for at in range(len(tasks))
    ]


def test_the_next_begins_when_there_is_room_for_it():
    tasks = [Task(number, 30) for number in range(6)]
    ahead = Prefetcher(iter(tasks), most_bytes=100, at_once=4)
    ahead.go_on()
    assert begun(tasks, ahead, 3)
    ahead.shrink(0, 15)
    assert begun(tasks, ahead, 3)
    ahead.shrink(0, 5)
    assert begun(tasks, ahead, 4)
    assert ahead.most_held == 100
    ahead.close()


def test_what_was_used_is_not_counted_again_when_it_is_let_go_of():
    tasks = [Task(number, 30) for number in range(4)]
    ahead = Prefetcher(iter(tasks), most_bytes=60, at_once=4)
    ahead.go_on()
    assert begun(tasks, ahead, 2)
    ahead.shrink(0, 25)
    ahead.release(lambda name: name == 0)
    assert all(task.done.wait(20) for task in tasks[:3])
    assert not tasks[3].done.is_set()
    ahead.shrink(0, 30)  # which is gone
    assert not ahead.is_held(3)
    ahead.close()


def test_a_shard_is_cut_by_what_is_known_of_the_line_when_it_is_come_to():
    line = _Line()
    for _ in range(5):
        line.note(32 << 20, 0.5)  # 67 MB/s
    assert (line.part_bytes(0), line.at_once) == (32 << 20, 4)  # too few to say anything
    line.note(32 << 20, 0.5)
    assert (line.part_bytes(0), line.part_bytes(1), line.at_once) == (32 << 20, 8 << 20, 10)
    for _ in range(9):
        line.note(8 << 20, 0.02)
    assert (line.part_bytes(2), line.at_once) == (8 << 20, 10)


def test_one_slow_request_among_others_is_not_a_slow_line():
    line = _Line()
    for number in range(30):
        line.note(32 << 20, 1.0 if number % 6 == 0 else 0.2)
    assert (line.part_bytes(0), line.at_once) == (32 << 20, 4)
