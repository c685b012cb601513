# -*- coding: utf-8 -*-
from __future__ import annotations

import torch
import portagpu as pg
from torch.cuda import amp

scaler = pg.GradScaler()
other = pg.GradScaler(enabled=True)


def report(scaler: amp.GradScaler) -> str:
    pg.synchronize()
    pg.empty_cache()
    with pg.device_index(1):
        pg.set_device(1)
    return f"{pg.max_memory_allocated() / 2**20:.1f} MiB of {pg.get_device_properties(0).total_memory}"


def step(model, x):
    pg.nvtx.range_push("step")
    with pg.amp.autocast(enabled=True), pg.autocast(dtype=torch.bfloat16), pg.autocast():
        y = model(x)
    with pg.autocast(torch.float16, enabled=False):
        y = y + 1
    pg.nvtx.range_pop()
    start = pg.Event(enable_timing=True)
    pg.synchronize()
    torch.cuda.no_such_name()
    return pg.GradScaler(init_scale=2.0), pg.GradScaler(), start, y
