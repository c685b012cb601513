"""Expressions of libcst: what they are, and how new ones are made.

:class:`Writer` makes the expressions that a rewrite puts in.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, TypeGuard

import libcst as cst

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


_EMPTY: Final = cst.Module([])
NOT_CPU: Final = 'pg.device_string() != "cpu"'
"""A test that opens no device."""


def code_of(node: cst.CSTNode, max_length: int = 80) -> str:
    """The node's code on one line, cut after ``max_length`` characters."""
    code = " ".join(_EMPTY.code_for_node(node).split())
    return code if len(code) <= max_length else code[: max_length - 3] + "..."


def is_dotted(node: cst.CSTNode) -> TypeGuard[cst.Name | cst.Attribute]:
    """Whether it is a name, or names joined by dots."""
    while isinstance(node, cst.Attribute):
        node = node.value
    return isinstance(node, cst.Name)


def dotted(node: cst.CSTNode) -> str:
    """ "a.b.c"; empty for an expression that is not a dotted name."""
    return _EMPTY.code_for_node(node) if is_dotted(node) else ""


def last_name(node: cst.CSTNode) -> str:
    """The name after the last dot; empty if it has none."""
    if isinstance(node, cst.Attribute):
        return node.attr.value
    return node.value if isinstance(node, cst.Name) else ""


def string(node: cst.CSTNode | None) -> str | None:
    """The value of a string literal, also f"cuda", which has no expression; None for others."""
    if isinstance(node, cst.FormattedString):
        texts = [each.value for each in node.parts if isinstance(each, cst.FormattedStringText)]
        plain = len(texts) == len(node.parts) and not any(set("\\{}") & {*each} for each in texts)
        return "".join(texts) if plain else None
    if not isinstance(node, cst.SimpleString):
        return None
    value = node.evaluated_value
    return value if isinstance(value, str) else None


def last_statement(block: cst.BaseSuite) -> cst.CSTNode | None:
    """The last statement of a block, also of one in the line of its header."""
    last: Any = block.body[-1] if block.body else None
    return last.body[-1] if isinstance(last, cst.SimpleStatementLine) else last


def texts_in(node: cst.CSTNode) -> str:
    """The texts of all strings in an expression, with a blank between them."""
    if isinstance(node, cst.FormattedStringText):
        return node.value
    if isinstance(node, cst.SimpleString):
        return string(node) or ""
    return " ".join(filter(None, map(texts_in, node.children)))


def numbered(node: cst.CSTNode, device: str) -> cst.BaseExpression | None:
    """The number in "cuda:1", f"cuda:{i:d}", "cuda:%d" % i, "cuda:{}".format(i), "cuda:" + i."""
    start = f"{device}:"
    text = string(node)
    if text is not None and re.fullmatch(rf"{re.escape(start)}\d+", text):
        return cst.Integer(str(int(text[len(start) :])))
    if isinstance(node, cst.FormattedString) and len(node.parts) == 2:
        before, value = node.parts
        if (
            isinstance(before, cst.FormattedStringText)
            and before.value == start
            and isinstance(value, cst.FormattedStringExpression)
            and value.conversion is None
            and (value.format_spec is None or _is_whole(value.format_spec))
            and value.equal is None
        ):
            return value.expression
    if isinstance(node, cst.BinaryOperation):
        left, right = string(node.left), node.right
        if isinstance(node.operator, cst.Modulo) and left in (
            f"{start}%d",
            f"{start}%s",
            f"{start}%i",
        ):
            if not isinstance(right, cst.Tuple):
                return right
            first = right.elements[0] if len(right.elements) == 1 else None
            return first.value if isinstance(first, cst.Element) else None
        if isinstance(node.operator, cst.Add) and left == start:  # then the right side is a text
            is_text = isinstance(right, cst.Call) and last_name(right.func) == "str"
            return (_only_argument(right) if is_text else None) or right
    if isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute):
        text = string(node.func.value)
        pattern = rf"{re.escape(start)}\{{0?(?::d)?\}}"
        if node.func.attr.value == "format" and text and re.fullmatch(pattern, text):
            return _only_argument(node)
    return None


def _only_argument(call: Any) -> cst.BaseExpression | None:
    arg = call.args[0] if len(call.args) == 1 else None
    return arg.value if arg is not None and not arg.star and arg.keyword is None else None


def _is_whole(spec: Sequence[cst.BaseFormattedStringContent]) -> bool:
    return [each.value for each in spec if isinstance(each, cst.FormattedStringText)] == ["d"]


def calls(node: cst.CSTNode) -> Iterator[cst.Call]:
    """The calls in an expression, from outside to inside."""
    if isinstance(node, cst.Call):
        yield node
    for child in node.children:
        yield from calls(child)


def is_simple(node: cst.CSTNode) -> bool:
    """Whether it may be written twice: names, dots, and subscripts by names or numbers."""
    if isinstance(node, cst.Subscript):
        inner = [each.slice for each in node.slice]
        return is_simple(node.value) and all(
            isinstance(each, cst.Index) and isinstance(each.value, cst.Name | cst.Integer)
            for each in inner
        )
    return is_dotted(node)


def keyword(call: cst.Call, name: str) -> cst.Arg | None:
    """The argument of that keyword."""
    named = [arg for arg in call.args if arg.keyword is not None and arg.keyword.value == name]
    return named[0] if named else None


def argument(call: cst.Call, index: int, name: str) -> cst.Arg | None:
    """The argument at that position or of that keyword; None after a starred argument."""
    plain = call.args[: index + 1]
    if len(plain) == index + 1 and all(not arg.star and arg.keyword is None for arg in plain):
        return plain[index]
    return keyword(call, name)


def without(arguments: Sequence[cst.Arg], *left_out: cst.Arg) -> list[cst.Arg]:
    """The arguments but these; the last one has no comma."""
    kept = [arg for arg in arguments if not any(arg is each for each in left_out)]
    if kept and kept[-1] is not arguments[-1]:
        kept[-1] = kept[-1].with_changes(comma=arguments[-1].comma)
    return kept


class Writer:
    """Makes expressions with the name that portagpu has in a file."""

    def __init__(self, alias: str) -> None:
        self.alias = alias

    def expression(self, code: str) -> cst.BaseExpression:
        """``code`` with "pg." for portagpu."""
        return cst.parse_expression(re.sub(r"\bpg\.", f"{self.alias}.", code))

    def instead(self, code: str) -> Callable[[cst.CSTNode], cst.BaseExpression]:
        """Replaces any node by :meth:`expression` of ``code``."""
        return lambda _: self.expression(code)

    def device(self, index: cst.BaseExpression | None = None) -> cst.BaseExpression:
        """``pg.device_string(index)``: the same text on the vendor's devices, and nothing opened.

        ``pg.device(index)`` would be a device with a number where there was none, of now and not of
        when it is used.
        """
        arguments = [] if index is None else [cst.Arg(index)]
        return cst.Call(self.expression("pg.device_string"), arguments)

    def unless_cpu(
        self, value: cst.BaseExpression, otherwise: cst.BaseExpression, *, bare: bool
    ) -> cst.BaseExpression:
        """``value if pg.device_string() != "cpu" else otherwise``: ``value`` on every GPU.

        In brackets unless it may stand ``bare``.
        """
        made = cst.IfExp(test=self.expression(NOT_CPU), body=value, orelse=otherwise)
        brackets = {"lpar": [cst.LeftParen()], "rpar": [cst.RightParen()]}
        return made if bare else made.with_changes(**brackets)
