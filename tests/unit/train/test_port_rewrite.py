"""``portagpu port rewrite``: what it writes, what it leaves, and what it never touches."""

from __future__ import annotations

import ast
import json
import os
import re
import sys
from pathlib import Path
from typing import Final

import pytest

pytest.importorskip("libcst")

from portagpu.base.errors import OutputError
from portagpu.cli import main
from portagpu.train.port.rewrite import Rewritten, rewrite
from tests.conftest import ROOT

SAMPLES: Final = ROOT / "tests/support/port_samples"
BEFORE: Final = sorted((SAMPLES / "before").glob("*.py"))
PORTABLE: Final = sorted((SAMPLES / "portable").glob("*.py"))


def rewritten(path: Path, *, unsafe: bool = True) -> Rewritten:
    """The one file."""
    result = rewrite([str(path)], unsafe=unsafe)
    assert not result.unread
    (only,) = result.files
    return only


def changed(tmp_path: Path, code: str, *, unsafe: bool = False) -> str:
    """``code`` rewritten, without the import of portagpu."""
    path = tmp_path / "script.py"
    path.write_text(f"import torch\n{code}", encoding="utf-8")
    files = rewrite([str(path)], unsafe=unsafe).files
    text = files[0].text if files else path.read_text(encoding="utf-8")
    return text.removeprefix("import torch\n").removeprefix("import portagpu as pg\n")


@pytest.mark.parametrize("path", BEFORE, ids=lambda path: path.stem)
def test_a_sample_becomes_what_a_reader_approved(path: Path) -> None:
    expected = (SAMPLES / "after" / path.name).read_text(encoding="utf-8")
    assert rewritten(path).text == expected


@pytest.mark.parametrize("path", BEFORE, ids=lambda path: path.stem)
def test_rewriting_twice_changes_nothing(path: Path, tmp_path: Path) -> None:
    copy = tmp_path / path.name
    copy.write_text(rewritten(path).text, encoding="utf-8")
    again = rewrite([str(copy)], unsafe=True)
    assert not again.changed, again.changed[0].diff


def test_what_one_rule_writes_no_other_rewrites(tmp_path: Path) -> None:
    code = "from apex.parallel import convert_syncbn_model as c\nm = c(m)\n"
    once = changed(tmp_path, code, unsafe=True)
    assert changed(tmp_path, once, unsafe=True) == once


@pytest.mark.parametrize("path", BEFORE, ids=lambda path: path.stem)
def test_lines_without_a_use_stay_as_they_are(path: Path) -> None:
    new = rewritten(path)
    touched = {each.line for each in new.done}
    lines = new.text.splitlines()
    kept = [
        line
        for number, line in enumerate(new.source.text.splitlines(), 1)
        if number not in touched and "import" not in line
    ]
    assert all(line in lines for line in kept)


@pytest.mark.parametrize("path", PORTABLE, ids=lambda path: path.stem)
def test_a_portable_program_stays_as_it_is(path: Path) -> None:
    result = rewrite([str(path)], unsafe=True)
    assert not result.changed
    assert not result.left


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("x.cuda()\n", "x.to(pg.device_string())\n"),
        ("x.cuda(None)\n", "x.to(pg.device_string())\n"),
        ("x.cuda(device=0)\n", "x.to(pg.device_string(0))\n"),
        ("x.cuda(0, True)\n", "x.to(pg.device_string(0), non_blocking=True)\n"),
        ("f(x.cuda().y.cuda())\n", "f(x.to(pg.device_string()).y.to(pg.device_string()))\n"),
        ("device = f'cuda:{a + 1}'\n", "device = pg.device_string(a + 1)\n"),
        ("d = x or torch.device(0)\n", "d = x or torch.device(pg.device_string(0))\n"),
        ("device = a or 'cuda'\n", "device = a or pg.device_string()\n"),
        ("if (torch.cuda.device_count() < 2): f()\n", "if (pg.device_count() < 2): f()\n"),
        ("torch.cuda.set_device('cuda:1')\n", "pg.set_device(pg.device_string(1))\n"),
        ("x = torch.cuda.current_device() # a\n", "x = pg.current_device() # a\n"),
        ("m = {'cuda:%d' % 0: 'cuda:%d' % r}\n", "m = {'cuda:%d' % 0: pg.device_string(r)}\n"),
        (
            "f(f'cuda:{torch.cuda.current_device()}')\n",
            "f(pg.device_string(pg.current_device()))\n",
        ),
        ("x = 1\r\nx.cuda()\r\n", "x = 1\r\nx.to(pg.device_string())\r\n"),
        # pytorch/examples and huggingface/transformers in classes that spread layers
        ("d = torch.device('cuda:' + name)\n", "d = torch.device(pg.device_string(name))\n"),
        # pytorch/examples distributed/tensor_parallelism
        ("t = torch.accelerator.current_accelerator().type\n", "t = pg.device_string()\n"),
        ("d = torch.device(device='cuda')\n", "d = torch.device(device=pg.device_string())\n"),
        ("y = f(a := x.cuda())\n", "y = f(a := x.to(pg.device_string()))\n"),
        (
            "torch.load(p, map_location={'cuda:0': f'cuda:{r}'})\n",
            "torch.load(p, map_location={'cuda:0': pg.device_string(r)})\n",
        ),
        (
            "for device in ['cpu', 'cuda']: f(device)\n",
            "for device in ['cpu', pg.device_string()]: f(device)\n",
        ),
        (
            "y = [f(d) for device in ('cuda:0', 'cpu')]\n",
            "y = [f(d) for device in (pg.device_string(0), 'cpu')]\n",
        ),
        (
            "@pytest.mark.parametrize('n, device', [(1, 'cuda')])\ndef f(n, device): pass\n",
            (
                "@pytest.mark.parametrize('n, device', [(1, pg.device_string())])\n"
                "def f(n, device): pass\n"
            ),
        ),
        ("a = {'pin_memory': True}\n", "a = {'pin_memory': pg.device_string() != \"cpu\"}\n"),
        (
            "with torch.autocast('cuda' if amp else 'cpu'): pass\n",
            "with torch.autocast(pg.device_string() if amp else 'cpu'): pass\n",
        ),
        (
            "m = M.from_pretrained('a', device_map={'': 0})\n",
            (
                "m = M.from_pretrained('a', device_map={'': 0 if pg.device_string() != \"cpu\" "
                'else "cpu"})\n'
            ),
        ),
        # jik876/hifi-gan train.py, meta-llama/llama-cookbook, BlinkDL/RWKV-LM verify.py
        ("d = torch.device('cuda:{:d}'.format(r))\n", "d = torch.device(pg.device_string(r))\n"),
        ("device = f'cuda'\n", "device = pg.device_string()\n"),
        ("os.environ['A_DEVICE'] = 'cuda'\n", "os.environ['A_DEVICE'] = pg.device_string()\n"),
        (
            "def get_device():\n    return 'cuda'\n",
            "def get_device():\n    return pg.device_string()\n",
        ),
        # KellerJordan/modded-nanogpt train_gpt.py
        (
            "print(f'{torch.cuda.memory_allocated()}'\n      ' cuda')\n",
            "print(f'{pg.memory_allocated()}'\n      ' cuda')\n",
        ),
        (
            "init_process_group('cuda:nccl,cpu:gloo')\n",
            (
                "init_process_group('cuda:nccl,cpu:gloo' if pg.device_string() != \"cpu\" else "
                "pg.c10d_name())\n"
            ),
        ),
        (
            "init_process_group(device_id=d)\n",
            'init_process_group(device_id=d if pg.device_string() != "cpu" else None)\n',
        ),
        (
            "if torch.cuda.is_available():\n    def f():\n        x.cuda()\nx.cuda()\n",
            (
                "if torch.cuda.is_available():\n    def f():\n        x.cuda()\n"
                "x.to(pg.device_string())\n"
            ),
        ),
        (
            "with torch.autocast('cuda'):\n\tpass\n",
            "with torch.autocast(pg.device_string()):\n\tpass\n",
        ),
    ],
)
def test_one_use(tmp_path: Path, code: str, expected: str) -> None:
    path = tmp_path / "script.py"
    path.write_bytes(b"import torch\n" + code.encode())
    text = rewritten(path).data.decode()
    assert text.split("import portagpu as pg", 1)[1].lstrip("\r\n") == expected


@pytest.mark.parametrize(
    "code",
    [
        "x = 'cuda' in name\n",
        "y = x.to('cpu')\n",
        "x.to(torch.float16)\n",
        "device = 'cuda' if torch.cuda.is_available() else 'cpu'\n",
        "if torch.cuda.is_available() and ok:\n    x.cuda()\n",
        "if not torch.cuda.is_available():\n    y = 1\nelse:\n    x.cuda()\n",
        "if device.type != 'cpu':\n    torch.cuda.synchronize()\n",
        "logging.info('cuda')\n",
        "print(f'cuda:{torch.version.cuda} {x}', f'cuda:{torch.version.cuda}')\n",
        "print(f'cuda:{torch.cuda.is_available()}', f'cuda:{x=}', f'cuda:{x:02d}')\n",
        "torch.cuda.synchronize = lambda: None\n",
        "torch.cuda = Fake()\ntorch.cuda.empty_cache()\n",
        "torch.cuda.memory = Fake()\ntorch.cuda.memory.empty_cache()\n",
        "setattr(torch, 'cuda', Fake())\ntorch.cuda.synchronize()\n",
        "from apex.optimizers import FusedAdam\no = FusedAdam(p, adam_w_mode=False)\n",
        "from apex.parallel import DistributedDataParallel as D\nm = D(m, delay_allreduce=True)\n",
        "exec('x = torch.zeros(2).cuda()')\neval('torch.cuda.synchronize()')\n",
        "def f():\n    'cuda'\n",
        "code = 'x.cuda()'\nexec(code)\n",
        "print(f'{torch.cuda.memory_allocated()=}')\n",
        "def f(a: torch.cuda.FloatTensor) -> torch.cuda.amp.GradScaler: pass\n",
        "BACKENDS = {'cuda': 'nccl', 'cpu': 'gloo'}\n",
        "model.rank = 3\n",
        "x.cuda()  # portagpu: ignore\n",
        "x.cuda()  # portagpu: ignore[PG001, PG002]\n",
    ],
)
def test_what_means_something_else_stays(tmp_path: Path, code: str) -> None:
    assert changed(tmp_path, code, unsafe=True) == code


def test_what_other_files_import_from_a_file_stays_in_it(tmp_path: Path) -> None:
    """Also where the other files are not named; a star import gets no short name more."""
    code = "import torch\nfrom torch.cuda.amp import GradScaler, autocast\n"
    (tmp_path / "a.py").write_text(f"{code}with autocast(): s = GradScaler()\n", encoding="utf-8")
    (tmp_path / "b.py").write_text("import torch\ntorch.cuda.init()\n", encoding="utf-8")
    (tmp_path / "main.py").write_text(
        "from .a import (  # all\n    GradScaler as G,\n)\nfrom b import *\n", encoding="utf-8"
    )
    for paths in ([str(tmp_path)], [str(tmp_path / "a.py"), str(tmp_path / "b.py")]):
        new = {Path(each.source.path).name: each.text for each in rewrite(paths).changed}
        assert "from torch.cuda.amp import GradScaler\n" in new["a.py"]
        assert new["b.py"] == "import torch\nimport portagpu\nportagpu.init()\n"


def test_an_import_for_a_type_in_quotes_stays(tmp_path: Path) -> None:
    code = "import torch\n\n\ndef f(x: 'torch.Tensor | None'):\n    torch.cuda.init()\n"
    assert changed(tmp_path, code).startswith("import torch\n")


def test_a_tensors_number_is_its_device_where_a_device_stands(tmp_path: Path) -> None:
    """Its number is -1 on a CPU, which torch refuses as a device."""
    assert changed(tmp_path, "y.to(x.get_device())\n") == "y.to(x.device)\n"
    assert changed(tmp_path, "n = x.get_device()\n") == "n = x.get_device()\n"


def test_a_comment_ignores_only_the_rules_that_it_names(tmp_path: Path) -> None:
    code = "x.cuda()  # portagpu: ignore[PG002]\n"
    assert "x.to(pg.device_string())" in changed(tmp_path, code)


@pytest.mark.parametrize(
    "code",
    [
        "x = torch.cuda.get_device_capability()[0] >= 8\n",
        "m = torch.nn.SyncBatchNorm.convert_sync_batchnorm(m)\n",
        "assert x.is_cuda\n",
    ],
)
def test_what_may_change_numbers_needs_the_flag(tmp_path: Path, code: str) -> None:
    assert changed(tmp_path, code) == code
    assert changed(tmp_path, code, unsafe=True) != code


def test_what_is_left_says_why() -> None:
    left = [each for path in BEFORE for each in rewritten(path).left]
    assert len({each.rule.id for each in left}) >= 8
    assert all(each.left for each in left)


@pytest.mark.parametrize(
    "data", [b"\xef\xbb\xbfx.cuda()\n", "# coding: latin-1\ny='é'\nx.cuda()\n".encode("latin-1")]
)
def test_the_encoding_stays(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "script.py"
    path.write_bytes(data)
    path.chmod(0o750)
    assert main(["port", "rewrite", "--write", str(path)]) == 0
    new = path.read_bytes()
    assert b"x.to(pg.device_string())" in new
    assert new[:3] == data[:3]
    assert (b"\xe9" in new) == (b"\xe9" in data)
    assert path.stat().st_mode & 0o777 == 0o750
    assert [each.name for each in tmp_path.iterdir()] == ["script.py"]


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("a.py", b"x.cuda(\n", f"is not Python 3.{sys.version_info.minor}: line 1"),
        ("a.py", b"print 'torch.cuda'\n", "is Python 2"),
        ("a.py", b"exec 'x.cuda()' in y\n", "is Python 2"),
        ("a.py", b"try:\n    x.cuda()\nexcept E, e:\n    pass\n", "line 3"),
        ("a.py", b"def f():\n\tx.cuda()\n        y\n", "line 3, inconsistent use of tabs"),
        ("a.py", "x.cuda()\n".encode("utf-16"), "encoding"),
        ("a.py", "x.cuda()\n".encode("utf-16-le"), "null characters"),
        ("a.py", b"# coding: klingon\nx.cuda()\n", "encoding"),
        ("a.py", b"\xef\xbb\xbf# coding: latin-1\nx.cuda()\n", "encoding"),
        ("a.py", b"y = x.cuda()" + b"+x.cuda()" * 3000, "nested too deeply"),
        ("a.py", b"# coding: ascii\n'\xe9'.cuda()\n", "encoding"),
        ("a.py", b"\xff\xfex.cuda()", "encoding"),
        ("a.py", b"x.cuda()\0", "null characters"),
        ("a.py", b"# Generated by protoc. DO NOT EDIT!\nx.cuda()\n", "is generated"),
        ("a.py", b"x.cuda()\n" + b"#" * (1 << 20), "larger than 1 MiB"),
        ("a.py", b"x.cuda()" + b"[" * 5000, "nested too deeply|not Python"),
        ("a.ipynb", b"{}", "is a notebook"),
        ("a.txt", b"x.cuda()", "is not a Python"),
        ("a.py/", b"", "is not there"),
    ],
)
def test_bad_input_is_one_line_and_changes_nothing(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], name: str, data: bytes, words: str
) -> None:
    path = tmp_path / name
    if data:
        path.write_bytes(data)
    assert main(["port", "rewrite", "--write", "--unsafe", str(path)]) == 3
    lines = capfd.readouterr().err.splitlines()
    about = [line for line in lines if line.startswith("portagpu: ")]
    assert len(about) == 1, lines
    assert any(each in about[0] for each in words.split("|")), about[0]
    assert not data or path.read_bytes() == data


@pytest.mark.parametrize(
    "data",
    [
        b"import torch\r\nx.cuda()\r\ny = 1\r\n",
        b"import torch\rx.cuda()\ry = 1\r",
        b"import torch\nx.cuda()",
        b"import torch\n\x0c\ndef f():\n\tx.cuda()\n\x0c\n",
        "import torch\ns = '\x0c\x1c\u2028'\nx.cuda()\n".encode(),
        b"import torch\r\nx.cuda()\ny = 1\r\n",
    ],
)
def test_what_is_not_replaced_stays_byte_for_byte(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "a.py"
    path.write_bytes(data)
    assert main(["port", "rewrite", "--write", str(path)]) == 0
    new = path.read_bytes().replace(b"x.to(pg.device_string())", b"x.cuda()")
    before, line, after = new.partition(b"import portagpu as pg")
    assert line
    end = data[len(b"import torch") :][: len(before) - len(b"import torch")]
    assert before + after.removeprefix(end) == data


def test_other_kinds_of_files_are_named(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkfifo("fifo.py")
    Path("loop.py").symlink_to("other.py")
    Path("other.py").symlink_to("loop.py")
    Path("outside.py").symlink_to("/")
    Path("folder").mkdir()
    Path("folder", "up").symlink_to(tmp_path)
    names = ["fifo.py", "loop.py", "outside.py", "folder"]
    assert main(["port", "lint", *names]) == 3
    lines = [line for line in capfd.readouterr().err.splitlines() if "portagpu: " in line]
    # the link in the folder is passed over, and then there is nothing in it
    assert [line.split()[1] for line in lines] == names
    Path("secret.py").write_text("x.cuda()\n", encoding="utf-8")
    Path("secret.py").chmod(0)
    if not os.access("secret.py", os.R_OK):
        assert main(["port", "rewrite", "--write", "secret.py"]) == 3
        assert "cannot be read" in capfd.readouterr().err


def test_a_link_is_not_followed(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    real = tmp_path / "real.py"
    real.write_text("x.cuda()\n", encoding="utf-8")
    link = tmp_path / "link.py"
    link.symlink_to(real)
    assert main(["port", "rewrite", "--write", str(link)]) == 3
    assert "symbolic link" in capfd.readouterr().err
    assert real.read_text(encoding="utf-8") == "x.cuda()\n"


def test_a_file_that_changed_meanwhile_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_text("x.cuda()\n", encoding="utf-8")
    new = rewritten(path)
    path.write_text("y.cuda()\n", encoding="utf-8")
    with pytest.raises(OutputError, match="changed while"):
        new.write()
    assert path.read_text(encoding="utf-8") == "y.cuda()\n"


def test_the_example_of_the_page_is_what_the_tool_writes(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "migrating.md").read_text(encoding="utf-8")
    section = page.partition("## Rewrite a script")[2]
    before, after = re.findall(r"```text\n(.*?)```", section, re.DOTALL)
    imports = "from torch.nn.parallel import DistributedDataParallel as DDP\n"
    assert changed(tmp_path, imports + before) == imports + after


def test_every_result_is_python(tmp_path: Path) -> None:
    for path in BEFORE:
        ast.parse(rewritten(path).text)
        ast.parse(rewritten(path, unsafe=False).text)


def test_every_name_that_is_written_exists() -> None:
    import portagpu
    from portagpu.train.port.rules import load_rules

    names = [each.to for each in load_rules().names.values() if each.to]
    own = {name.partition(".")[0] for name in names if not name.startswith(".")}
    assert own <= {*portagpu.__all__}
    assert len(own) > 40


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("DEVICE = 'cuda'\nimport os\n", "import portagpu as pg\nDEVICE = pg.device_string()\n"),
        ("'d'\nimport os\ndevice = 'cuda'\nimport torch\n", "'d'\nimport portagpu as pg\n"),
        ("from __future__ import annotations\ndevice = 'cuda'\nimport torch\n",
         "import annotations\nimport portagpu as pg\n"),
    ],
)  # fmt: skip
def test_the_import_stands_before_the_first_use(tmp_path: Path, code: str, expected: str) -> None:
    path = tmp_path / "script.py"
    path.write_text(code, encoding="utf-8")
    assert expected in rewritten(path).text


@pytest.mark.parametrize("written", ["cuda:01", "cuda:\N{ARABIC-INDIC DIGIT THREE}"])
def test_a_number_may_be_written_in_other_ways(tmp_path: Path, written: str) -> None:
    number = int(written.partition(":")[2])
    assert changed(tmp_path, f"device = '{written}'\n") == f"device = pg.device_string({number})\n"
    assert changed(tmp_path, "device = 'cuda:\N{SUPERSCRIPT TWO}'\n").startswith("device = 'cuda:")


@pytest.mark.parametrize("ids", ["[PG-001]", "[PG001", "[pg001]", "[]", " [PG002;PG001]", "d"])
def test_a_comment_without_a_known_rule_ignores_nothing(tmp_path: Path, ids: str) -> None:
    found = changed(tmp_path, f"x.cuda()  # portagpu: ignore{ids}\n")
    assert ("x.cuda()" in found) == (ids == "[PG001")


def test_an_encoding_that_loses_line_ends_is_left(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    data = b"# coding: unicode_escape\nx.cuda()\n"
    path = tmp_path / "a.py"
    path.write_bytes(data)
    assert main(["port", "rewrite", "--write", str(path)]) == 3
    assert "unicode" in capfd.readouterr().err
    assert path.read_bytes() == data


def test_a_file_that_cannot_be_written_does_not_keep_the_others(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a.py", "b.py", "c.py"):
        (tmp_path / name).write_text("x.cuda()\n", encoding="utf-8")
    replace = Path.replace

    def fails(self: Path, target: Path) -> Path:
        if target.name == "b.py":
            raise PermissionError(1, "Operation not permitted")
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", fails)
    assert main(["port", "rewrite", "--write", "--json", "-", str(tmp_path)]) == 3
    out, err = capfd.readouterr()
    about = [line for line in err.splitlines() if line.startswith("portagpu: ")]
    assert len(about) == 1 and "b.py stays as it is" in about[0], err
    assert [Path(each).name for each in json.loads(out)["written"]] == ["a.py", "c.py"]
    assert (tmp_path / "b.py").read_text(encoding="utf-8") == "x.cuda()\n"
    assert "pg." in (tmp_path / "c.py").read_text(encoding="utf-8")
    assert len([*tmp_path.iterdir()]) == 3


def test_one_file_under_two_names_is_rewritten_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.py").write_text("x.cuda()\n", encoding="utf-8")
    result = rewrite(["a.py", str(tmp_path / "a.py"), "./a.py", str(tmp_path)])
    assert [each.source.path for each in result.files] == ["a.py"]


def test_a_name_cannot_add_lines_to_the_diff(tmp_path: Path) -> None:
    path = tmp_path / "a\n+++ b\x1b[31m.py"
    path.write_text("x.cuda()\n", encoding="utf-8")
    diff = rewritten(path).diff
    assert b"\x1b" not in diff and len(diff.splitlines()) == 6


@pytest.mark.parametrize("verb", [["lint"], ["rewrite"], ["rewrite", "--write"]])
def test_a_source_is_not_an_output_and_an_empty_path_no_folder(
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    verb: list[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.py").write_text("x.cuda()\n", encoding="utf-8")
    assert main(["port", *verb, "a.py", "--json", "a.py"]) == 2
    assert main(["port", *verb, ".", "--json", "./a.py"]) == 2
    assert main(["port", *verb, ""]) == 2
    lines = capfd.readouterr().err.splitlines()
    assert ["is also an input" in each for each in lines] == [True, True, False]
    assert Path("a.py").read_text(encoding="utf-8") == "x.cuda()\n"


def test_an_object_whose_class_moves_itself_is_left(tmp_path: Path) -> None:
    """The class is in another file of the program; files that do not name it are rewritten."""
    own = "class Batch:\n    def cuda(self):\n        return self\n"
    (tmp_path / "batch.py").write_text(own, encoding="utf-8")
    user = "from batch import Batch\nx = Batch().cuda()\ny = model.cuda()\n"
    (tmp_path / "user.py").write_text(user, encoding="utf-8")
    (tmp_path / "other.py").write_text("y = model.cuda()\n", encoding="utf-8")
    result = rewrite([str(tmp_path)])
    assert [Path(each.source.path).name for each in result.changed] == ["other.py"]
    assert [each.line for each in result.left] == [2, 3]
    assert all("Batch of" in each.left for each in result.left)


@pytest.mark.parametrize(
    "line",
    [
        "print(f\"{x.pin_memory()['a']}\")",
        'print(f"{x.record_stream(s)}")',
        "def f():\n    return'cuda:0'",
    ],
)
def test_what_cannot_be_written_in_its_place_leaves_the_rest_done(
    tmp_path: Path, line: str
) -> None:
    path = tmp_path / "script.py"
    path.write_text(f"import torch\n{line}\ny = x.cuda()\n", encoding="utf-8")
    found = rewritten(path)
    assert line in found.text or sys.version_info >= (3, 12)
    assert "y = x.to(pg.device_string())" in found.text
    ast.parse(found.text)
    assert all(each.left.startswith("it cannot be written") for each in found.left)
