"""What stands after several runs of one node: the rules of docs/results.md, against an oracle."""

from __future__ import annotations

import os
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from portagpu.runs.ledger import Clearance, Relief, account_of, balance, lines, owner_of
from portagpu.runs.results.run import Result, Run, RunInfo, Verdict
from tests.unit.runs.test_ledger import DEVICES, STATED, Made, lost

_CLEARANCES = st.lists(
    st.builds(
        Clearance,
        node=st.just("node"),
        device=st.sampled_from(("", *DEVICES)),
        at_s=st.sampled_from([1.7e9 + step / 2 + 0.25 for step in range(12)]),
        what=st.sampled_from(Relief),
        reason=st.just("so"),
    ),
    max_size=2,
)

IDS = ("sustained/values", "links/links-up")
"""The first one's failure is a value that was wrong."""

_FACTS = st.tuples(st.sampled_from(DEVICES), st.sampled_from(IDS))

_RUNS = st.lists(
    st.builds(
        Made,
        # ties, and clocks that jump back
        at=st.sampled_from([1.7e9 + step / 2 for step in range(12)]),
        stated=st.dictionaries(_FACTS, st.sampled_from(STATED), min_size=1, max_size=4).map(
            lambda found: tuple(found.items())
        ),
        listed=st.sampled_from([DEVICES, DEVICES, DEVICES, (), DEVICES[:1], DEVICES[1:]]),
        interrupted=st.booleans(),
        replayed=st.integers(0, 5).map(lambda number: number == 0),
    ),
    min_size=1,
    max_size=6,
).map(lambda runs: [replace(each, number=n) for n, each in enumerate(runs)])

EXAMPLES = int(os.environ.get("LEDGER_EXAMPLES", "600"))
"""100,000 take a quarter of an hour."""


def name_in(made: Made, device: str) -> str:
    """What a run that states something of the device knows of it: its UUID, or its index alone.

    Where a run describes no device, the first one is what it is about.
    """
    if not made.listed and device == DEVICES[0]:
        return ""
    return device if device in made.listed else f"example:{DEVICES.index(device)}"


def unrepaired(runs: list[Made], reliefs: list[Clearance]) -> set[tuple[str, str]]:
    """The failures that stand: each FAIL that nothing repaired after it."""
    found = set()
    for failed in runs:
        for (device, name), verdict in failed.stated:
            known = name_in(failed, device)
            if verdict is not Verdict.FAIL:
                continue
            own = [
                each for each in reliefs if each.device in ("", known) and each.at_s >= failed.at
            ]
            repaired = any(each.what is Relief.REPLACED or name == IDS[0] for each in own)
            of_same = [
                len(each.listed)
                for each in runs
                if ((device, name), Verdict.FAIL) in each.stated and name_in(each, device) == known
            ]
            for passed in runs:
                # an index is that device where all are listed, and more than the failing run knew
                same = name_in(passed, device) == known or (
                    (known.startswith("example:") or not known)
                    and device in passed.listed
                    and len(passed.listed) > max(of_same)
                )
                repaired |= (
                    name != IDS[0]
                    and same
                    and passed.at >= failed.at + 1
                    and not passed.interrupted
                    and ((device, name), Verdict.PASS) in passed.stated
                )
            if not repaired:
                found.add((known, name))
    return found


def shown(identity: str) -> str:
    """An identity as the documents of this module write it."""
    return identity.replace("gpu-", "GPU-")


def run_of(made: Made) -> Run:
    # a run of one device names it by its place alone
    devices = [{"name": "Example", "uuid": each, "vendor": "example"} for each in made.listed]
    info = RunInfo(
        id=f"run-{made.number}",
        started=datetime.fromtimestamp(made.at, UTC).isoformat(),
        host="node",
        target="t",
        backend="example",
        devices=[{**each, "index": DEVICES.index(each["uuid"])} for each in devices],
        interrupted=made.interrupted,
        replay=[{"name": "x", "sha256": None, "source": None}] if made.replayed else [],
    )
    made_run = Run(info)
    for (device, name), verdict in made.stated:
        made_run.add(
            Result(
                id=name,
                suite="bringup",
                area=name.partition("/")[0],
                verdict=verdict,
                reason="so",
                device=f"example:{DEVICES.index(device)}",
            )
        )
    return made_run


@settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=EXAMPLES < 1000,
    suppress_health_check=list(HealthCheck),
)
@given(_RUNS, _CLEARANCES, st.randoms(use_true_random=False))
def test_no_failure_is_lost_and_none_is_made_up(
    made: list[Made], reliefs: list[Clearance], order: Any
) -> None:
    shuffled = order.sample(made, len(made))
    runs = [run_of(each) for each in shuffled]
    accounts = [account_of(each) for each in runs]
    found = lines([(owner_of(run, "x"), own) for run, own in zip(runs, accounts, strict=True)])
    ran = [each for each in made if not each.replayed]
    assert len(found) == bool(ran) + len(made) - len(ran), "each recording is a line of its own"
    for line in found:
        of_line = [shuffled[at] for at in line.entries]
        own = balance(
            [accounts[at] for at in line.entries], reliefs if not of_line[0].replayed else ()
        )
        assert all(each.replayed == (line.name != "node") for each in of_line)
        clears = reliefs if not of_line[0].replayed else []
        failed = {
            (shown(fact.device), fact.id)
            for fact, each in own.facts.items()
            if each.verdict is Verdict.FAIL
        }
        assert failed == unrepaired(of_line, clears)
        absent = {shown(each.device.id) for each in own.absent}
        assert absent == lost(of_line, clears)
        bad = bool(failed or absent)
        assert (own.verdict in (Verdict.FAIL, Verdict.ERROR)) >= bad
        if own.verdict is Verdict.PASS:
            assert not bad
            states = {each.verdict for each in own.facts.values()}
            assert states <= {Verdict.PASS, Verdict.SKIP}
            assert Verdict.PASS in states
