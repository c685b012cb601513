"""Reports in a headless Chromium: filters, keyboard, colours, print; SKIP without one."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any
from urllib.parse import quote_plus

import pytest

from portagpu.reports.html import write_report
from portagpu.runs.results.run import Result, Run
from portagpu.runs.results.verdicts import Evidence, Verdict
from tests.support.chromium import PROGRAM, WHY_NOT, Page
from tests.support.result_samples import failing, gate, info, passing

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.skipif(PROGRAM is None, reason=WHY_NOT)

HOSTILE = "</script><script>window.broken = 1</script><img src=x onerror='window.broken = 1'>"
STATUS = "document.querySelector('.filter [role=status]').textContent"
SHOWN = "[...document.querySelectorAll('#checks tbody tr')].filter(r => r.checkVisibility())"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with Page(tmp_path_factory.mktemp("profile")) as page:
        yield page


@pytest.fixture
def page(browser: Page) -> Iterator[Page]:
    browser.resize(1200, 900)
    browser.prefer("light")
    browser.said.clear()
    yield browser
    assert browser.said == [], "the console has errors"
    assert all(address.startswith("file:///") for address in browser.requests)
    assert len(browser.requests) <= 1, "something in addition to the page was asked for"


def long_run(count: int = 250) -> Run:
    run = Run(info(target="one"))
    for number in range(count):
        verdict = Verdict.FAIL if number % 100 == 7 else Verdict.PASS
        reason = f"lane {number} is down" if verdict is Verdict.FAIL else ""
        run.add(gate("links", f"lane-{number}", verdict, reason=reason))
    run.add(gate("memory", "pattern", device="ex:3"))
    return run


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report(long_run(), tmp_path_factory.mktemp("one") / "report.html")


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> Path:
    hostile = Result(
        id="links/hostile",
        suite="bringup",
        area="links",
        verdict=Verdict.FAIL,
        evidence=(Evidence.EXECUTED,),
        device=HOSTILE,
        reason=HOSTILE,
    )
    runs = [long_run(), failing(), passing(), Run(info(target=f"x{HOSTILE}", host="h"), [hostile])]
    return write_report(runs, tmp_path_factory.mktemp("several") / "matrix.html")


def choose(page: Page, name: str, value: str) -> None:
    page.run(
        f"(() => {{ const list = document.querySelector('select[name={name}]');"
        f" list.value = {value!r}; list.dispatchEvent(new Event('change')); }})()"
    )
    page.settle()


def test_a_filter_leaves_the_rows_that_fit(page: Page, one: Path) -> None:
    page.open(one)
    assert page.run(STATUS) == "251 results"
    choose(page, "verdict", "FAIL")
    assert page.run(STATUS) == "3 of 251 results"
    assert page.run(f"{SHOWN}.map(r => r.cells[1].textContent)") == [
        "links/lane-7",
        "links/lane-107",
        "links/lane-207",
    ]
    assert page.run("location.hash") == "#?verdict=FAIL"
    choose(page, "area", "memory")
    assert page.run(STATUS) == "0 of 251 results"
    page.run("document.querySelector('.filter button').click()")
    page.settle()
    assert page.run(STATUS) == "251 results"
    assert page.run("location.hash") == ""


def test_what_is_the_same_in_a_row_is_filtered_one_by_one(page: Page, tmp_path: Path) -> None:
    results = [
        gate("memory", f"copy[{dtype}]", device=device)
        for dtype in ("fp32", "fp64")
        for device in ("ex:0", "ex:1")
    ]
    page.open(write_report(Run(info(), results), tmp_path / "same.html"))
    shown = "[...document.querySelectorAll('#checks th > [id]')].filter(v => v.checkVisibility())"
    assert page.run(STATUS) == "4 results"
    choose(page, "device", "ex:1")
    assert page.run(STATUS) == "2 of 4 results"
    assert page.run(f"{shown}.map(v => v.textContent)") == ["[fp32] on ex:1", "[fp64] on ex:1"]
    page.open(tmp_path / "same.html", "#?q=memory/copy[fp64]+ex:0")
    assert page.run(f"{shown}.map(v => v.textContent)") == ["[fp64] on ex:0"]
    page.run(f"{shown}[0].click()")
    page.settle()
    assert page.run("document.querySelector(':target').textContent") == "[fp64] on ex:0"
    assert page.run(STATUS) == "4 results"
    page.open(tmp_path / "same.html", "#?q=nothing")
    assert page.run(f"{SHOWN}.length") == 0


def test_folds_open_for_matches_and_are_as_before_afterwards(page: Page, one: Path) -> None:
    page.open(one)
    folds = "[...document.querySelectorAll('#checks details')].map(d => d.open)"
    before = page.run(folds)
    assert before == [True, False, False]
    choose(page, "device", "ex:3")
    assert page.run(f"{SHOWN}.length") == 1
    assert page.run(folds) == [False, False, True]
    choose(page, "device", "")
    assert page.run(folds) == before


def test_search_finds_ids_and_reasons_and_stands_in_the_address(page: Page, one: Path) -> None:
    page.open(one)
    page.run("document.querySelector('.filter input').focus()")
    page.press("LANE", "Space", "20", "Space", "down")
    assert page.run(STATUS) == "1 of 251 results", "every word is in the id or the reason"
    assert page.run("location.hash") == "#?q=LANE+20+down"
    address = page.run("location.hash")
    page.open(one, address)
    assert page.run(STATUS) == "1 of 251 results", "a link that was sent shows the same"
    assert page.run("document.activeElement.textContent") == "Checks"


@pytest.mark.parametrize(
    ("words", "found"),
    [("host-to-device ex:3", 1), ("24 %", 1), ("49.5", 8), ("device on", 0), ("blocked device", 2)],
)
def test_search_is_the_same_in_both_pages(
    page: Page, tmp_path: Path, words: str, found: int
) -> None:
    address = f"#?q={quote_plus(words)}"
    page.open(write_report(failing(), tmp_path / "one.html"), address)
    assert page.run(STATUS).startswith(f"{found} of 14 results")
    page.open(write_report([failing()], tmp_path / "several.html"), address)
    assert page.run(STATUS).startswith(f"{found} of 14 results")


def test_a_link_to_a_result_ends_the_filter_that_hides_it(page: Page, one: Path) -> None:
    page.open(one, "#?verdict=FAIL")
    page.run("location.hash = '#bringup:memory/pattern@ex:3'")
    page.settle()
    assert page.run(STATUS) == "251 results"
    row = "document.getElementById('bringup:memory/pattern@ex:3')"
    assert page.run(f"{row}.checkVisibility() && {row}.getBoundingClientRect().top < innerHeight")


def test_the_id_of_a_row_is_a_link_to_it(page: Page, one: Path) -> None:
    page.open(one)
    link = "document.querySelector('#checks tbody tr[id$=\"ex:3\"] a')"
    page.run(f"{link}.click()")
    page.settle()
    assert page.run("document.querySelector(':target').cells[1].innerText") == (
        "memory/pattern\non ex:3"
    )


def test_a_list_that_the_address_chose_is_shown(page: Page, tmp_path: Path) -> None:
    runs = [Run(info(target=name), [gate("links", "a")]) for name in ("x", "y")]
    file = write_report(runs, tmp_path / "two.html")
    lists = "[...document.querySelectorAll('select')].filter(s => s.checkVisibility())"
    page.open(file)
    assert page.run(f"{lists}.map(s => s.name)") == ["target"]
    page.open(file, "#?run=y")
    assert page.run(f"{lists}.map(s => s.name)") == ["target", "run"]
    assert page.run(STATUS) == "1 of 2 results"


def test_nonsense_in_the_address_shows_everything(page: Page, one: Path) -> None:
    for fragment in ("#?verdict=NONE&other=1", "#%E0%A4%A", "#?q=%", "#?"):
        page.open(one, fragment)
        whole = page.run(STATUS) in ("251 results", "0 of 251 results")
        assert whole, fragment


def test_rows_of_several_runs_are_made_in_batches(page: Page, several: Path) -> None:
    page.open(several)
    total = 251 + 14 + len(passing().results) + 1
    assert page.run(STATUS) == f"{total} results, the first 100 are shown"
    assert page.run(f"{SHOWN}.length") == 100
    page.run("document.querySelector('.more').click()")
    assert page.run(f"{SHOWN}.length") == 200
    assert page.run("document.activeElement.rowIndex") == 101, "where reading goes on"
    choose(page, "target", "example-ex900")
    assert page.run(STATUS) == f"14 of {total} results"
    assert not page.run("document.querySelector('.more').checkVisibility()")
    choose(page, "verdict", "INCONCLUSIVE")
    assert page.run(f"{SHOWN}.map(r => r.innerText.split(/\\s+/))") == [
        ["INCONCLUSIVE", f"collectives/{name}", *reason.split(), "example-ex900"]
        for name in ("all-reduce", "all-gather")
        for reason in ("not run: the gate transfers failed blocked by transfers/host-to-device",)
    ]


def test_a_cell_of_the_matrix_leads_to_its_checks(page: Page, several: Path) -> None:
    page.open(several)
    page.run(
        "document.querySelector('.matrix a[href*=\"example-ex900\"][href*=transfers]').click()"
    )
    page.settle()
    assert page.run(STATUS).startswith("8 of ")
    assert page.run("document.querySelector('#checks h2').getBoundingClientRect().top < 900")


def test_links_lead_to_names_without_their_control_characters(page: Page, tmp_path: Path) -> None:
    odd = Result(
        id="a/b",
        suite="s",
        area="a",
        verdict=Verdict.PASS,
        extra={"suite": "s\u202et", "area": "a\u200bb"},
    )
    runs = [Run(info(target=None, devices=({"name": name},)), [odd]) for name in ("x\u202ey", "z")]
    page.open(write_report(runs, tmp_path / "odd.html"))
    page.run("document.querySelector('.matrix td a').click()")
    page.settle()
    assert page.run(STATUS) == "1 of 2 results"


def test_a_failure_leads_to_its_check(page: Page, several: Path) -> None:
    page.open(several)
    page.run("document.querySelector('header.verdict a').click()")
    page.settle()
    assert page.run(STATUS).startswith("1 of ")


def test_hostile_text_stays_text(page: Page, several: Path) -> None:
    page.open(several, "#?q=links/hostile")
    assert page.run("window.broken") is None
    assert page.run("document.querySelectorAll('img').length") == 0
    assert HOSTILE in page.run(f"{SHOWN}[0].cells[2].textContent")
    values = page.run(
        "[...document.querySelector('select[name=target]').options].map(o => o.value)"
    )
    assert f"x{HOSTILE}" in values
    choose(page, "device", "")
    page.run(
        "document.querySelector('select[name=target]').selectedIndex = "
        f"{values.index(f'x{HOSTILE}')}"
    )
    page.run("document.querySelector('select[name=target]').dispatchEvent(new Event('change'))")
    assert page.run("new URLSearchParams(location.hash.slice(2)).get('target')") == f"x{HOSTILE}"


@pytest.mark.parametrize(
    "attempt", ["fetch('https://example.org/')", "import('data:text/javascript,1')"]
)
def test_the_policy_refuses_requests_and_other_scripts(
    browser: Page, one: Path, attempt: str
) -> None:
    browser.open(one)
    refused = browser.run(f"{attempt}.then(() => 'done', () => 'refused')", is_promise=True)
    assert refused == "refused"
    browser.run(
        "(() => { const code = document.createElement('script');"
        " code.textContent = 'window.other = 1'; document.body.append(code); })()"
    )
    assert browser.run("window.other") is None


@pytest.mark.parametrize("name", ["one", "several"])
def test_the_keyboard_reaches_everything(
    page: Page, name: str, request: pytest.FixtureRequest
) -> None:
    page.open(request.getfixturevalue(name), "#?verdict=FAIL")
    page.run("document.activeElement.blur(); scrollTo(0, 0)")
    expected = page.run(
        "[...document.querySelectorAll("
        "'a[href], input, select, button, summary, [tabindex=\"0\"]')]"
        ".filter(e => e.checkVisibility({visibilityProperty: true})).length"
    )
    page.run(
        "window.seen = new Set(); window.dim = [];"
        "addEventListener('focusin', event => { seen.add(event.target);"
        " const style = getComputedStyle(event.target);"
        " if (style.outlineStyle === 'none' && !event.target.matches('#only-failures'))"
        " dim.push(event.target.outerHTML.slice(0, 80)); })"
    )
    for _ in range(expected + 3):
        page.key("Tab")
    page.settle()
    assert page.run("seen.size") >= expected
    assert page.run("window.dim") == [], "what has the focus shows it"


def test_a_filter_works_by_keyboard_alone(page: Page, one: Path) -> None:
    page.open(one)
    page.run("document.querySelector('#checks .filter input').focus()")
    page.press("Tab")
    assert page.run("document.activeElement.name") == "verdict"
    page.press("ArrowDown")
    assert page.run("document.activeElement.value") == "FAIL", "failures are first in their area"
    assert page.run(STATUS) == "3 of 251 results"


def test_whatever_can_be_used_has_a_name(page: Page, several: Path) -> None:
    page.open(several)
    nodes = page.call("Accessibility.getFullAXTree")["nodes"]
    used = {"link", "button", "searchbox", "combobox", "checkbox", "image", "region", "table"}
    found: dict[str, list[str]] = {}
    for node in nodes:
        role = node.get("role", {}).get("value")
        if role in used and not node.get("ignored"):
            found.setdefault(role, []).append(node.get("name", {}).get("value", ""))
    assert {"link", "searchbox", "combobox", "button", "image", "table"} <= set(found)
    assert all(name.strip() for names in found.values() for name in names), found
    assert any(node.get("role", {}).get("value") == "status" for node in nodes)


COLOURS = """(() => {
  const colour = (element, key) => {
    for (let at = element; at; at = at.parentElement) {
      const found = getComputedStyle(at)[key];
      if (found !== 'rgba(0, 0, 0, 0)' && found !== 'none') return found;
    }
    return 'rgb(255, 255, 255)';
  };
  const words = 'h1, h2, p, td, th, dt, dd, a, .badge, .soft, summary, label';
  return [...document.querySelectorAll(words)]
    .filter(each => each.checkVisibility() && each.textContent.trim())
    .map(each => [colour(each, 'color'), colour(each, 'backgroundColor'), each.className]);
})()"""


def luminance(colour: str) -> float:
    """Relative luminance (WCAG 2.2) of "rgb(27, 31, 38)" or "color(srgb 0.1 0.2 0.3)"."""
    numbers = [float(each) for each in re.findall(r"[\d.]+", colour.replace("srgb", ""))[:3]]
    parts = numbers if colour.startswith("color") else [each / 255 for each in numbers]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_its_background(page: Page, several: Path, scheme: str) -> None:
    page.prefer(scheme)
    page.open(several)
    backgrounds = set()
    for text, background, where in page.run(COLOURS):
        light, dark = sorted((luminance(text), luminance(background)), reverse=True)
        assert (light + 0.05) / (dark + 0.05) >= 4.5, f"{text} on {background}: {where}"
        backgrounds.add(luminance(background) > 0.5)
    assert backgrounds == {scheme == "light"}


@pytest.mark.parametrize("name", ["one", "several"])
def test_a_phone_needs_no_scrolling_to_the_side(
    page: Page, name: str, request: pytest.FixtureRequest
) -> None:
    page.resize(400, 800)
    page.open(request.getfixturevalue(name))
    assert page.run("document.documentElement.scrollWidth") == 400


def test_in_print_folds_are_open_and_controls_are_gone(
    page: Page, one: Path, tmp_path: Path
) -> None:
    page.open(one)
    page.prefer("dark", media="print")
    assert (
        page.run("getComputedStyle(document.documentElement).getPropertyValue('--page')") == "#fff"
    )
    assert not page.run("document.querySelector('.filter input').checkVisibility()")
    assert page.run("document.querySelector('.filter [role=status]').checkVisibility()"), (
        "paper says what was left out"
    )
    heights = page.run(
        "[...document.querySelectorAll('#checks tbody tr')]"
        ".map(row => row.getBoundingClientRect().height)"
    )
    assert min(heights) > 0
    assert page.run("document.documentElement.scrollWidth <= innerWidth")
    written = page.pdf(tmp_path / "report.pdf").read_bytes()
    assert written.startswith(b"%PDF")
    assert len(re.findall(rb"/Type\s*/Page\b", written)) > 3


def test_without_scripts_everything_of_one_run_is_there(
    tmp_path: Path, one: Path, several: Path
) -> None:
    with Page(tmp_path / "profile") as page:
        page.without_scripts()
        page.open(one)
        assert visible(page, ".filter") is False
        assert visible(page, "#checks tbody tr") is True
        page.open(several)
        assert visible(page, ".filter") is False
        assert visible(page, "noscript p") is True
        assert visible(page, "#failures .bad") is True
        assert page.said == []


def visible(page: Page, selector: str) -> bool:
    """Whether the first such element is drawn; works without scripts of the page."""
    root = page.call("DOM.getDocument")["root"]["nodeId"]
    node = page.call("DOM.querySelector", nodeId=root, selector=selector)["nodeId"]
    assert node, f"there is no {selector}"
    answer: dict[str, Any] = page.try_call("DOM.getBoxModel", nodeId=node)
    return bool(answer) and answer["model"]["height"] > 0


@pytest.mark.parametrize("width", [660, 760, 820, 1000])
def test_a_failure_is_read_at_any_width(page: Page, tmp_path: Path, width: int) -> None:
    """Its reason is not a column of single letters, and a cause stands on one line."""
    run = failing()
    run.add(
        gate(
            "health",
            "throttling",
            Verdict.FAIL,
            device="0000:c7:00.0",
            value="hw_thermal_slowdown",
            reason="slowed by hw_thermal_slowdown: check air flow, fans and heat sinks",
        )
    )
    path = write_report(run, tmp_path / "report.html")
    page.resize(width, 900)
    page.open(path)
    narrowest = page.run(
        "Math.min(...[...document.querySelectorAll('.failures .reason')]"
        ".map(each => each.clientWidth))"
    )
    assert narrowest >= 140
    lines = page.run(
        "(() => { const cell = [...document.querySelectorAll('.failures td')]"
        ".find(each => each.textContent === 'hw_thermal_slowdown');"
        " const range = document.createRange(); range.selectNodeContents(cell);"
        " return new Set([...range.getClientRects()].map(each => each.top)).size; })()"
    )
    assert lines == 1
    assert page.run("document.documentElement.scrollWidth") <= width
