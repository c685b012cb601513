"""Golden files of wrong calls, the doctor, the monitor and plans."""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING, Final

from tests.support.golden import Calls, Golden

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

WRONG: Final = """
nonsense
--nonsense
info --replay missing
info --jsn x
info --replay notes.txt
info --replay empty.txt
bringup --only nonsense --replay gpu.xml
bringup --only memory --skip memory --replay gpu.xml
bringup --expect-devices 0
bringup --duration 0.5
bringup --duration nan
bringup --quick --full --replay gpu.xml
bringup --target nvidia-h100 --replay gpu.xml
health --replay missing
health --limit 0.4
health --fail-on monitor --replay gpu.xml
health --gate slurm
health --since yesterday --replay gpu.xml
health --since 5 --replay gpu.xml
health --expect-devices -1
conform --index -1
conform --shard 0/2
conform --shard x
conform --time 5 --level deep
conform --time 5x --level deep
conform --timeout 0
conform --seed -1
conform --last-failed missing
bench --world 0
bench --peers
bench --calibrate
bench --peers missing
bench --seed -1
screen --time 0s
screen --time week
screen --only nonsense --list
screen --index 0,x
screen --seed -2
collectives nonsense
collectives verify --only nonsense
collectives verify --ranks 0
collectives verify --dtype fp7
collectives verify --size 1Q
collectives verify --replay missing
collectives verify --replay notes.txt
collectives choose --ranks 1 --bytes 1M
collectives choose --ranks 8
collectives choose --ranks 8 --bytes 1M
collectives choose --ranks 8 --bytes 0 --target nvidia-h100-sxm
collectives choose --ranks 8 --bytes 1M --target nvidia-h100
collectives choose --ranks 16 --nodes 2 --bytes 1M --target nvidia-h100-sxm
collectives choose --ranks 9 --nodes 2 --bytes 1M --target nvidia-h100-sxm --nic-gbs 50
collectives choose --ranks 8 --bytes 1M --target nvidia-h100-sxm --graph Ring
collectives choose --ranks 8 --bytes 1M --target nvidia-h100-sxm --graph Rong=1x2
collectives choose --ranks 8 --bytes 1M --target nvidia-h100-sxm --algorithm Rong
collectives choose --ranks 8 --bytes 1M --target nvidia-h100-sxm --set cpu
collectives choose --ranks 8 --bytes 1M --target nvidia-h100-sxm --set cpu=vax
collectives choose --ranks 8 --bytes 1M --target nvidia-h100-sxm --op nonsense
collectives choose --ranks 8 --bytes 1M --target cpu-x86-64
collectives choose --ranks 8 --target nvidia-h100-sxm --params notes.txt
collectives choose --ranks 8 --target nvidia-h100-sxm --params numbers.json
collectives choose --ranks 8 --target nvidia-h100-sxm --params numbers.json --backward-ms 0
collectives placement --replay missing
collectives placement --replay notes.txt
collectives placement --replay gpu.xml --tp 3
collectives placement --tp 0
collectives tune --ranks 1
collectives doctor missing
trace summary missing
trace summary notes.txt
trace summary empty.txt
trace summary numbers.json
trace summary numbers.json --by nonsense
trace summary numbers.json --top 0
trace summary numbers.json --device -1
trace diff numbers.json
trace diff numbers.json numbers.json
trace diff numbers.json numbers.json --allow nonsense
trace diagnose missing
trace timeline numbers.json
trace timeline numbers.json -o x.bin
port lint missing
port lint
port lint notes.txt
port rewrite missing
occupancy --arch sm_90
occupancy --arch sm_9 --threads 1 --regs 1
occupancy --arch sm_90 --threads 0 --regs 1
occupancy --arch sm_90 --threads 64 --regs -1
occupancy --arch sm_90 --threads 64 --regs 32 --acc 4
occupancy --arch gfx942 --threads 64 --regs 32 --carveout 50
occupancy --arch gfx942 --threads 64 --regs 32 --wave-size 32
occupancy --arch sm_90 --threads 64 --regs 32 --carveout 101
occupancy --arch sm_90 --threads 64 --regs 32 --barriers 17
occupancy --arch sm_90 --threads 64 --regs 32 --cu-mode
targets show nonsense
targets show nvidia-h100
targets check missing
matrix show missing
matrix show notes.txt
matrix show --target nonsense
matrix report missing -o x.html
matrix report numbers.json -o x.html
matrix history runs --store missing.sqlite
matrix history runs --store notes.txt
matrix history runs --store mysql://x
matrix history compare a b --store missing.sqlite
matrix history import missing --store store.sqlite
fleet status missing
fleet report missing
fleet clear missing --node a --replaced
fleet run nonsense --nodes a --out x
fleet run bench --nodes a --out x --rounds 0
report missing
report notes.txt
report numbers.json
profile
profile --with nonsense -- true
profile --record nonsense -- true
profile --delay -1 -- true
monitor --interval 0.05
monitor --count 0
monitor --max-bytes 5 --count 1
monitor --serve 99999999
monitor --duration 0
compile --arch sm_1
compile --target nonsense
plan --model llama-3.1-8b --batch 0
plan --model llama --batch 8 --target nvidia-h100-sxm --ranks 8
plan --model numbers.json --batch 8 --target nvidia-h100-sxm --ranks 8
plan --model llama-3.1-8b --batch 8 --target nvidia-h100-sxm --ranks 8 --strategy tp=9
plan --model llama-3.1-8b --batch 8 --target nvidia-h100-sxm --ranks 8 --optimizer sdg
plan --model llama-3.1-8b --batch 8 --target nvidia-h100-sxm --ranks 8 --sharding zero4
plan --model llama-3.1-8b --batch 8 --target nvidia-h100-sxm --ranks 8 --efficiency 2
record
""".strip().splitlines()
"""Calls that are refused before anything runs, from a folder with a few wrong files."""


def _wrong(folder: Path) -> Iterator[str]:
    (folder / "notes.txt").write_text("the first run\n")
    (folder / "empty.txt").write_text("")
    (folder / "numbers.json").write_text("[1, 2, 3]")
    (folder / "gpu.xml").write_text("<nvidia_smi_log></nvidia_smi_log>")
    call = Calls(folder)
    for words in WRONG:
        yield from call(*words.split(), timed=True)


def _doctor(folder: Path) -> Iterator[str]:
    """Logs of libraries and dumps of torch's flight recorder."""
    from tests.support.flight_recorder_cases import own_cases
    from tests.vendor_texts import test_doctor_logs as logs

    call = Calls(folder)
    for number, case in enumerate(own_cases()):
        dumps = folder / f"dumps-{number}"
        dumps.mkdir()
        for rank, dump in enumerate(case.documents):
            (dumps / f"rank_{rank}.json").write_text(json.dumps(dump))
        yield f"# {case.name}"
        whole = number % 5 == 0
        yield from call("collectives", "doctor", dumps.name, document=whole, timed=True)
    both = [*logs.rank(0, 2), *logs.rank(1, 2, host="node2")]
    said = [logs.line(message) for message in logs.EVENTS]
    said += [logs.line(message, level="WARN") for message in logs.WARNINGS]
    (folder / "all.log").write_text("\n".join([*both, *said]) + "\n")
    (folder / "few.log").write_text("\n".join([*logs.rank(0, 3), *logs.rank(1, 3, complete=False)]))
    lines = [logs.timeout(0, 5), logs.timeout(1, 5, "BROADCAST"), logs.timeout(2, 4, given=9)]
    (folder / "watchdog.log").write_text("\n".join([*lines, logs.status(0, 6), logs.status(1, 5)]))
    for name in ("all.log", "few.log", "watchdog.log"):
        yield from call("collectives", "doctor", name, document=True, timed=True)
    yield from call("collectives", "doctor", "few.log", "--strict", timed=True)


def _monitor(folder: Path) -> Iterator[str]:
    """Lines, a table and metrics of samples, and stalled jobs."""
    import rich.console

    from portagpu.checks.monitor import JsonLines
    from portagpu.checks.monitor.metrics import METRICS
    from portagpu.checks.monitor.sample import StallWatch
    from portagpu.cli._monitor_view import Lines, LiveTable
    from tests.support.monitor_samples import a_round, full, sample

    odd = full(2, name="", power_w=None, memory_used_bytes=1023, uncorrected_errors=3, stalled=True)
    cpu = sample(3, kind="cpu", name="Example CPU", utilization_percent=3.25)
    shown = a_round(full(), sample(1), odd, cpu, number=7)
    stream = io.StringIO()
    Lines(stream).write(shown)
    yield from stream.getvalue().splitlines()
    for width in (80, 200):
        stream = io.StringIO()
        console = rich.console.Console(file=stream, width=width, height=40, force_terminal=False)
        with LiveTable(console, "node-1", 5.0) as table:
            table.write(shown)
            table.say("an event")
        yield from (line.rstrip() for line in stream.getvalue().splitlines())
    path = folder / "out.jsonl"
    lines = JsonLines(str(path), print)
    lines.write(shown)
    lines.close()
    yield from path.read_text(encoding="utf-8").splitlines()
    for metric in METRICS:
        for each in (full(), odd, cpu):
            yield f"{metric.series} {list(metric.points(each))}"
    for power, busy in ((100.0, 100.0), (105.0, 99.0), (140.0, 100.0), (500.0, 100.0), (70, 20.0)):
        watch = StallWatch()
        found = [str(watch.look(float(at), busy, power, 700.0)) for at in range(0, 241, 15)]
        yield f"{power} W of 700 W at {busy} %: {found}"


def _planned(folder: Path) -> Iterator[str]:
    call = Calls(folder)
    asked = ("plan", "--model", "llama-3.1-8b", "--batch", "64", "--sequence", "8192")
    one = ("--target", "nvidia-h100-sxm", "--ranks", "8")
    yield from call(*asked, *one, document=True)
    for words in (
        ("--target", "amd-mi300x"),
        ("--strategy", "tp=2,pp=2", "--settings", "megatron", "--sharding", "zero1"),
        ("--settings", "torchtitan", "--show", "2"),
        ("--settings", "deepspeed", "--sharding", "zero3", "--micro-batch", "2"),
        ("--optimizer", "sgd", "--recompute", "full", "--plain-attention"),
        ("--frozen", "--graphs", "--fused-loss", "--kv-tokens", "1000", "--efficiency", "0.5"),
        ("--memory", "40G", "--precision", "bf16", "--max-cp", "2"),
    ):
        yield from call(*asked, *one, *words)
    many = ("--target", "amd-mi300x", "--ranks", "32", "--nodes", "4", "--nic-gbs", "50")
    yield from call(*asked, *many, "--show", "3")


CHECKS: Final = {
    "wrong.txt": Golden("unit", _wrong, ("pyarrow", "sqlalchemy", "libcst", "networkx")),
    "doctor.txt": Golden("vendor_texts", _doctor),
    "monitor.txt": Golden("unit", _monitor, ("rich",)),
    "planned.txt": Golden("unit", _planned, ("networkx",)),
}
