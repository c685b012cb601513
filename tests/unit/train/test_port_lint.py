"""``portagpu port lint``: rules, kinds of files, formats."""

from __future__ import annotations

import json
import os
import re
import tomllib
from pathlib import Path
from textwrap import dedent
from typing import Any, Final

import pytest

pytest.importorskip("libcst")

from portagpu.cli import main
from portagpu.train.port.lint import NOT_SEEN, github, lint, sarif, without_comments
from portagpu.train.port.reading import Source, kind_of
from portagpu.train.port.rewrite import rewrite
from portagpu.train.port.rules import SEVERITIES, load_rules
from tests.conftest import ROOT

SAMPLES: Final = ROOT / "tests/support/port_samples"
USES: Final = ROOT / "tests/benchmarks" / "torch_cuda_uses.toml"


def found(path: Path) -> list[tuple[int, str]]:
    """Line and rule of each finding."""
    return [(each.line, each.rule.id) for each in lint([str(path)]).findings]


def test_every_rule_says_what_happens_and_where_it_is_from() -> None:
    rules = load_rules().rules
    assert len(rules) >= 37
    for each in rules.values():
        assert each.severity in SEVERITIES
        assert each.breaks and each.write and each.source
        assert each.fix in ("safe", "unsafe", "none")


def test_every_rule_finds_something_in_the_samples() -> None:
    fired = {each.rule.id for each in lint([str(SAMPLES)]).findings}
    rare = {"PG104", "PG701", "PG702", "PG703"}  # have tests of their own
    assert {*load_rules().rules} - fired == rare


@pytest.mark.parametrize(
    ("name", "text", "rule"),
    [
        (
            "a.py",
            "from torch.distributed.fsdp import FullyShardedDataParallel as F\nm = F(m)\n",
            "PG104",
        ),
        ("a.py", "import amdsmi\n", "PG701"),
        ("a.py", "import torch\nx = torch.empty(2, pin_memory=True)\n", "PG203"),
        ("a.py", "from torch.cuda import *\nsynchronize()\n", "PG009"),
        ("a.h", "__device__ int lane() { return threadIdx.x % 32; }\n", "PG501"),
        ("a.sh", "HIP_VISIBLE_DEVICES=0 python a.py\n", "PG702"),
        ("a.hip", "constexpr int kWarpSize = 64;\n", "PG703"),
        ("a.py", "import sys\nif gpus < 2:\n    sys.exit(0)\nx.cuda()\n", "PG107"),
        ("a.py", "if not torch.cuda.is_available():\n    raise SystemExit(1)\n", "PG005"),
        ("Dockerfile.gpu", "FROM nvcr.io/nvidia/pytorch:24.01-py3\n", "PG601"),
        ("dev-requirements.txt", "torch==2.4.0+cu121\n", "PG601"),
        ("a.cuh", "int x = tiled_partition<32>(block);\n", "PG501"),
        ("a.py", "import torch\nx = getattr(torch, 'cuda')\n", "PG009"),
        ("a.py", "import torch as t\nx = getattr(t, 'cuda', None)\n", "PG009"),
        ("a.py", "import torch\ngetattr(torch.cuda, 'synchronize')()\n", "PG004"),
        ("a.py", "import lightning as L\nt = L.Trainer(accelerator='cuda')\n", "PG404"),
        ("a.py", "from lightning.fabric import Fabric\nf = Fabric(accelerator='gpu')\n", "PG404"),
        ("a.py", "m = M.from_config(c, attn_implementation='flash_attention_2')\n", "PG405"),
        ("a.py", "import trl\na = trl.SFTConfig('out', tf32=True)\n", "PG406"),
        ("a.py", "from transformers import pipeline\np = pipeline('x', device=1)\n", "PG003"),
        # the kinds of use are those of these repositories, and the code is ours
        # yenchenlin/nerf-pytorch run_nerf.py
        ("a.py", "torch.set_default_tensor_type('torch.cuda.FloatTensor')\n", "PG007"),
        ("a.py", "y = x.type('torch.cuda.sparse.FloatTensor')\n", "PG007"),
        # NVlabs/stylegan3 torch_utils/custom_ops.py, BlinkDL/RWKV-LM
        ("a.py", "from torch.utils.cpp_extension import load\nload('a', ['a.cu'])\n", "PG403"),
        ("a.py", "import torch\ntorch.utils.cpp_extension.load_inline(cuda_sources='')\n", "PG403"),
        ("a.py", "import torch\ntorch.utils.cpp_extension.load('a', found, **flags)\n", "PG403"),
        # open-mmlab/mmengine mmengine/runner/runner.py
        ("a.py", "m = Wrapped(m, device_ids=[local_rank])\n", "PG102"),
        # huggingface/pytorch-image-models timm/utils/distributed.py
        ("a.py", "d = torch.device(getattr(args, 'device', 'cuda'))\n", "PG002"),
        ("a.py", "d = options.pop('device', 'cuda:0')\n", "PG002"),
        ("a.py", "class C:\n    device: str = field(default='cuda')\n", "PG002"),
        # facebookresearch/detectron2 detectron2/utils/memory.py
        ("a.py", "ok = 'CUDA out of memory. ' in str(e)\n", "PG208"),
        ("a.py", "ok = str(e).startswith('CUDA out of memory')\n", "PG208"),
        ("a.py", "try: f()\nexcept torch.cuda.OutOfMemoryError: pass\n", "PG208"),
        # gates of CompVis/stable-diffusion's and NVIDIA's scripts
        ("a.py", "if args.device != 'cuda':\n    raise ValueError\n", "PG005"),
        ("a.py", "if 'cuda' not in device:\n    raise ValueError\n", "PG005"),
        ("a.py", "if device.type == 'cpu':\n    raise ValueError('cuda only')\n", "PG005"),
        ("a.py", "assert device == 'cuda', 'needs a GPU'\n", "PG005"),
        # Lightning-AI and huggingface: state of autocast in memory checkpoints
        ("a.py", "import torch\non = torch.is_autocast_enabled()\n", "PG201"),
        ("a.py", "import torch\nd = torch.get_autocast_gpu_dtype()\n", "PG201"),
        ("a.py", "n = int('cuda:1'.split(':')[1])\nn = int(device.split(':')[1])\n", "PG010"),
        ("a.py", "n = args.device.replace('cuda:', '')\n", "PG010"),
        ("a.py", "import torch\nn = torch.cuda.get_device_properties(0).major\n", "PG306"),
        ("a.py", "import torch\np = torch.cuda.get_device_properties(0)\nn = p.minor\n", "PG306"),
        ("a.py", "import torch\nn = torch.cuda.memory_stats()['num_ooms']\n", "PG306"),
        ("a.py", "import torch\ns = torch.cuda.current_stream().cuda_stream\n", "PG009"),
        ("a.py", "import torch\nn = torch.cuda.Stream.priority_range()\n", "PG009"),
        ("a.py", "import torch\ntorch.cuda.manual_seed_all(7)\n", "PG210"),
        ("a.py", "import torch\na = torch.profiler.ProfilerActivity.CUDA\n", "PG211"),
        ("a.py", "from apex.contrib.layer_norm import FastLayerNorm\n", "PG401"),
        ("a.py", "import mamba_ssm\n", "PG407"),
        ("a.py", "from triton import language as tl\n", "PG407"),
        ("a.py", "import deepspeed\n", "PG408"),
        # facebookresearch/swav main_swav.py: one name of a package is found, and another is not
        (
            "a.py",
            "import apex\nfrom apex.parallel.LARC import LARC\napex.amp.initialize()",
            "PG401",
        ),
        # pytorch/torchtitan torchtitan/overrides, thuml/Time-Series-Library run.py
        ("a.py", "op('a', mutates_args=(), device_types='cuda')\n", "PG002"),
        ("a.py", "p.add_argument('--gpu_type', default='cuda')\n", "PG002"),
        ("a.py", "c = Settings(process_group='nccl')\n", "PG101"),
        ("a.py", "def kind():\n    return 'cuda'\n", "PG002"),
        ("a.py", "exec('x = x.cuda()')\n", "PG009"),
        ("a.py", "m = M.from_pretrained('x', load_in_4bit=True)  # device_map\n", "PG402"),
        ("a.py", "code = 'x.cuda()'\nexec(compile(code, 'a', 'exec'))\n", "PG009"),
        ("a.py", "subprocess.run(['python', 'a.py', '--device', 'cuda'])\n", "PG002"),
        ("a.py", "line = f'{python} a.py --backend nccl'\nos.system(line)\n", "PG101"),
        ("a.py", "line = f'CUDA_VISIBLE_DEVICES={n} python a.py'\n", "PG304"),
        ("a.py", "kind = 'cuda'\n", "PG002"),
        ("a.py", "def f(d='cuda'): pass\n", "PG002"),
        ("a.py", "for kind in ('cuda', 'cpu'): f(kind)\n", "PG002"),
        ("a.py", "if device.type != 'cuda': raise ValueError\n", "PG005"),
        ("a.py", "import torch\ny = map(torch.Tensor.cuda, x)\n", "PG001"),
        ("a.py", "getattr(x, 'cuda')()\n", "PG001"),
        ("a.py", "import torch.distributed as d\no = d.ProcessGroupNCCL.Options()\n", "PG101"),
        ("a.py", "import torch\nprint(f'{torch.cuda.memory_allocated()=}')\n", "PG004"),
        (
            "a.py",
            "from accelerate import Accelerator\nA = Accelerator(mixed_precision='fp16')\n",
            "PG404",
        ),
        ("a.py", "from trl import SFTConfig\na = SFTConfig(optim='paged_adamw_8bit')\n", "PG402"),
        ("a.yaml", "trainer:\n  accelerator: gpu\n", "PG404"),
        # forms of EleutherAI/gpt-neox, ashleve/lightning-hydra-template, huggingface/trl,
        # HazyResearch's state-spaces/s4, mosaicml/llm-foundry and of Kubernetes' documentation
        ("a.yml", '"distributed-backend": "nccl",\n', "PG101"),
        ("a.yaml", "dist_params: {backend: nccl, port: 1}\n", "PG101"),
        ("a.yaml", "model: {device: cuda, n: 1}\n", "PG002"),
        ("a.yaml", "devices: [cuda:0, cuda:1]\n", "PG002"),
        ("a.yaml", "device: ${oc.env:DEVICE,cuda}\n", "PG002"),
        ("a.yaml", "defaults:\n  - override /trainer: gpu\n", "PG404"),
        ("a.yaml", "mixed_precision: fp16\n", "PG404"),
        ("a.yaml", "num_gpu: 1\n", "PG404"),
        ("a.yaml", "cuda: true\n", "PG404"),
        ("a.yaml", "scaler:\n  _target_: torch.cuda.amp.GradScaler\n", "PG004"),
        ("a.yaml", "optim: paged_adamw_8bit\n", "PG402"),
        ("a.yaml", "opt: {_target_: apex.optimizers.FusedAdam}\n", "PG401"),
        ("a.yaml", "distributed_type: DEEPSPEED\n", "PG408"),
        ("a.yaml", "attn_impl: flash\n", "PG405"),
        ("a.yaml", "env:\n  NCCL_DEBUG: INFO\n", "PG304"),
        ("a.yaml", "dependencies:\n  - pytorch-cuda=11.7\n", "PG601"),
        ("a.yaml", "limits:\n  nvidia.com/gpu: 8\n", "PG602"),
        ("a.toml", 'device = "cuda"\n', "PG002"),
        ("a.cfg", "backend = nccl\n", "PG101"),
        ("Makefile", "train:\n\tpython a.py trainer.accelerator=gpu\n", "PG404"),
        ("a.sh", "torchrun --nproc_per_node=gpu a.py\n", "PG404"),
        ("a.sh", "docker run --rm --gpus all image\n", "PG602"),
        ("a.sh", "python a.py +model.device=cuda:0\n", "PG002"),
        ("a.yml", "device: 'cuda:0'  # where\n", "PG002"),
        ("a.yaml", "dist:\n  backend: nccl\n", "PG101"),
        ("a.yaml", "tf32: true\n", "PG406"),
        ("a.sh", "python train.py --device cuda --dist-backend=nccl\n", "PG101"),
    ],
)
def test_one_use(tmp_path: Path, name: str, text: str, rule: str) -> None:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    assert rule in {each for _, each in found(path)}


@pytest.mark.parametrize(
    "text",
    [
        "import lightning as L\nt = L.Trainer(accelerator='auto', devices=2)\n",
        "t = Trainer(accelerator='gpu')\n",
        "import lightning as L\na = 'gpu'\nt = L.Trainer(accelerator=a)\n",
        "m = M.from_config(c, attn_implementation='sdpa')\n",
        "import transformers as t\na = t.TrainingArguments('out', tf32=False)\n",
        "def f(tf32=True): return f(tf32=True)\n",
        "subprocess.run(['python', 'a.py', '--name', 'cuda'])\n",
        "code = 'x.cuda()'\nprint(code)\n",
        "from transformers import pipeline\np = pipeline('x', device=-1)\n",
        "import torch\nx = getattr(torch, 'cudnn', None), hasattr(torch, 'cuda')\n",
        "import torch\nif torch.cuda.is_available():\n    x = getattr(torch, 'cuda')\n",
        "import torch\nx = getattr(args, 'device')\n",
        "import torch\nx = torch.nn.DataParallel(m, device_ids=[0])\n",
        "x = name.split(':')[1], device.split('/')[1], device.split(':')[0]\n",
        "print('out of memory'), 'cuda' in name\n",
        "if device == 'cuda':\n    f()\nelse:\n    g()\n",
        "from torch.utils.cpp_extension import load\nload('a', ['a.cpp'])\n",
        "try:\n    import triton\nexcept ImportError:\n    triton = None\n",
        "import torch\nwith torch.random.fork_rng():\n    pass\n",
    ],
)
def test_what_asks_for_no_vendor_is_none_and_says_what_was_looked_for(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], text: str
) -> None:
    path = tmp_path / "a.py"
    path.write_text(text, encoding="utf-8")
    assert main(["port", "lint", str(path)]) == 0
    number = len(load_rules().rules)
    said = f"no use found that ties this to a vendor, among what {number} rules name; 1 file read"
    assert capfd.readouterr().out.splitlines() == [said, f"    {NOT_SEEN}"]


def test_kernels_are_read_without_their_comments() -> None:
    # each line was labelled by hand
    assert found(SAMPLES / "kernels" / "reduce.cu") == [
        (1, "PG500"),
        (2, "PG500"),
        (4, "PG501"),
        (5, "PG501"),
        (6, "PG506"),
        (7, "PG501"),
        (8, "PG501"),
        (9, "PG502"),
        (10, "PG502"),
        (11, "PG503"),
        (12, "PG504"),
        (13, "PG505"),
    ]
    assert found(SAMPLES / "kernels" / "portable.cpp") == []


def test_scripts_images_and_requirements() -> None:
    kernels = SAMPLES / "kernels"
    assert found(kernels / "run.sh") == [(2, "PG304"), (4, "PG403"), (6, "PG602")]
    assert found(kernels / "Dockerfile") == [(1, "PG601"), (3, "PG601"), (4, "PG304")]
    assert found(kernels / "requirements.txt") == [(2, "PG601"), (3, "PG303")]


@pytest.mark.parametrize("text", ['a("// no comment"); b;', "a('\\''); // x", "/* x\ny */ b"])
def test_comments_leave_lines_and_columns(text: str) -> None:
    bare = without_comments(Source("a.cu", "kernel", text, "utf-8", b""))
    assert len(bare) == len(text)
    assert bare.count("\n") == text.count("\n")
    assert "x" not in bare
    assert ("no comment" in bare) == ("no comment" in text)


def test_names_of_public_code_are_found() -> None:
    """Recall over 1,216 uses of twelve repositories: the table has names and forms, no code."""
    rules = load_rules()
    available = {name for each in rules.words for name in each.available}
    missing = [
        name
        for name, _, _, _ in tomllib.loads(USES.read_text(encoding="utf-8"))["uses"]
        if f"torch.cuda.{name}" not in rules.names and f"torch.cuda.{name}" not in available
    ]
    # what has no name here is reported as PG009
    assert len(missing) <= 15, missing


def test_the_text_names_place_rule_reason_and_remedy(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.py").write_text("y = 1\nx.cuda()\n", encoding="utf-8")
    assert main(["port", "lint", "a.py"]) == 1
    out = capfd.readouterr().out.splitlines()
    assert out[0] == "a.py:2:1: PG001 raises: x.cuda()"
    assert "breaks on a CPU" in out[1]
    assert "write x.to(pg.device())" in out[1]
    assert out[-1] == "1 use: 1 raises; 1 file read"


def test_notes_alone_do_not_fail(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_text("f(pin_memory=True)\n", encoding="utf-8")
    assert main(["port", "lint", str(path)]) == 0


def test_what_was_not_read_is_not_a_pass(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_text("x.cuda(\n", encoding="utf-8")
    assert main(["port", "lint", str(path)]) == 3


def test_json_has_every_finding_and_its_rule(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["port", "lint", "--json", "-", str(SAMPLES / "before")]) == 1
    document = json.loads(capfd.readouterr().out)
    assert document["schema"] == "portagpu.port/1"
    assert {each["rule"] for each in document["findings"]} == {*document["rules"]}


def test_sarif_has_what_its_standard_requires(capfd: pytest.CaptureFixture[str]) -> None:
    """OASIS SARIF 2.1.0, 3.13 to 3.27: required properties, and indices that fit."""
    assert main(["port", "lint", "--format", "sarif", str(SAMPLES / "before")]) == 1
    log = json.loads(capfd.readouterr().out)
    assert log["version"] == "2.1.0"
    (run,) = log["runs"]
    rules = run["tool"]["driver"]["rules"]
    assert run["results"]
    for each in run["results"]:
        assert rules[each["ruleIndex"]]["id"] == each["ruleId"]
        assert each["level"] in ("error", "warning", "note")
        assert each["message"]["text"]
        place = each["locations"][0]["physicalLocation"]
        assert place["artifactLocation"]["uri"].startswith("file:///")
        assert place["region"]["startLine"] >= 1
        assert place["region"]["startColumn"] >= 1


def test_annotations_escape_what_github_reads(tmp_path: Path) -> None:
    path = tmp_path / "a,b:100%.py"
    path.write_text("x.cuda()\n", encoding="utf-8")
    (line,) = github(lint([str(path)]))
    assert re.match(r"::error file=\S*a%2Cb%3A100%25\.py,line=1,col=1,title=PG001 ", line)


@pytest.mark.parametrize(
    "name",
    ["a.py", "a.pyi", "b/a.cpp", "a.cc", "a.cxx", "a.h", "a.hpp", "a.inl", "a.cu", "a.cuh", "a.hip",
     "a.sh", "a.bash", "a.mk", "Makefile", "b/GNUmakefile", "justfile", "a.toml", "a.ini", "a.cfg",
     "myMakefile", "Makefile.txt", "a.yaml", "b/a.yml", "a.slurm", "a.sbatch", "Dockerfile",
     "b/Dockerfile.gpu", "a.dockerfile", "Containerfile", "requirements.txt",
     "b/dev-requirements.txt", "requirements-gpu.txt",
     "a.txt", "a.ipynb", "a.pyc", "README.md", "requirements.md", "myDockerfile", "Dockerfiles/a",
     "a.c", "apy"],
)  # fmt: skip
def test_the_hook_gives_the_files_that_lint_reads(name: str) -> None:
    hook = (ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8")
    _, _, block = hook.partition("files: |\n")
    # pre-commit searches, and does not match
    assert bool(re.search(dedent(block), name)) == (kind_of(Path(name)) is not None)


def test_folders_of_packages_and_hidden_ones_are_passed_over(tmp_path: Path) -> None:
    for name in (".git", "node_modules", "venv", "__pycache__", "src"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "a.py").write_text("x.cuda()\n", encoding="utf-8")
    (tmp_path / "venv" / "pyvenv.cfg").touch()
    (tmp_path / "loop").symlink_to(tmp_path)
    result = lint([str(tmp_path), str(tmp_path / "src")])
    assert [each.path for each in result.findings] == [str(tmp_path / "src" / "a.py")]


@pytest.mark.parametrize("verb", ["lint", "rewrite"])
def test_without_libcst_one_line_says_what_to_install(
    verb: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("portagpu.cli.port.find_spec", lambda _: None)
    assert main(["port", verb, "."]) != 0
    (line,) = capfd.readouterr().err.splitlines()
    assert "libcst" in line and "[port]" in line


def test_wrong_usage_is_two() -> None:
    assert main(["port", "lint"]) == 2
    assert main(["port", "lint", "--format", "xml", "."]) == 2


def test_a_name_that_is_not_utf_8_is_in_every_format(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    name = os.fsdecode(b"a\xff b.py")
    try:
        Path(name).write_text("x.cuda()\n", encoding="utf-8")
    except OSError:
        pytest.skip("this file system takes no such name")
    for form in ("text", "json", "sarif", "github"):
        assert main(["port", "lint", "--format", form, name]) == 1, capfd.readouterr().err
    assert "a%FF%20b.py" in json.dumps(sarif(lint([name])))


@pytest.mark.parametrize("verb", ["lint", "rewrite"])
@pytest.mark.parametrize(
    ("files", "given", "unread"),
    [
        ([], ["."], ["."]),
        (["a.txt", "b/README.md"], ["."], ["."]),
        (["a.txt"], ["a.txt"], ["a.txt"]),
        ([".venv/a.py", "build/a.py"], ["."], ["."]),
        ([], ["nowhere"], ["nowhere"]),
        # a pattern of the shell that matched nothing
        ([], ["*.py"], ["*.py"]),
        (["a/one.py", "b/a.txt"], ["a", "b"], ["b"]),
        (["a/one.py", "b/a.txt"], ["."], []),
    ],
)
def test_where_no_file_was_read_nothing_is_clean(
    verb: str,
    files: list[str],
    given: list[str],
    unread: list[str],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in files:
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text("x = 1\n", encoding="utf-8")
    assert main(["port", verb, *given, "--json", "result.json"]) == (3 if unread else 0)
    document = json.loads(Path("result.json").read_text())
    assert [each["path"] for each in document["unread"]] == unread
    out, err = capfd.readouterr()
    said = [line.split()[1] for line in err.splitlines() if line.startswith("portagpu: ")]
    assert said == unread
    if verb == "lint":
        assert ("no file was read" in out) == (document["files"] == 0)
        assert ("no use found" in out) == (document["files"] > 0)


def test_a_rewrite_names_what_is_not_python(tmp_path: Path) -> None:
    (tmp_path / "a.sh").write_text("echo\n", encoding="utf-8")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "a.py").write_text("x = 1\n", encoding="utf-8")
    script, folder = str(tmp_path / "a.sh"), str(tmp_path / "b")
    for given, unread in (
        ([script], [script]),
        ([script, folder], [script]),
        ([str(tmp_path)], []),
        ([folder], []),
    ):
        result = rewrite(given)
        assert [each.path for each in result.unread] == unread
        assert result.exit_code == (3 if unread else 0)
    (tmp_path / "b" / "a.py").unlink()
    assert rewrite([str(tmp_path)]).exit_code == 3


def test_a_folder_that_cannot_be_read_is_not_a_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = tmp_path / "closed"
    closed.mkdir()
    scandir = os.scandir

    def refuses(path: str) -> Any:
        if str(path) == str(closed):
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuses)
    result = lint([str(tmp_path)])
    assert [each.path for each in result.unread] == [str(closed)]
    assert result.exit_code == 3
