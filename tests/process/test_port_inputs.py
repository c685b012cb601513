"""What is not a usual program, and what happens in the middle of a rewrite."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("libcst")

from portagpu.cli import main
from portagpu.train.port.lint import lint
from portagpu.train.port.rewrite import rewrite
from tests.unit.train.test_port_rewrite import changed, rewritten


def test_a_use_in_fifty_thousand_lines_is_found(tmp_path: Path) -> None:
    """Only statements that a rule can match are read closely."""
    path = tmp_path / "long.py"
    lines = [f"value_{number} = {number}" for number in range(50_000)]
    lines[25_000] = "x = x.cuda()"
    path.write_text("import torch\n" + "\n".join(lines) + "\n", encoding="utf-8")
    assert [each.line for each in lint([str(path)]).findings] == [25_002]


@pytest.mark.parametrize(
    "code",
    ["from helpers import *\n", "pg = dist.new_group([0])\n", "import pygame as pg\n",
     "def f(pg):\n    return pg\n", "for pg in groups:\n    pass\n"],
)  # fmt: skip
def test_a_name_that_is_taken_is_not_replaced(tmp_path: Path, code: str) -> None:
    """A star import may bind it too, after portagpu's own import."""
    new = changed(tmp_path, f"import torch\n{code}x = x.cuda()\n")
    assert "import portagpu\n" in new
    assert new.endswith(f"{code}x = x.to(portagpu.device_string())\n")


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("kernel.pyx", b"cimport numpy\nx = x.cuda()\n", "is not a Python"),
        ("template.py", b"model = {{ model }}.cuda()\n{% if gpu %}\n{% endif %}\n", "line 2"),
    ],
)
def test_what_only_looks_like_python_is_named(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], name: str, data: bytes, words: str
) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    for verb in (["lint"], ["rewrite", "--write"]):
        assert main(["port", *verb, str(path)]) == 3
        assert words in capfd.readouterr().err
    assert path.read_bytes() == data


def test_a_configuration_gets_no_import(tmp_path: Path) -> None:
    """OpenMMLab's programs take every name of such a file for a setting, modules too."""
    path = tmp_path / "default_runtime.py"
    code = "# settings\nseed = 1\ndist_params = dict(backend='nccl')\n"
    path.write_text(code, encoding="utf-8")
    found = rewritten(path)
    assert not found.is_changed
    assert [each.line for each in found.left] == [3]
    assert "only assigns values" in found.left[0].left
    path.write_text("DEVICE = 'cuda'\n", encoding="utf-8")
    assert "pg.device_string()" in rewritten(path).text


def test_an_interrupted_rewrite_leaves_whole_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those before are written, those after are not, and a second run does the rest."""
    for name in ("a.py", "b.py", "c.py"):
        (tmp_path / name).write_text("x.cuda()\n", encoding="utf-8")
    replace = Path.replace

    def interrupted(self: Path, target: Path) -> Path:
        if target.name == "b.py":
            raise KeyboardInterrupt
        return replace(self, target)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", interrupted)
        with pytest.raises(KeyboardInterrupt):
            rewrite([str(tmp_path)]).write()
    assert sorted(each.name for each in tmp_path.iterdir()) == ["a.py", "b.py", "c.py"]
    texts = [(tmp_path / name).read_text(encoding="utf-8") for name in ("a.py", "b.py", "c.py")]
    assert ["pg." in each for each in texts] == [True, False, False]
    assert texts[1:] == ["x.cuda()\n"] * 2
    rewrite([str(tmp_path)]).write()
    assert {each.read_text(encoding="utf-8") for each in tmp_path.iterdir()} == {texts[0]}


def test_uncommitted_lines_of_a_repository_stay(tmp_path: Path) -> None:
    """The text that is there counts, not what is committed, and nothing else is touched."""
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b.example", "-C", str(tmp_path)]
    path = tmp_path / "a.py"
    path.write_text("x.cuda()\n", encoding="utf-8")
    for words in (["init", "-q"], ["add", "a.py"], ["commit", "-qm", "first"]):
        subprocess.run([*git, *words], check=True, capture_output=True)
    path.write_text("x.cuda()\ny = 1  # not committed\n", encoding="utf-8")
    (tmp_path / "new.py").write_text("y.cuda()\n", encoding="utf-8")
    rewrite([str(tmp_path)]).write()
    assert path.read_text(encoding="utf-8").endswith("y = 1  # not committed\n")
    shown = subprocess.run([*git, "status", "--short"], check=True, capture_output=True, text=True)
    assert shown.stdout == " M a.py\n?? new.py\n"


@pytest.mark.parametrize(
    "line",
    [
        "torch.nn.Module.cuda(net)",
        "Net.cuda(net)",
        "x = x.cuda(memory_format=torch.channels_last)",
        "model.cuda = place\nmodel.cuda()",
        "setattr(model, 'cuda', place)\nmodel.cuda()",
        "torch.Tensor.cuda = place\nx.cuda()",
        "x = x.cuda(\n    0,  # the first\n)",
    ],
)
def test_a_move_that_another_call_cannot_say_stays(tmp_path: Path, line: str) -> None:
    path = tmp_path / "a.py"
    path.write_text(f"import torch\nclass Net(torch.nn.Module):\n    pass\n{line}\n", "utf-8")
    found = rewritten(path)
    assert not found.is_changed
    assert "PG001" in {each.rule.id for each in found.left}


@pytest.mark.parametrize(
    "text", ['"cuda:%d" % (*i,)', '"cuda:{}".format(*i)', '"cuda:{}".format(**i)']
)
def test_a_number_out_of_several_stays(tmp_path: Path, text: str) -> None:
    code = f"import torch\nd = torch.device({text})\n"
    (tmp_path / "a.py").write_text(code, encoding="utf-8")
    rewrite([str(tmp_path)]).write()
    assert (tmp_path / "a.py").read_text(encoding="utf-8") == code


def test_a_file_that_has_both_names_gets_a_third(tmp_path: Path) -> None:
    new = changed(tmp_path, "import torch\npg = 1\nportagpu = 2\nx = x.cuda()\n")
    assert "import portagpu as portagpu_\n" in new
    assert new.endswith("x = x.to(portagpu_.device_string())\n")


def test_a_read_only_file_stays(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_text("x.cuda()\n", encoding="utf-8")
    path.chmod(0o444)
    result = rewrite([str(tmp_path)])
    result.write()
    assert [each.why for each in result.unread] == [f"stays as it is: {path} is read-only"]
    assert path.read_text(encoding="utf-8") == "x.cuda()\n"


def test_a_submodule_of_a_package_is_found_by_its_name(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_text("from numba import cuda, njit\nfrom nvidia import dali\n", encoding="utf-8")
    found = lint([str(path)]).findings
    assert [(each.line, each.rule.id) for each in found] == [(1, "PG407"), (2, "PG402")]


def test_a_setting_that_is_a_text_for_readers_ties_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    lines = ('about = "as nvidia-smi says"', "note = 'NCCL_DEBUG'", 'run = "nvidia-smi"')
    path.write_text("\n".join(lines), encoding="utf-8")
    assert [each.line for each in lint([str(path)]).findings] == [3]


def test_what_the_backend_offers_under_another_name_is_own(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_text("m = DDP(m, device_ids=gpu.comm.device_ids)\nn = DDP(n, device_ids=ids)\n")
    assert [each.line for each in lint([str(path)]).findings] == [2]


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("a.py", b'print "x"\n', "is not Python"),
        ("a.py", b"x\0\n", "is not Python|cannot be read"),
        ("a.py", b's = "\xe9"\n', "is not Python"),
        ("a.ipynb", b"{}", "is a notebook"),
    ],
)
def test_a_program_that_python_cannot_read_is_not_run(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], name: str, data: bytes, words: str
) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    assert main(["port", "run", str(path)]) == 2
    error = capfd.readouterr().err
    assert re.search(words, error)
    assert error.count("\n") == 1


@pytest.mark.parametrize("line", ["import portagpu as pg", "import portagpu"])
def test_an_import_inside_a_function_is_not_for_the_file(tmp_path: Path, line: str) -> None:
    code = f"def f():\n    {line}\n\n\ndef g(x):\n    return x.to('cuda')\n"
    path = tmp_path / "script.py"
    path.write_text(code, encoding="utf-8")
    once = rewritten(path).text
    values: dict[str, Any] = {}
    exec(compile(once, "script.py", "exec"), values)
    assert values["g"](_Tensor()) == "moved"
    path.write_text(once, encoding="utf-8")
    assert not rewrite([str(path)], unsafe=True).changed


class _Tensor:
    def to(self, device: object) -> str:
        return "moved"


def test_several_processes_find_what_one_does(tmp_path: Path) -> None:
    for number in range(70):
        (tmp_path / f"{number}.py").write_text(f"{number}\nx.cuda()\n" * (number % 3))
    (tmp_path / "bad.py").write_text("x.cuda(\n", encoding="utf-8")
    one, two = lint([str(tmp_path)]), lint([str(tmp_path)], processes=2)
    assert one == two
    assert len(one.findings) == 69
    assert [Path(each.path).name for each in two.unread] == ["bad.py"]
