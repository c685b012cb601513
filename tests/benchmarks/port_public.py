"""Five public scripts, rewritten by ``portagpu port`` alone, train and have the reference's losses.

    python -m tests.benchmarks.port_public FOLDER [SCRIPT...] [--wrong]

FOLDER holds the repositories of ``SCRIPTS``. The reference is the script as it is with
``--device=cpu``, or the script with its devices replaced as text, without portagpu and libcst.
"Equal" is every printed digit. Data is small and random, and each process starts with the same
seed. With ``--wrong`` each rule that fired is switched off in turn, and one rule is made wrong: the
losses must show it, but where a CPU computes the same without that rule.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from portagpu.train.port.reading import Source, read
from portagpu.train.port.rewrite import Rewritten, rewrite_source
from portagpu.train.port.rules import load_rules

if TYPE_CHECKING:
    from collections.abc import Iterable

    from portagpu.train.port.rules import Rules

ROOT: Final = Path(__file__).resolve().parents[2]
LIMIT_S: Final = 300
SEED: Final = "import random, torch\nrandom.seed(0)\ntorch.manual_seed(0)\n"
TOKENS: Final = "import numpy as np\ntokens = np.random.default_rng(0).integers(0, 50000, 4096)\n"
LOSS: Final = r"loss ([\d.e+-]+\d)"
TORCHRUN: Final = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node={ranks}")


@dataclass(frozen=True)
class Script:
    """One script: ``path`` in FOLDER, what stands in for its data, and how it is started.

    ``by_hand`` makes the reference of it. ``files`` are written next to it, and "data.py" is run.
    """

    path: str
    by_hand: dict[str, str]
    words: tuple[str, ...] = ()
    loss: str = LOSS
    ranks: tuple[int, ...] = (1, 2)
    launcher: tuple[str, ...] = TORCHRUN
    alone: tuple[str, ...] | None = None  # words that make one process run unchanged
    files: dict[str, str] = field(default_factory=dict)
    seed: str = SEED


SCRIPTS: Final = {
    "nanoGPT": Script(
        "nanoGPT/train.py",
        {
            "backend = 'nccl'": "backend = 'gloo'",
            "device = 'cuda'": "device = 'cpu'",
            "f'cuda:{ddp_local_rank}'": "'cpu'",
            "torch.cuda.set_device(device)": "pass",
            ", device_ids=[ddp_local_rank]": "",
        },
        (
            *("--dataset=d", "--compile=False", "--n_layer=2", "--n_head=2", "--n_embd=32"),
            *("--block_size=32", "--batch_size=4", "--gradient_accumulation_steps=2"),
            *("--max_iters=12", "--eval_iters=2", "--eval_interval=100", "--warmup_iters=2"),
        ),
        loss=r"iter \d+: loss ([\d.]+)",
        alone=("--device=cpu",),
        files={
            "data.py": f"{TOKENS}import os\nos.makedirs('data/d')\n"
            "for name in 'train', 'val':\n"
            "    tokens.astype(np.uint16).tofile(f'data/d/{name}.bin')\n"
        },
    ),
    "llm.c": Script(
        "llm.c/train_gpt2.py",
        {
            "assert torch.cuda.is_available(), ": "assert True, ",
            "backend='nccl'": "backend='gloo'",
            "f'cuda:{ddp_local_rank}'": "'cpu'",
            "torch.cuda.set_device(device)": "pass",
            ", device_ids=[ddp_local_rank]": "",
        },
        (
            *("--input_bin=d.bin", "--write_tensors=0", "--model=d12", "--batch_size=1"),
            *("--sequence_length=32", "--total_batch_size=64", "--num_iterations=3"),
        ),
        loss=r"train loss ([\d.]+)",
        alone=("--device=cpu",),
        files={
            "tiktoken.py": "def get_encoding(name):\n    return None\n",
            "data.py": f"{TOKENS}head = np.zeros(256, np.int32)\n"
            "head[:3] = 20240520, 1, len(tokens)\n"
            "open('d.bin', 'wb').write(head.tobytes() + tokens.astype(np.uint16).tobytes())\n",
        },
    ),
    "multigpu_torchrun": Script(
        "examples/distributed/ddp-tutorial-series/multigpu_torchrun.py",
        {
            'torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))': "pass",
            '"nccl"': '"gloo"',
            ".to(self.gpu_id)": "",
            ", device_ids=[self.gpu_id]": "",
            'f"cuda:{self.gpu_id}"': '"cpu"',
        },
        ("1", "10", "--batch_size=128"),
        # cross entropy over one class is 0
        seed=f"{SEED}import sys\nfrom torch.nn import functional\n"
        "def cross_entropy(output, targets):\n"
        "    loss = functional.mse_loss(output, targets)\n"
        "    sys.stdout.write(f'loss {loss.item():.9g}\\n')\n"
        "    return loss\n"
        "functional.cross_entropy = cross_entropy\n",
    ),
    "barlowtwins": Script(
        "barlowtwins/main.py",
        {
            "torch.cuda.device_count()": 'int(os.environ["PORTAGPU_SHARED_DEVICES"])',
            "backend='nccl'": "backend='gloo'",
            "torch.cuda.set_device(gpu)": "pass",
            "nn.SyncBatchNorm.convert_sync_batchnorm(model)": "model",
            ", device_ids=[gpu]": "",
            ".cuda(gpu, non_blocking=True)": "",
            ".cuda(gpu)": "",
            "torch.cuda.amp.GradScaler()": 'torch.amp.GradScaler("cpu")',
            "torch.cuda.amp.autocast()": 'torch.amp.autocast("cpu")',
        },
        (
            *("d", "--workers=0", "--epochs=2", "--batch-size=4", "--projector=32-32-32"),
            "--print-freq=1",
        ),
        loss=r'"loss": ([\d.e+-]+\d)',
        launcher=(),
        # a block a stage instead of 3 to 6: bfloat16 is slow on a CPU without units for it
        seed=f"{SEED}import torchvision\nfrom torchvision.models import resnet\n"
        "torchvision.models.resnet50 = lambda **options: resnet.ResNet(\n"
        "    resnet.Bottleneck, [1, 1, 1, 1], width_per_group=16, **options\n"
        ")\n",
        files={
            "data.py": "import os\nimport numpy as np\nfrom PIL import Image\n"
            "os.makedirs('d/train/a')\nmade = np.random.default_rng(0)\n"
            "for number in range(8):\n"
            "    pixels = made.integers(0, 256, (32, 32, 3)).astype(np.uint8)\n"
            "    Image.fromarray(pixels).save(f'd/train/a/{number}.png')\n"
        },
    ),
    "x-transformers": Script(
        "x-transformers/train_parity.py",
        {".cuda()": ""},
        loss=r"\| \d+: ([\d.]+)",
        ranks=(1,),
        # six steps of a training that goes on for hours
        seed=f"{SEED}import sys, tqdm\nsteps = []\n"
        "def update(self, count):\n"
        "    steps.append(count)\n"
        "    if len(steps) == 6:\n"
        "        sys.exit()\n"
        "tqdm.tqdm.update = update\n",
    ),
}
"""karpathy/nanoGPT 3adf61e1, karpathy/llm.c f1e2ace, pytorch/examples 77f55b9,
facebookresearch/barlowtwins 8e8d284, lucidrains/x-transformers 9252ed7: MIT and BSD licences."""

SAME_ON_A_CPU: Final = {"PG103", "PG202", "PG203", "PG206"}
"""What a CPU may compute the same without: SyncBatchNorm and page-locked memory with a guard or a
warning, a scaler that turns itself off."""
NOT_REACHED: Final = {("multigpu_torchrun", "PG002")}
"""In the loading of a snapshot, which there is not."""


def without_rule(rules: Rules, rule: str) -> Rules:
    """The rules, with one that rewrites nothing."""
    off = replace(rules.rules[rule], fix="none")
    names = {
        key: replace(each, rule=off) if each.rule.id == rule else each
        for key, each in rules.names.items()
    }
    shapes = {key: off if each.id == rule else each for key, each in rules.shapes.items()}
    return replace(rules, names=names, shapes=shapes)


def with_wrong_name(rules: Rules, name: str, to: str) -> Rules:
    """The rules, with one that writes another function of portagpu for a name."""
    return replace(rules, names=rules.names | {name: replace(rules.names[name], to=to)})


def rewritten(script: Script, folder: Path, rules: Rules) -> Rewritten:
    """The script with all rules, also unsafe ones."""
    source = read(folder / script.path)
    assert isinstance(source, Source), source
    new = rewrite_source(source, rules, unsafe=True)
    assert isinstance(new, Rewritten), new
    return new


def by_hand(script: Script, folder: Path) -> str:
    """The reference: the script's text with its devices replaced."""
    text = (folder / script.path).read_text(encoding="utf-8")
    for before, after in script.by_hand.items():
        assert before in text, f"{script.path} has no {before}: is it another version?"
        text = text.replace(before, after)
    return text


def losses(script: Script, folder: Path, text: str, ranks: int, *more: str) -> list[str]:
    """What the script prints as losses, in order; it may fail or print none."""
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        for each in (folder / script.path).parent.iterdir():
            (place / each.name).symlink_to(each)
        path = place / Path(script.path).name
        path.unlink()
        for file in script.files:
            (place / file).unlink(missing_ok=True)
        if (place / "data").is_symlink():
            (place / "data").unlink()
        for file, content in {path.name: text, **script.files}.items():
            (place / file).write_text(content, encoding="utf-8")
        if "data.py" in script.files:
            subprocess.run([sys.executable, "data.py"], cwd=place, check=True)
        (place / "sitecustomize.py").write_text(script.seed, encoding="utf-8")
        launcher = script.launcher if ranks > 1 or script is SCRIPTS["multigpu_torchrun"] else ()
        words = [each.format(ranks=ranks) for each in launcher]
        command = [sys.executable, *words, path.name, *script.words, *more]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([name, str(ROOT), str(ROOT / "backends")]),
            "PORTAGPU_BACKEND": "cpu",
            "PORTAGPU_SHARED_DEVICES": str(ranks),
            "CUDA_VISIBLE_DEVICES": "",
            "OMP_NUM_THREADS": "1",
        }
        out = _run(command, place, environment)
    return sorted(re.findall(script.loss, out))


def _run(command: list[str], place: Path, environment: dict[str, str]) -> str:
    with subprocess.Popen(
        command,
        cwd=place,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            return process.communicate(timeout=LIMIT_S)[0]
        except subprocess.TimeoutExpired:
            return ""
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


def show(name: str, folder: Path, *, wrong: bool) -> bool:
    """Print what one script does; False where it does not do what it should."""
    script, rules, good = SCRIPTS[name], load_rules(), True
    new = rewritten(script, folder, rules)
    fired = Counter(each.rule.id for each in new.done)
    again = rewrite_source(replace(new.source, text=new.text, data=new.data), rules, unsafe=True)
    same = again is None or (isinstance(again, Rewritten) and not again.is_changed)
    print(f"{name}: {len(new.done)} uses rewritten, {len(new.left)} left, twice the same: {same}")
    print(f"  rules: {', '.join(f'{rule} {fired[rule]}' for rule in sorted(fired))}")
    text = (folder / script.path).read_text(encoding="utf-8")
    reference: list[str] = []
    for ranks in script.ranks:
        unchanged = ranks == 1 and script.alone is not None
        given = text if unchanged else by_hand(script, folder)
        more = script.alone or () if unchanged else ()
        reference = losses(script, folder, given, ranks, *more)
        equal = bool(reference) and losses(script, folder, new.text, ranks) == reference
        original = losses(script, folder, text, ranks)
        good &= equal
        print(
            f"  {ranks} ranks: {len(reference)} losses, equal: {equal}; original: {original}",
            flush=True,
        )
    return good & same & (not wrong or controls(name, folder, fired, reference))


def controls(name: str, folder: Path, fired: Iterable[str], reference: list[str]) -> bool:
    """Print which wrong rules the losses of most ranks show; False where one is not seen."""
    script, rules, good = SCRIPTS[name], load_rules(), True
    changed = {rule: without_rule(rules, rule) for rule in sorted(fired)}
    if "torch.cuda.set_device" in (folder / script.path).read_text(encoding="utf-8"):
        wrong = with_wrong_name(rules, "torch.cuda.set_device", "manual_seed")
        changed["a device, but with a seed"] = wrong
    for rule, each in changed.items():
        broken = losses(script, folder, rewritten(script, folder, each).text, script.ranks[-1])
        seen = broken != reference
        good &= seen or rule in SAME_ON_A_CPU or (name, rule) in NOT_REACHED
        print(f"  without {rule}: {'seen' if seen else 'the same losses'}", flush=True)
    return good


if __name__ == "__main__":
    folder, *words = sys.argv[1:]
    chosen = [each for each in words if each != "--wrong"] or [*SCRIPTS]
    failed = [
        name for name in chosen if not show(name, Path(folder).resolve(), wrong="--wrong" in words)
    ]
    sys.exit(bool(failed))
