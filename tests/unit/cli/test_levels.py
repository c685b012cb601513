"""``--level`` and ``--only``: one way to choose what runs, and the words of before."""

from __future__ import annotations

from typing import Any

import click
import pytest
from click.testing import CliRunner

from portagpu.checks import bringup
from portagpu.checks.bringup.gates import fitting, left_out_gates, load_gates
from portagpu.cli import main
from portagpu.cli._levels import LEVELS, level_option
from portagpu.cli._verbs import app
from portagpu.suites import conformance, performance, screen
from portagpu.suites.performance.cases import UnknownMeasure, selected_areas


@click.command()
@level_option({"quick": "default", "full": "full"}, smoke="a", default="b", full="c", deep="d")
def verb(level: str) -> None:
    click.echo(level)


@pytest.mark.parametrize(
    ("words", "level", "said"),
    [
        ([], "default", ""),
        *((["--level", each], each, "") for each in LEVELS),
        (["--full"], "full", "portagpu: --full is --level full now; the old word works until 1.0"),
        (["--quick"], "default", "portagpu: --quick is --level default now; the old word"),
    ],
)
def test_a_level_is_one_word_and_old_flags_work_with_one_line(
    words: list[str], level: str, said: str
) -> None:
    found = CliRunner().invoke(verb, words)
    assert (found.exit_code, found.stdout) == (0, f"{level}\n")
    assert found.stderr.startswith(said)
    assert found.stderr.count("\n") == bool(said)


@pytest.mark.parametrize("words", [["--quick", "--full"], ["--full", "--level", "smoke"]])
def test_two_levels_are_an_error(words: list[str]) -> None:
    found = CliRunner().invoke(verb, words)
    assert found.exit_code == 2
    assert "give either" in found.stderr


def test_the_help_has_the_four_words_and_no_old_flag() -> None:
    said = CliRunner().invoke(verb, ["--help"]).stdout
    assert "--level smoke|default|full|deep" in said
    assert "--quick" not in said


def test_gates_are_chosen_by_patterns() -> None:
    gates = load_gates()
    assert fitting(gates, ["health*"]) == ("health", "health-after")
    assert fitting(gates, ["memry", "links"]) == ("memry", "links"), "the error names it later"


def test_a_gate_that_a_level_leaves_out_says_so() -> None:
    reasons = left_out_gates(load_gates(), ["health"], asked="--level smoke")
    assert reasons["memory"] == "--level smoke leaves it out"
    assert left_out_gates(load_gates(), ["health"])["memory"] == "--only health leaves it out"


def test_measures_are_chosen_by_patterns() -> None:
    assert selected_areas(["mem*"]) == ("memory",)
    assert selected_areas(["*/copy", "gemm/bf16"]) == ("gemm", "memory", "kernels")
    with pytest.raises(UnknownMeasure, match="zz"):
        selected_areas(["zz*"])


class Asked(Exception):
    """What a verb asks its engine for, in the place of a run."""


@pytest.mark.parametrize(
    ("words", "asked"),
    [
        # smoke: only what reads the machine; a gate that computes is left out
        ("bringup --level smoke", {"effort": "quick", "duration_s": None}),
        ("bringup", {"effort": "quick", "duration_s": None, "only": ()}),
        ("bringup --level full", {"effort": "full", "duration_s": None, "only": ()}),
        ("bringup --level deep", {"effort": "full", "duration_s": 30 * 60.0}),
        ("bringup --level deep --duration 5", {"effort": "full", "duration_s": 5.0}),
        ("bringup --level full --duration 5", {"effort": "full", "duration_s": 5.0}),
        ("bench --level smoke", {"effort": "quick", "names": ("gemm", "memory")}),
        ("bench --level smoke --only launch", {"effort": "quick", "names": ("launch",)}),
        ("bench", {"effort": "quick", "names": ()}),
        ("bench --level full", {"effort": "full", "names": ()}),
        ("bench --level deep", {"effort": "full", "names": ()}),
        ("conform --level smoke", {"smoke": True, "deep": False, "index": 0, "search_s": None}),
        ("conform", {"smoke": False, "deep": False, "index": 0, "search_s": None}),
        ("conform --level full", {"smoke": False, "deep": False, "index": None}),
        ("conform --level full --index 1", {"smoke": False, "deep": False, "index": 1}),
        ("conform --level deep", {"smoke": False, "deep": True, "search_s": 30 * 60.0}),
        ("conform --level deep --time 2h", {"deep": True, "search_s": 2 * 3600.0}),
        ("screen --level smoke", {"seconds": 10.0}),
        ("screen", {"seconds": 60.0, "indices": None}),
        ("screen --level full", {"seconds": 10 * 60.0}),
        ("screen --level deep", {"seconds": 8 * 3600.0}),
        ("screen --level deep --time 90s", {"seconds": 90.0}),
    ],
)
def test_a_level_asks_for_what_its_help_says(
    words: str, asked: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def ask(options: Any, *_: object) -> None:
        raise Asked(options)

    places = [(bringup, "bringup"), (conformance, "conform"), (performance, "run"), (screen, "run")]
    for module, name in places:
        monkeypatch.setitem(vars(module), name, ask)
    for verb in ("bench", "conform", "screen"):  # a unit test has no torch
        monkeypatch.setattr(f"portagpu.cli.{verb}.require_torch", lambda _: None)
    with pytest.raises(Asked) as caught:
        app.main(words.split(), standalone_mode=False)
    (options,) = caught.value.args
    fields = {name: getattr(options, name) for name in asked if hasattr(options, name)}
    if selection := getattr(options, "selection", None):
        fields |= {name: getattr(selection, name) for name in asked if hasattr(selection, name)}
    assert fields == asked


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (["bench", "launch", "--list"], ["bench", "--only", "launch", "--list"]),
        (["screen", "--probe", "vec*", "--list"], ["screen", "--only", "vec*", "--list"]),
    ],
)
def test_old_words_do_the_same_and_say_what_to_write(
    old: list[str], new: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(old) == 0
    first = capsys.readouterr()
    assert "the old word works until 1.0" in first.err
    assert main(new) == 0
    second = capsys.readouterr()
    assert (second.out, second.err) == (first.out, "")


def test_no_environment_of_the_matrix_has_that_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["matrix", "run", "--only", "nonsense-*", "--suite", "compile", "--list"]) == 2
    assert "there is no environment 'nonsense-*'" in capsys.readouterr().err
