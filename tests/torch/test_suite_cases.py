"""The suite as a product: ids, specifications, and a case for every public name and claim."""

from __future__ import annotations

import dataclasses
import inspect
import re

import pytest

import portagpu
from portagpu.base.lazy import stub_names
from portagpu.devices.collectives.comm import Comm
from portagpu.devices.contract import Backend, Capability, Description, Plugin
from portagpu.devices.precision import Fp8, Precision
from portagpu.devices.training import Training
from portagpu.suites.conformance import AREAS, case, list_cases, refused
from portagpu.suites.conformance.cases import matches
from portagpu.suites.conformance.messages import ListedCase
from portagpu.suites.conformance.options import SelectionError, select


@pytest.fixture(scope="module")
def cases() -> list[ListedCase]:
    return list_cases()


def _covered(cases: list[ListedCase]) -> set[str]:
    return {name for each in cases for name in each.covers}


@pytest.mark.processes(1, "a child lists the cases")
def test_every_method_of_a_backend_has_a_case(cases: list[ListedCase]) -> None:
    methods = {
        f"Backend.{name}"
        for owner in (Backend, Training)
        for name, _ in inspect.getmembers(owner, inspect.isfunction)
        if not name.startswith("_")
    }
    missing = methods - _covered(cases)
    assert not missing, f"no case covers {', '.join(sorted(missing))}"


def test_every_attribute_of_a_backend_has_a_case(cases: list[ListedCase]) -> None:
    fields = {f"Backend.{field.name}" for field in dataclasses.fields(Description)}
    # these two are covered part by part
    parts = {"Backend.precision", "Backend.comm"}
    missing = fields - parts - _covered(cases)
    assert not missing, f"no case covers {', '.join(sorted(missing))}"


def test_every_function_of_the_module_has_a_case(cases: list[ListedCase]) -> None:
    homes = tuple(f"portagpu.devices.{name}" for name in ("annotations", "functions", "registry"))
    functions = {
        f"portagpu.{name}" for name, home in stub_names(portagpu.__spec__).items() if home in homes
    }
    missing = functions - _covered(cases)
    assert not missing, f"no case covers {', '.join(sorted(missing))}"


def test_every_method_of_a_plugin_has_a_case(cases: list[ListedCase]) -> None:
    methods = {
        f"Plugin.{name}"
        for name, _ in inspect.getmembers(Plugin, inspect.isfunction)
        if not name.startswith("_")
    }
    missing = methods - _covered(cases)
    assert not missing, f"no case covers {', '.join(sorted(missing))}"


def test_every_part_of_precision_comm_and_sizing_has_a_case(cases: list[ListedCase]) -> None:
    attributes = {field.name for field in dataclasses.fields(Comm)}
    attributes |= {
        name for name, _ in inspect.getmembers(Comm, lambda each: type(each) is property)
    }
    parts = {f"Comm.{name}" for name in attributes if not name.startswith("_")}
    parts |= {"Comm.get_backend", "Comm.init", "Comm.shutdown"}
    parts |= {f"Precision.{field.name}" for field in dataclasses.fields(Precision)}
    parts |= {f"Fp8.{field.name}" for field in dataclasses.fields(Fp8)}
    parts |= {"Precision.support", "Sizing.launch", "Launch.threads"}
    missing = parts - _covered(cases)
    assert not missing, f"no case covers {', '.join(sorted(missing))}"


def test_every_capability_has_a_case(cases: list[ListedCase]) -> None:
    needed = {name for each in cases for name in each.capability}
    missing = {str(each) for each in Capability} - needed
    assert not missing, f"no case needs the capability {', '.join(sorted(missing))}"


def test_every_dtype_of_the_cpu_s_table_has_its_own_cases(cases: list[ListedCase]) -> None:
    torch = pytest.importorskip("torch")
    ids = {each.id for each in cases}
    for dtype in portagpu.backend("cpu").precision.table:
        name = str(dtype).removeprefix("torch.")
        for function in ("support-is-a-level", "storage-holds", "arithmetic-works"):
            assert f"precision/{function}[{name}]" in ids, f"no case {function} for {name}"
    assert torch.float32 in portagpu.backend("cpu").precision.table


def test_ids_are_unique_and_named_after_their_file(cases: list[ListedCase]) -> None:
    ids = [each.id for each in cases]
    assert len(set(ids)) == len(ids), "an id is there twice"
    for each in cases:
        file = each.function.partition("::")[0]
        searches = file == "test_random_programs.py"
        assert searches == bool(each.search), each.id
        assert searches or re.fullmatch(rf"test_{each.area}(_[a-z0-9]+)?\.py", file), each.id
        assert re.fullmatch(r"[a-z]+/[a-z0-9-]+(\[[A-Za-z0-9_.-]+\])?", each.id), each.id


def test_traps_are_ids_of_the_catalogue(cases: list[ListedCase]) -> None:
    for each in cases:
        for trap in each.traps:
            assert re.fullmatch(r"[PKECMGTI]\d\d", trap), f"{each.id} names the trap {trap}"


def test_collectives_run_on_one_two_and_four_ranks(cases: list[ListedCase]) -> None:
    sizes = {each.id.partition("[")[2] for each in cases if each.area == "collectives"}
    for n in ("n1", "n2", "n4"):
        assert any(n in labels for labels in sizes), f"no collective case is for {n}"


def test_smoke_is_a_part_with_every_area_of_the_first_ones(cases: list[ListedCase]) -> None:
    smoke = {each.area for each in cases if each.smoke}
    first = {"identity", "memory", "rng", "streams", "precision", "collectives"}
    assert first <= smoke, f"no smoke case in {', '.join(sorted(first - smoke))}"


DECLARED = {"spec": "It works.", "capability": None}


@pytest.mark.parametrize(
    ("name", "changes", "said"),
    [
        ("nonsense/x", {}, "is not an area"),
        ("memory", {}, "lower case words"),
        ("memory/Peak", {}, "lower case words"),
        ("memory/x", {"spec": ""}, "needs a spec"),
        ("memory/x", {"spec": "no full stop"}, "needs a spec"),
        ("memory/x", {"outcome": "maybe"}, "the outcome is"),
        ("memory/x", {"outcome": "bounded: "}, "states the formula"),
        ("memory/x", {"capability": "teleport"}, "teleport"),
        ("memory/x", {"covers": ("Backend.Stream",)}, "does not declare the capability streams"),
    ],
)
def test_incomplete_declaration_is_refused(
    name: str, changes: dict[str, object], said: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        case(name, **{**DECLARED, **changes})


def test_areas_are_the_designs() -> None:
    expected = (
        "identity, visibility, memory, rng, streams, graphs, precision, operators, attention, "
        "kernels, collectives, parallel, failures, profiling, telemetry"
    )
    assert ", ".join(AREAS) == expected


def _listed(*ids: str) -> list[ListedCase]:
    return [ListedCase(id=each, area=each.partition("/")[0], spec="It works.") for each in ids]


def test_selection_by_area_id_parameter_and_pattern() -> None:
    cases = _listed("rng/seed[a-1]", "rng/seed[b-2]", "rng/state", "memory/peak")
    assert [each.id for each in select(cases, ["memory"], False)] == ["memory/peak"]
    assert len(select(cases, ["rng/seed"], False)) == 2
    assert [each.id for each in select(cases, ["rng/seed[b-2]"], False)] == ["rng/seed[b-2]"]
    assert [each.id for each in select(cases, ["*[a-?]"], False)] == ["rng/seed[a-1]"]
    assert len(select(cases, ["rng/s*"], False)) == 3


def test_brackets_of_a_pattern_stand_for_themselves() -> None:
    assert matches("rng/seed[ab]", "rng/seed[ab]")
    assert not matches("rng/seed[ab]", "rng/seeda")


@pytest.mark.parametrize(
    ("only", "said"),
    [
        ("rgn", "did you mean 'rng'"),
        ("rng/stat", "did you mean 'rng/state'"),
        ("rng/seed[a-2]", "did you mean 'rng/seed[a-1]'"),
    ],
)
def test_unknown_selection_offers_the_closest(only: str, said: str) -> None:
    with pytest.raises(SelectionError, match=re.escape(said)):
        select(_listed("rng/seed[a-1]", "rng/state"), [only], False)


def test_selection_without_a_smoke_case_says_so() -> None:
    with pytest.raises(SelectionError, match="no smoke case in rng"):
        select(_listed("rng/state"), ["rng"], True)


def test_refused_distinguishes_three_outcomes() -> None:
    def raises(error: Exception) -> None:
        raise error

    assert isinstance(refused(lambda: raises(KeyError("x")), KeyError, "x"), KeyError)
    with pytest.raises(AssertionError, match="x was not refused with KeyError: it gave 3"):
        refused(lambda: 3, KeyError, "x")
    with pytest.raises(AssertionError, match="with ValueError instead of KeyError"):
        refused(lambda: raises(ValueError("y")), KeyError, "x")
