"""axe-core, from npm, in the page that is looked at."""

from __future__ import annotations

from pathlib import Path

AXE = Path(__file__).parent / "node_modules" / "axe-core" / "axe.min.js"


def problems_on(there, address, rules="{}"):
    """What axe finds on a page of the viewer, of any gravity; ``rules`` are axe's options."""
    assert AXE.exists(), "make setup installs axe-core from npm"
    page = there.go(address)
    if address == "/":
        page.wait_for_selector(".facet")
    return problems_here(page, address, rules)


def problems_here(page, address, rules="{}"):
    """What axe finds on a page as it is now."""
    page.evaluate(AXE.read_text("utf-8") + "; undefined")
    report = page.evaluate(f"axe.run(document, {rules})")
    assert report["passes"], "axe ran"
    return [
        (
            address,
            problem["impact"],
            problem["id"],
            problem["help"],
            [node["html"][:200] for node in problem["nodes"][:3]],
        )
        for problem in report["violations"]
    ]
