"""axe-core finds nothing serious on any page, in light and in dark."""

from __future__ import annotations

from pathlib import Path

import pytest

AXE = Path(__file__).parent / "node_modules" / "axe-core" / "axe.min.js"
PAGES = ["/", "/?where=dept%20%3E%203", "/sample/3", "/columns", "/shards", "/schema", "/sample/999"]
IN_DARK = ["/", "/?where=dept%20%3E%203", "/sample/3", "/shards"]
"""Dark differs by its colours only: all of them are on these pages."""


def problems_on(there, address, rules):
    page = there.go(address)
    if address == "/":
        page.wait_for_selector(".facet")
    page.evaluate(AXE.read_text("utf-8") + "; undefined")
    report = page.evaluate(f"axe.run(document, {rules})")
    assert report["passes"], "axe ran"
    return [
        (address, problem["id"], problem["help"], [node["html"][:200] for node in problem["nodes"][:3]])
        for problem in report["violations"]
        if problem["impact"] in ("serious", "critical")
    ]


@pytest.mark.parametrize(
    "scheme, pages, rules", [("light", PAGES, "{}"), ("dark", IN_DARK, "{runOnly: ['color-contrast']}")]
)
def test_axe_finds_nothing_serious(visit, dives, scheme, pages, rules):
    assert AXE.exists(), "make setup installs axe-core from npm"
    there = visit(dives, color_scheme=scheme)
    assert [found for address in pages for found in problems_on(there, address, rules)] == []
