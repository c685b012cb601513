"""Stands for ``portagpu`` on a node: ``fleet_node.py VERB [WORD...] --out DIR`` writes a result.

Words: ``fail=NODE`` fails there, ``sleep=SECONDS`` takes so long, ``other=NODE`` writes a result of
another version there, ``silent=NODE`` ends there without one. As a rank of several nodes it takes
``slow=NODE`` and ``slow=NODE+NODE``: half the bandwidth wherever that node, or that pair, is.
"""

from __future__ import annotations

import json
import os
import sys
import time
import zlib
from pathlib import Path

from portagpu.runs.results.run import Evidence, Result, Verdict, new_run


def main() -> int:
    verb, *words = sys.argv[1:]
    if verb == "fleet":
        return rank(words)
    folder = Path(words[words.index("--out") + 1])
    node = os.environ["SLURMD_NODENAME"]
    said = dict(word.split("=", 1) for word in words if "=" in word)
    run = new_run(["portagpu", verb, *words], host=node)
    run.finish(interrupted=True).write_json(folder / "result.json")
    # allowed: it takes as long as it is asked to, or until it may go
    until = time.monotonic() + float(said.get("sleep", 0))
    # allowed: the same
    while time.monotonic() < until and not (folder.parent / "go").exists():
        time.sleep(0.05)  # allowed: the same
    if said.get("silent") == node:
        (folder / "result.json").unlink()
        print("no such device", file=sys.stderr)
        return 1
    bad = said.get("fail") == node
    run.add(
        Result(
            id="links/active",
            suite="bringup",
            area="links",
            verdict=Verdict.FAIL if bad else Verdict.PASS,
            evidence=(Evidence.EXECUTED,),
            reason="3 of 8 links are up" if bad else "",
            duration_s=0.1,
            extra={"action": "isolate"} if bad else {},
        )
    )
    document = run.finish().to_json()
    if said.get("other") == node:
        document["schema"] = "portagpu.result/9"
    # every word as it came, so that a test sees whether a shell read it
    (folder / "words.json").write_text(json.dumps(words))
    (folder / "result.json").write_text(json.dumps(document))
    return run.exit_code


def rank(words: list[str]) -> int:
    if os.environ["SLURM_PROCID"] != "0":
        return 0
    folder = Path(words[words.index("--out") + 1])
    slow = [set(word.removeprefix("slow=").split("+")) for word in words if "slow=" in word]
    nodes = folder.name.split("+")
    rate = 100.0 + zlib.crc32(folder.name.encode()) % 7 * 0.1
    if any(each <= set(nodes) for each in slow):
        rate /= 2
    run = new_run(["portagpu", "fleet", *words], host=nodes[0])
    ranks = int(os.environ["SLURM_NTASKS"])
    for suite, name, verdict, value, unit in (
        ("collectives", "verify/all_reduce", Verdict.PASS, 0, "1"),
        ("performance", f"collectives/all_reduce[{ranks}-64MiB]", Verdict.UNVERIFIED, rate, "GB/s"),
    ):
        run.add(
            Result(
                id=name,
                suite=suite,
                area="collectives",
                verdict=verdict,
                evidence=(Evidence.EXECUTED,),
                reason="" if verdict is Verdict.PASS else "nothing to judge by",
                value=value,
                unit=unit,
                duration_s=0.1,
            )
        )
    run.finish().write_json(folder / "result.json")
    return 0


if __name__ == "__main__":
    sys.exit(main())
