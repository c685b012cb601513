"""Small questions about expressions of libcst, and the expressions that are written instead."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, TypeGuard

import libcst as cst

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_EMPTY: Final = cst.Module([])


def code_of(node: cst.CSTNode, most: int = 80) -> str:
    """The node's code on one line, cut behind ``most`` characters."""
    code = " ".join(_EMPTY.code_for_node(node).split())
    return code if len(code) <= most else code[: most - 3] + "..."


def is_dotted(node: cst.CSTNode) -> TypeGuard[cst.Name | cst.Attribute]:
    """Whether it is a name, or names joined by dots."""
    while isinstance(node, cst.Attribute):
        node = node.value
    return isinstance(node, cst.Name)


def dotted(node: cst.CSTNode) -> str:
    """ "a.b.c"; empty for what is no such thing."""
    return _EMPTY.code_for_node(node) if is_dotted(node) else ""


def last_name(node: cst.CSTNode) -> str:
    """The name behind the last dot; empty where there is none."""
    if isinstance(node, cst.Attribute):
        return node.attr.value
    return node.value if isinstance(node, cst.Name) else ""


def string(node: cst.CSTNode | None) -> str | None:
    """The value of a plain string literal; None for anything else."""
    if not isinstance(node, cst.SimpleString):
        return None
    value = node.evaluated_value
    return value if isinstance(value, str) else None


def numbered(node: cst.CSTNode, device: str) -> cst.BaseExpression | None:
    """The number in "cuda:1", f"cuda:{i}", "cuda:%d" % i, "cuda:{}".format(i), "cuda:" + str(i)."""
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
            and value.format_spec is None
            and value.equal is None
        ):
            return value.expression
    if isinstance(node, cst.BinaryOperation):
        left, right = string(node.left), node.right
        if isinstance(node.operator, cst.Modulo) and left in (f"{start}%d", f"{start}%s"):
            one = isinstance(right, cst.Tuple) and len(right.elements) == 1
            return right.elements[0].value if isinstance(right, cst.Tuple) and one else right
        if isinstance(node.operator, cst.Add) and left == start and isinstance(right, cst.Call):
            return right.args[0].value if last_name(right.func) == "str" and right.args else None
    if isinstance(node, cst.Call) and len(node.args) == 1 and isinstance(node.func, cst.Attribute):
        text = string(node.func.value)
        if node.func.attr.value == "format" and text in (f"{start}{{}}", f"{start}{{0}}"):
            return node.args[0].value
    return None


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
    """The argument at that place or of that keyword; None behind a star."""
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
        """``pg.device()`` or ``pg.device(index)``."""
        arguments = [] if index is None else [cst.Arg(index)]
        return cst.Call(self.expression("pg.device"), arguments)

    def device_text(self, index: cst.BaseExpression | None = None) -> cst.BaseExpression:
        """``pg.device().type`` or ``str(pg.device(index))``: a text where there was one."""
        if index is None:
            return self.expression("pg.device().type")
        return cst.Call(cst.Name("str"), [cst.Arg(self.device(index))])
