"""Third parties' backends that are broken, slow, wrong or declared twice: reported, never fatal."""

from __future__ import annotations

import pytest

from portagpu.base.errors import BackendNotFound
from portagpu.devices import registry
from tests.support.fake_plugins import install
from tests.support.registry_state import machine
from tests.unit.devices.test_registry_plugins import GOOD
from tests.unit.devices.test_registry_plugins import fresh as fresh
from tests.unit.devices.test_registry_plugins import site as site

STATED = """
    from tests.support.fake_plugins import FakePlugin

    class Stated(FakePlugin):
        {member} = {value!r}

    PLUGIN = Stated("{name}")
"""

VERSIONED = """
    from tests.support.fake_plugins import FakePlugin

    class Versioned(FakePlugin):
        contract = {contract!r}

    PLUGIN = Versioned("{name}")
"""

BROKEN = {
    "raises": ("raise ValueError('no\\nluck')", "raised ValueError: no luck"),
    "import": ("import no_such_module_here", "raised ModuleNotFoundError: No module named"),
    "exits": ("raise SystemExit(3)", "raised SystemExit: 3"),
    "interrupts": ("raise KeyboardInterrupt", "raised KeyboardInterrupt"),
    "syntax": ("def broken(", "raised SyntaxError"),
    "nothing": ("OTHER = 1", "raised AttributeError"),
    "class": ("class PLUGIN: pass", "names a type instead of a portagpu Plugin"),
    "none": ("PLUGIN = None", "names a NoneType instead of a portagpu Plugin"),
    "misnamed": (GOOD.format(name="else"), "calls itself 'else'"),
    "major": (
        VERSIONED.format(name="major", contract=(2, 0)),
        "was written for contract 2.0, this portagpu has 1.6: upgrade portagpu",
    ),
    "minor": (
        VERSIONED.format(name="minor", contract=(1, 99)),
        "was written for contract 1.99, this portagpu has 1.6: upgrade portagpu",
    ),
    "old": (
        VERSIONED.format(name="old", contract=(0, 9)),
        "was written for contract 0.9, this portagpu has 1.6: upgrade third-old",
    ),
    "text": (
        VERSIONED.format(name="text", contract="1.0"),
        "states its contract as '1.0' instead of two numbers",
    ),
    "shout": (STATED.format(name="shout", member="vendor", value="ACME"), "a word in lower case"),
    "never": (STATED.format(name="never", member="start_s", value=-1.0), "seconds from 0 to 3600"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_plugin_is_a_reason_that_names_its_distribution(site, monkeypatch, name):
    source, reason = BROKEN[name]
    install(site, f"third-{name}", {name: f"third_{name}:PLUGIN"}, {f"third_{name}": source})
    machine(monkeypatch, "cpu")
    found = registry.statuses()
    assert not found[name].usable, "a broken plugin counts as usable"
    assert reason in found[name].reason, "its reason does not say what is wrong"
    assert f"from third-{name}" in found[name].reason, "its reason does not say whose it is"
    assert found["cpu"].usable, "the broken one spoils its neighbours"
    assert registry.resolve() == "cpu", "the broken one stops the choice"
    with pytest.raises(BackendNotFound, match="cannot be used") as caught:
        registry.backend(name)
    assert reason in str(caught.value), "asking for it hides the reason"
    assert "\n" not in str(caught.value), "more than one line"
