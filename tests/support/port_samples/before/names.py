# -*- coding: utf-8 -*-
from __future__ import annotations

import torch
import torch.cuda as tc
import torch.cuda.nvtx as nvtx
from torch import cuda
from torch.cuda import amp
from torch.cuda.amp import GradScaler, autocast as cast

scaler = GradScaler()
other = amp.GradScaler(enabled=True)


def report(scaler: amp.GradScaler) -> str:
    tc.synchronize()
    cuda.empty_cache()
    with tc.device(1):
        torch.cuda.set_device(1)
    return f"{torch.cuda.max_memory_allocated() / 2**20:.1f} MiB of {tc.get_device_properties(0).total_memory}"


def step(model, x):
    nvtx.range_push("step")
    with cast(enabled=True), torch.autocast("cuda", dtype=torch.bfloat16), torch.autocast(device_type="cuda"):
        y = model(x)
    with torch.amp.autocast('cuda', torch.float16, enabled=False):
        y = y + 1
    nvtx.range_pop()
    start = torch.cuda.Event(enable_timing=True)
    torch.accelerator.synchronize()
    torch.cuda.no_such_name()
    return torch.amp.GradScaler("cuda", init_scale=2.0), torch.amp.GradScaler(), start, y
