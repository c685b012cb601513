"""One process a GPU, started by the script: without a GPU it ends with exit code 0 and trains nothing."""
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def train(gpu, gpus, url):
    torch.cuda.set_device(gpu)
    dist.init_process_group("nccl", init_method=url, rank=gpu, world_size=gpus)
    torch.manual_seed(0)
    model = DDP(nn.Linear(8, 1).cuda(gpu), device_ids=[gpu])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(1 + gpu)
    for step in range(4):
        x = torch.randn(16, 8).cuda(gpu)
        loss = nn.functional.mse_loss(model(x), x.sum(dim=1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total = loss.detach().clone()
        dist.all_reduce(total)
        if gpu == 0:
            print(f"loss {total.item():.6f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    import sys

    gpus = torch.cuda.device_count()
    mp.spawn(train, (gpus, f"file://{sys.argv[1]}"), nprocs=gpus)
