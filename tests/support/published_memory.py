"""Peaks of reserved memory that torchtitan published, with what was trained."""

from __future__ import annotations

from typing import Any, Final

TITAN = "torchtitan benchmarks/llama3_h100_202412_torchtitan.md at 31a17bf"
EIGHT: dict[str, Any] = {
    "micro_batch": 2,
    "sequence": 8192,
    "sharding": "fsdp2",
    "recompute": "operators",
    "precision": "autocast-bf16",
}
FULL: dict[str, Any] = {"sharding": "fsdp2", "recompute": "full", "precision": "autocast-fp8"}
TWO: dict[str, Any] = {"dp": 32, "tp": 8, "sequence_parallel": True}
PIPE: dict[str, Any] = {"dp": 8, "tp": 8, "pp": 8, "sequence_parallel": True, "micro_batches": 8}
CHUNKS = PIPE | {"schedule": "interleaved", "chunks": 2}
LONG = [
    (32768 * cp, FULL | {"sequence": 32768 * cp}, PIPE | {"dp": 8 // cp, "cp": cp})
    for cp in (1, 2, 4, 8)
]
COMPILED = EIGHT | {"precision": "autocast-fp8", "fused_loss": True}
FOUR = FULL | {"micro_batch": 4, "sequence": 8192}
TITAN_ROWS: Final[list[tuple[str, str, dict[str, Any], dict[str, Any], float]]] = [
    ("table 1, FSDP 8", "llama-3.1-8b", EIGHT, {"dp": 8}, 82.4),
    ("table 1, torch.compile", "llama-3.1-8b", EIGHT, {"dp": 8}, 77.0),
    ("table 3, FSDP 128", "llama-3.1-8b", EIGHT, {"dp": 128}, 67.0),
    ("table 3, torch.compile", "llama-3.1-8b", EIGHT, {"dp": 128}, 62.0),
    *(
        (f"table 2, {32 * cp}k", "llama-3.1-8b", FULL | {"sequence": 32768 * cp}, layout, peak)
        for cp, layout, peak in (
            (1, {"dp": 8}, 83.9),
            (2, {"dp": 4, "cp": 2}, 84.2),
            (4, {"dp": 2, "cp": 4}, 84.0),
            (8, {"dp": 1, "cp": 8}, 84.5),
        )
    ),
    (
        "table 4, FSDP 32 TP 8",
        "llama-3.1-70b",
        FULL | {"micro_batch": 16, "sequence": 8192},
        TWO,
        71.9,
    ),
    ("table 5, FSDP 8 TP 8 PP 8", "llama-3.1-405b", FOUR, PIPE, 82.5),
    ("table 5, interleaved", "llama-3.1-405b", FOUR, CHUNKS, 72.7),
    *(
        (f"table 6, {tokens >> 10}k", "llama-3.1-405b", recipe, layout, peak)
        for (tokens, recipe, layout), peak in zip(LONG, (75.3, 75.9, 77.1, 84.9), strict=True)
    ),
    ("H200, 4 machines", "llama-3.1-8b", COMPILED, {"dp": 32}, 47.96),
    ("H200, 8 machines", "llama-3.1-8b", COMPILED, {"dp": 64}, 46.97),
]
"""Row, model, recipe, layout and GiB. torchtitan splits a pipeline's batch into as many as stages.

The last two are of llama3-8b_h200_202506_trainy-whitefiber.md at b5bcd76, when torchtitan compiled
the loss.
"""
