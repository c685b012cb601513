"""Identity: the environment variables of the device's vendor are returned, never set."""

from __future__ import annotations

import os

from portagpu.suites.conformance import case


@case(
    "identity/variables-are-not-set",
    spec="Asking for an environment writes none, and every name and value of it is text.",
    covers=("Plugin.variables",),
)
def test_variables_are_not_set(backend):
    before = dict(os.environ)
    variables = backend.plugin.variables
    found = {**variables.for_debugging(), **variables.for_job("/scratch/one")}
    strange = {name: value for name, value in found.items() if not (name and str(value) == value)}
    assert not strange, f"{strange} is not an environment"
    assert dict(os.environ) == before, "the process's own environment was changed"
