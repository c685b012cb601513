"""Third parties' backends that are broken, slow, wrong or declared twice: reported, never fatal."""

from __future__ import annotations

import importlib
import logging
import sys
import textwrap
import threading
from types import SimpleNamespace

import pytest

from portagpu.base import plugins as foreign
from portagpu.base.errors import BackendNotFound, PortagpuError, Unsupported
from portagpu.base.patience import Limits
from portagpu.devices import discovery as candidates
from portagpu.devices import functions, registry
from tests.support.fake_plugins import FakePlugin, install
from tests.support.registry_state import forget, machine, use_plugins

GOOD = """
    from tests.support.fake_plugins import FakePlugin

    PLUGIN = FakePlugin("{name}")
"""


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    forget(monkeypatch)
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if name.startswith("third_"):
            del sys.modules[name]


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A folder of installed distributions, first on the path."""
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    return tmp_path


def test_an_installed_third_party_is_found_by_its_entry_point(site):
    install(
        site, "third-good", {"good": "third_good:PLUGIN"}, {"third_good": GOOD.format(name="good")}
    )
    assert "good" in candidates.candidates(), "the entry point was not found"
    assert registry.backend("good").name == "good", "the third party's backend did not open"
    assert registry.statuses()["good"].usable, "its status is not the plugin's"


def test_asking_for_one_loads_only_that_one(site):
    install(
        site, "third-good", {"good": "third_good:PLUGIN"}, {"third_good": GOOD.format(name="good")}
    )
    install(
        site, "third-other", {"other": "third_other:PLUGIN"}, {"third_other": "raise Exception"}
    )
    registry.backend("good")
    assert "third_other" not in sys.modules, "another third party's module was imported"
    assert "other" not in candidates._load_failures, "another entry point was loaded"


@pytest.mark.parametrize("value", ["not a module!", "third_missing", "third_missing:", ":PLUGIN"])
def test_a_malformed_entry_point_is_a_reason(site, value):
    install(site, "third-odd", {"odd": value})
    found = registry.statuses()
    assert not found["odd"].usable, "a malformed entry point counts as usable"
    assert "raised" in found["odd"].reason, "its reason does not say what happened"
    assert found["cpu"].reason, "the malformed one spoils its neighbours"


def test_the_words_of_a_third_party_are_one_line_without_commands_to_a_terminal(site):
    code = """
        from portagpu.devices.contract import Status
        from tests.support.fake_plugins import FakePlugin
        PLUGIN = FakePlugin("loud", reason="all\\x1b[31m is\\nwell")
    """
    install(site, "third-loud", {"loud": "third_loud:PLUGIN"}, {"third_loud": code})
    raising = "raise ValueError('\\x1b[2Jno\\nluck')"
    install(site, "third-bad", {"bad": "third_bad:PLUGIN"}, {"third_bad": raising})
    found = registry.statuses()
    assert found["loud"].reason == "all [31m is well"
    assert found["bad"].reason == "from third-bad raised ValueError: [2Jno luck"


def test_what_a_plugin_prints_at_import_is_not_a_part_of_a_document(site, capsys):
    source = "print('welcome to third')\n" + textwrap.dedent(GOOD.format(name="chatty"))
    install(site, "third-chatty", {"chatty": "third_chatty:PLUGIN"}, {"third_chatty": source})
    assert registry.statuses()["chatty"].usable
    said = capsys.readouterr()
    assert said.out == ""
    assert "welcome to third" in said.err


def test_damaged_metadata_stops_nothing(site, caplog):
    install(site, "third-bad", {})
    (site / "third_bad-1.0.dist-info" / "entry_points.txt").write_text(
        "[portagpu.backends]\nthis line has no equals sign\n"
    )
    with caplog.at_level(logging.WARNING, logger="portagpu"):
        assert "cpu" in candidates.candidates(), "damaged metadata hides the other backends"


def test_a_distribution_without_metadata_still_has_a_name(site):
    install(
        site,
        "third-anonymous",
        {"anonymous": "third_anonymous:PLUGIN"},
        {"third_anonymous": GOOD.format(name="anonymous")},
        metadata=False,
    )
    assert isinstance(candidates.candidates()["anonymous"].distribution, str)
    assert candidates.candidates()["anonymous"].distribution, "its owner has no name"


def test_two_distributions_with_one_name_are_refused_with_both_names(site, monkeypatch):
    for owner in ("third-one", "third-two"):
        module = owner.replace("-", "_")
        install(site, owner, {"twice": f"{module}:PLUGIN"}, {module: GOOD.format(name="twice")})
    machine(monkeypatch, "cpu")
    reason = registry.statuses()["twice"].reason
    assert "third-one" in reason, "the first owner is not named"
    assert "third-two" in reason, "the second owner is not named"
    assert "uninstall all but one" in reason, "what to do is not said"
    assert registry.resolve() == "cpu", "a duplicate stops the choice"


def test_ours_is_kept_when_another_claims_its_name(site, monkeypatch, caplog):
    install(
        site, "third-thief", {"cpu": "third_thief:PLUGIN"}, {"third_thief": GOOD.format(name="cpu")}
    )
    with caplog.at_level(logging.WARNING, logger="portagpu"):
        plugin = registry.plugin("cpu")
    assert type(plugin).__module__ == "portagpu_cpu.plugin", "another distribution replaced the CPU"
    assert "third-thief" in caplog.text, "the one that is ignored is not named"


def test_a_plugin_that_hangs_is_passed_over_and_waited_for_once(site, monkeypatch, caplog):
    source = "import threading\nthreading.Event().wait(30)\nPLUGIN = None"
    install(site, "third-slow", {"slow": "third_slow:PLUGIN"}, {"third_slow": source})
    machine(monkeypatch, "cpu")
    monkeypatch.setattr(
        candidates, "LIMITS", Limits(load_s=0.2)
    )  # allowed: what it limits never ends
    monkeypatch.setattr(foreign, "_QUIET_S", 0.1)
    with caplog.at_level(logging.WARNING, logger="portagpu"):
        reason = registry.statuses()["slow"].reason
    assert "did not answer within 0.2 s" in reason, "the reason is not its slowness"
    assert "waiting for the backend 'slow' to load" in caplog.text, "it was waited for silently"
    loads = []
    monkeypatch.setattr(
        candidates, "call_with_limit", lambda call, what: loads.append(what) or (None, "x")
    )
    assert "did not answer" in registry.statuses()["slow"].reason
    assert not any("'slow' to load" in load for load in loads), "it was waited for again"


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (ValueError("no\n driver"), "its status raised ValueError: no driver"),
        (SystemExit(1), "its status raised SystemExit: 1"),
        (None, "its status is None instead of a portagpu Status"),
        (True, "its status is True instead of a portagpu Status"),
    ],
)
def test_a_status_that_is_none_is_a_reason(monkeypatch, answer, reason):
    plugin = FakePlugin("odd")

    def status():
        if isinstance(answer, BaseException):
            raise answer
        return answer

    monkeypatch.setattr(plugin, "status", status, raising=False)
    use_plugins(monkeypatch, plugin)
    assert registry.status("odd").reason == reason
    assert not registry.status("odd").usable


def test_a_status_that_hangs_is_a_reason(monkeypatch):
    plugin = FakePlugin("stuck")
    monkeypatch.setattr(plugin, "status", lambda: threading.Event().wait(60), raising=False)
    monkeypatch.setattr(
        candidates, "LIMITS", Limits(load_s=0.1)
    )  # allowed: what it limits never ends
    use_plugins(monkeypatch, plugin)
    assert "did not answer within 0.1 s" in registry.status("stuck").reason


@pytest.mark.parametrize(
    ("member", "error"),
    [
        ("open", RuntimeError("driver\nsays no")),
        ("open", SystemExit(2)),
        ("open", OSError("libcudart.so.12: cannot open shared object file")),
        ("count", ValueError("no count")),
    ],
)
def test_a_device_that_does_not_open_is_a_reason_and_not_available(monkeypatch, member, error):
    plugin = FakePlugin("odd", automatic=True)

    def fail(*arguments):
        raise error

    monkeypatch.setattr(plugin, member, fail, raising=False)
    use_plugins(monkeypatch, plugin)
    with pytest.raises(BackendNotFound, match=r"cannot (open|count)") as caught:
        registry.backend()
    assert type(error).__name__ in caught.value.reasons["odd"], "what happened is not said"
    assert "\n" not in str(caught.value), "more than one line"
    assert functions.is_available() is False, "is_available disagrees with backend()"


def test_an_error_of_ours_from_open_passes_as_it_is(monkeypatch):
    plugin = FakePlugin("odd", automatic=True)

    def fail(index):
        raise Unsupported("this partition mode has no devices; set another")

    monkeypatch.setattr(plugin, "open", fail, raising=False)
    use_plugins(monkeypatch, plugin)
    with pytest.raises(Unsupported, match="partition mode"):
        registry.backend()
    assert functions.is_available() is False


@pytest.mark.parametrize("opened", [None, SimpleNamespace(device="cpu"), 1])
def test_a_handle_that_is_not_a_backend_is_refused(monkeypatch, opened):
    plugin = FakePlugin("odd", automatic=True)
    monkeypatch.setattr(plugin, "open", lambda index: opened, raising=False)
    use_plugins(monkeypatch, plugin)
    with pytest.raises(PortagpuError, match=f"'odd' opened a {type(opened).__name__}"):
        registry.backend()
    assert functions.is_available() is False


def test_a_plugin_that_counts_nothing_has_no_device(monkeypatch):
    use_plugins(monkeypatch, FakePlugin("empty", count=0, automatic=True))
    with pytest.raises(BackendNotFound, match="counts 0 devices"):
        registry.backend()
    assert functions.is_available() is False
