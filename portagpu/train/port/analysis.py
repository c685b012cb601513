"""The analysis of one Python file, which ``lint`` and ``rewrite`` share.

:class:`Finder` visits the places of a module: calls, assignments, comparisons, assertions.
``Uses`` collects what it finds there, and what a name alone shows.
"""

from __future__ import annotations

import ast
import re
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import libcst as cst
from libcst.metadata import MetadataWrapper, PositionProvider, ScopeProvider

from portagpu.train.port.arguments import in_call
from portagpu.train.port.expressions import last_name, string
from portagpu.train.port.places import (
    in_any,
    in_assignment,
    in_each,
    in_entry,
    in_return,
)
from portagpu.train.port.questions import (
    in_assert,
    in_attribute,
    in_build,
    in_code,
    in_command,
    in_comparison,
    in_if,
    in_subscript,
    in_text,
    in_texts,
)
from portagpu.train.port.reading import excerpt, has_word
from portagpu.train.port.rules import Finding, Ignored, Unread, lines_of
from portagpu.train.port.scope import Scope
from portagpu.train.port.uses import Uses

if TYPE_CHECKING:
    from collections.abc import Iterator

    from portagpu.train.port.reading import Excerpt, Source
    from portagpu.train.port.rules import Rules
    from portagpu.train.port.uses import Use


class Finder(Uses):
    """Looks at the places where a device, a library or a capability can stand."""

    def visit_Call(self, node: cst.Call) -> None:
        self.called[node.func] = {each.keyword.value for each in node.args if each.keyword}
        in_call(self, node)
        in_text(self, node)
        in_build(self, node)
        in_code(self, node)
        in_command(self, node)

    def visit_Assign(self, node: cst.Assign) -> None:
        self._bare.add(node.value)
        in_texts(self, node.value)
        for target in node.targets:
            if isinstance(target.target, cst.Name):
                self.handled.add(target.target)  # a name that is given, not used
            entry = self.rules.names.get(self.scope.qualified(target.target))
            if isinstance(target.target, cst.Attribute) and entry is not None and entry.to:
                self.add(target.target, entry.rule, left="it is replaced here for all its callers")
            in_assignment(self, target.target, node.value)
            for name, value in _pairs(target.target, node.value):
                in_assignment(self, name, value)

    def visit_AnnAssign(self, node: cst.AnnAssign) -> None:
        if node.value is not None:
            in_assignment(self, node.target, node.value)

    def visit_NamedExpr(self, node: cst.NamedExpr) -> None:
        in_assignment(self, node.target, node.value)

    def visit_For(self, node: cst.For) -> None:
        in_each(self, last_name(node.target), node.iter)

    def visit_CompFor(self, node: cst.CompFor) -> None:
        in_texts(self, node.iter)
        in_each(self, last_name(node.target), node.iter)

    def visit_Param(self, node: cst.Param) -> None:
        if node.default is not None:
            in_assignment(self, node.name, node.default)

    def visit_DictElement(self, node: cst.DictElement) -> None:
        self._bare.add(node.value)
        in_entry(self, node)

    def visit_Comparison(self, node: cst.Comparison) -> None:
        in_comparison(self, node)

    def visit_ClassDef(self, node: cst.ClassDef) -> None:
        self.handled.add(node.name)
        for each in node.bases:
            entry = self.rules.names.get(self.scope.qualified(each.value))
            if entry is not None:
                left = "a class derives from it, and portagpu's has none of its members"
                self.add(each.value, entry.rule, left=left)

    def visit_MatchValue(self, node: cst.MatchValue) -> bool:
        return False  # a pattern takes no call

    def visit_Subscript(self, node: cst.Subscript) -> bool:
        in_subscript(self, node)
        return last_name(node.value) != "Literal"

    def visit_ConcatenatedString(self, node: cst.ConcatenatedString) -> bool:
        for each in (node.left, node.right):  # the text is not whole, its expressions are
            if isinstance(each, cst.ConcatenatedString):
                self.visit_ConcatenatedString(each)
            for part in each.parts if isinstance(each, cst.FormattedString) else ():
                part.visit(self)
        return False

    def visit_FunctionDef(self, node: cst.FunctionDef) -> None:
        self.handled.add(node.name)
        self._functions.append(node)

    def leave_FunctionDef(self, original_node: cst.FunctionDef) -> None:
        if self._functions and self._functions[-1] is original_node:  # it was not passed over
            self._functions.pop()

    def visit_Return(self, node: cst.Return) -> None:
        if node.value is not None and self._functions:
            in_return(self, last_name(self._functions[-1].name), node.value)

    def visit_Attribute(self, node: cst.Attribute) -> bool:
        in_attribute(self, node)
        return super().visit_Attribute(node)

    def visit_Assert(self, node: cst.Assert) -> None:
        in_assert(self, node)

    def visit_If(self, node: cst.If) -> None:
        in_if(self, node)

    def visit_Expr(self, node: cst.Expr) -> bool:
        self._bare.add(node.value)
        if isinstance(node.value, cst.Call):
            name = self.scope.qualified(node.value.func)
            entry = self.rules.names.get(name)
            is_absent = entry is not None and entry.rule is self.rules.shapes.get("absent")
            if entry is not None and is_absent and not self.scope.is_patched(name):
                nothing = self.unless_cpu(node.value, lambda new: cst.Name("None"))
                self.add(node.value, entry.rule, nothing)
                self.handled.add(node.value.func)
        return string(node.value) is None  # a docstring

    def visit_SimpleString(self, node: cst.SimpleString) -> None:
        in_any(self, node)
        self._text(node, string(node) or "")

    def visit_FormattedString(self, node: cst.FormattedString) -> None:
        in_any(self, node)
        first = node.parts[0] if node.parts else None
        if isinstance(first, cst.FormattedStringText):
            self._text(node, first.value)

    def _text(self, node: cst.BaseExpression, text: str) -> None:
        for each in self.rules.texts if text else ():
            if "python" in each.kinds and each.pattern.match(text):
                self.add(node, each.rule, left="this line does not say what the name is for")


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
        self.wrapper: MetadataWrapper = MetadataWrapper(module, unsafe_skip_copy=True)
        scopes = self.wrapper.resolve(ScopeProvider)
        self.scope: Scope = Scope(rules, scopes, Path(source.path).parent)
        if "*" in rules.imported.get(Path(source.path).stem, ()):
            self.scope.taken.add("pg")  # others get every short name of this file
        for name, path in rules.classes.items():
            if path != source.path and re.search(rf"\b{name}\b", source.text):
                self.scope.own_methods = f"{name} of {path}"
        module.visit(self.scope)
        finder = Finder(rules, self.scope)
        module.visit(finder)
        finder.note_packages()
        self.uses: list[Use] = self._with_places(finder.uses, source.text, part)

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
            line = (error.text or "").replace(" ", "")
            if "async=" in line:
                why = "is from before Python 3.7, where async was a name: write non_blocking="
                raise SyntaxError(f"{why} in line {error.lineno}") from error
            version = f"{sys.version_info.major}.{sys.version_info.minor}"
            why = f"is not Python {version}: line {error.lineno}, {error.msg}"
            raise SyntaxError(why) from error
        except (RecursionError, MemoryError, ValueError) as error:
            raise SyntaxError("is nested too deeply to be read") from error


_RUNS_TEXT: Final = re.compile(r"(?<![.\w])(?:exec|eval)\(|\bsubprocess\b|\bos\.(?:system|popen)")


def analyse(source: Source, rules: Rules, *, whole: bool) -> Analysis | Unread | None:
    """The uses in ``source``; None where no word of a rule is in it.

    Not ``whole`` leaves out the statements without one, which is faster; a rewrite needs them all.
    """
    if not has_word(source.text):
        return None
    try:
        tree = parse(source.text)
        # what stands between two seeds counts, and a text that is run may have a name
        whole |= "manual_seed" in source.text or _RUNS_TEXT.search(source.text) is not None
        return Analysis(
            source, rules, None if whole else excerpt(source.text, tree, Path(source.path).parent)
        )
    except SyntaxError as error:
        return Unread(source.path, str(error))
    except RecursionError:
        return Unread(source.path, "is nested too deeply to be read")


def _pairs(
    target: cst.BaseExpression, value: cst.BaseExpression
) -> Iterator[tuple[cst.BaseExpression, cst.BaseExpression]]:
    """The names and values of ``a, b = 1, 2``."""
    if not (isinstance(target, cst.Tuple | cst.List) and isinstance(value, cst.Tuple | cst.List)):
        return
    names, values = target.elements, value.elements
    if len(names) != len(values) or any(
        isinstance(each, cst.StarredElement) for each in (*names, *values)
    ):
        return
    for one, other in zip(names, values, strict=True):
        yield one.value, other.value
        yield from _pairs(one.value, other.value)


def finding(path: str, use: Use) -> Finding:
    """The use as a finding."""
    return Finding(path, use.line, use.column, use.rule, use.code, use.left)
