"""A dataset that goes away, or is replaced, while it is looked at."""

from __future__ import annotations

import shutil

import pytest
from playwright.sync_api import expect

import shoal
from shoal.errors import ObjectNotFoundError
from shoal.viewer import viewing


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
