import os

import torch
import portagpu
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader

pg = None  # the name is taken


def worker(rank, world_size, backend=portagpu.backend().comm.init_string):
    dist.init_process_group(portagpu.backend().comm.init_string, rank=rank, world_size=world_size)
    portagpu.set_device(rank)
    group = dist.new_group(backend=portagpu.backend().comm.init_string)
    model = DDP(torch.nn.Linear(2, 2).to(portagpu.device(rank)), device_ids=portagpu.backend().comm.device_ids, output_device=portagpu.backend().comm.output_device)
    DDP(torch.nn.Linear(2, 2), portagpu.backend().comm.device_ids)
    dist.barrier(device_ids=portagpu.backend().comm.device_ids)
    loader = DataLoader([1], pin_memory=portagpu.supports("pinned-memory"))
    x = torch.zeros(2).pin_memory()
    y = (portagpu.pin(x) if portagpu.supports("pinned-memory") else x)
    model = (torch.nn.SyncBatchNorm.convert_sync_batchnorm(model) if portagpu.device().type != "cpu" else model)
    if dist.get_backend() == "nccl":
        print(loader, group, y)


def main():
    assert portagpu.is_available(), "needs a GPU"
    world_size = portagpu.device_count()
    local = int(os.environ["LOCAL_RANK"]) % portagpu.device_count()
    torch.zeros(2, device=portagpu.device(local))
    if portagpu.device_count() < 2:
        print("Unable to locate sufficient 2 gpus")
        exit()
    mp.spawn(worker, (world_size,), nprocs=world_size)
