"""The dashboard in a real browser: drawn, quiet, local, shareable, up to date."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlparse

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, Playwright, expect, sync_playwright

from tests.dashboard import stores

CHROMIUM = Path(shutil.which("chromium") or "/usr/bin/chromium")
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
ROOT = Path(__file__).parents[2]
WAIT_MS = 20_000
DESK, TELEPHONE = 1280, 390

expect.set_options(timeout=WAIT_MS)

FAULTS_OF_CHART = """chart => {
    const frame = chart.getBoundingClientRect();
    const texts = [...chart.querySelectorAll("svg.marks text")].filter(text => text.textContent);
    const boxes = texts.map(text => text.getBoundingClientRect());
    const faults = [];
    if (!chart.querySelector("svg.marks .mark-symbol path, svg.marks .mark-line path"))
        faults.push("no marks");
    if (frame.left < 0 || frame.right > window.innerWidth) faults.push("wider than the window");
    texts.forEach((text, i) => {
        const a = boxes[i];
        if (text.textContent.includes("\u2026")) faults.push("cut short: " + text.textContent);
        if (a.left < frame.left - 1 || a.right > frame.right + 1 || a.bottom > frame.bottom + 1)
            faults.push("clipped: " + text.textContent);
        texts.slice(i + 1).forEach((other, j) => {
            const b = boxes[i + 1 + j];
            const across = Math.min(a.right, b.right) - Math.max(a.left, b.left);
            const down = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
            if (across > 1 && down > 4)
                faults.push("overlap: " + text.textContent + " | " + other.textContent);
        });
    });
    return faults;
}"""
"""Empty, clipped, shortened or overlapping parts of a chart."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if not CHROMIUM.exists():
        pytest.skip(f"{CHROMIUM} is missing: apt-get install -y chromium fonts-dejavu-core")
    with sync_playwright() as playwright:
        yield from _launched(playwright)


def _launched(playwright: Playwright) -> Iterator[Browser]:
    browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
    try:
        yield browser
    finally:
        browser.close()


@dataclass
class Dashboard:
    url: str
    database: Path


@pytest.fixture(scope="module")
def dashboard(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dashboard]:
    """Started as a user starts it, on a free port, with a store of its own."""
    folder = tmp_path_factory.mktemp("dashboard")
    database = folder / "results.duckdb"
    stores.full(database)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "streamlit", "run", "dashboard/app.py"]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [*command, "--server.port", str(port)],
            cwd=ROOT,
            env=os.environ | {"WEIGHTLESS_DB": str(database), "HOME": str(folder)},
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        try:
            url = f"http://127.0.0.1:{port}"
            _await_health(url, process, folder / "log")
            yield Dashboard(url, database)
        finally:
            process.terminate()
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _await_health(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + WAIT_MS / 1000
    while time.monotonic() < deadline and process.poll() is None:
        try:
            urllib.request.urlopen(f"{url}/_stcore/health", timeout=1).close()
            return
        except OSError:
            time.sleep(0.1)
    raise AssertionError(f"the dashboard did not start: {log.read_text()}")


@dataclass
class Visit:
    """A page with all it asked for and complained of."""

    page: Page
    hosts: set[str] = field(default_factory=set)
    complaints: list[str] = field(default_factory=list)

    def watch(self) -> None:
        self.page.on("request", lambda request: self._note_host(request.url))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on(
            "console",
            lambda message: (
                self._complain(message.text, message.location["url"])
                if message.type == "error"
                else None
            ),
        )

    def _note_host(self, url: str) -> None:
        parts = urlparse(url)
        if parts.scheme not in ("data", "blob"):
            self.hosts.add(parts.hostname or url)

    def _complain(self, text: str, url: str) -> None:
        # Streamlit finds its own address by trying the page's path first.
        if "/runs/_stcore/" not in url:
            self.complaints.append(f"{text} ({url})")


@pytest.fixture(scope="module")
def context(browser: Browser) -> Iterator[BrowserContext]:
    """One profile, so that Streamlit's own files are loaded once."""
    context = browser.new_context()
    context.set_default_timeout(WAIT_MS)
    yield context
    context.close()


@pytest.fixture
def visit(context: BrowserContext) -> Iterator[Callable[..., Visit]]:
    """Opens a URL in a new page, a new session; all are checked and closed at the end."""
    visits: list[Visit] = []

    def open_url(url: str, *, width: int = DESK, mode: str = "light") -> Visit:
        made = Visit(context.new_page())
        visits.append(made)
        made.watch()
        made.page.set_viewport_size({"width": width, "height": 900})
        made.page.emulate_media(color_scheme="dark" if mode == "dark" else "light")
        made.page.goto(url)
        return made

    try:
        yield open_url
        for made in visits:
            assert made.complaints == []
            assert made.hosts == {"127.0.0.1"}
    finally:
        for made in visits:
            made.page.close()


def settle(page: Page) -> None:
    """Waits until the script has run and the page is still."""
    expect(page.get_by_test_id("stApp")).to_have_attribute("data-test-script-state", "notRunning")
    expect(page.get_by_test_id("stSkeleton")).to_have_count(0)


def drawn(page: Page, count: int) -> None:
    """So many charts are there, each with its marks and with legible labels."""
    charts = page.get_by_test_id("stVegaLiteChart")
    expect(charts.locator("svg.marks")).to_have_count(count)
    for index in range(count):
        assert charts.nth(index).evaluate(FAULTS_OF_CHART) == []
        assert charts.nth(index).get_attribute("aria-label")


def keep_picture(page: Page, name: str) -> None:
    """The whole page, into the folder that WEIGHTLESS_SCREENSHOTS names."""
    folder = os.environ.get("WEIGHTLESS_SCREENSHOTS")
    if folder is None:
        return
    size = page.viewport_size
    assert size is not None
    height = page.get_by_test_id("stMain").evaluate("main => main.scrollHeight")
    page.set_viewport_size({"width": size["width"], "height": height + 10})
    page.wait_for_timeout(700)
    page.screenshot(path=Path(folder) / f"{name}.png")
    page.set_viewport_size(size)


def background(page: Page) -> str:
    colour: str = page.get_by_test_id("stApp").evaluate(
        "app => getComputedStyle(app).backgroundColor"
    )
    return colour


@pytest.mark.parametrize("width", [DESK, TELEPHONE])
@pytest.mark.parametrize(
    ("mode", "colour"), [("light", "rgb(255, 255, 255)"), ("dark", "rgb(14, 17, 23)")]
)
def test_overview_is_drawn(
    dashboard: Dashboard, visit: Callable[..., Visit], width: int, mode: str, colour: str
) -> None:
    page = visit(dashboard.url, width=width, mode=mode).page
    expect(page.get_by_text("precompute r=4 G=layers decodes at 0.980×")).to_be_visible()
    settle(page)
    drawn(page, 6)
    assert background(page) == colour
    keep_picture(page, f"overview-{mode}-{width}")


@pytest.mark.parametrize("width", [DESK, TELEPHONE])
@pytest.mark.parametrize("mode", ["light", "dark"])
def test_a_run_can_be_selected(
    dashboard: Dashboard, visit: Callable[..., Visit], width: int, mode: str
) -> None:
    page = visit(f"{dashboard.url}/runs?path=gemm", width=width, mode=mode).page
    table = page.get_by_test_id("stDataFrame")
    expect(table.locator("canvas").first).to_be_visible()
    settle(page)
    table.click(position={"x": 14, "y": 50})
    expect(page.get_by_text("What really ran")).to_be_visible()
    settle(page)
    drawn(page, 1)
    keep_picture(page, f"runs-{mode}-{width}")
    assert "run=" in page.url


def test_a_shared_url_restores_filters_and_run(
    dashboard: Dashboard, visit: Callable[..., Visit]
) -> None:
    first = visit(f"{dashboard.url}/runs?path=custom-op&rank=32&phase=measured").page
    expect(first.get_by_text("5 of 84 runs")).to_be_visible()
    settle(first)
    first.get_by_test_id("stDataFrame").click(position={"x": 14, "y": 85})
    heading = first.get_by_role("heading", name="custom-op r=32 G=layers")
    expect(heading).to_be_visible()
    run = first.url.partition("run=")[2]
    second = visit(first.url).page
    expect(second.get_by_text("5 of 84 runs")).to_be_visible()
    expect(second.get_by_text("What really ran")).to_be_visible()
    assert run and second.url.partition("run=")[2] == run


def test_an_emptying_filter_is_named(dashboard: Dashboard, visit: Callable[..., Visit]) -> None:
    page = visit(f"{dashboard.url}/runs?path=precompute&rank=32").page
    notice = page.get_by_test_id("stAlert")
    expect(notice).to_contain_text("Path: precompute")
    expect(notice).to_contain_text("make bench")


def test_a_replaced_store_shows_up(dashboard: Dashboard, visit: Callable[..., Visit]) -> None:
    page = visit(dashboard.url).page
    expect(page.get_by_text("precompute r=4 G=layers decodes at 0.980×")).to_be_visible()
    old = dashboard.database.read_bytes()
    other = dashboard.database.with_name("other.duckdb")
    stores.full(other, best=1.4)
    try:
        other.replace(dashboard.database)
        page.reload()
        expect(page.get_by_text("precompute r=4 G=layers decodes at 1.400×")).to_be_visible()
        dashboard.database.write_bytes(b"not a database")
        page.reload()
        expect(page.get_by_test_id("stAlert")).to_contain_text("make bench")
    finally:
        dashboard.database.write_bytes(old)
