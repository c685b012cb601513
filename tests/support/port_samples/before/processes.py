import os

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader

pg = None  # the name is taken


def worker(rank, world_size, backend="nccl"):
    dist.init_process_group("nccl", rank=rank, world_size=world_size)
    torch.cuda.set_device(rank)
    group = dist.new_group(backend="cpu:gloo,cuda:nccl")
    model = DDP(torch.nn.Linear(2, 2).cuda(rank), device_ids=[rank], output_device=rank)
    DDP(torch.nn.Linear(2, 2), [rank])
    dist.barrier(device_ids=[rank])
    loader = DataLoader([1], pin_memory=True)
    x = torch.zeros(2).pin_memory()
    y = x.pin_memory()
    model = torch.nn.SyncBatchNorm.convert_sync_batchnorm(model)
    if dist.get_backend() == "nccl":
        print(loader, group, y)


def main():
    assert torch.cuda.is_available(), "needs a GPU"
    world_size = torch.cuda.device_count()
    local = int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count()
    torch.zeros(2, device=local)
    if torch.cuda.device_count() < 2:
        print("Unable to locate sufficient 2 gpus")
        exit()
    mp.spawn(worker, (world_size,), nprocs=world_size)
