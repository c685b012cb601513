"""One analysis of a Python file, for ``lint`` and ``rewrite``."""

from __future__ import annotations

import ast
import warnings
from typing import TYPE_CHECKING

import libcst as cst
from libcst.metadata import MetadataWrapper, QualifiedNameProvider

from portagpu.port.findings import Finding, Unread, is_ignored
from portagpu.port.scope import Scope
from portagpu.port.uses import Finder, Use

if TYPE_CHECKING:
    from portagpu.port.reading import Source
    from portagpu.port.rules import Rules


class Analysis:
    """The uses in one file, without those that a comment ignores."""

    def __init__(self, source: Source, rules: Rules) -> None:
        """Raises SyntaxError, in words, for what is no Python 3."""
        check_syntax(source.text)
        try:
            module = cst.parse_module(source.text)
        except cst.ParserSyntaxError as error:
            raise SyntaxError(f"line {error.raw_line}: libcst cannot read it") from error
        self.wrapper = MetadataWrapper(module, unsafe_skip_copy=True)
        names = self.wrapper.resolve(QualifiedNameProvider)

        def names_of(node: cst.CSTNode) -> set[object]:
            found = names.get(node, set())
            return found() if callable(found) else found  # type: ignore[return-value]

        self.scope = Scope(rules, names_of)  # type: ignore[arg-type]
        self.wrapper.module.visit(self.scope)
        finder = Finder(rules, self.scope)
        self.wrapper.visit(finder)
        lines = source.text.splitlines()
        self.uses = [each for each in finder.uses if not is_ignored(lines, each.line, each.rule.id)]


def check_syntax(text: str) -> None:
    """Raise SyntaxError with one sentence for text that is no Python 3."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about the file's escapes and literals
        try:
            ast.parse(text)
        except SyntaxError as error:
            words = (error.msg or "").lower()
            if "missing parentheses in call to 'print'" in words or "exec'" in words:
                raise SyntaxError(
                    "is Python 2: translate it first (2to3 of Python 3.12)"
                ) from error
            raise SyntaxError(f"is no Python: line {error.lineno}, {error.msg}") from error
        except (RecursionError, MemoryError, ValueError) as error:
            raise SyntaxError("is nested too deeply to be read") from error


def analyse(source: Source, rules: Rules) -> Analysis | Unread | None:
    """The uses in ``source``; None where no word of a rule is in it."""
    if not rules.is_worth_parsing(source.text):
        return None
    try:
        return Analysis(source, rules)
    except SyntaxError as error:
        return Unread(source.path, str(error))
    except RecursionError:
        return Unread(source.path, "is nested too deeply to be read")


def finding(path: str, use: Use) -> Finding:
    """The use as a finding."""
    return Finding(path, use.line, use.column, use.rule, use.code, use.left)
