"""One graph from many sources: who is joined to whom, by what, and who contradicts whom."""

from __future__ import annotations

import json
import random

from portagpu.facts.readings.model import End, Node
from portagpu.machine.inventory.routes import topology_document
from tests.vendor_texts.test_topology import (
    bridge,
    gpu,
    link,
    numa,
    reading,
    show,
    switch,
    topology,
)


def test_any_links_give_a_graph():
    source = random.Random(7)  # noqa: S311 - not for secrets
    ends = [gpu(n) for n in range(4)] + [bridge(n) for n in range(3)] + [switch("s"), numa(0)]
    ends += [End(Node.GPU, "GPU9", None, 9), End(Node.NIC, "mlx5_0"), End(Node.CPU, "host")]
    for _ in range(300):
        links = [
            link(
                source.choice(ends), source.choice(ends),
                source.choice(["pcie", "nvlink", "xgmi", "cpu", "odd"]), source.choice("ab"),
                count=source.choice([None, 0, 1, 10**30]), up=source.choice([None, True, False]),
                width=source.choice([None, 16]), speed_gbit_s=source.choice([None, 16.0, 1e300]),
                bandwidth_bytes_s=source.choice([None, 0.0, 1e308]),
            )
            for _ in range(source.randint(0, 30))
        ]  # fmt: skip
        found = topology(*links, readings=(reading(0), reading(1, hive="h")))
        document = topology_document(found)
        json.dumps(document)
        show(found, 80)
        assert len(document["matrix"]) == len(found.gpus)
