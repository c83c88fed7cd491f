"""The page of shards, and of a running build: what they say is what is there."""

from __future__ import annotations

import re
import shutil
import threading

from playwright.sync_api import expect
from tests.viewer.axe import problems_here

import shoal
from shoal.build import build_shards


def test_the_map_of_shards_says_size_count_and_health(visit, dives, tmp_path):
    root = tmp_path / "dives"
    shutil.copytree(dives, root)
    (root / "train-000001.tar").unlink()
    with open(root / "train-000002.tar", "ab") as file:
        file.write(bytes(512))
    damaged = root / "train-000003.tar"
    data = bytearray(damaged.read_bytes())
    data[2000] ^= 1
    damaged.write_bytes(data)
    there = visit(root, allowed=("status of 502",))  # columns cannot be counted without one of the shards
    expect(there.page.locator(".card").nth(16)).to_contain_text(re.compile("sample 16.*|No such", re.DOTALL))
    page = there.go("/shards")
    rows = page.locator("tbody tr")
    expect(page.locator(".summary")).to_contain_text("5 shards, 70 samples")
    assert [each.inner_text() for each in page.locator("td:nth-child(6)").all()] == [
        "as recorded",
        "missing",
        "size differs",
        "as recorded",
        "as recorded",
    ]
    assert page.locator(".shard-map svg a").count() == 5
    assert [page.locator(f".bars .{mark}").count() for mark in ("missing", "changed", "sound")] == [1, 1, 3]
    rows.nth(0).get_by_role("button").click()
    expect(rows.nth(0)).to_contain_text("Sound: 64 members")
    rows.nth(3).get_by_role("button").click()
    expect(rows.nth(3)).to_contain_text(re.compile("1 problem.*bytes changed", re.DOTALL))
    expect(rows.nth(3)).to_contain_text("shoal repair")
    rows.nth(4).get_by_role("link").click()
    expect(page.locator(".summary")).to_contain_text("49 to 70 shown")


def test_a_build_is_followed_while_it_runs(visit, tmp_path):
    root = tmp_path / "new"
    writer = shoal.ShardWriter(f"{root}/a-%06d.tar", max_samples=2)
    with writer:
        for number in range(5):
            writer.write({"__key__": f"k{number}", "json": {"n": number}})
        page = visit(root).page
        expect(page.locator(".summary")).to_contain_text("4 samples")
        page.get_by_text("Being written").click()
        expect(page.locator(".totals")).to_contain_text(re.compile(r"4\s*samples"))
        for number in range(5, 9):
            writer.write({"__key__": f"k{number}", "json": {"n": number}})
        expect(page.locator(".totals")).to_contain_text(re.compile(r"8\s*samples"))
        expect(page.locator("tbody tr").first).to_contain_text("a-000003.tar")
    expect(page.locator("#build")).to_contain_text("Finished: 9 samples")
    page.get_by_text("Look at the samples").click()
    expect(page.locator(".summary")).to_contain_text("9 samples")


REACHED, GO_ON = threading.Event(), threading.Event()


def wait_at_five(sample):
    if sample["json"]["n"] == 5:
        REACHED.set()
        GO_ON.wait(60)
    return sample


def test_a_planned_build_says_how_much_is_left(visit, tmp_path):
    samples = [{"__key__": f"k{number}", "json": {"n": number}} for number in range(10)]
    options = {"max_samples": 2, "workers": 1}
    building = threading.Thread(target=build_shards, args=(samples, tmp_path / "out", wait_at_five), kwargs=options)
    building.start()
    try:
        assert REACHED.wait(60)
        page = visit(tmp_path / "out").go("/build")
        expect(page.locator(".how-far")).to_contain_text("2 of 5 shards")
        assert problems_here(page, "/build") == []
        expect(page.locator(".totals")).to_contain_text(re.compile(r"4\s*samples"))
    finally:
        GO_ON.set()
        building.join()
    expect(page.locator("#build")).to_contain_text("Finished: 10 samples")
