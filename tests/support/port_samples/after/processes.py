import os

import torch
import portagpu
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader

pg = None  # the name is taken


def worker(rank, world_size, backend=portagpu.c10d_name()):
    dist.init_process_group(portagpu.c10d_name(), rank=rank, world_size=world_size)
    portagpu.set_device(rank)
    group = dist.new_group(backend=portagpu.c10d_name(host=True))
    model = DDP(torch.nn.Linear(2, 2).to(portagpu.device_string(rank)), device_ids=[rank] if portagpu.device_string() != "cpu" else None, output_device=rank if portagpu.device_string() != "cpu" else None)
    DDP(torch.nn.Linear(2, 2), [rank] if portagpu.device_string() != "cpu" else None)
    dist.barrier(device_ids=[rank] if portagpu.device_string() != "cpu" else None)
    loader = DataLoader([1], pin_memory=portagpu.device_string() != "cpu")
    x = torch.zeros(2).pin_memory()
    y = x.pin_memory() if portagpu.device_string() != "cpu" else x
    model = torch.nn.SyncBatchNorm.convert_sync_batchnorm(model) if portagpu.device_string() != "cpu" else model
    if dist.get_backend() == "nccl":
        print(loader, group, y)


def main():
    assert portagpu.is_available(), "needs a GPU"
    world_size = portagpu.device_count()
    local = int(os.environ["LOCAL_RANK"]) % portagpu.device_count()
    torch.zeros(2, device=portagpu.device_string(local))
    if portagpu.device_count() < 2:
        print("Unable to locate sufficient 2 gpus")
        exit()
    mp.spawn(worker, (world_size,), nprocs=world_size)
