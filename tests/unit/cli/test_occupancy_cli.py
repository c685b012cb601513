"""``portagpu occupancy``: table, JSON, curve, and every wrong request in one line."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET

import pytest

from portagpu.cli import main

GOOD = ["occupancy", "--arch", "sm_90", "--threads", "256", "--regs", "64", "--smem", "16384"]


def test_the_table_says_what_limits_and_what_would_help(capfd):
    assert main(GOOD) == 0
    out = capfd.readouterr().out
    assert "4 blocks a streaming multiprocessor: 32 of 64 warps, 50%" in out
    row = next(line for line in out.splitlines() if line.startswith("registers"))
    assert row.split() == [
        "registers",
        "16,384",
        "65,536",
        "registers,",
        "a",
        "block",
        "4",
        "N-CCCL",
    ]
    assert "with at most 48 registers a thread: 5 blocks, 40 of 64 warps" in out


def test_json_has_every_figure_and_its_source(capfd, tmp_path):
    path = tmp_path / "found.json"
    amd = ["occupancy", "--arch", "gfx942", "--threads", "256", "--regs", "100", "--acc", "60"]
    assert main([*amd, "--sgprs", "102", "--smem", "16000", "--json", str(path)]) == 0
    found = json.loads(path.read_text(encoding="utf-8"))
    assert found["schema"] == "portagpu.occupancy/1"
    assert (found["blocks_per_unit"], found["waves_per_unit"], found["fraction"]) == (3, 12, 0.375)
    assert found["waves_per_simd"] == {"compiler": 3, "hardware": 3, "most": 8}
    assert found["limited_by"] == ["registers"]
    assert all(limit["source"] for limit in found["limits"])
    # 160 registers are 3 waves a SIMD; 128 are 4, of which 60 are AccVGPRs
    assert found["next_steps"][0]["registers"] == 68
    capfd.readouterr()
    assert main([*GOOD, "--json", "-"]) == 0
    captured = capfd.readouterr()
    assert json.loads(captured.out)["waves_per_simd"] is None
    assert "limited by registers" in captured.err


@pytest.mark.parametrize(
    ("words", "unit"), [([], "workgroup processor"), (["--cu-mode"], "compute unit")]
)
def test_in_cu_mode_the_figures_are_of_one_compute_unit(capfd, words, unit):
    rdna = ["occupancy", "--arch", "gfx1100", "--threads", "256", "--regs", "96"]
    assert main([*rdna, *words, "--json", "-"]) == 0
    said = capfd.readouterr()
    blocks = json.loads(said.out)["blocks_per_unit"]
    assert json.loads(said.out)["unit"] == unit
    assert blocks == (4 if words else 8), "half of the four SIMDs, of eight blocks of eight waves"
    assert f"{blocks} blocks a {unit}: " in said.err


@pytest.mark.parametrize("over", ["registers", "shared-memory"])
def test_the_curve_is_an_svg_that_needs_nothing_else(tmp_path, over):
    path = tmp_path / "curve.svg"
    assert main([*GOOD, "--plot", str(path), "--over", over]) == 0
    text = path.read_text(encoding="utf-8")
    root = ET.fromstring(text)  # noqa: S314 - written a line above
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    words = " ".join(root.itertext())
    for said in ("sm_90, 256 threads a block", "this kernel", "warps a streaming multiprocessor"):
        assert said in words
    assert "<script" not in text
    assert text.count("http") == 1, "no address but the name space's"
    line = next(e for e in root.iter() if e.get("class") == "line" and len(e.get("d", "")) > 20)
    ys = [float(point.split()[1]) for point in line.get("d")[1:].split("L")]
    assert ys == sorted(ys), "more of it never holds more warps"
    assert len(set(ys)) > 3, "the curve has levels"


def test_a_kernel_that_cannot_be_launched_is_exit_code_1(capfd):
    assert main(["occupancy", "--arch", "sm_90", "--threads", "1024", "--regs", "65"]) == 1
    assert "this kernel cannot be launched" in capfd.readouterr().out


def test_threads_that_are_not_whole_warps_are_reported(capfd):
    assert main(["occupancy", "--arch", "sm_90", "--threads", "100", "--regs", "32"]) == 0
    assert "28 lanes of the last are idle" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"--arch": "sm_91"}, "known are"),
        ({"--arch": "x86-64"}, "has no occupancy"),
        ({"--threads": "0"}, "threads is 0"),
        ({"--threads": "-5"}, "threads is -5"),
        ({"--threads": "1025"}, "exec.max_threads_per_block, source N-CCCL"),
        ({"--threads": "1e3"}, "not a valid integer"),
        ({"--threads": "9" * 40}, "exec.max_threads_per_block"),
        ({"--regs": "0"}, "registers is 0"),
        ({"--regs": "256"}, "register.max_per_thread"),
        ({"--smem": "-1"}, "shared_memory is -1"),
        ({"--smem": str(10**18)}, "shared_memory.per_block_optin"),
        ({"--acc": "4"}, "no accumulation registers"),
        ({"--carveout": "101"}, "0 to 100"),
        ({"--wave-size": "64"}, "it has 32"),
        ({"--plot": "-"}, "--plot needs the name of a file"),
        ({"--plot": "/proc/none/curve.svg"}, "cannot write"),
        ({"--json": "/proc/none/found.json"}, "cannot write"),
        ({"--over": "threads"}, "--over"),
    ],
)
def test_a_wrong_request_is_one_line_and_exit_code_2(capfd, changes, said):
    words = dict(zip(GOOD[1::2], GOOD[2::2], strict=True)) | changes
    assert main(["occupancy", *(word for pair in words.items() for word in pair)]) == 2
    captured = capfd.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert said in captured.err


def test_neither_torch_nor_a_device_is_needed(monkeypatch, capfd):
    monkeypatch.setitem(__import__("sys").modules, "torch", None)
    assert main(GOOD) == 0
