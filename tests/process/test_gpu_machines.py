"""Machines with GPUs, through the command line: a torch of another build, no driver, bad masks.

The kernel's files are a folder and torch is one whose version file can be read and which cannot be
imported, as a GPU build without its libraries: choosing a backend needs no more.
"""

from __future__ import annotations

import json
import os

import pytest

from portagpu.facts.host import visibility_variables
from tests.support.forked_verbs import LIBRARIES_HERE, VERB
from tests.support.host_trees import build, gfx942_node, pci_device, two_socket_x86

# the command line, over another root than this machine's
PROGRAM = """
import sys
from pathlib import Path
root = Path({root!r})
import portagpu.facts.host.gpus, portagpu.facts.host.tree
portagpu.facts.host.gpus.gpus_on_machine.__defaults__ = (root,)
init = portagpu.facts.host.tree.Tree.__init__
init.__defaults__ = (root, *init.__defaults__[1:])
{libraries}
{body}
"""
OPEN = """
from portagpu.base.errors import PortagpuError
import portagpu as pg
try:
    print(pg.backend().name)
except PortagpuError as error:
    sys.exit(f"{type(error).__name__}: {error}")
"""
TOOLKITS = {
    "cuda": "cuda = '12.8'\nhip = None",
    "rocm": "cuda = None\nhip = '6.4.43482'",
    "cpu": "cuda = None\nhip = None",
}
LIBRARY = "libcudart.so.13: cannot open shared object file"
DRIVERS = {"dev/nvidiactl": "", "dev/kfd": ""}


@pytest.fixture
def machine(tmp_path, verbs):
    """``run(words, kind, vendors, drivers=..., **environment)`` on a machine with these GPUs."""

    def run(words, kind, vendors, *, drivers=True, body=VERB, **environment):
        site = tmp_path / "site/torch"
        site.mkdir(parents=True)
        (site / "version.py").write_text(f"__version__ = '2.13.0'\n{TOOLKITS[kind]}\n")
        (site / "__init__.py").write_text(f"raise ImportError({LIBRARY!r})\n")
        files = dict(two_socket_x86())
        if "nvidia" in vendors:
            files |= pci_device("0000:83:00.0", "0x030200", "0x10de")
        if "amd" in vendors:
            files |= gfx942_node(1, 0x500) | {"dev/dri/renderD128": ""}
        root = build(tmp_path / "root", files | (DRIVERS if drivers else {}))
        inherited = {k: v for k, v in os.environ.items() if k not in visibility_variables()}
        return verbs(
            *words,
            folder=tmp_path,
            path=[site.parent],
            environment={**inherited, **environment},
            body=PROGRAM.format(root=str(root), libraries=LIBRARIES_HERE, body=body),
        )

    return run


def reason_of(ended, backend):
    """What ``info --json -`` says of that backend: (usable, reason)."""
    assert ended.code == 0, ended.err
    entries = {each["name"]: each for each in json.loads(ended.out)["backends"]}
    reason = entries[backend]["reason"]
    assert reason.isprintable(), f"more than one line: {reason!r}"
    assert len(reason) < 500, f"{len(reason)} characters are not a clear line: {reason}"
    return entries[backend]["usable"], reason


@pytest.mark.parametrize("kind", ["cuda", "rocm"])
def test_of_two_vendors_the_one_of_the_build_is_usable(machine, kind):
    ended = machine(["info", "--json", "-"], kind, "amd nvidia")
    usable = {each["name"] for each in json.loads(ended.out)["backends"] if each["usable"]}
    assert usable == {"cpu", kind}, f"usable are {sorted(usable)}: {ended.out[:2000]}"


@pytest.mark.parametrize(("kind", "vendors"), [("cuda", "nvidia"), ("rocm", "amd")])
def test_a_build_whose_libraries_are_missing_says_which(machine, kind, vendors):
    ended = machine([], kind, vendors, body=OPEN)
    assert ended.code == 1, ended.out
    (line,) = ended.err.splitlines()
    assert line.startswith("BackendNotFound: "), line
    assert LIBRARY in line, line


MASKS = {
    "ten thousand that are not there": ",".join(map(str, range(10_000, 20_000))),
    "ten thousand times one": ",".join(["0"] * 10_000),
    "negative": "-3",
    "negative first": "-1,0",
    "twice": "0,0",
    "words": "one,two",
    "a number of 5000 digits": "9" * 5000,
    "empty": "",
}


@pytest.mark.parametrize("name", ["ten thousand times one", "negative"])
@pytest.mark.parametrize("body", [VERB, OPEN], ids=["bringup", "open"])
def test_a_machine_whose_gpus_are_hidden_does_not_fall_back(machine, name, body):
    ended = machine(["bringup"], "cuda", "nvidia", body=body, CUDA_VISIBLE_DEVICES=MASKS[name])
    assert ended.code == 1, f"exit code {ended.code}: {ended.err}"
    (line,) = ended.err.splitlines() if body == OPEN else ended.out.splitlines()[-1:]
    assert body == OPEN or line.startswith("FAIL: environment/"), line
    assert "hides every GPU: " in line, line
    assert len(line) < 1000, f"{len(line)} characters are not a clear line"


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"CUDA_VISIBLE_DEVICES": "0," * 9_999 + "1"}, "hides every GPU"),
        ({"CUDA_VISIBLE_DEVICES": "0,GPU-1"}, "is of another kind than the first"),
        ({"HIP_VISIBLE_DEVICES": "0"}, "HIP_VISIBLE_DEVICES='0' hides nothing from cuda"),
    ],
)
def test_a_mask_that_is_read_otherwise_than_it_is_meant_is_said(machine, environment, words):
    ended = machine(["info", "--json", "-"], "cuda", "nvidia", **environment)
    _, reason = reason_of(ended, "cuda")
    assert words in reason, reason


def test_the_text_of_info_shows_the_beginning_of_a_long_mask(machine):
    mask = MASKS["ten thousand that are not there"]
    ended = machine(["info"], "cuda", "nvidia", CUDA_VISIBLE_DEVICES=mask)
    assert ended.code == 0, ended.err
    assert "(10000 entries)" in ended.out
    longest = max(map(len, ended.out.splitlines()))
    assert longest < 1000, f"a line has {longest} characters"
