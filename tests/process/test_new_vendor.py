"""A vendor of which no file of the project knows: a distribution brings all there is of it."""

from __future__ import annotations

import json
import textwrap
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.forked_verbs import ForkedVerbs

FILES = {
    "acme-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: acme\nVersion: 1.0\n",
    "acme-1.0.dist-info/entry_points.txt": """
        [portagpu.packages]
        acme = acme:PACKAGE
    """,
    "acme.py": """
        from portagpu.plugin import VendorPackage

        PACKAGE = VendorPackage(
            backend="acme_backend:PLUGIN", formats="acme_smi", targets="acme_targets"
        )
    """,
    "acme_backend.py": """
        from portagpu import Plugin, Status
        from portagpu.facts.readings import Findings, Reading

        class Acme(Plugin):
            name = "acme"
            contract = (1, 2)
            vendor = "acme"
            commands = (("echo", "acme-smi: board 0 to 1 over acmelink"),)

            def status(self):
                return Status(True, "torch_acme is installed for 2 boards", automatic=True)

            def count(self):
                return 2

            def open(self, index):
                raise NotImplementedError

            def probe(self):
                names = {"vendor": "acme", "source": "acme-ml", "name": "Acme One", "arch": "ac1"}
                boards = [
                    Reading(index=index, pci=f"0000:4{index}:00.0", device_id=0xFFFE, **names)
                    for index in range(2)
                ]
                return Findings(kind="acme-ml", readings=tuple(boards))

        PLUGIN = Acme()
    """,
    "acme_smi.py": """
        from portagpu.facts.readings import End, Findings, Link, Node

        KIND = "acme-smi"

        def matches(text):
            return text.startswith("acme-smi: ")

        def parse(text):
            board = [End(Node.GPU, f"board {i}", f"0000:4{i}:00.0", i) for i in range(2)]
            return Findings(kind=KIND, links=(Link(source=KIND, a=board[0], b=board[1],
                                                   kind="acmelink"),))
    """,
    "acme_targets/__init__.py": "",
    "acme_targets/sources.toml": """
        schema = "portagpu.sources/1"
        [sources.ACME-SHEET]
        kind = "secondary"
        where = "https://example.org/acme"
    """,
    "acme_targets/families/ac1.toml": """
        schema = "portagpu.family/1"
        id = "ac1"
        vendor = "acme"
        [facts.exec.wave_size_default]
        value = 1
        unit = "threads"
        source = ["ACME-SHEET"]
        confidence = "secondary"
    """,
    "acme_targets/acme-one.toml": """
        schema = "portagpu.target/1"
        id = "acme-one"
        vendor = "acme"
        product = "Acme One"
        family = "ac1"
        [match]
        names = ["Acme One"]
    """,
}


@pytest.fixture
def acme(tmp_path: Path) -> Path:
    """A folder in which the distribution of that vendor is installed."""
    for name, text in FILES.items():
        file = tmp_path / "site" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(textwrap.dedent(text), "utf-8")
    return tmp_path / "site"


def _info(verbs: ForkedVerbs, acme: Path, *words: str) -> dict[str, Any]:
    ended = verbs("info", *words, "--json", "-", path=[acme])
    found: dict[str, Any] = json.loads(ended.ok())
    return found


def test_its_devices_are_shown_with_its_own_targets(verbs: ForkedVerbs, acme: Path) -> None:
    found = _info(verbs, acme)
    boards = [each for each in found["devices"] if each["vendor"] == "acme"]
    assert [(each["pci"], each["target"]) for each in boards] == [
        ("0000:40:00.0", "acme-one"),
        ("0000:41:00.0", "acme-one"),
    ]


def test_nobody_is_asked_to_install_another_torch_for_it(verbs: ForkedVerbs, acme: Path) -> None:
    wrong = [each for each in _info(verbs, acme)["remarks"] if "acme" in each]
    assert not wrong, f"what its torch needs is known to its plugin alone, and info says {wrong}"


def test_its_tool_is_asked_and_read_by_its_own_reader(verbs: ForkedVerbs, acme: Path) -> None:
    ended = verbs("info", "--topology", "--json", "-", path=[acme])
    assert "acmelink" in ended.ok(), "what its tool prints of links is not in the topology"


READ = """
import sys
import portagpu.facts.formats.foreign_readers as foreign
from portagpu.base.patience import Limits
from portagpu.facts.readings import FormatError
from portagpu.facts.formats.reader import read_text
foreign.LIMITS = Limits(read_s=0.5)
try:
    for each in read_text(sys.argv[1]):
        print(each.kind, *each.problems)
except FormatError as error:
    print(error)
"""


@pytest.fixture
def read(verbs: ForkedVerbs, acme: Path) -> Callable[[str, str], str]:
    """What is read of a text with a reader of that code, in a package with a good one."""

    def read_with(code: str, text: str) -> str:
        package = acme / "aaa"
        package.mkdir()
        (package / "__init__.py").touch()
        (package / "aaa.py").write_text(code, "utf-8")
        (package / "zzz.py").write_text(
            "from portagpu.facts.readings import Findings\n"
            "matches = lambda text: text.startswith('zzz')\n"
            "parse = lambda text: Findings(kind='zzz')\n",
            "utf-8",
        )
        metadata = acme / "aaa_dist-1.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: aaa-dist\nVersion: 1\n")
        (metadata / "entry_points.txt").write_text("[portagpu.formats]\naaa = aaa\n")
        return verbs(text, body=READ, path=[acme]).ok()

    return read_with


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        ("acme-smi: 1", ["acme-smi"]),
        ("zzz 1", ["zzz"]),
        ("GPU 0: NVIDIA H100 (UUID: GPU-1)", ["nvidia-smi -L"]),
    ],
)
def test_a_broken_reader_stops_no_other(
    read: Callable[[str, str], str], text: str, kinds: list[str]
) -> None:
    assert read("raise SystemExit(3)", text).splitlines() == kinds


def test_what_a_reader_prints_is_not_a_part_of_a_document(
    verbs: ForkedVerbs, acme: Path, tmp_path: Path
) -> None:
    smi = acme / "acme_smi.py"
    smi.write_text("print('loaded')\n" + smi.read_text("utf-8") + "\nprint('whole')\n", "utf-8")
    (tmp_path / "smi.txt").write_text("acme-smi: board 0 to 1 over acmelink\n", "utf-8")
    ended = verbs("info", "--replay", str(tmp_path / "smi.txt"), "--json", "-", path=[acme])
    assert json.loads(ended.ok())["sources"][0] == "acme-smi"
    assert "loaded" in ended.err
