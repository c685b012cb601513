"""The facts of every target and where they come from, as pages of the book."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Final

from portagpu.facts.targets import load_targets

if TYPE_CHECKING:
    from collections.abc import Sequence

    from portagpu.facts.targets import Expectation, Fact, Target

_ADDRESS: Final = re.compile(r"https://[\w./:@%+~#?&=-]*[\w/]")
SOURCES: Final = Path(__file__).resolve().parents[2] / "matrix/targets/sources.toml"


def facts(vendor: str) -> str:
    """Every target of a vendor: its facts, and what its measures are compared with."""
    found = [each for each in load_targets().values() if each.vendor == vendor]
    return "\n".join(map(_target, sorted(found, key=lambda target: target.id)))


def sources() -> str:
    """Every source, under a heading that facts lead to."""
    stated = tomllib.loads(SOURCES.read_text("utf-8"))["sources"]
    parts = []
    for name, source in sorted(stated.items()):
        about = [f"{key}: {value}" for key, value in source.items() if key not in ("kind", "where")]
        about = [source["kind"], *map(_text, about)]
        parts.append(f"## {name}\n\n{_text(source['where'])}\n\n{'; '.join(about)}\n")
    return "\n".join(parts)


def _target(target: Target) -> str:
    claims = ", ".join(f"`{each}`" for each in target.claims)
    lines = [
        f"## {target.id}\n",
        f"{target.product or 'Any product'}, `{target.arch.name}`. Claims {claims or 'nothing'}.\n",
        "| fact | value | confidence | source |",
        "|---|---|---|---|",
        *(_fact(key, fact) for key, fact in sorted(target.facts.items())),
    ]
    if target.all_expectations:
        lines += ["", "| measure | expected | source |", "|---|---|---|"]
        lines += map(_expected, target.all_expectations)
    return "\n".join([*lines, ""])


def _fact(key: str, fact: Fact) -> str:
    values = fact.value if isinstance(fact.value, tuple) else (fact.value,)
    value = f"{', '.join(map(str, values))} {fact.unit or ''}".rstrip()
    note = f" ({_text(fact.note)})" if fact.note else ""
    return f"| `{key}` | {_text(value)}{note} | {fact.confidence} | {_named(fact.source)} |"


def _expected(each: Expectation) -> str:
    value = f"{each.reference:g} {each.unit}, {each.shape}; {each.authority}"
    return f"| `{each.metric}` | {_text(value)} | {_named(each.source)} |"


def _named(found: Sequence[str]) -> str:
    return ", ".join(f"[{name}](sources.md#{name.lower()})" for name in found)


def _text(text: str) -> str:
    """Plain text in Markdown, also in a cell of a table; addresses are links."""
    words = (f"<{word}>" if _ADDRESS.fullmatch(word) else _escaped(word) for word in text.split())
    return " ".join(words)


def _escaped(word: str) -> str:
    return re.sub(r"[\\*_<\[`|$]", r"\\\g<0>", word)
