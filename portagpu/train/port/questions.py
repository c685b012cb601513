"""What a program asks of devices: gates, comparisons, assertions, fields of properties."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import libcst as cst

from portagpu.train.port.expressions import (
    argument,
    calls,
    code_of,
    dotted,
    last_name,
    last_statement,
    string,
    texts_in,
)
from portagpu.train.port.rules import DEVICE_NAME

if TYPE_CHECKING:
    from collections.abc import Iterator

    from portagpu.train.port.uses import Uses


_FIELDS: Final = frozenset({"name", "total_memory", "multi_processor_count", "warp_size"})
"""The fields of a device's properties that every device has."""
_STATISTICS: Final = re.compile(r"(?:allocated|reserved)_bytes\.all\.(?:current|peak)")
"""The keys of ``memory_stats`` that every device has."""


_ACCELERATOR: Final = "torch.accelerator.current_accelerator"
"""Its device has no number, and its type is the text of a device without one."""


def in_attribute(finder: Uses, node: cst.Attribute) -> None:
    """``get_device_properties(i).major``, and handles of the vendor's runtime."""
    field, call = node.attr.value, node.value
    if finder.scope.library(node) in {each.library for each in finder.rules.words}:
        left = "it is not known what this line does with it"
        finder.add(node, finder.rules.shapes["library text"], left=left)
    asked = call.func if isinstance(call, cst.Call) and not call.args else None
    if field == "type" and asked is not None and finder.scope.qualified(asked) == _ACCELERATOR:
        finder.add(node, finder.rules.names[_ACCELERATOR].rule, lambda _: finder.write.device())
        finder.handled.add(asked)
    elif finder.scope.is_answer(node.value, "get_device_properties"):
        if field not in _FIELDS and not field.startswith("__"):
            rule = finder.rules.shapes["property"]
            finder.add(node, rule, left=f"not every device has a field {field}: a CPU has none")
            if isinstance(node.value, cst.Call):
                finder.handled.add(node.value.func)
    elif field in {f"{each.device}_{kind}" for each in finder.rules.words for kind in _HANDLES}:
        rule = finder.rules.shapes["unknown name"]
        finder.add(node, rule, left="it is a handle of the vendor's runtime, which a CPU has not")


_HANDLES: Final = ("stream", "event")


def in_subscript(finder: Uses, node: cst.Subscript) -> None:
    """``memory_stats()["num_ooms"]``, also under a name, and ``device.split(":")[1]``."""
    in_split(finder, node)
    first = node.slice[0].slice
    key = string(first.value) if isinstance(first, cst.Index) else None
    if key is None or _STATISTICS.fullmatch(key):
        return
    if finder.scope.is_answer(node.value, "memory_stats"):
        rule = finder.rules.shapes["property"]
        finder.add(node, rule, left=f"not every device counts {key}: a CPU does not")
        if isinstance(node.value, cst.Call):
            finder.handled.add(node.value.func)


_ABOUT_DEVICES: Final = re.compile(r"gpu|cuda|device|is_available", re.IGNORECASE)
_DECISION: Final = "whether the script runs without a GPU is a decision"
_PARSES: Final = {"replace", "split", "strip", "lstrip", "removeprefix", "partition"}
_SEARCHES: Final = {"startswith", "find", "index", "count", "search", "match", "fullmatch"}


def in_text(finder: Uses, call: cst.Call) -> None:
    """``device.replace("cuda:", "")``, ``str(error).find("out of memory")``."""
    last, first = last_name(call.func), string(call.args[0].value) if call.args else None
    if last in _SEARCHES and any(_is_out_of_memory(string(arg.value)) for arg in call.args):
        finder.add(call, finder.rules.shapes["out of memory"], left=_WORDS)
    if last in _PARSES and first in {f"{each.device}:" for each in finder.rules.words}:
        rule = finder.rules.shapes["device parsed"]
        finder.add(call, rule, left="what the number is for is not in this line")


_RUNS_TEXT: Final = {"exec", "eval"}


def in_code(finder: Uses, call: cst.Call) -> None:
    """``exec("x.cuda()")``: code in a text, also one of a name, which no rule reads."""
    if last_name(call.func) not in _RUNS_TEXT or not isinstance(call.func, cst.Name):
        return
    code = call.args[0].value if call.args else None
    while isinstance(code, cst.Call) and last_name(code.func) in _KEEP_CODE and code.args:
        code = code.args[0].value
    text = "" if code is None else texts_in(code) or finder.scope.texts.get(dotted(code), "")
    for words in finder.rules.words if text else ():
        pattern = rf"\b(?:{re.escape(words.device)}|{re.escape(words.library)})\b"
        if re.search(pattern, text):
            rule = finder.rules.shapes["unknown name"]
            finder.add(call, rule, left="it is code in a text, which is not rewritten")


_KEEP_CODE: Final = {"compile", "dedent", "strip"}
_COMMANDS: Final = {
    *("run", "call", "Popen", "check_call", "check_output", "system", "popen", "getoutput"),
    *("getstatusoutput", "create_subprocess_shell", "create_subprocess_exec", "execvp", "spawnvp"),
}
"""Functions that start another program."""


def in_command(finder: Uses, call: cst.Call) -> None:
    """``subprocess.run(["python", "train.py", "--device", "cuda"])``: a line of a shell."""
    if last_name(call.func) not in _COMMANDS or not isinstance(call.func, cst.Attribute | cst.Name):
        return
    line = " ".join(
        texts_in(arg.value) or finder.scope.texts.get(dotted(arg.value), "") for arg in call.args
    )
    if not any(word in line for each in finder.rules.words for word in (each.device, each.library)):
        return
    for each in finder.rules.texts:
        if "shell" in each.kinds and "python" not in each.kinds and each.pattern.search(line):
            finder.add(call, each.rule, left="it is a command for another program")


_BUILDS: Final = {f"torch.utils.cpp_extension.{name}" for name in ("load", "load_inline")}


def in_build(finder: Uses, call: cst.Call) -> None:
    """``load(sources=["a.cu"])`` and ``load_inline(cuda_sources=...)`` of torch's extensions."""
    if finder.scope.qualified(call.func) not in _BUILDS:
        return
    keywords = {arg.keyword.value for arg in call.args if arg.keyword is not None}
    suffixes = tuple(f"{each}{quote}" for each in finder.rules.suffixes for quote in "'\"")
    of_vendor = any(each.device in key for key in keywords for each in finder.rules.words)
    sources = argument(call, 1, "sources")
    is_shown = not any(arg.star for arg in call.args) and (
        sources is None or isinstance(sources.value, cst.List | cst.SimpleString)
    )
    if of_vendor or not is_shown or any(each in code_of(call, 10_000) for each in suffixes):
        left = "the sources and flags are of one vendor's compiler"
        if not of_vendor and not is_shown:
            left = "this line does not show which compiler builds it"
        finder.add(call, finder.rules.shapes["extension"], left=left)


def in_split(finder: Uses, node: cst.Subscript) -> None:
    """``device.split(":")[1]``."""
    call = node.value
    if not isinstance(call, cst.Call) or not isinstance(call.func, cst.Attribute):
        return
    is_split = call.func.attr.value == "split" and len(call.args) == 1
    if not is_split or string(call.args[0].value) != ":" or code_of(node.slice[0]) == "0":
        return
    owner = call.func.value
    owner = owner.args[0].value if isinstance(owner, cst.Call) and owner.args else owner
    if DEVICE_NAME.fullmatch(last_name(owner)):
        rule = finder.rules.shapes["device parsed"]
        finder.add(node, rule, left="what the number is for is not in this line")


_WORDS: Final = "what other errors of this kind are called is not in this line"


def _is_out_of_memory(text: str | None) -> bool:
    return text is not None and "out of memory" in text.lower()


def in_texts(finder: Uses, values: cst.BaseExpression) -> None:
    """``any(text in str(error) for text in ["CUDA out of memory", ...])``, also under a name."""
    if isinstance(values, cst.List | cst.Tuple | cst.Set):
        for each in values.elements:
            if _is_out_of_memory(string(each.value)):
                finder.add(each.value, finder.rules.shapes["out of memory"], left=_WORDS)


def in_assert(finder: Uses, node: cst.Assert) -> None:
    """``assert torch.cuda.is_available()``, ``assert x.is_cuda``."""
    words = finder.rules.words
    for call in calls(node.test):
        if any(finder.scope.qualified(call.func) in each.available for each in words):
            rule = finder.rules.shapes["gate"]
            finder.add(call.func, rule, finder.write.instead("pg.is_available"))
    if isinstance(node.test, cst.Comparison | cst.Name) and finder.scope.is_guard(node.test):
        finder.add(node.test, finder.rules.shapes["gate"], left=_DECISION)
    for each in _attributes(node.test):
        if each.attr.value in {f"is_{word.device}" for word in words}:
            rule = finder.rules.shapes["tensor type"]
            finder.add(each, rule, lambda new: _on_device(finder, new))


def _attributes(node: cst.CSTNode) -> Iterator[cst.Attribute]:
    if isinstance(node, cst.Attribute):
        yield node
    for child in node.children:
        yield from _attributes(child)


def _on_device(finder: Uses, tensor: cst.Attribute) -> cst.BaseExpression:
    own = cst.Attribute(cst.Attribute(tensor.value, cst.Name("device")), cst.Name("type"))
    other = finder.write.expression("pg.device().type")
    return cst.Comparison(
        own,
        [cst.ComparisonTarget(cst.Equal(), other)],
        lpar=[cst.LeftParen()],
        rpar=[cst.RightParen()],
    )


def in_comparison(finder: Uses, node: cst.Comparison) -> None:
    """Compute capabilities, and ``get_backend() == "nccl"``."""
    sides = [node.left, *(each.comparator for each in node.comparisons)]
    for side in sides:
        if _is_out_of_memory(string(side)):
            finder.add(node, finder.rules.shapes["out of memory"], left=_WORDS)
        if any(finder.scope.library(side) == each.library for each in finder.rules.words):
            finder.handled.add(side)
            rule = finder.rules.shapes["library comparison"]
            finder.add(node, rule, left="you decide what runs without that library")
    if len(node.comparisons) == 1:
        _capability(finder, node)


def _capability(finder: Uses, node: cst.Comparison) -> None:
    rule = finder.rules.shapes["capability"]
    capabilities = {f"{each.module}.get_device_capability" for each in finder.rules.words}
    found = [call for call in calls(node) if finder.scope.qualified(call.func) in capabilities]
    if not found:
        return
    finder.handled.add(found[0].func)
    bound = re.sub(r"\s", "", code_of(node.comparisons[0].comparator))
    is_minimum = isinstance(node.comparisons[0].operator, cst.GreaterThanEqual)
    major = isinstance(node.left, cst.Subscript) and code_of(node.left).endswith("[0]")
    if is_minimum and (bound == "8" if major else bound in ("(8,0)", "(8,)")):
        code = "pg.is_bf16_supported(including_emulation=False)"
        finder.add(node, rule, finder.write.instead(code))
    else:
        finder.add(node, rule, left="this line does not say which feature the number stands for")


def in_if(finder: Uses, node: cst.If) -> None:
    """A script that ends where there are too few GPUs."""
    if not _ABOUT_DEVICES.search(code_of(node.test, 1000)):
        return
    for statement in node.body.body:
        for call in calls(statement) if not isinstance(statement, cst.If) else ():
            if last_name(call.func) in ("exit", "quit", "_exit"):
                value = code_of(call.args[0].value) if call.args else "0"
                silent = value in ("0", "None")
                rule = finder.rules.shapes["silent exit" if silent else "gate"]
                left = "whether fewer devices will do is a decision"
                if "device_count" in code_of(node.test, 1000):
                    left += "; PORTAGPU_SHARED_DEVICES=N has a CPU count N"
                finder.add(node.test, rule, left=left)
    raises = isinstance(last_statement(node.body), cst.Raise)
    if raises and (finder.scope.is_opposite(node.test) or finder.scope.is_other(node.test)):
        finder.add(node.test, finder.rules.shapes["gate"], left=_DECISION)
