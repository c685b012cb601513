"""One entry point for all parts of a vendor's package, next to one for each part."""

from __future__ import annotations

import importlib
import logging
import sys
from typing import TYPE_CHECKING, Any, Final

import pytest

from portagpu.base import plugins
from portagpu.base.errors import BackendNotFound
from portagpu.base.patience import BusyMachine, Limits
from portagpu.base.plugins import PACKAGES, PARTS, distribution_of, entry_points
from portagpu.devices import discovery
from portagpu.facts.captures import profilers
from portagpu.facts.formats import foreign_readers
from portagpu.facts.targets import load
from portagpu.facts.vendors import model
from portagpu.plugin import VendorPackage
from portagpu.traces.analysis import reading
from portagpu.traces.profile import choice
from tests.support.fake_plugins import install
from tests.support.registry_state import forget

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

DECLARED: Final = """
    from portagpu.plugin import VendorPackage

    PACKAGE = VendorPackage(
        backend="third_backend:PLUGIN",
        vendor="third_vendor:VENDOR",
        formats="third_formats",
        captures="third_captures",
        profiler="third_profiler:PROFILER",
        targets="third_targets",
    )
"""
BACKEND: Final = """
    from tests.support.fake_plugins import FakePlugin

    PLUGIN = FakePlugin("third")
"""
VENDOR: Final = """
    from portagpu.plugin import Vendor

    VENDOR = Vendor(name="third")
"""
FORMATS: Final = """
    from portagpu.plugin import Findings

    matches = lambda text: text.startswith("third")
    parse = lambda text: Findings(kind="third")
"""
PROFILER: Final = """
    class Third:
        name, backend, programs, places = "third-prof", "third", (), ()
        version_pattern, hints = "(.*)", ()
        attached = lambda self, environment: ""
        launch = lambda self, request, tool: None

    PROFILER = Third()
"""
PARTS_OF_IT: Final = {
    "third_backend": BACKEND,
    "third_vendor": VENDOR,
    "third_formats": FORMATS,
    "third_captures": "",
    "third_profiler": PROFILER,
    "third_targets": "",
}
REFERENCES: Final = {
    "portagpu.backends": "third_backend:PLUGIN",
    "portagpu.vendors": "third_vendor:VENDOR",
    "portagpu.formats": "third_formats",
    "portagpu.captures": "third_captures",
    "portagpu.profilers": "third_profiler:PROFILER",
    "portagpu.targets": "third_targets",
}


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of installed distributions, first on the path."""
    forget(monkeypatch)
    monkeypatch.setattr(plugins, "_reported", set())
    monkeypatch.setattr(model, "_found", None)
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    yield tmp_path
    for name in [each for each in sys.modules if each.startswith("third_")]:
        del sys.modules[name]


def lay(site: Path, declaration: str = DECLARED, **modules: str) -> None:
    """Install a distribution with one declaration of all parts."""
    found = {**PARTS_OF_IT, **modules, "third_package": declaration}
    install(site, "third-maker", {}, found, packages={"third": "third_package:PACKAGE"})


def foreign(group: str) -> list[tuple[str, str, str]]:
    """(name, reference, distribution) of other distributions' parts."""
    points = [(each.name, each.value, distribution_of(each)) for each in entry_points(group)]
    return sorted(each for each in points if each[2].startswith("third-"))


def problems() -> dict[str, list[str]]:
    """What each reader of parts says of other distributions, in its own words."""
    statuses = {
        name: status.reason
        for name, status in discovery.statuses().items()
        if name not in ("cpu", "cuda", "rocm") and not status.usable
    }
    points = entry_points(load.ENTRY_POINTS)
    return {
        "backend": [f"{name}: {reason}" for name, reason in statuses.items()],
        "vendor": list(model._load_all()[1]),
        "formats": list(foreign_readers.foreign_readers.__wrapped__().problems),
        "captures": list(reading.all_readers.__wrapped__().problems),
        "profiler": list(choice.profilers.__wrapped__().problems),
        "targets": [each.reason for each in load._with_packages(load._matrix(), points).problems],
    }


def test_every_reader_of_parts_asks_for_a_group_that_packages_have() -> None:
    groups = {
        *(discovery.GROUP, model.GROUP, foreign_readers.GROUP),
        *(reading.GROUP, profilers.GROUP, load.ENTRY_POINTS),
    }
    assert groups == set(PARTS)
    assert set(PARTS.values()) == set(VendorPackage.__dataclass_fields__)


def test_each_part_is_an_entry_point_of_its_group(site: Path) -> None:
    lay(site)
    found = {group: foreign(group) for group in PARTS}
    assert found == {
        group: [("third", reference, "third-maker")] for group, reference in REFERENCES.items()
    }


def test_each_reader_uses_its_part(site: Path) -> None:
    lay(site)
    assert discovery.status("third").usable
    assert "third" in model._load_all()[0]
    readers = foreign_readers.foreign_readers.__wrapped__().readers
    assert [each.name for each in readers] == ["third-maker:third_formats"]
    assert "third-prof" in choice.profilers.__wrapped__().by_name


def test_to_read_one_part_imports_no_other(site: Path) -> None:
    wrong = dict.fromkeys(PARTS_OF_IT, "raise Exception('not asked for')")
    lay(site, **{**wrong, "third_backend": BACKEND})
    assert discovery.plugin("third").name == "third"
    loaded = sorted(each for each in sys.modules if each.startswith("third_"))
    # what a plugin asks of vendors is loaded before any plugin
    assert set(loaded) <= {"third_package", "third_backend", "third_vendor"}
    assert "third_backend" in loaded


def test_nothing_is_imported_for_a_group_without_parts(site: Path) -> None:
    lay(site, "raise Exception('not asked for')")
    assert entry_points("portagpu.nothing") == []
    assert "third_package" not in sys.modules


@pytest.mark.parametrize("old_name", ["third", "third-smi"])
def test_a_part_that_is_declared_in_both_ways_counts_once(site: Path, old_name: str) -> None:
    old = {"third": "third_backend:PLUGIN"}
    install(
        site,
        "third-maker",
        old,
        {**PARTS_OF_IT, "third_package": DECLARED},
        vendors={"third": "third_vendor:VENDOR"},
        formats={old_name: "third_formats"},
        packages={"third": "third_package:PACKAGE"},
    )
    for group in ("portagpu.backends", "portagpu.vendors", "portagpu.formats"):
        assert foreign(group) == [("third", REFERENCES[group], "third-maker")], group
    assert len(foreign_readers.foreign_readers.__wrapped__().readers) == 1
    assert problems()["vendor"] == []


def test_a_part_replaces_another_reference_under_its_name_and_no_other(
    site: Path, caplog: pytest.LogCaptureFixture
) -> None:
    old = {"third": "third_old:PLUGIN", "third-second": "third_second:PLUGIN"}
    install(
        site,
        "third-maker",
        old,
        {"third_package": DECLARED},
        packages={"third": "third_package:PACKAGE"},
    )
    assert foreign("portagpu.backends") == [
        ("third", "third_backend:PLUGIN", "third-maker"),
        ("third-second", "third_second:PLUGIN", "third-maker"),
    ]
    assert not caplog.records


def test_a_part_that_two_backends_of_one_distribution_share_counts_once(site: Path) -> None:
    second = DECLARED.replace("third_backend", "third_second_backend")
    install(
        site,
        "third-maker",
        {},
        {**PARTS_OF_IT, "third_package": DECLARED, "third_second": second},
        packages={"third": "third_package:PACKAGE", "third-second": "third_second:PACKAGE"},
    )
    names = [name for name, _, _ in foreign("portagpu.backends")]
    assert names == ["third", "third-second"]
    assert len(foreign("portagpu.vendors")) == len(foreign("portagpu.formats")) == 1


def test_an_old_and_a_new_declaration_of_one_name_in_two_distributions(site: Path) -> None:
    lay(site)
    install(
        site,
        "third-other",
        {"third": "third_backend:PLUGIN"},
        {"third_vendor_of_other": VENDOR},
        vendors={"third": "third_vendor_of_other:VENDOR"},
    )
    found = problems()
    assert found["backend"] == [
        "third: declared by several distributions (third-maker, third-other): uninstall all but one"
    ]
    (said,) = found["vendor"]
    assert said.startswith("the vendor 'third' of third-other is left out: it declares the vendor")
    assert said.endswith("which is third-maker's: uninstall one of them")


def test_two_new_declarations_of_one_name(site: Path) -> None:
    lay(site)
    again = {"third_again": DECLARED}
    install(site, "third-other", {}, again, packages={"third": "third_again:PACKAGE"})
    assert "(third-maker, third-other): uninstall all but one" in problems()["backend"][0]


BROKEN: Final = {
    "raises": ("raise RuntimeError('no\\nluck')", "raised RuntimeError: no luck"),
    "exits": ("import sys; sys.exit(7)", "raised SystemExit: 7"),
    "nothing": ("", "has no attribute 'PACKAGE'"),
    "another-type": ("PACKAGE = {}", "is a dict instead of a portagpu VendorPackage"),
    "another-part": (
        "from portagpu.plugin import VendorPackage\nPACKAGE = VendorPackage(bakend='x')",
        "unexpected keyword argument 'bakend'",
    ),
    "no-part": (
        "from portagpu.plugin import VendorPackage\nPACKAGE = VendorPackage()",
        "has no part: state one of backend, vendor, formats, captures, profiler, targets",
    ),
}


@pytest.mark.parametrize(("source", "reason"), BROKEN.values(), ids=BROKEN)
def test_a_broken_declaration_is_a_reason_for_every_kind_of_part_and_stops_no_other(
    site: Path, source: str, reason: str
) -> None:
    lay(site, source)
    install(
        site,
        "third-good",
        {},
        {
            "third_good": """
                from portagpu.plugin import VendorPackage

                PACKAGE = VendorPackage(backend="third_good_backend:PLUGIN")
            """,
            "third_good_backend": BACKEND.replace('"third"', '"good"'),
        },
        packages={"good": "third_good:PACKAGE"},
    )
    for part, said in problems().items():
        assert len(said) == 1, f"of {part}: {said}"
        assert "the vendor package third_package:PACKAGE" in said[0]
        assert reason in said[0], said
        assert said[0].isprintable()
    assert discovery.status("good").usable


def test_a_part_without_its_attribute_is_a_reason(site: Path) -> None:
    lay(site, third_vendor="")
    said = {kind: found for kind, found in problems().items() if found}
    assert set(said) == {"vendor"}
    assert "has no attribute 'VENDOR'" in said["vendor"][0]


def test_a_backend_under_another_name_than_its_entry_point(site: Path) -> None:
    lay(site, third_backend=BACKEND.replace('"third"', '"fourth"'))
    assert problems()["backend"] == [
        "third: from third-maker calls itself 'fourth': entry point and plugin must agree"
    ]


def test_old_entry_points_serve_where_the_declaration_of_their_distribution_is_broken(
    site: Path, caplog: pytest.LogCaptureFixture
) -> None:
    install(
        site,
        "third-maker",
        {"third": "third_backend:PLUGIN"},
        {**PARTS_OF_IT, "third_package": "raise RuntimeError"},
        packages={"third": "third_package:PACKAGE"},
    )
    with caplog.at_level(logging.WARNING, logger="portagpu"):
        for _ in range(2):
            assert foreign("portagpu.backends") == [
                ("third", "third_backend:PLUGIN", "third-maker")
            ]
    assert caplog.messages == [
        (
            "the vendor package third_package:PACKAGE raised RuntimeError: its entry points of the "
            "group portagpu.backends are used instead"
        )
    ]
    assert discovery.status("third").usable


def test_a_declaration_that_hangs_is_waited_for_once(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plugins, "LIMITS", Limits(load_s=0.1))  # allowed: what it limits never ends
    # of a name of its own: the thread keeps the lock of the module's import
    hanging = {"third_hanging": "import threading; threading.Event().wait()"}
    install(site, "third-maker", {}, hanging, packages={"third": "third_hanging:PACKAGE"})
    waited: list[str] = []
    call_quietly = plugins.call_quietly

    def counted(call: Callable[[], Any], limit_s: float, what: str) -> tuple[Any, str]:
        waited.append(what)
        found, problem = call_quietly(call, limit_s, what)
        # on a busy machine it would be tried again
        quiet = "did not answer within 0.1 s" if isinstance(problem, BusyMachine) else problem
        return found, quiet

    monkeypatch.setattr(plugins, "call_quietly", counted)
    for part, said in problems().items():
        assert "did not answer within 0.1 s" in said[0], part
    assert waited.count("the vendor package 'third' to load") == 1


def test_a_declaration_that_was_late_on_a_busy_machine_is_tried_again(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lay(site)
    late = BusyMachine("did not answer within 10 s on a busy machine: try again")
    monkeypatch.setattr(plugins, "call_quietly", lambda *_: (None, late))
    assert "third" in discovery.candidates()
    # the candidates stay those of the busy time
    assert discovery.plugin("third").name == "third"
    assert plugins._packages == {}


def test_damaged_metadata_of_another_distribution_hides_no_package(
    site: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lay(site)
    install(site, "third-bad", {})
    (site / "third_bad-1.0.dist-info" / "entry_points.txt").write_text(
        f"[{PACKAGES}]\nthis line has no equals sign\n"
    )
    with caplog.at_level(logging.WARNING, logger="portagpu"):
        assert foreign("portagpu.vendors") == [("third", "third_vendor:VENDOR", "third-maker")]
    assert "reinstall" in caplog.text


def test_what_a_declaration_prints_is_not_a_part_of_a_document(
    site: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lay(site, "print('welcome')\n" + "\n".join(each.strip() for each in DECLARED.splitlines()))
    assert foreign("portagpu.formats")
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", "welcome\n")


def test_to_ask_for_a_backend_of_a_broken_declaration_says_why(site: Path) -> None:
    lay(site, "raise RuntimeError('no luck')")
    with pytest.raises(BackendNotFound, match="raised RuntimeError: no luck"):
        discovery.plugin("third")
    assert discovery.plugin("cpu").name == "cpu"
