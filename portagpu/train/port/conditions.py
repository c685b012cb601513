"""Gates, comparisons and assertions about one vendor's devices."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import libcst as cst

from portagpu.train.port.expressions import calls, code_of, last_name, string

if TYPE_CHECKING:
    from collections.abc import Iterator

    from portagpu.train.port.uses import Finder

_ABOUT_DEVICES: Final = re.compile(r"gpu|device_count|is_available", re.IGNORECASE)


def in_assert(finder: Finder, node: cst.Assert) -> None:
    """``assert torch.cuda.is_available()``, ``assert x.is_cuda``."""
    words = finder.rules.words
    for call in calls(node.test):
        if any(finder.scope.qualified(call.func) in each.available for each in words):
            rule = finder.rules.shapes["gate"]
            finder.add(call.func, rule, finder.write.instead("pg.is_available"))
    for each in _attributes(node.test):
        if each.attr.value in {f"is_{word.device}" for word in words}:
            rule = finder.rules.shapes["tensor type"]
            finder.add(each, rule, lambda new: _on_device(finder, new))


def _attributes(node: cst.CSTNode) -> Iterator[cst.Attribute]:
    if isinstance(node, cst.Attribute):
        yield node
    for child in node.children:
        yield from _attributes(child)


def _on_device(finder: Finder, tensor: cst.Attribute) -> cst.BaseExpression:
    own = cst.Attribute(cst.Attribute(tensor.value, cst.Name("device")), cst.Name("type"))
    other = finder.write.expression("pg.device().type")
    return cst.Comparison(
        own,
        [cst.ComparisonTarget(cst.Equal(), other)],
        lpar=[cst.LeftParen()],
        rpar=[cst.RightParen()],
    )


def in_comparison(finder: Finder, node: cst.Comparison) -> None:
    """Compute capabilities, and ``get_backend() == "nccl"``."""
    sides = [node.left, *(each.comparator for each in node.comparisons)]
    for side in sides:
        if any(string(side) == each.library for each in finder.rules.words):
            rule = finder.rules.shapes["library comparison"]
            finder.add(node, rule, left="what runs without that library is a decision")
    if len(node.comparisons) == 1:
        _capability(finder, node)


def _capability(finder: Finder, node: cst.Comparison) -> None:
    rule = finder.rules.shapes["capability"]
    capabilities = {f"{each.module}.get_device_capability" for each in finder.rules.words}
    found = [call for call in calls(node) if finder.scope.qualified(call.func) in capabilities]
    if not found:
        return
    finder.handled.add(found[0].func)
    bound = re.sub(r"\s", "", code_of(node.comparisons[0].comparator))
    is_least = isinstance(node.comparisons[0].operator, cst.GreaterThanEqual)
    major = isinstance(node.left, cst.Subscript) and code_of(node.left).endswith("[0]")
    if is_least and (bound == "8" if major else bound in ("(8,0)", "(8,)")):
        code = "pg.is_bf16_supported(including_emulation=False)"
        finder.add(node, rule, finder.write.instead(code))
    else:
        finder.add(node, rule, left="which feature it stands for is not in this line")


def in_if(finder: Finder, node: cst.If) -> None:
    """A script that ends where there are too few GPUs."""
    if not _ABOUT_DEVICES.search(code_of(node.test, 1000)):
        return
    for statement in node.body.body:
        for call in calls(statement) if not isinstance(statement, cst.If) else ():
            if last_name(call.func) in ("exit", "quit", "_exit"):
                value = code_of(call.args[0].value) if call.args else "0"
                silent = value in ("0", "None")
                rule = finder.rules.shapes["silent exit" if silent else "gate"]
                finder.add(node.test, rule, left="whether fewer devices will do is a decision")
    last = node.body.body[-1] if node.body.body else None
    raises = isinstance(last, cst.SimpleStatementLine) and isinstance(last.body[-1], cst.Raise)
    if raises and finder.scope.is_opposite(node.test):
        left = "whether the script runs without a GPU is a decision"
        finder.add(node.test, finder.rules.shapes["gate"], left=left)
