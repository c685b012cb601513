"""Kinds of objects: storages, streams of tensors, properties, seeds, classes that derive from torch's."""
import deepspeed
import torch
import triton
from torch.nn.parallel import DistributedDataParallel


class Wrapped(DistributedDataParallel):
    pass


class Cast(torch.cuda.amp.autocast):
    pass


def resume(path, gpu, rank):
    torch.manual_seed(rank)
    torch.cuda.manual_seed_all(7)
    with torch.random.fork_rng(devices=[torch.cuda.current_device()]):
        state = torch.load(path, map_location=lambda storage, loc: storage.cuda(gpu))
    model = Wrapped(torch.nn.Linear(2, 2).cuda(gpu), device_ids=[gpu])
    model.load_state_dict(state)
    return model


def step(model, batch):
    try:
        batch.record_stream(torch.cuda.current_stream())
        return model(batch)
    except torch.cuda.OutOfMemoryError:
        properties = torch.cuda.get_device_properties(0)
        print(deepspeed, triton, torch.profiler.ProfilerActivity.CUDA, str(batch.device).split(":")[1])
        print(properties.total_memory, properties.major)
        raise
