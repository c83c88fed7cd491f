"""The pages of one sample, of the schema and of lenses; damage is told, and hides nothing else."""

from __future__ import annotations

import io
import re
import shutil
from typing import Annotated

import av
import numpy as np
from playwright.sync_api import expect
from tests.viewer.axe import problems_on
from tests.viewer.conftest import looked_at

import shoal
from shoal.sample import Lens
from shoal.schema import Array
from shoal.shard import members_of
from shoal.viewer import viewing


def test_every_field_is_shown_with_where_its_bytes_lie(dived, dives):
    page = dived.go("/sample/0")
    index = shoal.Dataset(dives).source.shard(0).index
    sections = page.locator(".field")
    members = members_of(index, 0)
    assert [each.inner_text().split()[0] for each in page.locator(".field > h2").all()] == [
        one.field for one in members
    ]
    for at, member in enumerate(members):
        crc = index.fields[member.field].crc[0]
        for fact in (f"{member.offset:,}", f"{member.size:,} B", f"{crc:08x}"):
            expect(sections.nth(at).locator(".provenance")).to_contain_text(fact)
    expect(page.locator(".origin")).to_contain_text("train-000000.tar")
    expect(page.locator(".origin")).to_contain_text("json.camera.iso")
    expect(page.locator(".field", has_text="json").locator(".tree").first).to_contain_text("[1, 2, 30, 40]")


def test_bytes_are_shown_and_downloaded_as_they_are(dived, dives):
    page = dived.go("/sample/0")
    jpg = page.locator(".field").first
    jpg.get_by_text("Bytes", exact=True).click()
    data = bytes(shoal.Dataset(dives, decode=False)[0]["jpg"])
    expect(jpg.locator(".hex")).to_contain_text(data[:16].hex(" "))
    with page.expect_download() as started:
        jpg.get_by_text("Download").click()
    with open(started.value.path(), "rb") as file:
        assert file.read() == data
    assert started.value.suggested_filename == "0.jpg"


def test_a_sound_plays_and_is_read_in_parts(dived):
    page = dived.go("/sample/2")
    dived.until("document.querySelector('audio').duration === 1")
    page.evaluate("document.querySelector('audio').muted = true; document.querySelector('audio').play()")
    dived.until("document.querySelector('audio').currentTime > 0.1")
    ranged = page.evaluate(
        """async () => {
        const answer = await fetch(document.querySelector('audio').src, {headers: {Range: 'bytes=4-9'}});
        return [answer.status, answer.headers.get('content-range'), (await answer.arrayBuffer()).byteLength];
    }"""
    )
    assert ranged == [206, "bytes 4-9/16044", 6]


def test_planes_of_an_array_are_turned_over(dived, dives):
    page = dived.go("/sample/3")
    array = page.locator(".array")
    expect(array).to_contain_text("int32 · 5 by 16 by 16")
    dived.until("document.querySelector('.array img').naturalWidth === 16")
    with page.expect_response(re.compile("plane=3")) as answered:
        array.locator("input").fill("3")
    assert answered.value.status == 200
    expect(array.locator("output")).to_have_text("3")
    image = shoal.codec.decode("png", answered.value.body(), shoal.codec.decode_spec("rgb8"))
    plane = shoal.Dataset(dives)[3]["planes.npy"][3]
    darkest, lightest = (np.unravel_index(pick(plane), plane.shape) for pick in (np.argmin, np.argmax))
    assert image[darkest].tolist() == [13, 20, 53]
    assert image[lightest].tolist() == [253, 240, 190]


def test_damage_is_told_where_it_is_and_hides_nothing_else(visit, dives, tmp_path):
    root = tmp_path / "dives"
    shutil.copytree(dives, root)
    shard = root / "train-000000.tar"
    data = bytearray(shard.read_bytes())
    at = data.index(b"fish seen")  # in the caption of the first sample
    data[at] ^= 1
    shard.write_bytes(data)
    page = visit(root).page
    expect(page.locator(".card").first).to_contain_text("bytes changed")
    expect(page.locator(".card").nth(1)).to_contain_text("fish seen")
    page.locator(".card .open").first.click()
    expect(page.locator(".field").nth(1)).to_contain_text("A member's bytes changed after they were written")
    expect(page.locator(".field").nth(2)).to_contain_text("checksum right")


def test_a_position_that_is_not_there_is_a_page(dived):
    page = dived.go("/sample/999")
    expect(page.locator("h1")).to_have_text("No sample at this position")
    expect(page.locator("main")).to_contain_text("0 to 69")
    expect(page.get_by_role("link", name="Try again")).to_have_count(0)  # it would not help
    page.get_by_role("link", name="All samples").click()
    expect(page.locator("#grid")).to_be_visible()


def film() -> bytes:
    """Two seconds of a moving bar, as WebM."""
    out = io.BytesIO()
    with av.open(out, "w", format="webm") as container:
        stream = container.add_stream("libvpx", rate=10)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        for number in range(20):
            pixels = np.zeros((48, 64, 3), np.uint8)
            pixels[:, 3 * number : 3 * number + 6] = 255
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        container.mux(stream.encode())
    return out.getvalue()


def test_a_video_plays_and_turns_to_any_moment(visit, tmp_path):
    with shoal.ShardWriter(f"{tmp_path}/a-%06d.tar") as writer:
        writer.write({"__key__": "film", "webm": film(), "cls": 3})
    there = visit(tmp_path)
    expect(there.page.locator(".card video")).to_be_visible()
    there.until("document.querySelector('.card video').videoWidth === 64")  # its first picture, once it is seen
    there.go("/sample/0")
    there.until("document.querySelector('video').videoWidth === 64")
    there.page.evaluate("document.querySelector('video').currentTime = 1.5")
    there.until("!document.querySelector('video').seeking && document.querySelector('video').currentTime === 1.5")
    expect(there.page.locator(".field", has_text="cls")).to_contain_text("3")


def test_text_of_any_alphabet_is_shown_whole_and_pictures_of_a_few_pixels_large(visit, tmp_path):
    text, pixels = "Grüße, 世界 🐟 " * 40, np.arange(20 * 30 * 3, dtype=np.uint8).reshape(20, 30, 3)
    facts = {"score": 0.6404226504432821, "nested": {"only": 1}}
    with shoal.ShardWriter(f"{tmp_path}/a-%06d.tar") as writer:
        writer.write({"__key__": "a", "txt": text, "png": shoal.codec.encode("png", pixels), "json": facts})
        writer.write({"__key__": "b", "txt": "ü" * 300_000})
    there = visit(tmp_path)
    expect(there.page.locator(".card").first.locator(".lines")).to_have_text(
        re.compile(r"score\s*0.640423\s*nested\s*1 value$")
    )
    page = there.go("/sample/0")
    assert page.locator(".field .text").inner_text().strip() == text.strip()
    assert page.locator(".field", has_text="txt").get_by_text(" of 8").count() == 0  # nothing is said to be left out
    there.until("document.querySelector('.kind-image img, .field img').width === 180")
    there.go("/sample/1")
    expect(page.locator(".field").first).to_contain_text("262.1 kB of 600.0 kB")


def test_a_dataset_without_samples_is_a_page(visit, tmp_path):
    with shoal.ShardWriter(f"{tmp_path}/a-%06d.tar"):
        pass
    there = visit(tmp_path, allowed=("status of 5",))
    for address in ("/", "/?shuffle=1", "/columns", "/shards", "/schema", "/lenses"):
        there.go(address)
        expect(there.page.locator("main")).to_contain_text(re.compile(r"\w"))
        assert "cannot be made" not in there.page.content()


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
