"""Targets that installed packages bring: read like the matrix, and unable to harm it."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from portagpu.base.errors import TargetNotFound
from portagpu.base.paths import matrix_dir
from portagpu.facts.targets.load import _with_packages as load
from portagpu.facts.targets.load import load_target
from portagpu.facts.targets.read import read_folder

MATRIX = read_folder(matrix_dir() / "targets")

FAMILY = """
schema = "portagpu.family/1"
id = "xe2"
vendor = "intel"
[facts.exec]
wave_size_default = { value = 32, unit = "threads", source = ["EXAMPLE"], confidence = "secondary" }
"""
TARGET = """
schema = "portagpu.target/1"
id = "intel-example"
vendor = "intel"
family = "xe2"
[match]
names = ["Intel Example"]
"""
SOURCES = """
schema = "portagpu.sources/1"
[sources.EXAMPLE]
kind = "secondary"
where = "https://example.org"
"""


def package(root: Path, name: str, init: str = "", **files: str) -> EntryPoint:
    folder = root / name
    (folder / "families").mkdir(parents=True)
    (folder / "__init__.py").write_text(init, encoding="utf-8")
    for file, text in files.items():
        path = folder / f"{file.replace('__', '/').replace('_', '-')}.toml"
        path.write_text(text, encoding="utf-8")
    return EntryPoint(name=name, value=name, group="portagpu.targets")


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def whole(root: Path, name: str, init: str = "") -> EntryPoint:
    return package(root, name, init, sources=SOURCES, families__xe2=FAMILY, intel_example=TARGET)


def test_a_package_brings_a_vendor_of_its_own(root: Path) -> None:
    loaded = load(MATRIX, [whole(root, "brought_vendor")])
    assert loaded.problems == ()
    assert loaded.targets["intel-example"].arch.warp_size == 32
    assert "nvidia-h200-sxm" in loaded.targets, "the matrix is still there"


def test_a_package_is_read_without_running_it(root: Path) -> None:
    point = whole(root, "brought_but_raises", "raise RuntimeError('ran')")
    loaded = load(MATRIX, [point])
    assert loaded.problems == ()
    assert "intel-example" in loaded.targets


def test_a_package_may_use_a_family_of_the_matrix(root: Path) -> None:
    text = TARGET.replace('"intel"', '"nvidia"').replace('"xe2"', '"sm_90"')
    loaded = load(MATRIX, [package(root, "brought_sm90", intel_example=text)])
    assert loaded.problems == ()
    assert loaded.targets["intel-example"].value("exec.max_blocks_per_unit") == 32


@pytest.mark.parametrize(
    ("name", "files", "reason"),
    [
        ("broken_toml", {"intel_example": "id = "}, "toml-syntax"),
        ("unknown_family", {"intel_example": TARGET}, "rule family"),
        (
            "taken_id",
            {"cpu_aarch64": (matrix_dir() / "targets" / "cpu-aarch64.toml").read_text()},
            "rule duplicate",
        ),
        ("taken_source", {"sources": SOURCES.replace("EXAMPLE", "N-OCC")}, "rule duplicate"),
    ],
)
def test_a_broken_package_is_reported_and_stops_nothing(
    root: Path, name: str, files: dict[str, str], reason: str
) -> None:
    points = [package(root, name, **files), whole(root, f"zz_after_{name}")]
    loaded = load(MATRIX, points)
    assert [each.entry_point for each in loaded.problems] == [name]
    assert reason in loaded.problems[0].reason
    assert "\n" not in loaded.problems[0].reason
    assert {"intel-example", "amd-mi300x"} <= set(loaded.targets), "the others are there"


def test_a_package_with_one_wrong_file_brings_nothing(root: Path) -> None:
    point = whole(root, "half_wrong")
    (root / "half_wrong" / "zz.toml").write_text("id = 1", encoding="utf-8")
    loaded = load(MATRIX, [point])
    assert loaded.problems and "intel-example" not in loaded.targets
    assert "xe2" not in loaded.catalogue.families, "half a package is not kept"


def test_a_target_of_a_package_that_was_left_out_says_so(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    point = whole(root, "half_wrong")
    (root / "half_wrong" / "zz.toml").write_text("id = 1", encoding="utf-8")
    loaded = load(MATRIX, [point])
    monkeypatch.setattr("portagpu.facts.targets.load._all_targets", lambda: loaded)
    with pytest.raises(TargetNotFound, match=r"targets of .* are left out: zz\.toml: ") as raised:
        load_target("intel-example")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "value", ["no_such_module", "no_such_package.targets", "sys", "raising_parent.targets", "1bad!"]
)
def test_a_module_that_is_not_a_folder_is_reported(root: Path, value: str) -> None:
    package(root, "raising_parent", "raise SystemExit(0)")
    point = EntryPoint(name="third", value=value, group="portagpu.targets")
    loaded = load(MATRIX, [point])
    assert [each.entry_point for each in loaded.problems] == ["third"]
    assert loaded.problems[0].reason
    assert "amd-mi300x" in loaded.targets


def test_an_installed_package_is_found_by_its_entry_point(root: Path) -> None:
    whole(root, "installed_example")
    info = root / "installed_example-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: installed-example\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[portagpu.targets]\nexample = installed_example\n")
    code = (
        "from portagpu.facts.targets import identify, load_targets, target_problems\n"
        "print(identify('intel', 'xe2', 'Intel Example').id, target_problems())"
    )
    checkout = Path(__file__).resolve().parents[2]
    path = os.pathsep.join([str(root), str(checkout)])
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert done.stdout.strip() == "intel-example ()"


def test_another_distribution_with_damaged_metadata_hides_no_target(root: Path) -> None:
    info = root / "damaged-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: damaged\nVersion: 1.0\n")
    (info / "entry_points.txt").write_bytes(b"\x80\xff")
    code = (
        "from portagpu.devices.discovery import candidates\n"
        "from portagpu.facts.targets import load_targets\n"
        "print('amd-mi300x' in load_targets(), 'cpu' in candidates() or not candidates())"
    )
    checkout = Path(__file__).resolve().parents[2]
    path = os.pathsep.join([str(root), str(checkout)])
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert done.stdout.strip() == "True True", done.stderr
    assert done.stderr.count("damaged-1.0.dist-info") == 1, f"reported not once: {done.stderr}"
