"""The page of samples, as somebody uses it: pictures, filters, facets, pages, keys."""

from __future__ import annotations

import re

from hypothesis import given, settings
from hypothesis import strategies as st
from playwright.sync_api import expect
from tests.viewer.conftest import PHONE
from tests.viewer.samples import opened_with

import shoal
from shoal.viewer._page_samples import facets_of, joined
from shoal.viewer._session import SampleQuery


def keys_of(page):
    return [each.inner_text() for each in page.locator(".card .open").all()]


def test_the_first_page_shows_samples_with_pictures_sound_plots_and_text(dived, dives):
    page = dived.page
    expect(page).to_have_title(re.compile("dives, page 1"))
    assert "token" not in page.url
    assert keys_of(page) == shoal.Dataset(dives).keys()[:24]
    first = page.locator(".card").first
    image = first.locator(".kind-image img")
    expect(image).to_be_visible()
    dived.until("document.querySelector('.card img').naturalWidth > 100")
    expect(page.locator(".card").nth(2).locator("audio")).to_be_visible()
    expect(page.locator(".card").nth(2)).to_contain_text("fish seen")
    dived.until("[...document.querySelectorAll('.kind-array img')].slice(0, 2).every(i => i.naturalWidth > 10)")


def test_a_condition_is_completed_as_it_is_written_and_filters(dived, dives):
    page = dived.page
    dived.press("/")
    page.keyboard.type("lab")
    expect(page.locator("#suggestions li")).to_have_text([re.compile("label.*string")])
    page.keyboard.press("Tab")
    expect(page.locator("#where")).to_have_value("label ")
    expect(page.locator("#suggestions li").first).to_have_text(re.compile("="))
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    expect(page.locator("#where")).to_have_value("label = ")
    page.keyboard.type("'ke")
    expect(page.locator("#suggestions li")).to_have_text([re.compile(r"'kelp'")])
    page.keyboard.press("Tab")
    expect(page.locator("#where")).to_have_value("label = 'kelp' ")
    page.keyboard.press("Enter")
    found = shoal.Dataset(dives).where("label = 'kelp'")
    expect(page.locator(".summary")).to_contain_text(f"{len(found)} samples of 70")
    assert keys_of(page) == found.keys()[:24]


def test_a_wrong_condition_says_what_is_wrong_and_what_there_is(dived):
    dived.where("dept > 3")
    expect(dived.page.locator("#where-problem")).to_contain_text("perhaps json.depth was meant")
    expect(dived.page.locator(".chips")).to_contain_text("json.label")
    expect(dived.page.locator("#where")).to_have_value("dept > 3")


def test_a_condition_that_fits_nothing_says_so(dived):
    dived.where("depth > 1000")
    expect(dived.page.locator(".empty")).to_contain_text("No sample fits")
    dived.page.get_by_text("Show all samples").click()
    expect(dived.page.locator(".summary")).to_contain_text("70 samples")


def test_values_and_bars_at_the_side_narrow_the_samples(dived, dives):
    page = dived.page
    page.locator(".facet", has_text="json.label").get_by_role("link", name=re.compile("reef")).click()
    expect(page.locator("#where")).to_have_value("json.label = 'reef'")
    count = len(shoal.Dataset(dives).where("label = 'reef'"))
    expect(page.locator(".summary strong")).to_have_text(f"{count} samples of 70")
    bars = page.locator(".facet", has_text="json.depth").locator("svg a")
    expect(bars.first).to_be_attached()
    titles = [re.search(r"(\d+) sample", each.get_attribute("aria-label")).group(1) for each in bars.all()]
    assert sum(map(int, titles)) == count
    bars.nth(next(at for at, one in enumerate(titles) if int(one))).focus()
    page.keyboard.press("Enter")
    expect(page.locator("#where")).to_have_value(
        re.compile(r"json.label = 'reef' and json.depth >= .* and json.depth < .*")
    )


def test_a_split_a_random_order_and_pages(dived, dives):
    page = dived.page
    page.select_option("select.split", "validation")
    expect(page.locator(".summary strong")).to_have_text("10 samples of 70")
    dived.go("/")
    page.get_by_role("link", name="In a random order").click()
    expect(page.get_by_role("link", name="In order")).to_be_visible()
    shuffled = keys_of(page)
    dived.press("n")
    expect(page.locator(".summary")).to_contain_text("25 to 48")
    shuffled += keys_of(page)
    dived.press("n")
    expect(page.locator(".summary")).to_contain_text("49 to 70")
    shuffled += keys_of(page)
    everything = shoal.Dataset(dives).keys()
    assert shuffled != everything
    assert sorted(shuffled) == sorted(everything)


def test_every_page_is_reached_by_keys_alone(dived):
    page = dived.page
    dived.press("j", "j", "k", "ArrowRight")
    expect(page.locator(".card .open").nth(1)).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_have_text("dive-00001")
    dived.press("j")
    expect(page.locator("h1")).to_have_text("dive-00002")
    dived.press("ArrowLeft")
    expect(page.locator("h1")).to_have_text("dive-00001")
    dived.press("u")
    expect(page.locator("#grid")).to_be_visible()
    for key, heading in (("2", "Columns"), ("3", "Shards"), ("4", "Schema"), ("5", "Lenses")):
        dived.press(key)
        expect(page.locator("h1")).to_have_text(heading)
    dived.press("?")
    expect(page.get_by_role("dialog")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_be_hidden()


def test_light_and_dark_follow_the_system_and_the_button(visit, dives):
    there = visit(dives, color_scheme="dark")
    dark = there.page
    ground = "getComputedStyle(document.body).backgroundColor"
    assert dark.evaluate(ground) == "rgb(16, 23, 27)"
    there.press("t")
    assert dark.evaluate(ground) == "rgb(246, 247, 248)"
    dark.reload()
    assert dark.evaluate(ground) == "rgb(246, 247, 248)"


def test_a_phone_never_scrolls_sideways(visit, dives):
    phone = visit(dives, viewport=PHONE, is_mobile=True, has_touch=True)
    for address in ("/", "/sample/0", "/columns", "/shards", "/schema", "/lenses"):
        assert phone.go(address).evaluate("document.documentElement.scrollWidth") <= PHONE["width"], address


def test_other_formats_are_shown_too(visit, tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"text": ["one", "two"], "number": [1, 2]}), tmp_path / "t.parquet")
    page = visit(tmp_path / "t.parquet").page
    expect(page.locator(".card").nth(1)).to_contain_text("two")
    page.locator(".card .open").nth(1).click()
    expect(page.locator(".field").first).to_contain_text("two")


def test_without_the_script_links_and_forms_do_it_all(visit, dives):
    page = visit(dives, java_script_enabled=False).page
    page.get_by_text("Count the values of all columns").click()
    page.locator(".facet", has_text="json.night").get_by_role("link", name=re.compile("true")).click()
    expect(page.locator("#where")).to_have_value("json.night = true")
    expect(page.locator(".summary")).to_contain_text("of 70")


VALUES = st.one_of(
    st.lists(st.integers(-(2**40), 2**40), min_size=1, max_size=40),
    st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=40),
    st.lists(st.sampled_from(["a", "it's", 'say "x"', "", "ü\u202e", "null"]), min_size=1, max_size=40),
    st.lists(st.booleans(), min_size=1, max_size=40),
)


@settings(max_examples=40, deadline=None)
@given(VALUES, st.integers(0, 5))
def test_each_bin_holds_what_its_condition_finds(values, nulls):
    opened = opened_with([*values, *[None] * nulls])
    facet = next(one for one in facets_of(opened, SampleQuery()) if one.name == "json.my value")
    assert facet.nulls == nulls
    for one in facet.bins:
        assert opened.numbers(SampleQuery(one.where)).count == one.count, one
        assert opened.numbers(SampleQuery(joined("n >= 0 or n < 0", one.where))).count == one.count
    if facet.is_histogram:
        assert sum(one.count for one in facet.bins) == len(values)
        assert len(facet.bins) <= 30


def test_a_column_where_all_differ_lists_none_of_them():
    facet = next(
        one for one in facets_of(opened_with([f"name {n}" for n in range(300)]), SampleQuery()) if "my" in one.name
    )
    assert (facet.bins, facet.distinct) == ((), 300)
