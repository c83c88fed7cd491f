"""axe-core finds nothing to complain of on any page, in light and in dark."""

from __future__ import annotations

import pytest
from tests.viewer.axe import problems_here, problems_on

PAGES = ["/", "/?where=dept%20%3E%203", "/sample/3", "/columns", "/shards", "/schema", "/lenses", "/build"]
PAGES += ["/sample/999", "/nowhere", "/?where=depth%20%3E%201000"]
IN_DARK = ["/", "/?where=dept%20%3E%203", "/sample/3", "/shards"]
"""Dark differs by its colours only: all of them are on these pages."""


@pytest.mark.parametrize(
    "scheme, pages, rules", [("light", PAGES, "{}"), ("dark", IN_DARK, "{runOnly: ['color-contrast']}")]
)
def test_axe_finds_nothing_on_any_page(visit, dives, scheme, pages, rules):
    there = visit(dives, color_scheme=scheme)
    assert [found for address in pages for found in problems_on(there, address, rules)] == []


def test_axe_finds_nothing_in_what_opens(dived):
    page = dived.page
    dived.press("/")
    page.keyboard.type("label = ")
    page.wait_for_selector("#suggestions li")
    assert problems_here(page, "suggestions") == []
    page.keyboard.press("Escape")
    page.keyboard.press("Escape")
    page.keyboard.press("?")
    page.wait_for_selector("dialog[open]")
    assert problems_here(page, "keys") == []
    dived.go("/shards").locator("form.verify button").first.click()
    page.wait_for_selector(".health[role=status]")
    assert problems_here(page, "verified") == []
