"""Telemetry: readings of a machine without its vendor's management library."""

from __future__ import annotations

import json
import subprocess
import sys

from portagpu.suites.conformance import case

CHILD_LIMIT_S = 60.0


WITHOUT = """
import json, sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("pynvml", "amdsmi", "pyrsmi", "nvidia_smi"):
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Missing())
from portagpu.devices import discovery
plugin = discovery.plugin(sys.argv[1])
print(json.dumps([dict(plugin.telemetry(0)), len(plugin.probe().readings)]))
"""


@case(
    "telemetry/libraries-may-be-missing",
    spec="Without any vendor's management library readings are fewer, and nothing is raised.",
    covers=("Plugin.telemetry", "Plugin.probe"),
    traps=("T04",),
)
def test_libraries_may_be_missing(backend):
    done = subprocess.run(
        [sys.executable, "-P", "-c", WITHOUT, backend.name],
        capture_output=True,
        text=True,
        timeout=CHILD_LIMIT_S,
        check=False,
    )
    said = (done.stderr.strip().splitlines() or ["nothing"])[-1]
    assert done.returncode == 0, f"without a management library telemetry fails: {said}"
    readings, _ = json.loads(done.stdout.splitlines()[-1])
    wrong = {name: value for name, value in readings.items() if not isinstance(value, float | int)}
    assert not wrong, f"{wrong} are not readings"
