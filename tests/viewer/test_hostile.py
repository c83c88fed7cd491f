"""Hostile content stays harmless: it is shown as text, or not at all, and runs nowhere."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from playwright.sync_api import expect
from tests.viewer.samples import SCRIPT

from shoal.viewer._html import Html, plain, tag


def test_a_dataset_of_hostile_samples_is_shown_and_does_nothing(visit, hostile):
    there = visit(hostile)
    page = there.page
    expect(page.locator(".card")).to_have_count(11)
    expect(page.locator(".card", has_text="a-html")).to_contain_text("<script>window.pwned = 1</script>")
    expect(page.locator(".card", has_text='"><img src=x onerror=pwned=4>')).to_contain_text("a key of HTML")
    expect(page.locator(".card", has_text="h-evil")).to_contain_text("\\u202e")
    bodies = []
    for number in range(11):
        there.go(f"/sample/{number}")
        expect(page.locator("h1")).to_be_visible()
        bodies.append(page.content())
        there.until("[...document.images].every(image => image.complete || image.loading === 'lazy')")
        assert page.evaluate("window.pwned") is None
        assert page.locator("main script, main iframe, main object, main embed").count() == 0
    assert max(map(len, bodies)) < 1_000_000, "a page stays small however large the sample is"


def test_a_drawing_is_drawn_only_when_asked_and_runs_no_script(visit, hostile):
    there = visit(hostile)
    page = there.go("/sample/1")
    expect(page.locator("h1")).to_have_text("b-svg")
    assert page.locator(".field").first.locator("img[src]").count() == 0
    page.get_by_text("Draw it").click()
    there.until("document.querySelector('img.svg').naturalWidth === 40")
    assert page.evaluate("window.pwned") is None
    said = page.request.get(f"{there.base}/drawing/1?field=svg").headers
    assert said["content-disposition"] == "attachment"  # opened by itself, it is a download
    assert said["content-security-policy"].startswith("sandbox; default-src 'none'")


def test_what_is_not_what_its_name_says_is_told(visit, hostile):
    there = visit(hostile)
    page = there.go("/sample/3")
    there.until("document.querySelector('.kind-image img').complete")
    assert there.page.request.get(f"{there.base}/picture/3?field=png").status == 422  # 144 million pixels
    assert "too large" in there.page.request.get(f"{there.base}/picture/3?field=png").text()
    assert there.page.request.get(f"{there.base}/picture/4?field=jpg").status == 422
    sound = there.page.request.get(f"{there.base}/bytes/4?field=mp3")
    assert sound.headers["content-type"] == "audio/mpeg"
    assert "sandbox" in sound.headers["content-security-policy"]
    page = there.go("/sample/5")
    for words in ("float64 · 2 by 3", "3 not finite", "0 by 5", "complex128", "300,000", "1 by 200,000"):
        expect(page.locator(".fields")).to_contain_text(words)
    page = there.go("/sample/6")
    for words in ("A pickle is not opened", "nested deeper than is shown", "and 99,500 more"):
        expect(page.locator(".fields")).to_contain_text(words)
    assert page.locator(".failure").count() >= 3


@given(st.text())
def test_whatever_is_put_into_an_element_comes_out_as_text(text):
    import html

    made = tag("p", text, title=text)
    inner, attribute = made[made.index(">") + 1 : -4], made[len('<p title="') : made.index('">')]
    assert html.unescape(inner) == html.unescape(html.escape(text, quote=False))
    assert not set("<>") & set(inner)
    assert not set('<>"') & set(attribute)
    assert html.unescape(html.escape(text)) == html.unescape(attribute)


@given(st.text(max_size=60))
def test_a_name_has_nothing_that_hides(text):
    assert plain(text).isprintable()
    assert len(plain(text)) >= len(text)


@pytest.mark.parametrize("child", [SCRIPT, "&lt;", "a & b"])
def test_markup_is_only_what_was_made_as_markup(child):
    assert "<script" not in tag("p", child)
    assert tag("p", Html("<b></b>")) == "<p><b></b></p>"
