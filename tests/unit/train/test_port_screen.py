"""What is left out before libcst reads a file: no finding changes by it."""

from __future__ import annotations

import ast

import pytest

pytest.importorskip("libcst")

from portagpu.train.port.analysis import Analysis, analyse
from portagpu.train.port.reading import Source, excerpt, has_word
from portagpu.train.port.rules import Unread, load_rules


def places(found: Analysis | Unread | None) -> list[tuple[int, int, str, str]]:
    assert not isinstance(found, Unread), found.why
    uses = found.uses if found is not None else []
    return [(each.line, each.column, each.rule.id, each.left) for each in uses]


def both(source: Source) -> tuple[list[tuple[int, int, str, str]], ...]:
    """The uses with the screen, and those of the whole file."""
    rules = load_rules()
    return places(analyse(source, rules, whole=False)), places(Analysis(source, rules))


def python(text: str) -> Source:
    return Source("a.py", "python", text, "utf-8", text.encode())


@pytest.mark.parametrize(
    ("code", "lines"),
    [
        ("def f(): return x.cuda()\n", [1]),
        ("def f():\n    y = 1; x.cuda()\n", [2]),
        ("def f():\n    x.cuda(); y = 1\n", [2]),
        ("def f(a):\n    y = '''\n    # '''\n    x.cuda()\n", [4]),
        ("def f(a):\n    y = a + \\\n\\\n    1\n    x.cuda()\n", [5]),
        ("def f():\r\n    y = 1\r\n    x.cuda()\r\n", [3]),
        ("def f():\r    y = 1\r    x.cuda()\r", [3]),
        ("y = 1\n\x0c\ndef f():\n\tx.cuda()", [4]),
        ("@a\nclass C:\n    @b\n    def f(self):\n        y\n    @b\n    def cuda(self): y\n", []),
        ("if a:\n    y = 1\nelif b:\n    y = 2\nelse:\n    x.cuda()\n", [6]),
        ("if a:\n    x.cuda()\nelif b:\n    y = 2\nelse:\n    y = 3\n", [2]),
        ("try:\n    y = 1\nexcept E:\n    x.cuda()\nfinally:\n    y = 2\n", [4]),
        ("match a:\n    case 1:\n        y = 1\n    case 2:\n        x.cuda()\n", [5]),
        ("with a:\n    y = 1\n    y = 2\nx.cuda()\n", [4]),
        # names that only another statement explains
        ("from torch.cuda import synchronize as wait\ndef f():\n    wait()\n", [3]),
        ("from apex import amp as a\ndef f():\n    a.initialize()\n", [3]),
        ("from torch.nn.parallel import DistributedDataParallel as D\ndef f(): D(m, [i])\n", [2]),
        ("ok = torch.cuda.is_available()\ndef f():\n    if ok:\n        x.cuda()\n", []),
        ("on = x != 'cpu'\ndef f(on):\n    self.on = on\ndef g():\n    if self.on: x.cuda()\n", []),
        ("def g():\n    n = int(os.environ['LOCAL_RANK'])\ndef f():\n    x.to(n)\n", [4]),
        ("def g():\n    n = rank\n    m = n\n    n = 'cpu'\ndef f():\n    x.to(n)\n", []),
        ("self.n = rank\ndef f():\n    x.to(self.n)\n", [3]),
        ("def f():\n    if not torch.cuda.is_available():\n        return\n    x.cuda()\n", []),
        # no word of a vendor's at all
        ("def f():\n    y = 1\n    x.to(local_rank)\n", [3]),
        ("def f():\n    if gpus < 2:\n        sys.exit(0)\n", [2]),
        ("def f():\n    torch.load(p, map_location=0)\n", [2]),
        ("y = x.to(device)\n", []),
    ],
)  # fmt: skip
def test_one_use(code: str, lines: list[int]) -> None:
    source = python(code)
    screened, whole = both(source)
    assert screened == whole
    assert [line for line, *_ in screened] == lines


def test_what_no_rule_can_match_is_left_out() -> None:
    text = "import os\n\ndef f(x):\n    y = [\n        x,\n    ]\n    return y\n\nx.cuda()\n"
    part = excerpt(text, ast.parse(text))
    assert part.text == "import os\npass\nx.cuda()\n"
    assert part.numbers == [1, 3, 9]
    assert not has_word(text.replace("cuda", "cpu"))
