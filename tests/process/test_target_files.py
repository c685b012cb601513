"""The targets that ship: their facts against values worked out by hand and known wrong figures."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from portagpu.base.errors import TargetError
from portagpu.base.paths import matrix_dir
from portagpu.devices.contract import Capability
from portagpu.facts.targets import (
    Authority,
    Confidence,
    Scope,
    Target,
    load_target,
    load_targets,
    parse_target,
    target_problems,
)
from portagpu.facts.targets.facts import KEYS
from portagpu.facts.targets.read import read_folder

DOCS = Path(__file__).resolve().parents[2] / "docs" / "targets.md"
RESULTS = DOCS.parents[1] / "matrix" / "results"


def each_target() -> list[Target]:
    return list(load_targets().values())


def test_the_targets_load_without_a_problem() -> None:
    assert each_target()
    assert not target_problems()
    for target in each_target():
        assert target.scope is Scope.PRODUCT
        assert target.match.names or target.match.any_product


def test_loading_twice_gives_the_same_objects() -> None:
    assert load_targets() is load_targets(), "targets are read once"


def test_every_known_fact_has_a_source_that_resolves() -> None:
    sources = read_folder(matrix_dir() / "targets").sources
    for target in each_target():
        for fact in target.facts.values():
            assert set(fact.source) <= set(sources), f"{target.id}: {fact.key} names no source"
            assert fact.source or fact.confidence is Confidence.UNVERIFIED, (
                f"{target.id}: {fact.key} has no source and is not marked unverified"
            )


def test_every_source_is_used() -> None:
    catalogue = read_folder(matrix_dir() / "targets")
    used = {
        each for target in each_target() for fact in target.facts.values() for each in fact.source
    }
    used |= {
        each for target in each_target() for it in target.all_expectations for each in it.source
    }
    used |= {each for target in each_target() for each in target.match.source}
    used |= {each for target in each_target() for each in target.match.pci_source}
    assert used >= set(catalogue.sources), f"{set(catalogue.sources) - used} are named by nothing"


def test_claims_are_capabilities() -> None:
    for target in each_target():
        unknown = set(target.claims) - {each.value for each in Capability}
        assert not unknown, f"{target.id} claims {unknown}, which no backend can have"
        assert target.claims, f"{target.id} claims nothing, so nothing is tested on it"


# Tensor cores x FMA a clock x 2 x clock, from the vendors' block diagrams: 528 cores of 512 at
# 1830 MHz, 1216 cores of 256 at 2100 MHz. Vector: 128 FMA lanes a unit.
HAND_WORKED = [
    ("nvidia-h200-sxm", "bf16", None, 528 * 512 * 2 * 1830e6),
    ("nvidia-h200-sxm", "fp8", None, 528 * 1024 * 2 * 1830e6),
    ("nvidia-h200-sxm", "tf32", None, 528 * 256 * 2 * 1830e6),
    ("nvidia-h200-sxm", "fp32", False, 132 * 128 * 2 * 1980e6),
    ("amd-mi300x", "bf16", None, 1216 * 256 * 2 * 2100e6),
    ("amd-mi300x", "int8", None, 1216 * 512 * 2 * 2100e6),
    ("amd-mi300x", "fp64", False, 304 * 64 * 2 * 2100e6),
]


@pytest.mark.parametrize(("target", "dtype", "matrix", "operations"), HAND_WORKED)
def test_peaks_equal_the_hand_worked_rate(
    target: str, dtype: str, matrix: bool | None, operations: float
) -> None:
    peak = load_target(target).peak(dtype, matrix=matrix)
    assert peak is not None
    assert peak.per_second == pytest.approx(operations, rel=1e-3), f"{target} {dtype}"
    assert not peak.sparse


def test_no_device_conflates_the_two_peaks() -> None:
    for target in each_target():
        for key, fact in target.facts.items():
            if key.startswith("peak.sparse."):
                dense = target.value(key.replace("sparse", "dense"))
                assert fact.value == pytest.approx(2 * dense, rel=0.02), f"{target.id}: {key}"


def test_cpus_have_no_peak_and_no_expectation() -> None:
    for name in ("cpu-x86-64", "cpu-aarch64"):
        cpu = load_target(name)
        assert cpu.arch.warp_size == 1
        assert cpu.product is None
        assert cpu.peak("float32") is None
        assert cpu.value("memory.size") is None
        assert cpu.all_expectations == ()


def test_only_a_vendors_own_document_or_code_judges_as_the_vendor() -> None:
    sources = read_folder(matrix_dir() / "targets").sources
    vendors = {"vendor-doc", "vendor-code"}
    for target in each_target():
        for expected in target.all_expectations:
            own = {sources[each].kind in vendors for each in expected.source}
            assert own == {expected.authority is Authority.VENDOR}, (
                f"{target.id}: {expected.metric} of {expected.source}"
            )


def test_every_expectation_has_the_day_of_its_source() -> None:
    for target in each_target():
        for expected in target.all_expectations:
            assert expected.dated is not None, f"{target.id}: {expected.metric}"


def test_what_the_vendors_ask_is_stated_for_what_they_run() -> None:
    """Read by hand in the pages and configurations that the rows name."""
    stated = {
        (target.id, each.metric, each.shape, each.algorithm, each.operands): each
        for target in each_target()
        for each in target.all_expectations
        if each.authority is Authority.VENDOR
    }
    product = stated[("amd-mi300x", "gemm/bf16", "4864x4096x8192", "dense", "real")]
    assert product.low == pytest.approx(0.95 * 552), "RVS passes at 95 % of the target"
    assert (product.statistic, product.contiguous) == ("max", "kk")
    copy = stated[("amd-mi300a", "memory/copy", "BabelStream, 3 x 2 GiB", "stream", None)]
    assert (copy.low, copy.dtype, copy.size_bytes) == (2900.0, "fp64", 268435456 * 8)
    reduce = [
        each
        for (name, metric, *_), each in stated.items()
        if name == "amd-mi355x" and metric.startswith("collectives")
    ]
    assert {each.size_bytes for each in reduce} == {8 << 30}
    (both,) = {
        tuple(
            sorted(
                (each.reference, str(each.dated))
                for each in load_target(name).expectations("collectives/all_reduce")
            )
        )
        for name in ("amd-mi350x", "amd-mi355x")
    }
    assert both == ((304.0, "2026-06-12"), (350.0, "2026-01-05")), "two pages that disagree"
    assert len(stated) > 60


def test_the_limit_of_an_all_reduce_belongs_to_its_algorithm() -> None:
    by_algorithm = {
        each.algorithm: each
        for each in load_target("nvidia-h200-sxm").expectations("collectives/all_reduce")
        if each.source == ("S00-NET",)
    }
    # 18 links of 25 GB/s one way; in-switch: 8 + 1 eighths sent for 7/4 of bus bandwidth
    assert by_algorithm["ring"].limit == pytest.approx(18 * 25)
    assert by_algorithm["nvls"].limit == pytest.approx(18 * 25 * (8 / 9) * (7 / 4))
    assert by_algorithm["nvls"].reference > by_algorithm["ring"].limit, (
        "the in-switch figure exceeds the wire, which is why limits go by algorithm"
    )
    by_ranks = {
        each.ranks: each.limit
        for each in load_target("amd-mi300x").expectations("collectives/all_reduce")
    }
    assert by_ranks == {2: 64.0, 8: 448.0}, "in a mesh two GPUs have one link"


def test_an_unverified_fact_names_no_source() -> None:
    """What a source says has that source's confidence, even where the source is weak."""
    for target in each_target():
        for key, fact in target.facts.items():
            if fact.confidence is Confidence.UNVERIFIED:
                assert not fact.source, f"{target.id}: {key}"


def test_loading_imports_neither_torch_nor_click() -> None:
    code = (
        "import sys; from portagpu.facts.targets import load_targets; load_targets(); "
        "print(sorted({'torch', 'click', 'rich', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).resolve().parents[2],
    )
    assert done.stdout.strip() == "[]", "facts must be readable without torch"


def test_the_guide_names_every_key() -> None:
    text = DOCS.read_text(encoding="utf-8")
    for key in KEYS:
        shown = re.sub(
            r"^(peak\.(?:dense|sparse)\.\w+|\w+\.rate|(?:matrix\.tile|compile\.matrix))\..*",
            r"\1.<dtype>",
            key,
        )
        assert f"`{shown}`" in text, f"docs/targets.md does not list {shown}"


def test_no_page_has_to_list_a_target() -> None:
    """Adding one is adding a file: what lists them all is a command, which the page names."""
    ended = subprocess.run(
        [Path(sys.executable).with_name("portagpu"), "targets"],
        capture_output=True,
        text=True,
        check=True,
    )
    rows = [line.split() for line in ended.stdout.splitlines()[1:]]
    listed = {row[0]: int(row[-1]) for row in rows}
    assert listed == {each.id: len(each.facts) for each in each_target()}
    assert "`portagpu targets` lists the targets" in DOCS.read_text("utf-8")
    written = set(re.findall(r"^\| `([a-z0-9-]+)` \|", DOCS.read_text("utf-8"), re.MULTILINE))
    executed = {path.name.rpartition("-20")[0] for path in RESULTS.glob("*.json")}
    assert written & set(listed) <= executed, "a list by hand of targets becomes old"


def test_the_example_of_the_guide_is_a_valid_target() -> None:
    text = DOCS.read_text(encoding="utf-8")
    example = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)[0]
    assert tomllib.loads(example)["schema"] == "portagpu.target/1"
    target = parse_target(example)
    assert target.expected_failures[0].case_id_pattern == "memory/*[float64]"
    assert target.claims == ("collectives", "streams")
    taken = {each for one in each_target() for each in one.match.pci_ids}
    assert not taken & set(target.match.pci_ids), "together with the others the example is refused"


def test_files_are_checked_from_the_command_line(tmp_path, capsys):
    main = pytest.importorskip("portagpu.cli").main

    good = matrix_dir() / "targets" / "nvidia-h200-sxm.toml"
    assert main(["targets", "check", str(good)]) == 0
    assert "nvidia-h200-sxm, " in capsys.readouterr().out
    assert main(["targets", "check"]) == 2
    wrong = tmp_path / good.name
    wrong.write_text("schema = 1")
    assert main(["targets", "check", str(good), str(wrong)]) == 1
    assert len(capsys.readouterr().err.splitlines()) in (1, 2)


@pytest.mark.parametrize("kind", ["pipe", "device", "folder", "sparse"])
def test_what_is_not_a_target_file_is_one_line(tmp_path, capsys, kind):
    main = pytest.importorskip("portagpu.cli").main

    path = tmp_path / "nvidia-h200-sxm\x1b.toml"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path = Path("/dev/zero")
    elif kind == "folder":
        path.mkdir()
    else:
        path.touch()
        os.truncate(path, 300 << 30)
    assert main(["targets", "check", str(path)]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "(rule readable)" in line
    assert line.isprintable()


@pytest.mark.parametrize("said", ["\\u001b[31mH200", "H\\u0085200", "\\u202eH200", "H200\\nPASS"])
@pytest.mark.parametrize("key", ["product", "names"])
def test_no_target_says_what_a_terminal_obeys(key: str, said: str, tmp_path: Path) -> None:
    folder = tmp_path / "targets"
    shutil.copytree(matrix_dir() / "targets", folder)
    file = folder / "nvidia-h200-sxm.toml"
    value = f'"{said}"' if key == "product" else f'["{said}"]'
    text, times = re.subn(rf"(?m)^{key} = .*$", lambda _: f"{key} = {value}", file.read_text())
    assert times == 1
    file.write_text(text)
    with pytest.raises(
        TargetError, match=rf"{key}(\[0\])?: must be one line of printable text"
    ) as caught:
        parse_target(file)
    assert str(caught.value).isprintable()
