"""Shards, schema, lenses, builds: what the other pages say is what is there."""

from __future__ import annotations

import re
import shutil
import threading
from typing import Annotated

import numpy as np
import pytest
from playwright.sync_api import expect
from tests.viewer.axe import problems_here, problems_on
from tests.viewer.conftest import looked_at

import shoal
from shoal.build import build_shards
from shoal.errors import ObjectNotFoundError
from shoal.sample import Lens
from shoal.schema import Array
from shoal.viewer import viewing


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


def test_the_schema_says_fields_columns_and_metadata(dived):
    page = dived.go("/schema")
    expect(page.get_by_role("region", name="Fields")).to_contain_text(re.compile(r"jpg\s*image\s*70"))
    expect(page.get_by_role("region", name="Columns")).to_contain_text(re.compile(r"json.depth\s*double"))
    expect(page.locator("main")).to_contain_text("CC-BY-4.0")


@shoal.packable
class Scan:
    """What the sonar saw."""

    label: str
    image: Annotated[np.ndarray, Array("float32", (8, 8))]
    line: Annotated[np.ndarray, Array("float32", (32,))]


@shoal.packable
class Short:
    label: str
    mean: float


def shorten(scan: Scan) -> Short:
    if scan.label == "bad":
        raise ValueError("<b>no view of it</b>")
    return Short(scan.label.upper(), float(scan.image.mean()))


def test_samples_and_their_views_stand_side_by_side(chromium, tmp_path):
    with shoal.ShardWriter(f"{tmp_path}/a-%06d.tar") as writer:
        for number, label in enumerate(("reef", "bad")):
            writer.write(Scan(label, np.full((8, 8), number, "f4"), np.arange(32, dtype="f4")))
    lens = Lens(shorten, source=Scan, view=Short)
    with (
        viewing(str(tmp_path), sample_type=Scan, lenses=[lens]) as address,
        looked_at(chromium, address) as visit,
    ):
        page = visit.page
        expect(page.locator(".card").first).to_contain_text("reef")  # typed samples have cards, too
        visit.until("document.querySelector('.card img').naturalWidth === 8")
        visit.go("/schema")
        expect(page.locator("main")).to_contain_text("array[float32, (8, 8)]")
        visit.go("/lenses")
        first, second = page.locator(".pair").all()
        expect(first.locator(".sides > div").nth(0)).to_contain_text("Scan")
        expect(first.locator(".sides > div").nth(1)).to_contain_text(re.compile("Short.*REEF.*mean.*0", re.DOTALL))
        expect(second).to_contain_text("ValueError: <b>no view of it</b>")
        visit.until("document.querySelector('.pair img').naturalWidth === 8")
        width, height = page.evaluate("(i => [i.width, i.height])(document.querySelector('.pair img'))")
        assert width == height > 100  # drawn larger, and square as it is
        assert problems_on(visit, "/lenses") == problems_on(visit, "/sample/0") == []
        visit.go("/lenses?lens=other")
        expect(page.locator("h1")).to_have_text("No such lens")


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


def test_a_dataset_that_goes_away_is_a_page_with_what_to_do(visit, tmp_path):
    with pytest.raises(ObjectNotFoundError), viewing(str(tmp_path / "gone")):
        pass  # at the start it is an error for whoever starts it
    with shoal.ShardWriter(f"{tmp_path}/gone/a-%06d.tar") as writer:
        writer.write({"__key__": "k", "txt": "here"})
    there = visit(tmp_path / "gone", allowed=("status of 5",))
    expect(there.page.locator(".card")).to_contain_text("here")
    shutil.rmtree(tmp_path / "gone")
    there.page.reload()
    expect(there.page.locator("h1")).to_be_visible()
    expect(there.page.locator(".todo")).to_contain_text("What to do")
    with shoal.ShardWriter(f"{tmp_path}/gone/a-%06d.tar") as writer:
        writer.write({"__key__": "k", "txt": "here now"})
    there.page.get_by_role("link", name="Try again").click()
    expect(there.page.locator(".card")).to_contain_text("here now")


def test_a_dataset_that_was_replaced_is_opened_anew(visit, tmp_path):
    def write(count):
        with shoal.ShardWriter(f"{tmp_path}/d/a-%06d.tar", overwrite=True) as writer:
            for number in range(count):
                writer.write({"__key__": f"k{number}", "txt": f"of {count}"})

    write(3)
    there = visit(tmp_path / "d")
    expect(there.page.locator(".card")).to_have_count(3)
    write(5)
    there.page.reload()
    expect(there.page.locator(".card")).to_have_count(5)
    expect(there.page.locator(".card").last).to_contain_text("of 5")


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
