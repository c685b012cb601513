"""One analysis of a Python file, for ``lint`` and ``rewrite``."""

from __future__ import annotations

import ast
import sys
import warnings
from dataclasses import replace
from typing import TYPE_CHECKING

import libcst as cst
from libcst.metadata import MetadataWrapper, PositionProvider, ScopeProvider

from portagpu.train.port.findings import Finding, Ignored, Unread
from portagpu.train.port.names import lines_of
from portagpu.train.port.prefilter import excerpt, has_word
from portagpu.train.port.scope import Scope
from portagpu.train.port.uses import Finder

if TYPE_CHECKING:
    from portagpu.train.port.prefilter import Excerpt
    from portagpu.train.port.reading import Source
    from portagpu.train.port.rules import Rules
    from portagpu.train.port.uses import Use


class Analysis:
    """The uses in one file, without those that a comment ignores."""

    def __init__(self, source: Source, rules: Rules, part: Excerpt | None = None) -> None:
        """``part`` is what is read of it; None reads it all.

        Raises SyntaxError for what libcst cannot read.
        """
        try:
            module = cst.parse_module(source.text if part is None else part.text)
        except cst.ParserSyntaxError as error:
            raise SyntaxError(f"line {error.raw_line}: libcst cannot read it") from error
        self.wrapper = MetadataWrapper(module, unsafe_skip_copy=True)
        self.scope = Scope(rules, self.wrapper.resolve(ScopeProvider))
        module.visit(self.scope)
        finder = Finder(rules, self.scope)
        module.visit(finder)
        self.uses = self._with_places(finder.uses, source.text, part)

    def _with_places(self, uses: list[Use], text: str, part: Excerpt | None) -> list[Use]:
        if not uses:
            return []
        places, ignored = self.wrapper.resolve(PositionProvider), Ignored(lines_of(text))
        placed = []
        for use in uses:
            start = places[use.node].start
            line = start.line if part is None else part.numbers[start.line - 1]
            if not ignored.has(line, use.rule.id):
                placed.append(replace(use, line=line, column=start.column + 1))
        return placed


def parse(text: str) -> ast.Module:
    """The syntax of Python 3. Raises SyntaxError with one sentence for other text."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about the file's escapes and literals
        try:
            return ast.parse(text)
        except SyntaxError as error:
            words = (error.msg or "").lower()
            if "missing parentheses in call to 'print'" in words or "exec'" in words:
                raise SyntaxError(
                    "is Python 2: translate it first (2to3 of Python 3.12)"
                ) from error
            version = f"{sys.version_info.major}.{sys.version_info.minor}"
            why = f"is no Python {version}: line {error.lineno}, {error.msg}"
            raise SyntaxError(why) from error
        except (RecursionError, MemoryError, ValueError) as error:
            raise SyntaxError("is nested too deeply to be read") from error


def analyse(source: Source, rules: Rules, *, whole: bool) -> Analysis | Unread | None:
    """The uses in ``source``; None where no word of a rule is in it.

    Not ``whole`` leaves out the statements without one, which is faster and no base for a rewrite.
    """
    if not has_word(source.text):
        return None
    try:
        tree = parse(source.text)
        return Analysis(source, rules, None if whole else excerpt(source.text, tree))
    except SyntaxError as error:
        return Unread(source.path, str(error))
    except RecursionError:
        return Unread(source.path, "is nested too deeply to be read")


def finding(path: str, use: Use) -> Finding:
    """The use as a finding."""
    return Finding(path, use.line, use.column, use.rule, use.code, use.left)
