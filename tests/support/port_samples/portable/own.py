import portagpu as pg
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

pg.backend().comm.init()
model = DDP(torch.nn.Linear(2, 2).to(pg.device()), device_ids=pg.backend().comm.device_ids)
with pg.autocast(torch.bfloat16):
    model(torch.zeros(2, device=pg.current_device()))
pg.synchronize()
dist.barrier(device_ids=pg.backend().comm.device_ids)
