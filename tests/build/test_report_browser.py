# SPDX-License-Identifier: Apache-2.0
"""The report in a real browser: what is drawn, in light and dark, without the network or a complaint.

It runs the system's Chromium (``apt-get install chromium chromium-driver``), to whose driver selenium speaks.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from coldforge.tuner.report.page import render_page
from coldforge.tuner.report.story import tell
from coldforge.tuner.study import Study
from optuna.storages import InMemoryStorage
from report_studies import hostile_study, large_study, new_study, recorded_study, typical_study

webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")

pytestmark = pytest.mark.build

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
DRIVER = shutil.which("chromedriver")
_DRAWN_S = 120.0
LIGHT, DARK = "rgb(255, 255, 255)", "rgb(20, 23, 28)"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if CHROMIUM is None or DRIVER is None:
        pytest.skip("there is no Chromium with its driver here: apt-get install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for argument in (
        *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
        *("--disable-background-networking", "--window-size=1180,1000"),
    ):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    from selenium.webdriver.chrome.service import Service

    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    yield driver
    driver.quit()


class Page:
    """A report, opened and drawn."""

    def __init__(self, browser: Any, path: Path, scheme: str = "light") -> None:
        self._browser = browser
        browser.get("about:blank")
        browser.get_log("browser"), browser.get_log("performance")
        feature = {"name": "prefers-color-scheme", "value": scheme}
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
        browser.get(path.as_uri())
        self.wait("return document.documentElement.dataset.drawn === 'yes'")

    def run(self, script: str) -> Any:
        return self._browser.execute_script(script)

    def wait(self, script: str) -> None:
        until = time.monotonic() + _DRAWN_S
        while not self.run(script):
            assert time.monotonic() < until, (script, self.complaints)
            time.sleep(0.1)

    def count(self, selector: str) -> int:
        return self.run(f"return document.querySelectorAll({json.dumps(selector)}).length")

    def text(self, selector: str = "body") -> str:
        return self.run(f"return document.querySelector({json.dumps(selector)}).innerText")

    def point_at(self, selector: str) -> None:
        """Moves the pointer there, and waits for what it shows."""
        self.run(
            f"const place = document.querySelector({json.dumps(selector)});"
            "const at = place.getBoundingClientRect();"
            "const where = {bubbles: true, clientX: at.x + at.width / 2, clientY: at.y + at.height / 2};"
            "for (const kind of ['pointerover', 'pointermove', 'mouseover', 'mousemove'])"
            "  place.dispatchEvent(new PointerEvent(kind, where));"
        )
        self.wait("return document.querySelector('#vg-tooltip-element.visible') !== null")

    @property
    def ground(self) -> str:
        return self.run("return getComputedStyle(document.body).backgroundColor")

    @property
    def complaints(self) -> list[str]:
        return [entry["message"] for entry in self._browser.get_log("browser")]

    @property
    def requests(self) -> list[str]:
        """What was asked for since it was opened, but for the file itself."""
        events = [json.loads(entry["message"])["message"] for entry in self._browser.get_log("performance")]
        sent = [e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"]
        return [url for url in sent if not url.startswith("file:")]


@pytest.fixture(scope="module")
def opened(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Page]:
    folder = tmp_path_factory.mktemp("pages")

    def write(study: Study, scheme: str = "light") -> Page:
        path = folder / f"{len(list(folder.iterdir()))}.html"
        path.write_text(render_page(tell(study)))
        return Page(browser, path, scheme)

    return write


def test_what_is_drawn(opened: Callable[..., Page]) -> None:
    page = opened(typical_study())
    assert page.complaints == []
    assert page.requests == []
    assert page.ground == LIGHT
    assert page.count("main > section") == 12
    points = {name: page.count(f"#history .{name}_marks path") for name in ("timed", "failed", "winner")}
    assert points == {"timed": 25, "failed": 5, "winner": 1}
    assert page.count("#history .best_marks path") == 1
    assert page.count("#importance-0 .mark-rect path") > 3
    assert page.count("#parallel-0 .configs_marks path") == 25
    assert page.count("#finals .mark-symbol path") == page.count("#final-times tbody tr") == 5
    assert page.count("#finals .mark-rule line") >= 5
    assert page.count("#roofline .mark-symbol path") >= 25
    assert page.count("#roofline .mark-line path") >= 2
    assert page.count("[id^=slice-0-] svg") == page.count(".grid .chart-box") > 3
    assert page.count("#source .line.added") > 3
    assert page.count("#source .line.removed") > 3
    assert "This study is of a CPU" in page.text("#hardware")
    assert "0.88 ms" in page.text(".tile.main")
    assert page.run("return document.documentElement.scrollWidth <= window.innerWidth")
    # Every chart has a picture with something in it.
    charts = "[...document.querySelectorAll('.chart')]"
    assert page.run(f"return {charts}.filter(c => !c.querySelector('svg path')).map(c => c.id)") == []


def test_light_and_dark(opened: Callable[..., Page]) -> None:
    page = opened(typical_study(), "dark")
    labels = "return getComputedStyle(document.querySelector('#history .role-axis-label text')).fill"
    assert page.ground == DARK
    dark = page.run(labels)
    for ground in (LIGHT, DARK):
        page.run("document.getElementById('theme').click()")
        page.wait("return document.documentElement.dataset.drawn === 'yes'")
        assert page.ground == ground
        assert (page.run(labels) == dark) == (ground == DARK)
    assert page.complaints == []
    assert page.requests == []


def test_pointing_shows_the_config(opened: Callable[..., Page]) -> None:
    page = opened(typical_study())
    page.point_at("#history .timed_marks path")
    assert "TILE_X=" in page.text("#vg-tooltip-element")


def test_a_gpu_study_of_420_trials(opened: Callable[..., Page]) -> None:
    page = opened(recorded_study())
    assert (page.complaints, page.requests) == ([], [])
    assert page.count("#history .timed_marks path") == 420
    for name in ("registers", "spills", "occupancy"):
        assert page.count(f"#resource-{name} .mark-symbol path") == 420
    assert page.count("#roofline .mark-symbol.role-mark path") == 420


def test_templates_are_drawn_when_they_are_opened(opened: Callable[..., Page]) -> None:
    page = opened(large_study(600))
    assert page.complaints == []
    assert page.count("#history .timed_marks path") == 540
    assert page.count("#importance-1 svg") == 0
    page.run("document.querySelectorAll('#importance details')[1].open = true")
    page.wait("return document.querySelector('#importance-1 svg') !== null")
    assert (page.complaints, page.requests) == ([], [])


def test_text_from_outside_stays_text(opened: Callable[..., Page]) -> None:
    page = opened(hostile_study())
    assert page.run("return window.pwned === undefined")
    assert page.count("script") == 3
    assert "<script>window.pwned = 1</script>" in page.text("h1")
    assert "log </script><script>" in page.text("#failures pre")
    assert "<script>" in page.run("return document.querySelector('#source .source').textContent")
    assert "<script>" in page.run("return document.querySelector('#parallel-0').textContent")
    page.point_at("#history .timed_marks path")
    assert "<script>window.pwned = 1</script>=0" in page.text("#vg-tooltip-element")
    assert page.count("#vg-tooltip-element script") == 0
    assert page.run("return window.pwned === undefined")
    assert (page.complaints, page.requests) == ([], [])


def test_an_empty_study(opened: Callable[..., Page]) -> None:
    page = opened(new_study(InMemoryStorage()))
    assert (page.complaints, page.requests) == ([], [])
    assert page.count("main > section") == 12
    assert "Nothing was tried yet" in page.text("#why")
