"""Ranks of a launcher: nccl, set_device, device_ids, map_location. Prints a loss for each step."""
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

local_rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local_rank)
dist.init_process_group(backend="nccl")
torch.manual_seed(0)
model = DDP(nn.Linear(8, 1).to(local_rank), device_ids=[local_rank], output_device=local_rank)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
torch.manual_seed(1 + dist.get_rank())
for step in range(4):
    x = torch.randn(16, 8, device=f"cuda:{local_rank}")
    loss = nn.functional.mse_loss(model(x), x.sum(dim=1, keepdim=True))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    total = loss.detach().clone()
    dist.all_reduce(total)
    if dist.get_rank() == 0:
        print(f"loss {total.item():.6f}")
dist.barrier(device_ids=[local_rank])
dist.destroy_process_group()
