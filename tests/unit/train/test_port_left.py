"""Uses of public programs that no rewrite decides: they are found, and left with a reason."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import pytest
from rich.console import Console
from rich.status import Status

pytest.importorskip("libcst")

from portagpu.cli import main
from portagpu.train.port.lint import lint
from portagpu.train.port.reading import kind_of
from portagpu.train.port.rewrite import rewrite

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("code", "line", "rule", "reason"),
    [
        # facebookresearch/lingua, metrics.py: a CPU's statistics have no such key
        ("s = torch.cuda.memory_stats(d)\nn = s['num_ooms']\n", 3, "PG306", "a CPU does not"),
        ("s = torch.cuda.memory.memory_stats()\nn = s['num_ooms']\n", 3, "PG306", "num_ooms"),
        (
            ("class A:\n    def f(self):\n        self.s = torch.cuda.memory_stats()\n"
             "    def g(self):\n        return self.s['active_bytes.all.peak']\n"),
            6, "PG306", "active_bytes",
        ),
        # eric-mitchell/direct-preference-optimization, trainers.py
        (
            ("def move(batch, device):\n    return batch.to(device)\n"
             "def train(rank):\n    x = move(torch.zeros(2).cuda(rank), rank)\n"),
            5, "PG003", "counts on a number",
        ),
        ("x = load('m', device=local_rank).cuda()\n", 2, "PG003", "counts on a number"),
        (
            ("class T:\n    def __init__(self, model, device):\n        self.device = device\n"
             "def main(rank):\n    torch.cuda.set_device(rank)\n    T(model, rank)\n"),
            7, "PG003", "counts on a number",
        ),
        # several statements bind the name, of which one is not torch's
        (
            ("try:\n    from torch.cuda.amp import autocast\n"
             "except ImportError:\n    autocast = None\nwith autocast():\n    pass\n"),
            6, "PG201", "another value",
        ),
        (
            ("try:\n    from torch.cuda.amp import GradScaler\nexcept ImportError:\n"
             "    class GradScaler:\n        pass\ns = GradScaler()\n"),
            7, "PG202", "another value",
        ),
        ("import importlib\nc = importlib.import_module('torch.cuda')\n", 3, "PG009", "by a text"),
        ("c = __import__('torch.cuda')\n", 2, "PG009", "by a text"),
        (
            "from importlib import import_module\nc = import_module('apex.optimizers')\n",
            3, "PG401", "by a text",
        ),
        # mosaicml/composer, trainer.py
        (
            "x.cuda()\nf = any(s in str(e) for s in ['CUDA out of memory', 'x'])\n",
            3, "PG208", "other errors",
        ),
        ("WORDS = ('CUDA out of memory',)\n", 2, "PG208", "other errors"),
        (
            "import torch.distributed as d\nx = d.get_backend() == d.Backend.NCCL\n",
            3, "PG105", "without that library",
        ),
        (
            "import torch.distributed as dist\nlibrary = choose(dist.Backend.NCCL)\n",
            3, "PG101", "what this line does with it",
        ),
        (
            "import pytorch_lightning as pl\nt = pl.Trainer(gpus=hparams.num_gpus)\n",
            3, "PG404", "what else the program sets",
        ),
        ("d = given or 'cuda'\nx.to(d)\n", 2, "PG002", "not known"),
        ("d = getattr(options, 'place', 'cuda')\nx.to(d)\n", 2, "PG002", "not known"),
        # portagpu raises Unsupported for them on a CPU
        ("with torch.cuda.use_mem_pool(pool):\n    pass\n", 2, "PG212", "Unsupported"),
        ("p = torch.cuda.MemPool()\n", 2, "PG212", "Unsupported"),
        ("s = torch.cuda.memory.memory_snapshot()\n", 2, "PG212", "Unsupported"),
    ],
)  # fmt: skip
def test_a_use_is_left_with_its_reason(
    tmp_path: Path, code: str, line: int, rule: str, reason: str
) -> None:
    """By both verbs, of which lint reads only a part of the file."""
    path = tmp_path / "a.py"
    path.write_text(f"import torch\n{code}", encoding="utf-8")
    for found in (lint([str(path)]).findings, rewrite([str(path)], unsafe=True).left):
        assert [(each.line, each.rule.id) for each in found if reason in each.left] == [
            (line, rule)
        ]


@pytest.mark.parametrize(
    "code",
    [
        "s = torch.cuda.memory_stats()\nn = s['allocated_bytes.all.peak'], s.get('num_ooms', 0)\n",
        "def f(s):\n    return s['num_ooms']\ns = torch.cuda.memory_stats()\n",
        "def f(device):\n    pass\nf(torch.device('cpu'))\nf(x)\n",
        "def f(per_device, batch_per_device=2):\n    pass\nf(4, batch_per_device=8)\n",
        "try:\n    m = __import__('flash_attn')\nexcept ImportError:\n    m = 0\n",
        "import pytorch_lightning as pl\nt = pl.Trainer(gpus=0), pl.Trainer(gpus=None)\n",
        "import importlib\nm = importlib.import_module('torch.nn')\n",
        "from torch.cuda.amp import autocast\nautocast = fake(autocast)\n",
    ],
)
def test_what_a_cpu_can_answer_is_not_left(tmp_path: Path, code: str) -> None:
    path = tmp_path / "a.py"
    path.write_text(f"import torch\n{code}", encoding="utf-8")
    assert not [each for each in rewrite([str(path)], unsafe=True).left if "value" not in each.left]


@pytest.mark.parametrize(
    ("name", "text", "rules"),
    [
        ("requirements.txt", "torch\nflash-attn>=2.5\n# vllm\n", ["PG402"]),
        ("requirements.txt", "torch\npynvml\n", ["PG303"]),  # not in the first line
        ("requirements/train.txt", "deepspeed==0.16\nvllm[x]\n", ["PG408", "PG408"]),
        ("requirements-gpu.in", "mamba_ssm\ntriton-model\n", ["PG407"]),
        ("pyproject.toml", 'dependencies = ["torch", "flash-attn>=2"]\n', ["PG402"]),
        ("pyproject.toml", 'dependencies = [\n  "torch",\n  "xformers",\n]\n', ["PG402"]),
        (
            "environment.yml",
            "dependencies:\n  - python=3.9\n  - pip:\n    - xformers\n    - triton==2.1\n",
            ["PG402", "PG407"],
        ),
        ("setup.cfg", "install_requires =\n    torch\n    bitsandbytes>=0.4\n", ["PG402"]),
        ("setup.py", "setup(install_requires=['torch', 'flash-attn>=2.0'])\n", ["PG402"]),
        ("run.sh", "pip install torch flash-attn --no-build-isolation\n", ["PG402"]),
        ("settings.json", '{"device": "cuda",\n "n_gpu": 2}\n', ["PG002", "PG404"]),
        # names of other things
        ("a.yaml", "words:\n  - apex\n  - triton\nstrategy: deepspeed\n", []),
        ("a.py", "version = importlib.metadata.version('flash-attn')\n", []),
        ("requirements.txt", "apexcharts\ntritonclient\n", []),
    ],
)
def test_packages_in_files_of_requirements_and_settings(
    tmp_path: Path, name: str, text: str, rules: list[str]
) -> None:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, encoding="utf-8")
    assert [each.rule.id for each in lint([str(tmp_path)]).findings] == rules


def test_a_large_json_file_is_data(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1\n", encoding="utf-8")
    (tmp_path / "data.json").write_text('{"device": "cuda"}' + " " * (1 << 16), encoding="utf-8")
    assert kind_of(tmp_path / "data.json") == "config"
    result = lint([str(tmp_path)])
    assert (result.files, result.findings, result.unread) == (1, [], [])


def test_a_keyword_of_older_pythons_is_named(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.py"
    path.write_text("import torch\nx = x.cuda(async=True)\n", encoding="utf-8")
    assert main(["port", "rewrite", str(path)]) == 3
    said = "before Python 3.7, where async was a name: write non_blocking= in line 2"
    assert said in capfd.readouterr().err


@pytest.mark.parametrize("verb", ["lint", "rewrite"])
def test_a_terminal_shows_how_many_files_were_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    for number in range(3):
        (tmp_path / f"{number}.py").write_text("x = 1\n", encoding="utf-8")
    said: list[str] = []
    screen = Console(file=io.StringIO(), force_terminal=True)
    monkeypatch.setattr(Status, "update", lambda self, text: said.append(text))
    monkeypatch.setattr("portagpu.cli.port.live_console", lambda stream: screen)
    assert main(["port", verb, str(tmp_path)]) == 0
    assert said == []  # too few to wait for
    monkeypatch.setattr("portagpu.cli.port._MIN_SHOWN", 3)
    assert main(["port", verb, str(tmp_path)]) == 0
    assert said == ["1 of 3 files", "2 of 3 files", "3 of 3 files"]


@pytest.mark.parametrize(
    "code",
    [
        "@torch.jit.script\ndef f(x):\n    return x + torch.zeros(2, device='cuda')\n",
        "def f(x):\n    return x.cuda()\ng = torch.jit.script(f)\n",
        "def f(x):\n    return x.cuda()\n@torch.jit.script\ndef g(x):\n    return f(x)\n",
        (
            "class M(torch.nn.Module):\n    def forward(self, x):\n        return self.g(x)\n"
            "    def g(self, x):\n        return x.to('cuda')\nm = torch.jit.script(M())\n"
        ),
        (
            "from torch import jit\nclass M(jit.ScriptModule):\n    @jit.script_method\n"
            "    def forward(self, x):\n        return x.cuda()\n"
        ),
        "@torch.jit.script\nclass C:\n    def f(self, x: torch.Tensor):\n        return x.cuda()\n",
    ],
)
def test_what_torchscript_compiles_stays_as_it_is(tmp_path: Path, code: str) -> None:
    """It raises where a function calls one of portagpu's, on every device."""
    path = tmp_path / "a.py"
    path.write_text(f"import torch\n{code}", encoding="utf-8")
    result = rewrite([str(path)], unsafe=True)
    assert not result.changed
    assert ["TorchScript" in each.left for each in result.left] == [True]
    assert len(lint([str(path)]).findings) == 1


def test_what_torchscript_leaves_to_python_is_rewritten(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    code = "@torch.jit.ignore\ndef f(x):\n    return x.cuda()\n"
    calls = "@torch.jit.script\ndef g(x):\n    return f(x)\nh(x.cuda())\n"
    path.write_text(f"import torch\n{code}{calls}", encoding="utf-8")
    result = rewrite([str(path)])
    assert [each.line for each in result.files[0].done] == [4, 8]


@pytest.mark.parametrize("line", ["from moves import move", "from .moves import move"])
def test_a_number_for_a_function_of_the_next_file_is_left(tmp_path: Path, line: str) -> None:
    """As in eric-mitchell/direct-preference-optimization, whose utils.py has the function."""
    (tmp_path / "moves.py").write_text(
        "from typing import Dict\ndef move(batch: Dict[str, int], count: int, device: str):\n"
        "    return batch.to(device)\n",
        encoding="utf-8",
    )
    path = tmp_path / "a.py"
    code = (
        f"import torch\n{line}\ntorch.cuda.init()\ndef f(rank):\n    return move(x, rank, rank)\n"
    )
    path.write_text(code, encoding="utf-8")
    for found in (lint([str(path)]).findings, rewrite([str(path)]).left):
        assert [(each.line, each.column, each.rule.id) for each in found if each.left] == [
            (5, 26, "PG003")
        ]


@pytest.mark.parametrize("device", ["torch.device('cuda').type", "torch.device('cuda')", "'cuda'"])
def test_a_question_for_the_vendors_device_stays(tmp_path: Path, device: str) -> None:
    """As DLR-RM/stable-baselines3 asks: on a CPU the answer is still no."""
    path = tmp_path / "a.py"
    code = f"if x.device.type == {device}:\n    torch.cuda.synchronize()\nelse:\n    x.cuda()\n"
    path.write_text(f"import torch\n{code}", encoding="utf-8")
    result = rewrite([str(path)])
    assert [each.line for each in result.files[0].done] == [5]
    assert code.splitlines()[0] in result.files[0].text


def test_a_constant_of_torchs_for_the_library_is_its_text(tmp_path: Path) -> None:
    """As facebookresearch/fairscale writes it."""
    path = tmp_path / "a.py"
    code = "import torch.distributed as dist\ndist.init_process_group(dist.Backend.NCCL)\n"
    path.write_text(code, encoding="utf-8")
    assert rewrite([str(path)]).files[0].text.endswith("dist.init_process_group(pg.c10d_name())\n")


def test_the_question_for_a_class_of_the_file_keeps_no_move(tmp_path: Path) -> None:
    """As KellerJordan/cifar10-airbench has both."""
    path = tmp_path / "a.py"
    code = "class N(torch.nn.Module):\n    pass\nb = isinstance(m, N)\nn = N().half().cuda()\n"
    path.write_text(f"import torch\n{code}", encoding="utf-8")
    result = rewrite([str(path)])
    assert not result.left
    assert result.files[0].text.endswith("n = N().half().to(pg.device_string())\n")


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("d, device = 1, 'cuda'\n", "d, device = 1, pg.device_string()\n"),
        (
            "(a, [device, backend]) = (1, ['cuda', 'nccl'])\n",
            "(a, [device, backend]) = (1, [pg.device_string(), pg.c10d_name()])\n",
        ),
        (
            "torch.cuda.memory._record_memory_history(max_entries=9)\n",
            (
                "torch.cuda.memory._record_memory_history(max_entries=9)"
                ' if pg.device_string() != "cpu" else None\n'
            ),
        ),
        ("with torch.cuda.nvtx.range('a'): f()\n", "with pg.nvtx.range('a'): f()\n"),
        (
            "with torch.cuda.nvtx.range('{} of {n}', i, n=3): f()\n",
            "with pg.nvtx.range('{} of {n}', i, n=3): f()\n",
        ),
    ],
)
def test_values_of_several_names_and_ranges_are_rewritten(
    tmp_path: Path, code: str, expected: str
) -> None:
    path = tmp_path / "a.py"
    path.write_text(f"import torch\nx.cuda()\n{code}", encoding="utf-8")
    result = rewrite([str(path)])
    assert not result.left
    assert result.files[0].text.endswith(expected)


def test_several_names_of_which_one_has_no_value_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_text("d, e = 'cuda', 1\nd, *device = 'cuda', 'cpu'\n", encoding="utf-8")
    assert [(each.line, each.rule.id) for each in rewrite([str(path)]).left] == [(1, "PG002")]
