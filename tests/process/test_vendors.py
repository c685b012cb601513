"""Vendors of distributions that are broken, slow or in each other's way: named, and in no way."""

from __future__ import annotations

import json
import textwrap
from typing import TYPE_CHECKING, Any

import pytest

from portagpu.devices.availability import Need, availability, count_reachable
from portagpu.facts.host import PciGpu, Tree
from portagpu.facts.torchbuild import TorchBuild
from portagpu.facts.vendors import Vendor, tables, vendor_named, vendors

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import Child
    from tests.support.forked_verbs import ForkedVerbs

REPORT = """
import json
import portagpu.facts.vendors.model as loading
from portagpu.base.patience import Limits
import portagpu_cuda.vendor, portagpu_rocm.vendor
loading.LIMITS = Limits(load_s=0.5)
from portagpu.runs.judges.gpu_health import declaration_problems
from portagpu.facts.visible import RUNTIMES
print(json.dumps([[*loading.vendors()], [*RUNTIMES], declaration_problems()]))
"""
OWN = ["nvidia", "amd"]


def distribute(folder: Path, distribution: str, name: str, code: str) -> None:
    """Lay a distribution that declares a vendor into ``folder``, as pip would."""
    (folder / f"{distribution}.py").write_text(
        "from pathlib import Path\nfrom portagpu.facts.vendors import *\n" + textwrap.dedent(code),
        "utf-8",
    )
    metadata = folder / f"{distribution}-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n", "utf-8"
    )
    (metadata / "entry_points.txt").write_text(
        f"[portagpu.vendors]\n{name} = {distribution}:VENDOR\n", "utf-8"
    )


@pytest.fixture
def report(verbs: ForkedVerbs, tmp_path: Path) -> Callable[[], Any]:
    """(names of vendors, of runtimes, problems) in a fork, with what is in ``tmp_path``."""
    return lambda: json.loads(verbs(body=REPORT, path=[tmp_path]).ok())


BROKEN = {
    "raises-at-import": ("raise RuntimeError('no\\nluck')", "it raised RuntimeError: no luck"),
    "exits-at-import": ("import sys; sys.exit(7)", "it raised SystemExit: 7"),
    "hangs-at-import": (
        "import threading; threading.Event().wait()",
        "it did not answer within 0.5 s",
    ),
    "misses-the-vendor": ("", "has no attribute 'VENDOR'"),
    "not-a-vendor": ("VENDOR = dict()", "it is a dict instead of a portagpu Vendor"),
    "no-name": ("VENDOR = Vendor(name='')", "it states its name as '' instead of a word"),
    "in-capitals": ("VENDOR = Vendor(name='Acme')", "it states its name as 'Acme' instead of"),
    "the-host": ("VENDOR = Vendor(name='host')", "it states its name as 'host' instead of"),
    "a-text-for-texts": (
        "VENDOR = Vendor(name='acme', out_of_memory='full')",
        "it has a wrong field: out_of_memory: must be a tuple, not 'full'",
    ),
    "an-empty-text": (
        "VENDOR = Vendor(name='acme', out_of_memory=('',))",
        "it has a wrong field: out_of_memory[0]: must be text that is not empty, not ''",
    ),
    "ids-are-texts": (
        "VENDOR = Vendor(name='acme', pci_ids=('10de',))",
        "it has a wrong field: pci_ids[0]: must be a whole number, not '10de'",
    ),
    "no-pattern": (
        "VENDOR = Vendor(name='acme', makers=('(',))",
        "it states the pattern '(', which is none",
    ),
    "a-folder-as-text": (
        "VENDOR = Vendor(name='acme', tables='/tmp')",
        "it has a wrong field: tables: must be a Path, not '/tmp'",
    ),
    "variables-without-words": (
        "VENDOR = Vendor(name='acme', disguises=('ACME_POSE',))",
        "it has a wrong field: disguises: must be an object with keys of text, not (",
    ),
    "no-pattern-of-files": (
        "VENDOR = Vendor(name='acme', driver_files=DriverFiles(devices='[', device='acme'))",
        "it states the pattern '[', which is none",
    ),
    "another-field": (
        "VENDOR = Vendor(name='acme', fabrics=(Fabric(kind='x', counted='X{number}'),))",
        "it states the form 'X{number}', which has another field than count",
    ),
    "masks-of-another": (
        """
        masks = Runtime(name='acme', vendor='amd', layers=(), child_variable='X')
        VENDOR = Vendor(name='acme', masks=masks)
        """,
        "it has masks of 'amd' instead of 'acme'",
    ),
    "name-of-ours": (
        "VENDOR = Vendor(name='amd', pci_ids=(0x10DE,))",
        "it declares the vendor 'amd', which is portagpu's: uninstall one of them",
    ),
    "ids-of-ours": (
        "VENDOR = Vendor(name='thief', pci_ids=(0xBAD, 0x10DE))",
        "it declares the PCI vendor id 0x10de, which is portagpu's: uninstall one of them",
    ),
    "masks-of-ours": (
        """
        masks = Runtime(name='cuda', vendor='acme', layers=(), child_variable='X')
        VENDOR = Vendor(name='acme', masks=masks)
        """,
        "it declares the masks of 'cuda', which is portagpu's",
    ),
    "a-layer-of-ours": (
        """
        layer = MaskRules(layer='HIP', variables=('X',), numbers=Numbers.PLAIN,
                          blanks=Blanks.NOWHERE, repeated=Repeated.SKIPPED, uuid_prefixes=(),
                          uuid_match=UuidMatch.ONE_THAT_STARTS, uuid_case_counts=True)
        masks = Runtime(name='acme', vendor='acme', layers=(layer,), child_variable='X')
        VENDOR = Vendor(name='acme', masks=masks)
        """,
        "it declares the masks' layer 'HIP', which is portagpu's",
    ),
    "a-kind-of-vendor": (
        "class Own(Vendor): pass\nVENDOR = Own(name='acme')",
        "it is a Own instead of a portagpu Vendor",
    ),
    "a-form-that-is-a-number": (
        "VENDOR = Vendor(name='acme', fabrics=(Fabric(kind='x', counted=5),))",
        "it has a wrong field: fabrics[0].counted: must be text, not 5",
    ),
    "no-files": (
        "VENDOR = Vendor(name='acme', driver_files=DriverFiles(devices=None, device='acme'))",
        "it has a wrong field: driver_files.devices: must be text, not None",
    ),
    "an-attribute-of-a-field": (
        "VENDOR = Vendor(name='acme', driver_files=DriverFiles(devices='a', device='{minor.x}'))",
        "it states the form '{minor.x}', which has another field than minor",
    ),
    "settings-without-a-product": (
        "VENDOR = Vendor(name='acme', tuning=Tuning(product=None))",
        "it has a wrong field: tuning.product: must be text, not None",
    ),
    "settings-of-every-product": (
        "VENDOR = Vendor(name='acme', tuning=Tuning(product='', moved='x'))",
        "it recommends kernel settings without a product's name",
    ),
    "keys-that-are-no-texts": (
        "VENDOR = Vendor(name='acme', disguises={1: 'unset it'})",
        "it has a wrong field: disguises: must be an object with keys of text, not {1",
    ),
    "rules-that-are-none": (
        """
        masks = Runtime(name='acme', vendor='acme', layers=(None,), child_variable='X')
        VENDOR = Vendor(name='acme', masks=masks)
        """,
        "it has a wrong field: masks.layers[0]: must be a MaskRules, not None",
    ),
    "a-half-legend": (
        "VENDOR = Vendor(name='acme', fabrics=(Fabric(kind='x', legend=('X',)),))",
        "it has a wrong field: fabrics[0].legend: must be a tuple of 2 items, not ('X',)",
    ),
    "a-pattern-with-flags": (
        "VENDOR = Vendor(name='acme', makers=('(?i)acme',))",
        "it states the pattern '(?i)acme', which is none: global flags",
    ),
    "a-pattern-with-a-group": (
        "VENDOR = Vendor(name='acme', brands=('(acme)',))",
        "it states the pattern '(acme)', whose group captures: write (?:...)",
    ),
    "a-pattern-that-ends-the-group-around-it": (
        "VENDOR = Vendor(name='acme', brands=('acme)|(x',))",
        "it states the pattern 'acme)|(x', which is none",
    ),
    "a-pattern-of-any-maker": (
        "VENDOR = Vendor(name='acme', makers=('.*',))",
        "it states the pattern '.*', which fits any text",
    ),
    "a-pattern-of-any-brand": (
        "VENDOR = Vendor(name='acme', brands=(r'[\\w ]+',))",
        "which fits any text",
    ),
    "an-error-of-anything": (
        "VENDOR = Vendor(name='acme', out_of_memory=('error',))",
        "it states 'error' for exhausted memory, which other texts may have too",
    ),
}


def test_each_broken_vendor_is_named_and_stops_no_other(
    report: Callable[[], Any], tmp_path: Path
) -> None:
    for number, (code, _) in enumerate(BROKEN.values()):
        distribute(tmp_path, f"other{number}", f"point{number}", code)
    distribute(tmp_path, "zealous", "zealous", "VENDOR = Vendor(name='zealous')")
    names, runtimes, problems = report()
    assert names == [*OWN, "zealous"]
    assert runtimes == ["cuda", "rocm"]
    for number, (name, (_, reason)) in enumerate(BROKEN.items()):
        begin = f"the vendor 'point{number}' of other{number} is left out: it "
        (problem,) = (each for each in problems if each.startswith(begin))
        assert reason in problem, (name, problem)
        assert "\n" not in problem
    assert len(problems) == len(BROKEN)


def test_of_two_vendors_of_one_name_the_later_is_left_out(
    report: Callable[[], Any], tmp_path: Path
) -> None:
    for distribution in ("aaa", "bbb"):
        distribute(tmp_path, distribution, distribution, "VENDOR = Vendor(name='twin')")
    names, _, problems = report()
    assert names == [*OWN, "twin"]
    (problem,) = problems
    assert problem.startswith(
        "the vendor 'bbb' of bbb is left out: it declares the vendor 'twin', which is aaa's"
    )


TABLES = {
    "no-toml": ("health", "= 1", "TOMLDecodeError"),
    "a-kind-that-is-none": (
        "health",
        '[throttling]\nslow = "magic"',
        "throttling.slow: must be one of hardware, power-brake, thermal, ",
    ),
    "a-limit-that-is-none": (
        "health",
        '[pages]\nlimit = "many"',
        "pages.limit: must be a whole number of at least 1, not 'many'",
    ),
    "a-counter-without-action": (
        "health",
        '[link_errors]\n"crc" = { fault = true }',
        "link_errors.crc.action: is missing",
    ),
    "no-pattern": (
        "kernel_log",
        'worth = ["x"]\n[[event]]\ncode = "x"\npattern = "("',
        "missing ), unterminated subpattern",
    ),
    "no-words": (
        "answers",
        '[[event]]\ncode = "x"\npattern = "x"',
        "answers.toml.worth: is missing",
    ),
    "codes-that-are-not-there": (
        "kernel_log",
        'worth = ["x"]\n[[event]]\ncode = "x"\ncodes = "x"\npattern = "(?P<number>x)"',
        "ValueError: there are no codes 'x'",
    ),
    "a-code-without-number": (
        "kernel_log",
        'worth = ["x"]\n[[event]]\ncode = "x"\ncodes = "x"\npattern = "x"\n[codes.x]\n',
        "ValueError: the pattern 'x' has no group number",
    ),
    "a-group-that-is-not-there": (
        "kernel_log",
        'worth = ["x"]\n[[event]]\ncode = "x {board}"\npattern = "x"',
        "KeyError: 'board'",
    ),
    "a-code-of-one-word": (
        "kernel_log",
        'worth = ["x"]\nevent = []\n[codes.x]\n1 = ["a"]',
        "kernel_log.toml.codes.x.1: must be a list of 2 items, not ['a']",
    ),
    "an-action-that-is-none": (
        "kernel_log",
        'worth = ["x"]\nevent = []\n[actions]\nA = "do it"',
        "kernel_log.toml.actions.A: must be an object with keys of text, not 'do it'",
    ),
    "a-severity-of-one-number": (
        "kernel_log",
        'worth = ["x"]\nevent = []\n[severity]\ngone = 5',
        "kernel_log.toml.severity.gone: must be a list, not 5",
    ),
    "a-key-that-is-none": (
        "kernel_log",
        'worth = ["x"]\nevent = []\nevents = []',
        "kernel_log.toml.events: is not a known key; did you mean 'event' or 'severity'?",
    ),
    "a-gpu-without-address": (
        "kernel_log",
        'worth = ["x"]\nevent = []\n[[gpu]]\npattern = "x"',
        "ValueError: the pattern 'x' has no group pci",
    ),
}


def test_each_broken_table_is_left_out_with_its_reason(
    report: Callable[[], Any], tmp_path: Path
) -> None:
    for number, (name, text, _) in enumerate(TABLES.values()):
        vendor = f"other{number}"
        code = f"VENDOR = Vendor(name={vendor!r}, tables=Path(__file__).with_suffix(''))"
        distribute(tmp_path, vendor, vendor, code)
        (tmp_path / vendor).mkdir()
        (tmp_path / vendor / f"{name}.toml").write_text(text, "utf-8")
    names, _, problems = report()
    assert names == [*OWN, *sorted(f"other{number}" for number in range(len(TABLES)))]
    for number, (case, (name, _, reason)) in enumerate(TABLES.items()):
        begin = f"the table {name}.toml of the vendor 'other{number}' is left out: "
        (problem,) = (each for each in problems if each.startswith(begin))
        assert reason in problem, (case, problem)
    assert len(problems) == len(TABLES)


def test_a_code_may_be_written_in_any_way(verbs: ForkedVerbs, tmp_path: Path) -> None:
    distribute(
        tmp_path, "other", "other", "VENDOR = Vendor(name='other', tables=Path(__file__).parent)"
    )
    (tmp_path / "kernel_log.toml").write_text(
        """
worth = ["acme"]
[[event]]
code = "acme {number}"
pattern = 'acme (?P<number>\\w+)'
codes = "acme"
[codes.acme]
7 = ["seven", ""]
0x1f = ["a fan", ""]
[unused]
acme = [8]
""",
        "utf-8",
    )
    code = """
from portagpu.facts.formats.events import events, table
found = events("acme 007\\nacme 0x1f\\nacme 8\\nacme 9", table("kernel_log"), "")
print([event.meaning for _, event in found])
"""
    said = verbs(body=code, path=[tmp_path]).ok().strip()
    assert said == "['seven', 'a fan', \"not used by the vendor's current GPUs\", None]"


def test_info_shows_who_is_left_out_in_a_document_of_json(
    verbs: ForkedVerbs, tmp_path: Path
) -> None:
    distribute(tmp_path, "other", "other", "print('hello')\nraise OSError('lost')")
    ended = verbs("info", "--json", "-", path=[tmp_path])
    assert (
        "the vendor 'other' of other is left out: it raised OSError: lost"
        in (json.loads(ended.ok())["remarks"])
    )
    assert "hello" in ended.err


def test_an_installation_without_vendors_says_what_to_do(verbs: ForkedVerbs) -> None:
    code = """
import portagpu.facts.vendors.model as loading
from portagpu.base.patience import Limits
loading.entry_points = lambda group: []
from portagpu.checks.info import collect
print(collect()["remarks"])
"""
    assert "no vendor is declared, so that no GPU is known" in verbs(body=code).ok()


def test_entry_points_of_another_version_of_ours_are_one_line(
    verbs: ForkedVerbs, tmp_path: Path
) -> None:
    """The folder of an older installation comes first on the path."""
    metadata = tmp_path / "portagpu-0.0.1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: portagpu\nVersion: 0.0.1\n")
    (metadata / "entry_points.txt").write_text("[portagpu.formats]\nold = portagpu_old.formats\n")
    (tmp_path / "smi.txt").write_text("GPU 0: NVIDIA H100 PCIe (UUID: GPU-1)\n", "utf-8")
    ended = verbs("info", "--replay", str(tmp_path / "smi.txt"), path=[tmp_path])
    assert ended.code == 1
    assert ended.err.startswith(
        "portagpu: this installation of portagpu has entry points of another one "
        "(No module named 'portagpu_old'): uninstall"
    )
    assert ended.err.count("\n") == 1


def test_importing_the_package_asks_no_vendor(child: Callable[..., Child]) -> None:
    code = """
import sys, portagpu, portagpu.facts.host, portagpu.facts.visible
import portagpu.machine.inventory, portagpu.checks.info
print(sorted(each for each in sys.modules if each.endswith(".vendor")))
"""
    assert child("-c", code).ok().strip() == "[]"


def test_data_of_ours_imports_neither_torch_nor_a_library(child: Callable[..., Child]) -> None:
    code = """
import sys, portagpu.facts.vendors
portagpu.facts.vendors.vendors()
print(sorted({"torch", "numpy", "pynvml", "amdsmi", "pyrsmi", "rich", "click"} & {*sys.modules}))
"""
    assert child("-c", code).ok().strip() == "[]"


def test_what_nobody_declares_is_known_by_its_name_alone() -> None:
    assert vendor_named("nobody") == Vendor(name="nobody")
    assert "nobody" not in vendors()


def test_every_vendor_of_ours_has_its_tables() -> None:
    for name in ("kernel_log", "answers", "health"):
        assert list(tables(name)) == OWN


def test_a_build_whose_masks_nobody_declares_is_usable(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    build, gpu = TorchBuild("here", "2.13.0", "xpu"), PciGpu("acme", device_file="/dev/null")
    monkeypatch.setattr("portagpu.facts.torchbuild.torch_build", lambda: build)
    monkeypatch.setattr("portagpu.facts.host.gpus_on_machine", lambda root: (gpu,))
    need = Need(kind="xpu", build="XPU", vendor="acme", maker="Acme")
    found = availability(need, Tree(tmp_path), lambda count: "")
    assert (found.usable, found.reason) == (True, "torch 2.13.0 is a xpu build for 1 Acme GPU")
    assert count_reachable(need, Tree(tmp_path)) is None, "only its runtime knows what masks hide"
