"""Text for people: one line of whatever there is, errors in words, and the name that was meant."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import portagpu
from portagpu.base.text import (
    closest,
    did_you_mean,
    error_line,
    escaped,
    excerpt,
    is_twice_in_itself,
    one_line,
    printable,
    printable_lines,
)

HOME = Path(portagpu.__file__).parents[1]


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.parametrize(
    ("text", "shown", "line"),
    [
        ("a  b", "a  b", "a b"),
        (" a\tb\r\nc ", "a b  c", "a b c"),
        ("red \x1b[31mtext", "red  [31mtext", "red [31mtext"),
        ("no\u202ebreak\u00a0here", "no break here", "no break here"),
        ("\x00\n", "", ""),
        ("a\u2066b\u200fc\u061cd\u200be\ufefff", "a b c d e f", "a b c d e f"),
        ("no\u3164\ufe0fwhere\U000e0101", "no  where", "no where"),
    ],
)
def test_text_is_one_printable_line(text: str, shown: str, line: str) -> None:
    assert printable(text) == shown, "a name keeps its blanks"
    assert one_line(text) == line
    assert one_line(text).isprintable()


def test_what_a_terminal_would_obey_or_hide_is_escaped() -> None:
    odd = "\x1b]0;x\x07\x9b\r\u202e\u2066\u200e\u061c\u200b\u3164\udc80\x85\u2028\xad"
    assert escaped(odd) == odd.encode("unicode_escape").decode()
    assert escaped("a\tb é 漢 \\x1b") == "a\tb é 漢 \\x1b"
    assert printable_lines(" a\n  b\x1b\nc") == " a\nb\nc"


def test_an_excerpt_is_bounded() -> None:
    assert excerpt("x" * 1000) == "x" * 200
    assert excerpt("GPU is lost.  Reboot\n", 18) == "GPU is lost.  Rebo"
    assert excerpt("a\x07b", 2) == "a"


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ValueError("bad\n  value"), "ValueError: bad value"),
        (KeyError(), "KeyError"),
        (Mute(), "Mute"),
        (SystemExit(3), "SystemExit: 3"),
    ],
)
def test_an_error_is_its_type_and_words(error: BaseException, line: str) -> None:
    assert error_line(error) == line


@pytest.mark.parametrize(
    ("word", "meant"),
    [("memry", "memory"), (" Memory", "memory"), ("mem", "memory"), ("memory-of", "memory")],
)
def test_the_name_that_was_meant_is_offered(word: str, meant: str) -> None:
    known = ["links", "memory", "health"]
    assert closest(word, known, 1) == [meant]
    assert did_you_mean(word, known, "there is nothing") == f"did you mean '{meant}'?"


def test_several_names_or_none_are_offered() -> None:
    assert did_you_mean("gfx9", ["gfx942", "gfx90a", "sm_90"], "x", 2) == (
        "did you mean 'gfx90a' or 'gfx942'?"
    )
    assert did_you_mean("zzz", ["memory"], "gates are memory") == "gates are memory"


def test_there_is_one_place_for_each() -> None:
    """What makes a line printable, or looks for a close name, is ``portagpu.base.text``."""
    found = []
    for path in [*(HOME / "portagpu").rglob("*.py"), *(HOME / "backends").rglob("*.py")]:
        if path.name == "text.py" or "_matrix" in path.parts:
            continue
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            close = isinstance(node, ast.Attribute) and node.attr == "get_close_matches"
            joined = (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr == "join"
                and isinstance(node.func.value, ast.Constant)
                and node.func.value.value in ("", " ")
                and any("isprintable" in ast.dump(each) for each in node.args)
            )
            if joined or close:
                found.append(f"{path.name}:{node.lineno}")  # type: ignore[attr-defined]
    assert found == []


def test_a_name_in_the_middle_of_itself_is_of_two_writers() -> None:
    name = "NVIDIA A100-SXM4-80GB"
    assert is_twice_in_itself("NVIDIA A100-SXM4-NVIDIA A100-SXM4-80GB80GB", name)
    assert is_twice_in_itself(name[:1] + name + name[1:], name)
    for other in ("", name, f"{name} {name}", "NVIDIA A100-SXM4-40GB", "NVIDIA A100-PCIE-80GB" * 2):
        assert not is_twice_in_itself(other, name)
    assert not is_twice_in_itself("", "")
