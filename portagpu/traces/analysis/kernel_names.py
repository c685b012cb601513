"""The category and library of a kernel by its name.

``kernel_names.toml`` has the rules that are the same everywhere. A vendor adds those of its
libraries in its table ``kernel_names.toml`` (``portagpu.facts.vendors.tables``), in the same form:
::

    [[rule]]
    id = "torch-reduce"        # names the rule, and no other
    category = "reduction"     # portagpu.traces.analysis.model.Category
    library = "torch"          # empty where the name does not say
    of = "function"            # or "name", with template and call arguments
    pattern = '(?:^|::)reduce_kernel$'
    unless = 'softmax'         # optional: the rule does not hold where this is found

Rules are tried in the order of the categories, so that "reduce" in the name of a collective does
not make it a reduction. Of one category those of vendors come first. A kernel's name is a
untrusted text: what is matched has at most MAX_NAME characters, and no pattern takes more than
linear time.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NamedTuple, get_args

from portagpu.base.documents import DocumentError, regular_expression, rule_of, wrong
from portagpu.facts.vendors import leave_out_table, tables
from portagpu.traces.analysis.model import Category

if TYPE_CHECKING:
    from collections.abc import Mapping

TABLE: Final = "kernel_names"
MAX_NAME: Final = 1000
"""Characters of a name that are looked at: template arguments fill the rest."""
CATEGORIES: Final[tuple[Category, ...]] = get_args(Category)
_OWN: Final = Path(__file__).resolve().parent / "kernel_names.toml"
_MAX_NAMES: Final = 100_000


class Classification(NamedTuple):
    """What a kernel does, whose it is, and the id of the rule that decided.

    ``library`` is empty where the name does not say, ``rule`` where no rule holds.
    """

    category: Category
    library: str
    rule: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One rule of a table, as in the module's docstring."""

    id: str
    category: Category
    library: str = ""
    of: Literal["function", "name"] = "function"
    pattern: Annotated[re.Pattern[str], regular_expression]
    unless: Annotated[re.Pattern[str], regular_expression] | None = None


_UNKNOWN: Final = Classification("unknown", "", "")


@lru_cache(_MAX_NAMES)
def classify(name: str) -> Classification:
    """What the kernel of that name does; the name may be demangled, mangled (_ZN...) or short."""
    text = readable(name)
    function = function_of(text)
    for rule in rules():
        where = function if rule.of == "function" else text
        if rule.pattern.search(where) and not (rule.unless and rule.unless.search(where)):
            library = rule.library or _library(function, text)
            return Classification(rule.category, library, rule.id)
    return _UNKNOWN


def _library(function: str, text: str) -> str:
    """The library of a kernel whose category was found by plain words alone."""
    for rule in rules():
        where = function if rule.of == "function" else text
        if rule.category == "unknown" and rule.pattern.search(where):
            return rule.library
    return ""


@cache
def rules() -> tuple[Rule, ...]:
    """All rules in the order in which they are tried; a vendor's broken table is left out."""
    found: list[Rule] = []
    for vendor, table in dict(tables(TABLE)).items():
        try:
            found += read_rules(table)
        except DocumentError as error:
            leave_out_table(vendor, TABLE, error)
    found += read_rules(tomllib.loads(_OWN.read_text(encoding="utf-8")))
    return tuple(sorted(found, key=lambda rule: CATEGORIES.index(rule.category)))


def read_rules(table: Mapping[str, Any]) -> tuple[Rule, ...]:
    """The rules of a table. Raises DocumentError for a wrong one."""
    found: tuple[Rule, ...] = rule_of(tuple[Rule, ...]).read(table.get("rule", ()), "rule")
    ids = [rule.id for rule in found]
    if twice := [name for name in ids if ids.count(name) > 1]:
        raise wrong("rule", f"two rules are called {twice[0]!r}")
    return found


# ---- names

_SUFFIX: Final = re.compile(r"(?: ?\(\.kd\)| ?\[clone \.kd\]|\.kd)$")
"""Of a kernel's descriptor, which some tools show instead of the kernel."""
_NAMELESS: Final = re.compile(
    r"\(anonymous namespace\)::|<unnamed>::|\{anonymous\}::|`anonymous namespace'::"
)


def readable(name: str) -> str:
    """The name without the marks of tools: mangled names as the words they are made of.

    >>> readable("_ZN2at6native13reduce_kernelILi512ELi1EfEEvT_.kd")
    'at::native::reduce_kernel<>'
    """
    text = _SUFFIX.sub("", name[:MAX_NAME].strip())
    if text.startswith("_Z"):
        return _words_of_mangled(text)
    return _NAMELESS.sub("", text)


def function_of(text: str) -> str:
    """The qualified name of a function, without its result and without arguments.

    >>> function_of("void at::native::reduce_kernel<512, ReduceOp<float> >(ReduceOp<float>)")
    'at::native::reduce_kernel'
    """
    depth, start, first = 0, 0, len(text)
    for at, sign in enumerate(text):
        if sign in "<({[":
            if depth == 0 and sign == "(":
                # a function's arguments begin; what follows a blank is a remark
                if at == start:
                    return text
                return text[start : min(first, at)]
            if depth == 0 and sign == "<":
                first = min(first, at)
            depth += 1
        elif sign in ">)}]":
            # of "->" and operators, which are not brackets
            depth = max(0, depth - 1)
        elif sign == " " and depth == 0:
            start, first = at + 1, len(text)
    return text[start : min(first, len(text))] or text


_NUMBER: Final = re.compile(r"\d{1,9}")
_SUBSTITUTE: Final = re.compile(r"[ST][0-9A-Z]{0,9}_|D[a-zT]|DF\d{1,4}[_bx]|A\d{1,9}_|[CD]\d")
_VALUE: Final = re.compile(r"[n\d.]{0,40}E")
_TAIL: Final = re.compile(r"\d{0,9}_")
_OPENS: Final = frozenset("NIXJFZU")


def _words_of_mangled(name: str) -> str:
    """The identifiers of a mangled name (Itanium C++ ABI, 5.1) in their order and nesting.

    Literals, built-in types and substitutions are left out. Takes any text, in linear time.
    """
    out: list[str] = []
    inside: list[str] = []
    at, size = 2, len(name)
    while at < size:
        sign = name[at]
        if number := _NUMBER.match(name, at):
            at = number.end() + int(number[0])
            word = name[number.end() : at]
            if not word.startswith("_GLOBAL__N"):
                if out and out[-1] != "<":
                    out.append("::" if inside and inside[-1] == "N" and out[-1] != ">" else ",")
                out.append(word)
        elif found := _SUBSTITUTE.match(name, at):
            at = found.end()
        elif sign == "L" and name[at + 1 : at + 2].islower() and (v := _VALUE.match(name, at + 2)):
            at = v.end()
        elif sign == "L":
            inside.append(sign)
            at += 3 if name.startswith("_Z", at + 1) else 1
        elif sign in _OPENS:
            inside.append(sign)
            out += ["<"] if sign == "I" else []
            at += 1
        elif sign == "E" and inside:
            at += 1
            ended = inside.pop()
            out += [">"] if ended == "I" else []
            if ended == "U" and (tail := _TAIL.match(name, at)):
                at = tail.end()
            elif inside and inside[-1] == "L" and (value := _VALUE.match(name, at)):
                # the number of an enumeration
                inside.pop()
                at = value.end()
        else:
            at += 1
    return "".join(out)
