"""Kinds of objects: storages, streams of tensors, properties, seeds, classes that derive from torch's."""
import deepspeed
import torch
import portagpu as pg
import triton
from torch.nn.parallel import DistributedDataParallel


class Wrapped(DistributedDataParallel):
    pass


class Cast(torch.cuda.amp.autocast):
    pass


def resume(path, gpu, rank):
    torch.manual_seed(rank)
    torch.cuda.manual_seed_all(7)
    with torch.random.fork_rng(devices=[pg.current_device()] if pg.device_string() != "cpu" else []):
        state = torch.load(path, map_location=lambda storage, loc: storage.to(device=pg.device_string(gpu or None)))
    model = Wrapped(torch.nn.Linear(2, 2).to(pg.device_string(gpu)), device_ids=[gpu] if pg.device_string() != "cpu" else None)
    model.load_state_dict(state)
    return model


def step(model, batch):
    try:
        batch.record_stream(pg.current_stream()) if pg.device_string() != "cpu" else None
        return model(batch)
    except torch.cuda.OutOfMemoryError:
        properties = pg.get_device_properties(0)
        print(deepspeed, triton, torch.profiler.ProfilerActivity.CUDA, str(batch.device).split(":")[1])
        print(properties.total_memory, properties.major)
        raise
