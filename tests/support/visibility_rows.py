"""The truth table of visible-device masks: what is set, what the runtime shows, what torch says.

Eight devices, 0 to 7, whose UUIDs are those of ``DEVICES``. Every row has the place it was read
from; none was run on the hardware. The sources:

NV    docs.nvidia.com, CUDA Programming Guide, "CUDA Environment Variables"
PT    pytorch/pytorch#92315: torch's reader, which its author compared with driver 525.60.13; what
      it says of CUDA is second hand
MIG   NVIDIA MIG user guide, "Device Enumeration", and a run on an A100 in pytorch/pytorch#92315
RVD   ROCm/rocm-systems @92bf721, rocr-runtime, core/runtime/amd_filter_device.cpp
CLR   ROCm/rocm-systems @01280b9, clr, rocclr/device/rocm/rocdevice.cpp and rocclr/utils/flags.cpp
T213  torch 2.13, torch/cuda/__init__.py (its column is also compared with that code in the tests)
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from portagpu.facts.visible import DeviceId

DEVICES: Final = tuple(
    DeviceId(index, f"GPU-{name}")
    for index, name in enumerate(
        (
            # 0 and 1 share a beginning of four characters, and no other two of one
            "aaaa0f980f88ef30",
            "aaaa1f980f88ef31",
            "b222000000000002",
            "c333000000000003",
            "d444000000000004",
            "e555000000000005",
            "f666000000000006",
            "7777000000000007",
        )
    )
)
ALL: Final = tuple(range(8))
RAISES: Final = "raises"


@dataclass(frozen=True, slots=True)
class Row:
    """``shows`` are the indices of visible devices in order; ``torch`` its count, or RAISES."""

    runtime: str
    environment: dict[str, str]
    shows: tuple[int, ...]
    torch: int | str
    source: str
    problems: set[str] = field(default_factory=set)

    @property
    def name(self) -> str:
        """What pytest shows."""
        masks = " ".join(f"{key.split('_')[0]}={value}" for key, value in self.environment.items())
        return f"{self.runtime}: {masks or 'nothing set'}"


def _cuda(mask: str, shows: tuple[int, ...], source: str, *problems: str) -> Row:
    # the same reader: torch's column differs from the runtime's only where it raises
    raises = "torch-raises" in problems
    count = RAISES if raises else len(shows)
    return Row("cuda", {"CUDA_VISIBLE_DEVICES": mask}, shows, count, source, set(problems))


def _rocm(
    shows: tuple[int, ...], torch: int | str, source: str, *problems: str, **masks: str
) -> Row:
    names = {"rocr": "ROCR_VISIBLE_DEVICES", "hip": "HIP_VISIBLE_DEVICES"}
    names |= {"cuda": "CUDA_VISIBLE_DEVICES", "ordinal": "GPU_DEVICE_ORDINAL"}
    environment = {names[key]: value for key, value in masks.items()}
    return Row("rocm", environment, shows, torch, source, set(problems))


CUDA_ROWS: Final = (
    Row("cuda", {}, ALL, 8, "NV: not set, all are visible"),
    _cuda("", (), "NV: empty, none is visible"),
    _cuda("-1", (), "NV: an invalid index first"),
    _cuda("2,1", (2, 1), "NV: the order is that of the list"),
    _cuda("0,2,-1,1", (0, 2), "NV: what precedes the invalid index", "after-end"),
    _cuda("0,2,9,1", (0, 2), "NV: 9 is invalid on a machine of 8", "out-of-range"),
    _cuda("9", (), "NV", "out-of-range", "nothing-left"),
    _cuda("7,-1", (7,), "NV: a terminator with nothing after it asks for nothing else"),
    _cuda("0,0", (), "PT: a repeated number hides all", "repeated", "nothing-left"),
    _cuda("0, 1, 2, 1", (), "PT", "repeated", "nothing-left"),
    _cuda("0, 1 ,2", (0, 1, 2), "PT: blanks around numbers are skipped"),
    _cuda("2,+3,-0,5", (2, 3, 0, 5), "PT: signs as strtoul reads them"),
    _cuda("1gpu2,2ampere", (1, 2), "PT: the rest of an entry is ignored", "trailing-text"),
    _cuda("0-3", (0,), "PT, #84879: ranges are not read (driver 510)", "trailing-text"),
    _cuda("0;1", (0,), "PT: as any text after the digits", "trailing-text"),
    _cuda("one,two,3,4", (), "PT", "unreadable", "nothing-left"),
    _cuda("4,3,two,one", (4, 3), "PT", "unreadable"),
    _cuda("0,,1", (0,), "PT: an empty entry is not a number", "unreadable"),
    _cuda("0,1,", (0, 1), "PT"),
    _cuda(" ", (), "PT: set and blank is not unset", "unreadable", "nothing-left"),
    _cuda('"0,1"', (), "PT: quotes are not digits", "quoted", "nothing-left"),
    _cuda("+", (), "T213: int('+')", "unreadable", "nothing-left", "torch-raises"),
    _cuda("GPU-c333000000000003", (3,), "NV: a UUID as nvidia-smi -L writes it"),
    _cuda("GPU-c,GPU-b2", (3, 2), "NV: enough digits to be the only one"),
    _cuda("GPU-aaaa", (), "NV: not enough", "ambiguous-uuid", "nothing-left"),
    _cuda("GPU-c,GPU-aaaa,GPU-b", (3,), "PT: it ends the list", "ambiguous-uuid"),
    _cuda("GPU-c,GPU-0,GPU-b", (3,), "PT: an unknown one ends the list", "unknown-uuid"),
    _cuda("GPU-c,GPU-c", (), "PT", "repeated", "nothing-left"),
    _cuda("GPU-c,GPU-c333", (), "PT: one device twice", "repeated", "nothing-left"),
    _cuda("GPU-c,2", (3,), "PT: numbers do not mix with UUIDs", "mixed-kinds"),
    _cuda("2,GPU-c", (2,), "PT", "mixed-kinds"),
    _cuda("GPU-c, GPU-b", (3,), "PT: UUIDs are not stripped", "blanks"),
    _cuda("gpu-c", (), "PT: case counts", "unreadable", "nothing-left"),
    Row(
        "cuda",
        {"ROCR_VISIBLE_DEVICES": "1", "GPU_DEVICE_ORDINAL": "1"},
        ALL,
        8,
        "NV: the only mask is CUDA_VISIBLE_DEVICES",
        {"foreign-variable"},
    ),
    # Slurm sets the three at once unless gres.conf has Flags=nvidia_gpu_env
    Row(
        "cuda",
        {
            "CUDA_VISIBLE_DEVICES": "2,3",
            "ROCR_VISIBLE_DEVICES": "2,3",
            "GPU_DEVICE_ORDINAL": "2,3",
        },
        (2, 3),
        2,
        "NV",
    ),
)

ROCM_ROWS: Final = (
    _rocm(ALL, 8, "RVD, CLR: nothing set"),
    # one variable: the rows of HIP and of CUDA, which HIP reads when its own is not set
    _rocm((1,), 1, "CLR", hip="1"),
    _rocm((1,), 1, "CLR", "leaving-variable", cuda="1"),
    _rocm((3, 1), 2, "CLR: in the order of the list", hip="3,1"),
    _rocm((), 0, "CLR", hip="-1"),
    _rocm((1,), 1, "CLR", "after-end", hip="1,-1,2"),
    _rocm((0,), 1, "CLR", "out-of-range", hip="0,8,1"),
    _rocm((), 0, "CLR flags.cpp: '' is kept as ' ' since 5.6", "empty-mask", hip=""),
    _rocm((), 0, "CLR flags.cpp", "empty-mask", "leaving-variable", cuda=""),
    _rocm((), 0, "CLR: an empty HIP mask wins", "empty-mask", "shadowed", cuda="0", hip=""),
    _rocm((0,), 0, "CLR: valid_indexes", "repeated", "torch-disagrees", hip="0,0"),
    _rocm((0,), 2, "CLR: ' 1' is not to_string(1)", "blanks", "torch-disagrees", hip="0, 1"),
    _rocm((), 1, "CLR", "blanks", "nothing-left", "torch-disagrees", hip=" 1"),
    _rocm((), 1, "CLR: '01'", "unreadable", "nothing-left", "torch-disagrees", hip="01"),
    _rocm((), 1, "CLR: '0-3'", "unreadable", "nothing-left", "torch-disagrees", hip="0-3"),
    _rocm((0,), 1, "CLR", "unreadable", hip="0,,1"),
    _rocm((0, 1), 2, "CLR: pos ends the loop", hip="0,1,"),
    _rocm((0, 1), 0, "CLR removeQuotes", "quoted", "torch-disagrees", hip='"0,1"'),
    _rocm((0,), 1, "CLR: HIP's own wins", "shadowed", cuda="2,3", hip="0"),
    _rocm((2,), 1, "CLR", cuda="2", hip="2"),
    _rocm((3,), 1, "CLR: UUIDs since 6.2", "uuid-support", hip="GPU-c333000000000003"),
    _rocm((3,), 1, "CLR: find()", "uuid-support", hip="GPU-c333"),
    _rocm(
        (0,),
        0,
        "CLR: the first that matches; torch takes none",
        "ambiguous-uuid",
        "uuid-support",
        "torch-disagrees",
        hip="GPU-aaaa",
    ),
    _rocm(
        (3, 2),
        1,
        "CLR: kinds mix; torch takes UUIDs alone",
        "uuid-support",
        "torch-disagrees",
        hip="GPU-c333,2",
    ),
    _rocm((), 0, "CLR: case counts", "unreadable", "nothing-left", hip="gpu-c333"),
    _rocm((), 0, "CLR", "unknown-uuid", "nothing-left", "uuid-support", hip="GPU-C333"),
    _rocm((), 0, "CLR", "unreadable", "nothing-left", hip="MIG-1"),
    _rocm(
        (2,),
        0,
        "CLR: without its quotes it is empty, and the next is read",
        "quoted",
        "leaving-variable",
        "torch-disagrees",
        hip='""',
        cuda="2",
    ),
    # ROCr alone: torch takes the number of entries for the number of devices
    _rocm((1,), 1, "RVD", rocr="1"),
    _rocm((3, 1), 2, "RVD: usrIdx is the rank", rocr="3,1"),
    _rocm((), 1, "RVD SelectZeroDevices", "torch-disagrees", rocr=""),
    _rocm((), 1, "RVD: a negative index", "torch-disagrees", rocr="-1"),
    _rocm((0,), 3, "RVD", "after-end", "torch-disagrees", rocr="0,-1,1"),
    _rocm((0,), 3, "RVD: repeated ones end", "repeated", "torch-disagrees", rocr="0,0,1"),
    _rocm((0, 1), 2, "RVD trim", rocr=" 0 , 1 "),
    _rocm((2,), 1, "RVD strtol base 0", "number-base", rocr="0x2"),
    _rocm(
        (),
        1,
        "RVD: 8",
        "number-base",
        "out-of-range",
        "nothing-left",
        "torch-disagrees",
        rocr="010",
    ),
    _rocm((), 3, "RVD: at(0) throws", "unreadable", "nothing-left", "torch-disagrees", rocr="0,,1"),
    _rocm((0, 1), 3, "RVD getline", "torch-disagrees", rocr="0,1,"),
    _rocm((0,), 2, "RVD: *end", "unreadable", "torch-disagrees", rocr="0,1gpu"),
    _rocm((0,), 3, "RVD", "out-of-range", "torch-disagrees", rocr="0,8,1"),
    _rocm((3,), 1, "RVD ProcessUuidToken", rocr="GPU-c333000000000003"),
    _rocm((3, 2), 2, "RVD toupper", rocr="gpu-C333,GPU-b"),
    _rocm((3, 2), 2, "RVD: kinds mix", rocr="GPU-c,2"),
    _rocm((), 1, "RVD", "ambiguous-uuid", "nothing-left", "torch-disagrees", rocr="GPU-aaaa"),
    _rocm((), 1, "RVD", "unknown-uuid", "nothing-left", "torch-disagrees", rocr="GPU-0"),
    _rocm((), 1, "RVD: 4 < 5", "unreadable", "nothing-left", "torch-disagrees", rocr="GPU-"),
    _rocm(
        (),
        1,
        "RVD: 36 + 4 > 20; ROCm's documentation shows such a UUID",
        "unreadable",
        "nothing-left",
        "torch-disagrees",
        rocr="GPU-4b2c1a9f-8d3e-6f7a-b5c9-2e4d8a1f6c3b",
    ),
    # both layers
    _rocm((1,), 1, "RVD, CLR", "two-masks", rocr="1,2,3", hip="0"),
    _rocm((3,), 1, "RVD, CLR: among what is left", "two-masks", rocr="1,2,3", hip="2"),
    _rocm((3, 1), 2, "RVD, CLR", "two-masks", rocr="1,2,3", hip="2,0"),
    _rocm((1,), RAISES, "RVD, CLR; T213", "renumbered", "torch-raises", rocr="1", hip="0,1"),
    # torch reads the number as one of the whole machine and finds it there; HIP does not
    _rocm(
        (),
        1,
        "RVD, CLR: the same list twice",
        "renumbered",
        "nothing-left",
        "torch-disagrees",
        rocr="2,3",
        hip="2",
    ),
    _rocm(
        (2,),
        2,
        "RVD, CLR; T213 ignores CUDA next to ROCR",
        "two-masks",
        "torch-disagrees",
        rocr="2,3",
        cuda="0",
    ),
    # Slurm sets the three at once unless gres.conf has Flags=amd_gpu_env
    _rocm(
        (),
        2,
        "RVD, CLR; Slurm",
        "renumbered",
        "nothing-left",
        "unread-variable",
        "torch-disagrees",
        rocr="2,3",
        cuda="2,3",
        ordinal="2,3",
    ),
    _rocm((0, 1), 2, "RVD, CLR; Slurm", "two-masks", rocr="0,1", cuda="0,1"),
    # torchrun --virtual-local-rank and Ray 2.60 set CUDA_VISIBLE_DEVICES alone
    _rocm((5,), 1, "CLR; torchrun, Ray", "leaving-variable", cuda="5"),
    _rocm((0,), 1, "CLR; torchrun in a job", "shadowed", cuda="5", hip="0"),
    _rocm((2,), 1, "RVD, CLR", "two-masks", "uuid-support", rocr="3,2", hip="GPU-b222"),
    _rocm(
        (), 1, "RVD, CLR: -1 next to a mask", "two-masks", "torch-disagrees", rocr="2", cuda="-1"
    ),
    _rocm((), 0, "RVD, CLR", "two-masks", rocr="2", hip="-1"),
    _rocm(ALL, 8, "CLR: IS_HIP ? HIP, CUDA : GPU_DEVICE_ORDINAL", "unread-variable", ordinal="1"),
    _rocm((2,), 1, "CLR", "unread-variable", hip="2", ordinal="1"),
)

ROWS: Final = CUDA_ROWS + ROCM_ROWS
