"""The hardware matrix as tox environments: ``<target>-{conformance,performance,bringup,compile}``.

They install nothing. Each runs portagpu in the Python that has the vendor's torch:
``$PORTAGPU_PYTHON``, else tox's own interpreter if it has torch, else the ``cpu`` environment's.
``compile`` needs no torch: without ``$PORTAGPU_PYTHON`` it has an environment of its own, with the
compilers that its target needs from PyPI (the extra ``compile``, and ``compile.packages``).

``python toxfile.py TARGETS SUITES`` prints the jobs of ``.github/workflows/hardware.yml`` as JSON.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tomllib
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tox.config.loader.memory import MemoryLoader
from tox.config.types import Command
from tox.plugin import impl
from tox.tox_env.errors import Fail

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tox.config.main import Config
    from tox.config.sets import ConfigSet
    from tox.session.state import State
    from tox.tox_env.api import ToxEnv

ROOT: Final = Path(__file__).resolve().parent
VARIABLE: Final = "PORTAGPU_PYTHON"
SUITES: Final = {
    "conformance": "conform",
    "performance": "bench",
    "bringup": "bringup",
    "compile": "compile",
}
"""Suite -> the verb that runs it."""
FIXED: Final = {"conformance": ("--seed", "0")}
"""What an environment of a suite adds: two runs of the matrix have the same random programs."""
_INSTALLS: Final = "compile"
_NEEDED: Final = ("torch", "portagpu")
_PROBE: Final = (
    "import importlib.util as u, sys; print(*[n for n in sys.argv[1:] if not u.find_spec(n)])"
)


def environments() -> dict[str, tuple[str, str, str]]:
    """Environment name -> (target id, suite, description), from the files in matrix/targets."""
    found = {}
    for path in sorted((ROOT / "matrix" / "targets").glob("*.toml")):
        if path.name == "sources.toml":
            continue
        try:
            product = tomllib.loads(path.read_text("utf-8")).get("product", path.stem)
        except (OSError, ValueError) as error:
            product = f"{path.name}, which cannot be read: {error}"
        for suite in SUITES:
            found[f"{path.stem}-{suite}"] = (path.stem, suite, f"{suite} of {product}")
    return found


def jobs(targets: str, suites: str) -> list[dict[str, str]]:
    """Each environment of the targets that fit a pattern, with the labels of its runner.

    :param targets: ids, with * and ?.
    :param suites: suites, separated by commas.
    :raises SystemExit: there is no such target, or no such suite.
    """
    wanted = suites.split(",")
    unknown = [each for each in wanted if each not in SUITES]
    if unknown:
        sys.exit(f"there is no suite {unknown[0]!r}; there are {', '.join(SUITES)}")
    found = [
        {"environment": name, "target": target, "vendor": target.partition("-")[0]}
        for name, (target, suite, _) in environments().items()
        if suite in wanted and fnmatchcase(target, targets)
    ]
    if not found:
        sys.exit(f"no target fits {targets!r}: portagpu targets lists them")
    return found


def own_packages(target: str) -> list[str]:
    """What a target's compilers need from PyPI in addition to the extra ``compile``."""
    folder = ROOT / "matrix" / "targets"
    try:
        family = tomllib.loads((folder / f"{target}.toml").read_text("utf-8"))["family"]
        facts = tomllib.loads((folder / "families" / f"{family}.toml").read_text("utf-8"))["facts"]
        return list(facts["compile"]["packages"]["value"])
    except (OSError, ValueError, LookupError, TypeError):
        return []


def installs(suite: str) -> bool:
    """Whether an environment of this suite has a Python of its own."""
    return suite == _INSTALLS and not os.environ.get(VARIABLE)


def settings(target: str, suite: str, work_dir: Path) -> dict[str, object]:
    """What the environments of a suite install, and where."""
    if not installs(suite):
        # an environment that installs nothing needs no pip
        return {
            "skip_install": True,
            "depends": "cpu",
            "set_env": {"VIRTUALENV_NO_SEED": "1"},
        }
    packages = own_packages(target)
    # the compilers take a GB: targets that need the same share it
    name = "-".join([_INSTALLS, *packages])
    return {
        "extras": ["compile"],
        "deps": packages,
        "env_dir": work_dir / name,
        "set_env": {"PIP_CONSTRAINT": "constraints.txt"},
    }


class MatrixEnvironment(MemoryLoader):
    """The settings of one generated environment.

    The command is looked up when it is needed, because the ``cpu`` environment, whose Python may
    be the one to use, can be made earlier in the same run.
    """

    def __init__(self, target: str, suite: str, description: str, work_dir: Path) -> None:
        super().__init__(
            description=description,
            change_dir=ROOT,
            pass_env=["*"],  # a vendor's stack is steered by its environment
            commands=None,
            allowlist_externals=["*"],
            **settings(target, suite, work_dir),
        )
        self.suite = suite
        self.verb = SUITES[suite]
        self.target = target
        self.work_dir = work_dir

    def load_raw(self, key: str, conf: Config | None, env_name: str | None) -> object:
        if key != "commands":
            return super().load_raw(key, conf, env_name)
        own = installs(self.suite)
        python = "python" if own else chosen_python(self.work_dir) or VARIABLE
        extra = conf.pos_args(ROOT) if conf is not None else None
        words = [python, "-P", "-m", "portagpu", self.verb, "--target", self.target]
        return [Command([*words, *FIXED.get(self.suite, ()), *(extra or ())])]


def chosen_python(work_dir: Path) -> str | None:
    """The Python that runs the matrix, or None where there is none with torch."""
    named = os.environ.get(VARIABLE)
    if named:
        # made absolute, because tox puts the environment's own folder first on PATH
        return shutil.which(named)
    if importlib.util.find_spec("torch") is not None:
        return sys.executable
    cpu = work_dir / "cpu" / "bin" / "python"
    return str(cpu) if cpu.exists() else None


def why_not(python: str | None) -> str:
    """Why the matrix cannot run in that Python and what to do about it, or an empty string."""
    named = os.environ.get(VARIABLE)
    if python is None and named:
        return f"{VARIABLE}={named} is not a program; set it to the Python that has your torch"
    if python is None:
        return (
            f"there is no Python with torch: set {VARIABLE} to the one that has your vendor's, or "
            "make the cpu environment with: tox run -e cpu --notest"
        )
    probe = subprocess.run(
        [python, "-P", "-c", _PROBE, *_NEEDED], capture_output=True, text=True, check=False
    )
    if probe.returncode:
        last = (probe.stderr.strip().splitlines() or ["it printed nothing"])[-1]
        return f"{python} is not a Python of version 3.11 or later: {last}"
    missing = probe.stdout.split()
    if "torch" in missing:
        return f"{python} has no torch; set {VARIABLE} to the Python that has your vendor's"
    if "portagpu" in missing:
        install = f"{python} -m pip install -e {ROOT}"
        return f"{python} has no portagpu; install it, which leaves torch as it is: {install}"
    return ""


@impl
def tox_extend_envs() -> Iterator[str]:
    """Name the generated environments."""
    yield from environments()


@impl
def tox_add_core_config(core_conf: ConfigSet, state: State) -> None:
    """Give each generated environment its settings."""
    work_dir = core_conf["work_dir"]
    for name, (target, suite, description) in environments().items():
        loader = MatrixEnvironment(target, suite, description, work_dir)
        state.conf.memory_seed_loaders[name].append(loader)


@impl
def tox_before_run_commands(tox_env: ToxEnv) -> None:
    """Fail a generated environment that has no Python to run in, with what to do."""
    _, suite, _ = environments().get(tox_env.name, ("", "", ""))
    if suite and not installs(suite):
        problem = why_not(chosen_python(tox_env.core["work_dir"]))
        if problem:
            raise Fail(problem)


if __name__ == "__main__":
    print(json.dumps(jobs(*sys.argv[1:])))
