"""A viewer in a thread, and the system's Chromium to look at it with."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from dataclasses import dataclass, field

import pytest
from playwright.sync_api import Page, sync_playwright
from tests.viewer.samples import write_dives, write_hostile

from shoal.viewer import viewing

DESK, PHONE = {"width": 1360, "height": 860}, {"width": 390, "height": 780}


@dataclass
class Visit:
    """A page of a viewer, and all that happened on it."""

    page: Page
    base: str
    complaints: list[str] = field(default_factory=list)
    elsewhere: list[str] = field(default_factory=list)

    def go(self, address: str) -> Page:
        self.page.goto(self.base + address)
        return self.page

    def until(self, script: str) -> None:
        """Wait until this is true of the page. Not `wait_for_function`: the page's policy allows no text as code."""
        ends = time.monotonic() + 20
        while not self.page.evaluate(script):
            assert time.monotonic() < ends, script
            self.page.evaluate("new Promise(requestAnimationFrame)")

    def press(self, *keys: str) -> None:
        """Press keys one after the other, each once the page's script listens."""
        for key in keys:
            self.page.wait_for_selector("html[data-ready]")
            self.page.keyboard.press(key)

    def where(self, condition: str) -> None:
        self.page.wait_for_selector("html[data-ready]")
        self.page.fill("#where", condition)
        self.page.press("#where", "Escape")
        self.page.press("#where", "Enter")


@pytest.fixture(scope="session")
def chromium():
    path = shutil.which("chromium") or shutil.which("chromium-browser") or "/usr/bin/chromium"
    with sync_playwright() as playwright:
        # As root, as in a container, Chromium has no sandbox of its own to set up.
        args = ["--no-sandbox"] if os.geteuid() == 0 else []
        args += ["--in-process-gpu", "--disable-gpu", "--renderer-process-limit=1"]
        browser = playwright.chromium.launch(executable_path=path, args=args)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def dives(tmp_path_factory):
    """Sixty samples and ten of another split, with pictures, text, JSON, arrays and sound. Not to be changed."""
    root = tmp_path_factory.mktemp("viewer") / "dives"
    write_dives(root)
    return root


@pytest.fixture(scope="session")
def hostile(tmp_path_factory):
    root = tmp_path_factory.mktemp("viewer") / "hostile"
    write_hostile(root)
    return root


@contextlib.contextmanager
def looked_at(chromium, address, allowed=(), **options):
    """Open a viewer's link; a script's error, or a request to anywhere else, fails the test."""
    context = chromium.new_context(viewport=options.pop("viewport", DESK), **options)
    page = context.new_page()
    page.set_default_timeout(20_000)
    visit = Visit(page, address.url.partition("/?")[0])
    page.on("pageerror", lambda error: visit.complaints.append(str(error)))
    page.on("dialog", lambda dialog: visit.complaints.append(dialog.message))
    page.on(
        "console",
        lambda message: (
            visit.complaints.append(message.text)
            if message.type == "error" and not any(word in message.text for word in ("status of 4", *allowed))
            else None
        ),
    )
    context.on(
        "request", lambda request: None if request.url.startswith(visit.base) else visit.elsewhere.append(request.url)
    )
    try:
        page.goto(address.url)
        yield visit
    finally:
        context.close()
    assert visit.complaints == []
    assert visit.elsewhere == []


@pytest.fixture
def visit(chromium):
    """Start a viewer of a path and open its page."""
    with contextlib.ExitStack() as stack:

        def start(path, *, viewport=DESK, allowed=(), options=None, **browser):
            address = stack.enter_context(viewing(str(path), **(options or {})))
            return stack.enter_context(looked_at(chromium, address, allowed, viewport=viewport, **browser))

        yield start


@pytest.fixture(scope="session")
def dives_address(dives):
    with viewing(str(dives)) as address:
        yield address


@pytest.fixture(scope="session")
def dives_window(chromium, dives_address):
    """One window for all tests that only look: a new one costs more than most of them do."""
    with looked_at(chromium, dives_address) as visit:
        yield visit


@pytest.fixture
def dived(dives_window):
    """The page of the dives."""
    dives_window.go("/")
    yield dives_window
    assert dives_window.complaints == []
    assert dives_window.elsewhere == []
