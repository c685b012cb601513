"""What is known of the boards of "demo", a vendor that is made up: facts alone, as data."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from portagpu.plugin import (
    Blanks,
    MaskRules,
    Numbers,
    Repeated,
    Runtime,
    Tuning,
    UuidMatch,
    Vendor,
)

_MASK: Final = "DEMO_VISIBLE_BOARDS"

VENDOR: Final = Vendor(
    name="demo",
    pci_ids=(0xDE30,),
    masks=Runtime(
        name="demo",
        vendor="demo",
        layers=(
            MaskRules(
                layer="the demo runtime",
                variables=(_MASK,),
                numbers=Numbers.PLAIN,
                blanks=Blanks.NOWHERE,
                repeated=Repeated.SKIPPED,
                uuid_prefixes=("DEMO-",),
                uuid_match=UuidMatch.ONE_THAT_STARTS,
                uuid_case_counts=True,
            ),
        ),
        child_variable=_MASK,
    ),
    makers=("demo works",),
    uuid_prefix="DEMO-",
    driver_version="sys/module/demo/version",
    unusable_drivers={
        "demo_flash": "is bound to demo_flash, which only writes its firmware: bind demo"
    },
    disguises={"DEMO_POSE_AS": "makes a board pose as another one: unset it"},
    tuning=Tuning(
        product="demo one",
        balancing="automatic NUMA balancing slows Demo One: "
        "echo 0 > /proc/sys/kernel/numa_balancing",
    ),
    libraries=("demo-smi",),
    out_of_memory=("demo board is full",),
    tables=Path(__file__).resolve().parent / "tables",
)
