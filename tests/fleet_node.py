"""Stands for ``portagpu`` on a node: ``fleet_node.py VERB [WORD...] --out DIR`` writes a result.

Words: ``fail=NODE`` fails there, ``sleep=SECONDS`` takes so long, ``other=NODE`` writes a result of
another version there, ``silent=NODE`` ends there without one.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from portagpu.results.run import Evidence, Result, Verdict, new_run


def main() -> int:
    verb, *words = sys.argv[1:]
    folder = Path(words[words.index("--out") + 1])
    node = os.environ["SLURMD_NODENAME"]
    said = dict(word.split("=", 1) for word in words if "=" in word)
    run = new_run(["portagpu", verb, *words], host=node)
    run.finish(interrupted=True).write_json(folder / "result.json")
    until = time.monotonic() + float(said.get("sleep", 0))
    while time.monotonic() < until and not (folder.parent / "go").exists():
        time.sleep(0.05)
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


if __name__ == "__main__":
    sys.exit(main())
