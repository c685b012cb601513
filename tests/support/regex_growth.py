"""How long patterns take on texts that are made to keep them busy, measured in this process.

``python -m tests.support.regex_growth MODULE ...`` prints a line of JSON: how many patterns and
texts were tried, and which of them take more than linear time. The test runs it as a child with a
limit, because a pattern of cubic time does not come back.
"""

from __future__ import annotations

import ast
import contextlib
import itertools
import json
import re
import sys
import time
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from portagpu.checks.recordings.anonymous import Anonymizer
from portagpu.facts.readings.model import FormatError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    Work = Callable[[str], object]

LENGTH: Final = 4000
"""Characters: the longest text of a bundle, and a long line of a tool."""
_WORTH_MEASURING_S: Final = 0.004
"""Quadratic time needs more for four times that length; what needs less is linear enough."""
_GROWTH: Final = 4.0
"""Of the time for four times the length: 4 is linear and 16 quadratic; 4 x 2.2 lies between."""
_MARGIN: Final = 2.2
_PUMPS: Final = (
    *("a", "A", "0", "-", "_", ".", "/", ":", "=", " ", "\n", '"', "'", "@", "~", "<", ">", "]"),
    *("a-", "a.", "a:", "0:", "1.", "a/", "/a", "//", "a@", "a=", '="', "a ", " \n", "-a", "_a"),
    *("token", "token-", "--token", "secret=", "serial", "serial-", "serial ", "serial no "),
    *("eyJ-", "eyJaaaaaaaa.", "-----BEGIN A", "-----END A", "sk-", "bearer ", "ip-1-", "GPU-"),
    *("<a-1>", "<a-1", "::", "fe80:", "1:1:", "0a:", "host:1:1 [", "A_B='", 'A_B="', "A1b2"),
    *("[", "[-", "-1", "name=", "name=a, ", "process ", " pid 1", "<name", "</", "<a b=", "&#"),
    *("{", '{"', '\\"', "\\", "0:0:", "| ", "|=", "PID NAME\n", "Processes:", ",", "é", "\u2028"),
)
_ENDS: Final = ("", "!", "g]")
_MAX_WORD: Final = 12


def patterns(module: Any) -> Iterator[tuple[str, re.Pattern[str]]]:
    """Every compiled pattern among the module's values, also those inside tuples and tables."""
    waiting = [(name, value) for name, value in vars(module).items() if not name.startswith("__")]
    while waiting:
        name, value = waiting.pop()
        if isinstance(value, re.Pattern):
            yield f"{module.__name__}.{name}", value
        elif isinstance(value, tuple | list | set | frozenset):
            waiting.extend((f"{name}[{at}]", each) for at, each in enumerate(value))
        elif isinstance(value, dict):
            waiting.extend((f"{name}[{key!r}]", each) for key, each in value.items())


def hidden(module: Any) -> Iterator[str]:
    """Where a function of the module writes a pattern of its own, which nobody can find."""
    tree = ast.parse(Path(module.__file__).read_text("utf-8"))
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef | ast.Lambda):
            continue
        for call in ast.walk(function):
            if (
                isinstance(call, ast.Call)
                and isinstance(call.func, ast.Attribute)
                and isinstance(call.func.value, ast.Name)
                and call.func.value.id == "re"
                and call.args
                and isinstance(call.args[0], ast.Constant | ast.JoinedStr)
                and "choices" not in ast.dump(call)  # names, each of them escaped
            ):
                yield f"{module.__name__}:{call.lineno}"


def texts(source: str, length: int) -> Iterator[str]:
    """Texts of about ``length`` characters, of the pattern's own words and of ``_PUMPS``."""
    words = [w for w in re.findall(r"[A-Za-z0-9_]+", source) if 1 < len(w) <= _MAX_WORD]
    own = list(dict.fromkeys(words))[:16]
    joints = ("", "-", " ", "=")
    pumps = dict.fromkeys((*_PUMPS, *(w + j for w, j in itertools.product(own, joints))))
    for pump in pumps:
        body = pump * (length // len(pump))
        yield from (body + end for end in _ENDS)
        yield from (word + body for word in own[:2])
    # a beginning that a part of the pattern takes, and then what keeps the next part busy
    for word, pump in itertools.product(own[:6], _PUMPS[:18]):
        yield word + pump * (length // len(pump)) + "!"
        yield (word + pump * 20) * (length // (len(word) + 20 * len(pump)))


def functions() -> dict[str, Work]:
    """What takes an untrusted text as a whole, with what it does between its patterns."""
    from portagpu.base.redact.patterns import replace_forms
    from portagpu.base.redact.scrub import find_identifying, scrub

    known = [("host", "node-07"), ("user", "jdoe"), ("environment", "a-a-a"), ("path", "/a/a/a")]
    return {
        "replace_forms": lambda text: replace_forms(text, lambda kind, _: f"<{kind}-1>"),
        "remaining": lambda text: list(find_identifying({"reason": text, text[:4000]: 1})),
        "scrub": lambda text: scrub({"reason": text}, known),
        "Anonymizer.text": lambda text: _cleaned(Anonymizer(known), text),
        "Anonymizer.path": lambda text: Anonymizer(known).path(text),
    }


def _cleaned(cleaner: Anonymizer, text: str) -> None:
    with contextlib.suppress(FormatError):  # what looks like JSON and is none
        cleaner.text(text)


def seconds(work: Work, text: str, times: int = 1) -> float:
    best = float("inf")
    for _ in range(times):
        # allowed: how it grows is what is measured, in the deep tier alone
        begun = time.process_time()
        work(text)
        # allowed: how it grows is what is measured, in the deep tier alone
        best = min(best, time.process_time() - begun)
    return best


def grows(
    work: Work, source: str, length: int = LENGTH, step: int = 1
) -> tuple[int, dict[str, float]]:
    """(texts tried, text -> growth where four times the length take more than linear time).

    Of the texts every ``step``-th is tried. What is done only to texts above a fixed length is a
    step, and no growth: a text counts if it takes more than linear time at 16 times the length too.
    """
    found: dict[str, float] = {}
    lengths = zip(*(texts(source, times * length) for times in (1, 4, 16)), strict=True)
    some = itertools.islice(lengths, 0, None, step)
    for tried, (short, long, longer) in enumerate(some, 1):  # noqa: B007 - counted
        # one measurement says most; what looks slow in it is measured again, and the best counts
        for one, other, times in ((short, long, 1), (short, long, 3), (long, longer, 1)):
            taken = seconds(work, other, times)
            growth = taken / max(seconds(work, one, times), 1e-6)
            if taken < _WORTH_MEASURING_S or growth < _GROWTH * _MARGIN:
                break
        else:
            found[short[:30]] = round(growth, 1)
    return tried, found


def _without(pattern: re.Pattern[Any], text: str) -> None:
    pattern.sub("", text) if isinstance(pattern.pattern, str) else pattern.sub(b"", text.encode())


def _source(pattern: re.Pattern[Any]) -> str:
    return pattern.pattern if isinstance(pattern.pattern, str) else pattern.pattern.decode()


def main(names: Iterable[str]) -> None:
    modules = [import_module(name) for name in names]
    known = dict(each for module in modules for each in patterns(module))
    works: dict[str, tuple[Work, str, int]] = {}
    for name, pattern in known.items():
        works[name] = (partial(_without, pattern), _source(pattern), 1)
    everything = " ".join(map(_source, known.values()))
    # a function holds all patterns, each of which was tried on all texts
    works |= {name: (work, everything, 4) for name, work in functions().items()}
    tried, slow = 0, {}
    for name, (work, source, step) in works.items():
        # allowed: how it grows is what is measured, in the deep tier alone
        begun = time.process_time()
        print(name, end=" ", file=sys.stderr, flush=True)
        count, found = grows(work, source, step=step)
        # allowed: how it grows is what is measured, in the deep tier alone
        print(count, round(time.process_time() - begun, 1), "s", file=sys.stderr, flush=True)
        tried += count
        if found:
            slow[name] = found
    print(
        json.dumps(
            {
                "patterns": len(known),
                "texts": tried,
                "slow": slow,
                "hidden": [each for module in modules for each in hidden(module)],
            }
        )
    )


if __name__ == "__main__":
    main(sys.argv[1:])
