"""The HTML page of findings."""

from __future__ import annotations

from shoal.build import Finding, Verification, report_page


def test_no_text_of_a_dataset_becomes_a_part_of_the_page():
    evil = "<script>alert('x')</script>"
    finding = Finding("error", evil, evil, evil, evil, evil, evil, evil, 1, evil, evil, 2)
    page = report_page(Verification(evil, (), (finding,), {evil: 1}))
    assert "<script" not in page
    assert page.count("&lt;script&gt;") >= 10
    assert "src=" not in page
    assert "http" not in page


def test_a_page_stays_readable_when_there_are_very_many_findings():
    findings = tuple(Finding("error", "data", f"number {n}", "why", "what") for n in range(5000))
    page = report_page(Verification("x", (), findings, {}))
    assert "3,000 more" in page
    assert "number 1999" in page
    assert "number 2000" not in page
