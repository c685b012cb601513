"""What stands after several runs of one node: the rules of docs/results.md, against an oracle."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import pytest

from portagpu.runs.ledger import (
    Clearance,
    Owner,
    Relief,
    account_of,
    balance,
    fact_of,
    instant,
    lines,
    owner_of,
)
from portagpu.runs.results.run import Result, Run, RunInfo, Verdict

DEVICES = ("GPU-a", "GPU-b")
STATED = (
    Verdict.PASS,
    Verdict.FAIL,
    Verdict.PASS,
    Verdict.FAIL,
    Verdict.ERROR,
    Verdict.INCONCLUSIVE,
    Verdict.SKIP,
)


@dataclass(frozen=True)
class Made:
    """A run of an example: what it states of (device, id), and what it lists."""

    at: float
    stated: tuple[tuple[tuple[str, str], Verdict], ...]
    listed: tuple[str, ...]
    interrupted: bool
    replayed: bool
    number: int = 0

    @property
    def key(self) -> tuple[float, str]:
        return self.at, f"run-{self.number}"


def lost(runs: list[Made], reliefs: list[Clearance]) -> set[str]:
    """The devices that no longer are there."""
    listings = [each for each in runs if each.listed and each.stated and not each.interrupted]
    if not listings:
        return set()
    end = max(each.at for each in listings)
    newest = [each for each in listings if end - each.at < 1]
    found = set()
    for device in {name for each in runs for name in each.listed}:
        seen = max(each.at for each in runs if device in each.listed)
        relieved = any(
            each.what is Relief.REPLACED and each.device in ("", device) and each.at_s >= seen
            for each in reliefs
        )
        missing = any(device not in each.listed and each.at > seen - 1 for each in newest)
        if missing and not relieved:
            found.add(device)
    return found


def result(
    name: str, verdict: Verdict = Verdict.PASS, device: str | None = None, **fields: Any
) -> Result:
    return Result(
        id=name,
        suite=fields.pop("suite", "bringup"),
        area=name.partition("/")[0],
        verdict=verdict,
        reason="so",
        device=device,
        **fields,
    )


def run(second: float, *results: Result, **fields: Any) -> Run:
    return Run(
        RunInfo(
            id=f"run-{second:g}",
            started=datetime.fromtimestamp(1.7e9 + second, UTC).isoformat(),
            host=fields.pop("host", "node"),
            **{"backend": "cuda", "target": "t", **fields},
        ),
        list(results),
    )


def gpus(*uuids: str) -> list[dict[str, str]]:
    return [{"name": "GPU", "vendor": "nvidia", "uuid": each} for each in uuids]


def stands(*runs: Run, reliefs: tuple[Clearance, ...] = ()) -> Verdict:
    return balance([account_of(each) for each in runs], reliefs).verdict


FAILED = result("memory/x", Verdict.FAIL, "cuda:1")
PASSED = result("memory/x", Verdict.PASS, "cuda:1")


def test_the_same_fact_repairs_a_failure_and_nothing_else_does() -> None:
    old = run(0, FAILED, devices=gpus("GPU-a", "GPU-b"))
    here = {"devices": gpus("GPU-a", "GPU-b")}
    assert stands(old, run(9, PASSED, **here)) is Verdict.PASS
    # the same device at another index
    moved = result("memory/x", Verdict.PASS, "cuda:0")
    assert stands(old, run(9, moved, devices=gpus("GPU-B", "GPU-a"))) is Verdict.PASS
    for other in (
        run(9, result("memory/x", Verdict.PASS, "cuda:0"), **here),
        run(9, result("memory/y", Verdict.PASS, "cuda:1"), **here),
        run(9, PASSED, backend="cpu", **here),
        run(9, PASSED, target="u", **here),
        run(9, result("memory/x", Verdict.PASS, "cuda:1", suite="conformance"), **here),
        run(9, PASSED, interrupted=True, **here),
        run(0.5, PASSED, **here),
        run(-9, PASSED, **here),
        *(
            run(9, result("memory/x", each, "cuda:1"), **here)
            for each in set(STATED) - {Verdict.PASS}
        ),
        # nothing says that this index is that device
        run(9, PASSED),
    ):
        assert stands(old, other) in (Verdict.FAIL, Verdict.ERROR), other.info


def test_what_a_bring_up_took_over_is_the_fact_of_its_suite() -> None:
    took = result("rng/x", Verdict.FAIL, extra={"suite": "conformance"})
    took = replace(took, area="numerics")
    assert stands(run(0, took), run(9, result("rng/x", suite="conformance"))) is Verdict.PASS
    own = balance([account_of(run(0, took))])
    assert own.gates() == {("bringup", "numerics"): Verdict.FAIL}


def test_programs_of_another_seed_repair_nothing() -> None:
    def drawn(verdict: Verdict, seed: int, **extra: Any) -> Result:
        return result(
            "rng/random-programs",
            verdict,
            suite="conformance",
            extra={"case": "rng/random-programs", **(extra or {"seed": seed})},
        )

    assert stands(run(0, drawn(Verdict.FAIL, 1)), run(9, drawn(Verdict.PASS, 2))) is Verdict.FAIL
    # computed wrong now and then: the same seed proves nothing either
    assert stands(run(0, drawn(Verdict.FAIL, 1)), run(9, drawn(Verdict.PASS, 1))) is Verdict.FAIL
    reported = {"observed": ["15 programs of 81 calls in 0.4 s, seed 7"]}
    made = run(0, drawn(Verdict.PASS, 0, **reported))
    assert fact_of(made.results[0], made, ()).seed == "7"
    asked = run(
        0, result("rng/x", suite="conformance"), command=["portagpu", "conform", "--seed", "3"]
    )
    assert fact_of(asked.results[0], asked, ()).seed == "3", "it may have drawn programs"


def test_a_wrong_value_stays_until_its_device_is_cleared_or_replaced() -> None:
    wrong = result("sustained/values", Verdict.FAIL, "cuda:0")
    right = result("sustained/values", Verdict.PASS, "cuda:0")
    here = {"devices": gpus("GPU-a")}
    old, new = run(0, wrong, **here), run(9, right, **here)
    assert stands(old, new) is Verdict.FAIL
    at = instant(old.info.started)

    def relief(what: Relief, second: float, device: str = "GPU-a") -> tuple[Clearance, ...]:
        return (Clearance(node="node", device=device, at_s=at + second, what=what, reason="so"),)

    assert stands(old, new, reliefs=relief(Relief.CLEARED, 5)) is Verdict.PASS
    assert stands(old, reliefs=relief(Relief.CLEARED, 5)) is Verdict.INCONCLUSIVE
    assert stands(old, new, reliefs=relief(Relief.CLEARED, 5, "GPU-b")) is Verdict.FAIL
    assert stands(old, new, reliefs=relief(Relief.CLEARED, -5)) is Verdict.FAIL
    other = run(9, replace(right, id="links/x", area="links"), devices=gpus("GPU-c"))
    assert stands(old, other, reliefs=relief(Relief.REPLACED, 5)) is Verdict.PASS
    assert stands(old, other) is Verdict.FAIL


def test_a_device_that_a_later_run_does_not_list_is_a_failure() -> None:
    check = result("identity/count")
    eight = run(0, check, devices=gpus("GPU-a", "GPU-b"))
    (absent,) = balance(
        [account_of(each) for each in (eight, run(9, check, devices=gpus("GPU-a")))]
    ).absent
    assert (absent.device.id, absent.missing.run) == ("gpu-b", "run-9")
    one = {"devices": gpus("GPU-a")}
    for quiet in (
        run(9, result("gemm/x", suite="performance"), **one),
        run(9, check, command=["portagpu", "bringup", "--index", "0"], **one),
        run(9, check, result("environment/visible", Verdict.UNVERIFIED), **one),
        run(9, check, interrupted=True, **one),
        run(9, check, backend="cpu", devices=[{"name": "CPU", "kind": "cpu"}]),
        # torch and the driver may name the same device by less
        run(9, check, devices=[{"name": "GPU"}, {"name": "GPU"}]),
    ):
        assert not balance([account_of(eight), account_of(quiet)]).absent, quiet.info
    # every backend's devices are listed by health
    assert balance([account_of(eight), account_of(run(9, check, backend=None, **one))]).absent
    back = run(20, check, devices=gpus("GPU-a", "GPU-b"))
    assert stands(eight, run(9, check, **one), back) is Verdict.PASS
    parts = [*gpus("GPU-a"), {"name": "slice", "uuid": "MIG-1", "parent": "GPU-a"}]
    assert stands(run(0, check, devices=parts), run(9, check, **one)) is Verdict.PASS


def test_a_device_without_a_uuid_is_known_by_its_address_and_then_by_its_index() -> None:
    at = [{"name": "GPU", "pci": "00000000:3B:00.0"}, {"name": "GPU", "pci": "0000:5e:00.0"}]
    made = account_of(run(0, FAILED, devices=at))
    assert [each.id for each in made.devices] == ["0000:3b:00.0", "0000:5e:00.0"]
    (fact,) = made.statements
    assert fact.device == "0000:5e:00.0"
    (fact,) = account_of(run(0, FAILED)).statements
    assert fact.device == "cuda:1"
    alone = run(
        0, result("memory/x", Verdict.FAIL), command=["portagpu", "conform", "--index", "1"]
    )
    assert fact == next(iter(account_of(alone).statements))


def test_a_cpu_is_one_device_whatever_it_is_called() -> None:
    cpu = {"backend": "cpu", "devices": [{"name": "CPU", "kind": "cpu"}]}
    old = run(0, result("memory/x", Verdict.FAIL, "cpu"), **cpu)
    assert stands(old, run(9, result("memory/x"), **cpu)) is Verdict.PASS


def test_two_machines_under_one_name_are_reported() -> None:
    check = result("identity/count")
    runs = [run(0, check, devices=gpus("GPU-a")), run(9, check, devices=gpus("GPU-b"))]
    own = balance([account_of(each) for each in runs])
    assert own.several_machines == "the runs run-0 and run-9 have no device in common"
    same = balance([account_of(each) for each in runs[:1] * 2])
    assert not same.several_machines


def test_a_run_of_no_known_host_is_a_line_of_its_own_and_so_is_a_recording() -> None:
    ran = account_of(run(0))
    replayed = account_of(run(0, replay=[{"name": "x", "sha256": None, "source": None}]))
    owners = [
        (Owner("", "n1", "a"), ran),
        (Owner("", "n1", "b"), ran),
        (Owner("of-record", "n1", "c"), ran),
        (Owner("", "n1", "d"), replayed),
        (Owner("", "", "gpu001"), ran),
        (Owner("", "", "gpu001"), ran),
        (owner_of(run(0, host="<host-1>"), "bundle"), ran),
    ]
    assert {each.name: each.entries for each in lines(owners)} == {
        "n1": [0, 1],
        "of-record": [2],
        "n1 (recording)": [3],
        "gpu001": [4],
        "gpu001 (2)": [5],
        "bundle": [6],
    }


def test_instants_are_compared_and_not_texts() -> None:
    assert instant("2026-01-01T00:30:00-01:00") > instant("2026-01-01T01:00:00Z")


def test_what_was_not_judged_last_is_not_a_pass() -> None:
    old = run(0, PASSED)
    for verdict in (Verdict.INCONCLUSIVE, Verdict.ERROR):
        later = run(9, result("memory/x", verdict, "cuda:1"))
        assert stands(old, later, run(20, result("memory/y"))) is not Verdict.PASS
    assert stands(old, run(9, interrupted=True)) is Verdict.INCONCLUSIVE
    assert stands(old, run(9, result("memory/x", Verdict.SKIP, "cuda:1"))) is Verdict.PASS


def test_a_balance_needs_a_run() -> None:
    with pytest.raises(ValueError, match="at least one run"):
        balance([])


def test_what_a_run_says_of_a_gate_as_a_whole_ends_with_results_of_the_gate() -> None:
    left_out = result("memory/left-out", Verdict.INCONCLUSIVE)
    whole = result("memory/x")
    assert stands(run(0, left_out), run(9, whole)) is Verdict.PASS
    assert stands(run(0, whole), run(9, left_out)) is Verdict.PASS, "it was judged before"
    assert stands(
        run(0, whole), run(9, left_out, result("links/left-out", Verdict.INCONCLUSIVE))
    ) is (Verdict.INCONCLUSIVE)
    broke = result("memory/check", Verdict.ERROR)
    assert stands(run(0, broke), run(9, whole)) is Verdict.PASS
    assert stands(run(0, whole), run(9, broke)) is Verdict.ERROR


def test_a_pass_of_all_repairs_what_blamed_one_of_them() -> None:
    here = {"devices": gpus("GPU-a", "GPU-b")}
    for culprit, devices in (("rank 1", here), ("node 1", here), ("rank 1", {})):
        blamed = result("collectives/x", Verdict.FAIL, culprit)
        assert stands(run(0, blamed, **devices), run(9, result("collectives/x"), **here)) is (
            Verdict.PASS
        )
    blamed = run(0, result("links/numa", Verdict.FAIL, "node 1"), **here)
    (fact,) = account_of(blamed).statements
    assert fact.device == "node 1", "it is not a GPU"
    # one device's case says nothing of another
    other = result("memory/alloc", Verdict.FAIL, "cuda:1", suite="conformance")
    passed = result("memory/alloc", suite="conformance")
    assert stands(run(0, other, **here), run(9, passed, **here)) is Verdict.FAIL


def test_a_device_that_did_not_open_is_repaired_by_its_index_where_all_are_listed() -> None:
    closed = result("identity/device", Verdict.FAIL, "cuda device 1")
    old = run(0, closed, devices=[{**each, "index": 0} for each in gpus("GPU-a")])
    opened = result("identity/device", Verdict.PASS, "cuda:1")
    assert stands(old, run(9, opened, devices=gpus("GPU-a", "GPU-b"))) is Verdict.PASS
    # after it was lost another device has its index
    assert stands(old, run(9, opened, devices=gpus("GPU-b"))) is Verdict.FAIL
    # the devices that opened keep their indices
    kept = [{**each, "index": place} for place, each in enumerate(gpus("GPU-a", "GPU-b", "GPU-c"))]
    failed = result("memory/x", Verdict.FAIL, "cuda:2")
    (fact,) = account_of(run(0, failed, devices=kept[1:])).statements
    assert fact.device == "gpu-c"


def test_the_only_device_that_is_listed_is_not_another_index() -> None:
    failed = run(0, result("links/x", Verdict.FAIL))
    second = [{**each, "index": 1} for each in gpus("GPU-b")]
    assert stands(failed, run(9, result("links/x", Verdict.PASS, "cuda:1"), devices=second)) is (
        Verdict.FAIL
    )


def test_a_pass_of_the_first_device_is_not_one_of_all() -> None:
    here = {"devices": gpus("GPU-a", "GPU-b")}
    unnamed = run(0, result("links/x", Verdict.FAIL))
    second = run(1, result("links/x", Verdict.FAIL, "cuda:1"), **here)
    first = run(9, result("links/x", Verdict.PASS, "cuda:0"), **here)
    assert stands(unnamed, second, first) is Verdict.FAIL


def test_each_backend_lists_its_own_devices() -> None:
    check = result("identity/count")
    both = run(0, check, backend=None, devices=gpus("GPU-a", "GPU-b"))
    gone = run(3, check, backend=None, devices=gpus("GPU-a"))
    cpu = run(6, check, backend="cpu", devices=[{"name": "CPU", "kind": "cpu"}])
    assert stands(both, gone, cpu) is Verdict.FAIL
    none = run(6, check, backend=None, devices=[])
    assert stands(both, none) is Verdict.FAIL, "it counted, and found none"
    amd = run(6, check, backend="rocm", devices=[{"name": "G", "vendor": "amd", "uuid": "GPU-z"}])
    assert stands(run(0, check, devices=gpus("GPU-a")), amd) is Verdict.PASS
    unnamed = [*gpus("GPU-a"), {"name": "GPU", "vendor": "nvidia"}]
    three = run(0, check, devices=gpus("GPU-a", "GPU-b", "GPU-c"))
    assert stands(three, run(9, check, devices=unnamed)) is Verdict.FAIL, "one may be unnamed"
    assert stands(
        run(0, check, devices=gpus("GPU-a", "GPU-b")), run(9, check, devices=unnamed)
    ) is (Verdict.PASS)


def test_a_slice_shows_its_device_and_a_clearance_brings_none_back() -> None:
    check = result("identity/count")
    both = run(0, check, devices=gpus("GPU-a", "GPU-b"))
    parts = [{"name": "slice", "vendor": "nvidia", "uuid": "MIG-1", "parent": "GPU-a"}]
    assert stands(both, run(9, check, devices=[*parts, *gpus("GPU-b")])) is Verdict.PASS
    at = instant(both.info.started)
    gone = run(9, check, devices=gpus("GPU-b"))
    for what, verdict in ((Relief.CLEARED, Verdict.FAIL), (Relief.REPLACED, Verdict.PASS)):
        relief = Clearance(node="node", device="GPU-a", at_s=at + 5, what=what, reason="so")
        assert stands(both, gone, reliefs=(relief,)) is verdict
    relief = replace(relief, at_s=at + 99)
    assert stands(both, reliefs=(relief,)) is Verdict.INCONCLUSIVE, "nothing ran since"


def test_an_address_is_the_device_that_alone_was_seen_there() -> None:
    at = [{"name": "GPU", "pci": "0000:81:00.0"}]
    full = [{**gpus("GPU-a")[0], "pci": "00000000:81:00.0"}]
    failed = result("health/ecc", Verdict.FAIL, "0000:81:00.0", suite="health")
    passed = replace(failed, verdict=Verdict.PASS)
    assert stands(run(0, failed, devices=at), run(9, passed, devices=full)) is Verdict.PASS
    swapped = run(9, passed, devices=[{**full[0], "uuid": "GPU-b"}])
    assert stands(run(0, failed, devices=full), swapped) is Verdict.FAIL


def test_uuids_are_the_same_with_and_without_a_word_before_them() -> None:
    hexes = "6d0d7a2e-1111-2222-3333-444455556666"
    old = run(0, FAILED, devices=[{**each, "index": 1} for each in gpus(f"GPU-{hexes}")])
    new = run(9, PASSED, devices=[{**each, "index": 1} for each in gpus(hexes.upper())])
    assert stands(old, new) is Verdict.PASS


def test_a_run_that_did_not_end_counts_until_one_of_its_suites_does() -> None:
    stopped = run(0, PASSED, interrupted=True)
    health = run(9, result("health/x", suite="health"))
    assert stands(stopped, health) is Verdict.INCONCLUSIVE
    assert stands(stopped, health, run(20, PASSED)) is Verdict.PASS
    broke = run(0, PASSED, error={"exit_code": 1, "message": "it broke"})
    assert stands(broke, health) is Verdict.ERROR
