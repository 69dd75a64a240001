"""The page in a real browser: it runs under its own policy, answers the hand, and stays within a phone."""

import os
import shutil

import numpy as np
import pytest
from selenium import webdriver
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.expected_conditions import alert_is_present

from calibrant.records import Curve, Findings, Record
from calibrant.report.page import render

pytestmark = pytest.mark.browser

HOSTILE = "<script>alert(1)</script>"
LONG = "a_class_name_without_any_space_" * 4
CERTIFIED = {"threshold": 0.69, "max_error": 0.3, "delta": 0.05, "point": 11.0, "coverage": 0.6, "risk": 0.24}
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


def findings():
    steps = np.arange(1, 21) / 20
    gaps = {HOSTILE: 0.31, "cat": -0.12, "dog": 0.04, LONG: float("nan")}
    return Findings(
        understood="400 rows x 4 classes, logits, labels 0-3, accuracy 0.605",
        verdict="When it says 90 %, it is right 71 % of the time.",
        notes=(LONG,),
        advice=("Fit a temperature on held-out rows.",),
        records=(
            Record("accuracy", 0.605, 400, low=0.556, high=0.652, level=0.95),
            Record("sm_ece", 0.041, 400, low=0.033, high=0.052, level=0.95, floor=0.025, floor_high=0.036, p=0.004),
            *(Record("signed_gap", gap, 100, low=gap, high=gap, where=f"class: {name}") for name, gap in gaps.items()),
            *(Record("accuracy", 0.5, 100, where=f"class: {name}") for name in gaps),
        ),
        curves=(
            Curve("risk_coverage", {"threshold": 1 - steps / 2, "coverage": steps, "risk": 0.4 * steps}, 400),
            Curve("roc", {"fpr": steps, "tpr": np.sqrt(steps)}, 400),
            Curve(
                "certified", {name: np.array([value]) for name, value in CERTIFIED.items()}, 400, {"says": "above 0.69"}
            ),
        ),
    )


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    driver = shutil.which("chromedriver")
    if missing := [name for name, found in (("chromium", program), ("chromedriver", driver)) if found is None]:
        if os.environ.get("CALIBRANT_BROWSER") == "required":
            pytest.fail(f"CALIBRANT_BROWSER is required, so {' and '.join(missing)} must be installed.")
        pytest.skip(f"{' and '.join(missing)} not installed, and CALIBRANT_BROWSER is not required")
    options = webdriver.ChromeOptions()
    options.binary_location = program
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    window = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    yield window
    window.quit()


@pytest.fixture
def page(browser, tmp_path):
    """The browser with a fresh copy of the page open and its logs empty."""
    file = tmp_path / "page.html"
    file.write_text(render(findings()), encoding="utf-8")
    browser.get_log("browser")
    browser.get_log("performance")
    browser.get(file.as_uri())
    return browser


def shown(page, name):
    return page.find_element("id", f"shown-{name}").text


def names(page):
    return [cell.text.replace("\n", "") for cell in page.find_elements("css selector", ".sortable tbody th")]


def header(page, title):
    return page.find_element("xpath", f"//table[@class='sortable']//thead//th[normalize-space()='{title}']")


def slide(page, point):
    page.execute_script(
        "const s = document.getElementById('threshold'); s.value = arguments[0]; s.dispatchEvent(new Event('input'));",
        point,
    )


def test_the_browser_has_nothing_to_complain_about(page):
    assert page.get_log("browser") == []


def test_the_policy_stops_a_foreign_script(page):
    page.execute_script(
        "const s = document.createElement('script'); s.textContent = 'window.foreign = 1'; document.body.append(s);"
    )
    assert page.execute_script("return window.foreign") is None
    assert any("Content Security Policy" in entry["message"] for entry in page.get_log("browser"))


def test_the_page_asks_the_network_for_nothing(page):
    page.find_element("id", "threshold")
    sent = [
        entry["message"] for entry in page.get_log("performance") if "Network.requestWillBeSent" in entry["message"]
    ]
    assert sent
    assert [message for message in sent if page.current_url not in message] == []
    assert page.execute_script("return performance.getEntriesByType('resource').length") == 0


def test_a_hostile_class_name_stays_text_and_runs_nothing(page):
    assert names(page)[0] == HOSTILE
    assert len(page.find_elements("css selector", "main script:not([type='application/json'])")) == 0
    assert not alert_is_present()(page)


def test_the_slider_starts_at_four_fifths_accepted(page):
    assert shown(page, "coverage") == "0.800"
    assert shown(page, "review") == "0.200 (200 of 1 000)"


def test_moving_the_slider_shows_the_curves_numbers_at_that_point(page):
    slide(page, 3)
    assert [shown(page, name) for name in ("threshold", "coverage", "risk")] == ["0.900", "0.200", "0.080"]
    assert shown(page, "review") == "0.800 (800 of 1 000)"
    assert "error among accepted 0.080" in page.find_element("id", "threshold").get_attribute("aria-valuetext")


def test_the_slider_goes_to_the_certified_point(page):
    assert page.find_element("css selector", "p.certified").text.endswith("Certified: above 0.69.")
    page.find_element("css selector", "#certified button").click()
    assert [shown(page, name) for name in ("threshold", "coverage", "risk")] == ["0.700", "0.600", "0.240"]


def test_an_arrow_key_moves_the_slider(page):
    before = shown(page, "coverage")
    page.find_element("id", "threshold").send_keys(Keys.ARROW_RIGHT)
    assert (before, shown(page, "coverage")) == ("0.800", "0.850")


def test_a_header_sorts_up_then_down_with_what_is_undefined_last(page):
    assert names(page) == [HOSTILE, "cat", "dog", LONG]
    gap = header(page, "confidence minus accuracy")
    gap.find_element("tag name", "button").click()
    assert gap.get_attribute("aria-sort") == "ascending"
    assert names(page) == ["cat", "dog", HOSTILE, LONG]
    gap.find_element("tag name", "button").click()
    assert gap.get_attribute("aria-sort") == "descending"
    assert names(page) == [HOSTILE, "dog", "cat", LONG]


def test_a_header_is_worked_by_the_keyboard_and_only_one_is_marked(page):
    header(page, "n").find_element("tag name", "button").send_keys(Keys.ENTER)
    header(page, "name").find_element("tag name", "button").send_keys(Keys.ENTER)
    assert names(page) == [HOSTILE, LONG, "cat", "dog"]
    assert [cell.text for cell in page.find_elements("css selector", "[aria-sort]")] == ["name"]


@pytest.mark.parametrize("width", [360, 1200])
def test_the_page_never_scrolls_sideways(page, width):
    page.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 500},
    )
    page.refresh()
    inner, wide = page.execute_script("return [window.innerWidth, document.documentElement.scrollWidth]")
    page.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    assert inner == width
    assert wide <= width


def test_ink_and_paper_follow_the_readers_colour_scheme(page):
    def colours(scheme):
        page.execute_cdp_cmd(
            "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
        )
        drawn = "getComputedStyle(document.querySelector('svg text')).fill"
        return page.execute_script(f"return [getComputedStyle(document.body).backgroundColor, {drawn}]")

    light, dark = colours("light"), colours("dark")
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    assert brightness(light[0]) > 240 > 60 > brightness(light[1])
    assert brightness(dark[0]) < 40 < 200 < brightness(dark[1])


def brightness(colour):
    return sum(int(part) for part in colour.removeprefix("rgb(").removesuffix(")").split(",")) / 3


def test_everything_but_the_slider_is_there_without_script(page):
    page.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    page.refresh()
    said = page.find_element("tag name", "body").text
    slider = page.find_element("id", "slider").is_displayed()
    page.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
    assert not slider
    assert "0.041 [0.033, 0.052]" in said
    assert "When it says 90 %" in said
    assert HOSTILE in said
