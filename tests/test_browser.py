"""The site, and a report, in a real browser: headless Chromium at the widths of a desktop and of a phone."""

from __future__ import annotations

import contextlib
import functools
import http.server
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tests.helpers.datasets import encode_image, write_dataset
from tests.helpers.site import build_site
from tpudata.cli import main
from tpudata.format import Feature

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), ""
)
pytestmark = pytest.mark.skipif(not CHROMIUM, reason="no Chromium is installed")
DESK, PHONE = 1400, 400
# Pages of each kind: tables, diagrams, long code, generated ones, and those of mkdocstrings.
PAGES = (
    "",
    "tutorials/boxes/",
    "convert/datasets/",
    "concepts/three_acts/",
    "concepts/architecture/",
    "reference/image_rules/",
    "reference/commands/",
    "reference/errors/",
    "reference/performance/",
    "reference/api/tpudata/",
)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    # Without a sandbox, so that it also starts in a container.
    options = {"executable_path": CHROMIUM, "args": ["--no-sandbox"]}
    with playwright.sync_playwright() as engine, engine.chromium.launch(**options) as found:
        yield found


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the built site."""
    handler = functools.partial(_Quiet, directory=str(build_site(tmp_path_factory)))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def open_page(browser: Browser) -> Iterator[Callable[..., Page]]:
    """A function that opens an address; at the end of the test, no page has written an error."""
    problems: list[str] = []
    contexts = []

    def open_address(address: str, width: int = DESK, dark: bool = False) -> Page:
        context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme="dark" if dark else "light"
        )
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda line: problems.append(line.text) if line.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: problems.append(str(error)))
        # A request interrupted by the next page is not an error.
        page.on(
            "requestfailed",
            lambda request: None if "ABORTED" in (request.failure or "") else problems.append(request.url),
        )
        page.goto(address)
        page.wait_for_load_state("networkidle")
        return page

    yield open_address
    for context in contexts:
        context.close()
    assert problems == []


@pytest.mark.parametrize("width", [DESK, PHONE])
def test_pages_fit_the_window_without_errors(site: str, open_page: Callable[..., Page], width: int) -> None:
    page = open_page(site, width)
    wide = {}
    for name in PAGES:
        page.goto(site + name)
        if (scrolled := page.evaluate("document.documentElement.scrollWidth")) > width:
            wide[name] = scrolled
    assert wide == {}


def test_the_search_finds_a_page_by_a_flag(site: str, open_page: Callable[..., Page]) -> None:
    page = open_page(site)
    field = page.locator("input.md-search__input")
    links: list[str] = []
    deadline = time.monotonic() + 90
    while not links and time.monotonic() < deadline:
        # Keys pressed before the search has started are lost, and results are replaced while they are rendered.
        field.fill("")
        field.press_sequentially("unannotated")
        with contextlib.suppress(playwright.TimeoutError):
            page.wait_for_selector("a.md-search-result__link", state="attached", timeout=5000)
        links = page.eval_on_selector_all("a.md-search-result__link", "links => links.map(link => link.pathname)")
    assert any("annotations" in link for link in links), links


def test_the_index_of_errors_finds_a_pasted_message(site: str, open_page: Callable[..., Page]) -> None:
    page = open_page(f"{site}reference/errors/")
    page.fill(
        "#error-search input",
        "tpudata: error: boxes.csv line 9: rejected: bad annotation: 'a.jpg': no such picture in the input",
    )
    assert "no such picture in the input" in page.inner_text("#error-search li >> nth=0")


def test_diagrams_are_legible_on_a_phone(site: str, open_page: Callable[..., Page]) -> None:
    page = open_page(f"{site}concepts/three_acts/", PHONE)
    # The scale of each drawing, whose smallest letters have 12 pixels.
    scales = page.eval_on_selector_all(
        "img[src$='.svg']", "images => images.map(image => image.clientWidth / image.naturalWidth)"
    )
    assert len(scales) == 2
    assert min(scales) * 12 >= 9


def test_dark_mode_follows_the_system_and_the_switch(site: str, open_page: Callable[..., Page]) -> None:
    def brightness(page: Page) -> float:
        colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
        return float(np.mean([float(part) for part in colour.strip("rgba()").split(",")[:3]]))

    assert brightness(open_page(site, dark=True)) < 80
    page = open_page(site)
    assert brightness(page) > 200
    page.click("label[title=Dark]")
    assert brightness(page) < 80


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of a dataset of 100 classes."""
    folder = tmp_path_factory.mktemp("report")
    images = [np.full((24, 32, 3), number, np.uint8) for number in range(200)]
    features = [Feature("image/encoded", "bytes", "uint8", (24, 32, 3), "image")]
    features.append(Feature("image/class/label", "int64", "int64", num_classes=100))
    records = [
        {"image/encoded": encode_image(image), "image/class/label": number % 100} for number, image in enumerate(images)
    ]
    write_dataset(str(folder / "dataset"), {"train": records}, features, layout="imagenet", shards=1)
    assert main(["report", str(folder / "dataset"), "--output", str(folder / "report.html")]) == 0
    return folder / "report.html"


@pytest.mark.parametrize("width", [DESK, PHONE])
@pytest.mark.parametrize("dark", [False, True])
def test_a_report_fits_the_window(report: Path, open_page: Callable[..., Page], width: int, dark: bool) -> None:
    page = open_page(report.as_uri(), width, dark)
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_a_report_of_100_classes_shows_a_grid(report: Path, open_page: Callable[..., Page]) -> None:
    page = open_page(report.as_uri())
    assert page.inner_text(".grid").split()[:12] == [str(number) for number in range(12)]
    pictures = page.eval_on_selector_all("main img, body img", "images => images.map(image => image.offsetTop)")
    assert len(pictures) >= 100
    # Several pictures share a row, so 100 classes take only a few screens.
    assert page.evaluate("document.documentElement.scrollHeight") < 10 * 900
