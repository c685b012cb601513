"""Condensed runs: packed and read again, in tables, and what one run alone gives."""

from __future__ import annotations

import json
import math
import random
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from portagpu.reports.bundles.content import canonical, canonical_fast
from portagpu.reports.condensed.nodes import (
    HEAD_BYTES,
    Measured,
    MeasureId,
    Measures,
    NodeRun,
    condensed,
    mark_of,
    owner_at,
)
from portagpu.reports.condensed.packed import MADE_BY, KnownFiles, Unpacker, pack
from portagpu.reports.fleet.tables import tables_of
from portagpu.runs.ledger import Clearance, Owner, Relief, balance
from portagpu.runs.results.run import LARGE, parse_json
from portagpu.runs.results.verdicts import Verdict
from tests.support.history_samples import measure, run
from tests.support.result_samples import gate

DEVICES = [
    {"name": "GPU", "uuid": "GPU-0a", "pci": "0000:01:00.0", "vendor": "nvidia"},
    {"name": "GPU", "uuid": "GPU-0b", "pci": "0000:02:00.0", "vendor": "nvidia"},
]


def node(number: int = 0, *, devices: bool = True, **fields: Any) -> NodeRun:
    results = [
        gate("links", "a", device="cuda:0"),
        gate("links", "b", Verdict.FAIL, reason="a link is down", device="cuda:1"),
        gate("memory", "c", Verdict.INCONCLUSIVE, reason="busy"),
        measure("memory/copy", 100.0 + number),
        replace(measure("gemm/bf16", 7.0), spread=None, device="cuda:1"),
    ]
    made = run(number, results, host=f"n{number}", **fields)
    if devices:
        made.info = replace(made.info, devices=DEVICES, versions={"driver": "550", "torch": None})
    path = Path(f"folder-{number}", "result.json")
    return condensed(made, path, owner_at(made, path))


def test_a_packed_run_is_read_as_it_was() -> None:
    unpacker = Unpacker()
    for number in range(3):
        own = node(number)
        packed = pack(own)
        read = unpacker.read(packed, own.path)
        assert read is not None
        assert list(read.measures) == list(own.measures)
        assert replace(read, measures=own.measures) == own
        assert list(read.account.statements) == list(own.account.statements)
        assert list(read.failures) == list(own.failures)
        assert [*map(tuple, read.account.stated)] == [*map(tuple, own.account.stated)]
    # nodes of one layout have one form
    assert len({pack(node(number)).form for number in range(3)}) == 1


def test_a_form_of_another_version_is_left_to_the_document() -> None:
    own = node()
    packed = pack(own)
    other = packed.form.replace(MADE_BY.encode(), b"1 0.0.1", 1)
    assert Unpacker().read(packed._replace(form=other), own.path) is None


def test_a_form_with_other_numbers_is_refused() -> None:
    own = node()
    packed = pack(own)
    with pytest.raises(ValueError, match="other numbers"):
        Unpacker().read(packed._replace(numbers=packed.numbers[16:]), own.path)


def test_a_known_file_has_the_size_and_the_beginning_of_its_mark(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    data = b"{" + b" " * 2 * HEAD_BYTES + b"}"
    path.write_bytes(data)
    own = node()
    known = KnownFiles({mark_of(data[:HEAD_BYTES], len(data)): pack(own)})
    found = known(path)
    assert found is not None
    assert (found.path, found.owner) == (path, Owner("", "n0", tmp_path.name))
    for changed in (data + b" ", b"[" + data[1:]):
        path.write_bytes(changed)
        assert known(path) is None
    assert known(tmp_path / "nothing.json") is None


def test_one_run_alone_stands_as_by_the_rules_for_several() -> None:
    other = Clearance(node="n", device="GPU-x", at_s=0.0, what=Relief.CLEARED, reason="seen")
    for own in (node(), node(devices=False)):
        alone, by_rules = balance([own.account]), balance([own.account], [other])
        assert alone.verdict is by_rules.verdict
        assert list(alone.gates().items()) == list(by_rules.gates().items())
        assert dict(alone.facts) == dict(by_rules.facts)
        assert (alone.absent, alone.several_machines) == ((), "")
        assert (by_rules.absent, by_rules.several_machines) == ((), "")


def test_tables_have_the_values_in_the_order_of_the_nodes() -> None:
    chance = random.Random(4)  # noqa: S311 - made-up values
    base = node(devices=False)
    nodes: dict[str, list[NodeRun]] = {}
    for number in range(40):
        runs = []
        for _ in range(chance.choice((1, 1, 2))):
            names = chance.sample(("gemm/a", "gemm/b", "memory/c"), chance.randrange(1, 4))
            own = [
                Measured(
                    MeasureId(name, chance.choice(("null", "1"))),
                    device,
                    chance.choice((0.0, math.nan, chance.random())),
                    chance.choice((None, "GB/s")),
                    chance.choice((None, chance.random())),
                )
                for name in names
                for device in chance.choice(((None,), ("gpu:0", "gpu:1")))
            ]
            hardware = chance.choice(("one", "two"))
            runs.append(replace(base, hardware=hardware, measures=Measures.of(own)))
        nodes[f"n{number}"] = runs
    values: dict[tuple[str, MeasureId], dict[str, float]] = {}
    spreads: dict[tuple[str, MeasureId], dict[str, float]] = {}
    for name, runs in nodes.items():
        for each in runs:
            for one in each.measures:
                peer = f"{name} {one.device}" if one.device else name
                values.setdefault((each.hardware, one.what), {})[peer] = one.value
                own_spreads = spreads.setdefault((each.hardware, one.what), {})
                if one.spread is not None and one.value:
                    own_spreads[peer] = one.spread / abs(one.value)
    found = tables_of(nodes)
    assert [(each.hardware, each.what) for each in found] == list(values)
    for table in found:
        place = table.hardware, table.what
        assert repr(list(table.values.items())) == repr(list(values[place].items()))
        assert repr(list(table.spreads.items())) == repr(list(spreads[place].items()))
        assert all(table.whose[peer][0] == peer.partition(" ")[0] for peer in table.values)


def test_nodes_that_measured_the_same_have_one_layout() -> None:
    import pickle

    one, other = node(0).measures, node(1).measures
    assert one.layout is other.layout
    assert pickle.loads(pickle.dumps(one)).layout is one.layout  # noqa: S301 - our own


TEXTS = [
    "a",
    "1e5",
    ",1e5,",
    ":0.00001]",
    "[1e-7,",
    "release-1",
    "e-1",
    "\n",
    "x\\y",
    ':1e-5,"',
    "ü",
]


def value(chance: random.Random, depth: int) -> Any:
    """A value of JSON with numbers of all sizes, and texts that look like them."""
    kind = chance.randrange(4 if depth else 2)
    if kind == 0:
        while not math.isfinite(bits := struct.unpack("d", chance.randbytes(8))[0]):
            pass
        sized = 10 ** chance.uniform(-9, 19) * chance.choice((1, -1))
        return chance.choice((bits, sized, chance.randrange(-99, 99), 0.0, -0.0, 1e16, 1e-5, None))
    if kind == 1:
        return chance.choice(TEXTS)
    if kind == 2:
        return [value(chance, depth - 1) for _ in range(chance.randrange(4))]
    return {chance.choice(TEXTS): value(chance, depth - 1) for _ in range(chance.randrange(4))}


def test_the_fast_canonical_form_is_the_canonical_form() -> None:
    pytest.importorskip("msgspec")
    chance = random.Random(1)  # noqa: S311 - made-up values
    read = 0
    for _ in range(4000):
        document = {"a": value(chance, 4)}
        fast = canonical_fast(document)
        assert fast in (None, canonical(document)), document
        read += fast is not None
    assert read > 2000


def test_a_large_document_is_read_as_a_small_one() -> None:
    chance = random.Random(2)  # noqa: S311 - made-up values
    for _ in range(50):
        text = json.dumps({"a": value(chance, 5)})
        large = text + " " * LARGE
        assert repr(parse_json(large.encode()).document) == repr(json.loads(text))
    # what only one of the two readers takes
    padding = " " * LARGE
    assert math.isnan(parse_json(f"[NaN]{padding}".encode()).document[0])
    assert not parse_json(f"[1e999]{padding}".encode()).fresh
    assert not parse_json(f'["\\ud800"]{padding}'.encode()).fresh
