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
    with pg.amp.autocast(enabled=True), torch.autocast(pg.device_string(), dtype=torch.bfloat16), torch.autocast(device_type=pg.device_string()):
        y = model(x)
    with torch.amp.autocast(pg.device_string(), torch.float16, enabled=False):
        y = y + 1
    pg.nvtx.range_pop()
    start = pg.Event(enable_timing=True)
    pg.synchronize()
    torch.cuda.no_such_name()
    return torch.amp.GradScaler(pg.device_string(), init_scale=2.0), torch.amp.GradScaler(pg.device_string()), start, y
