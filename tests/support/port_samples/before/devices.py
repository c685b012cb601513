"""Devices: literals, numbers, methods, defaults."""
import argparse
import os

import torch
from torch import nn

DEVICE = "cuda"
parser = argparse.ArgumentParser()
parser.add_argument("--device", default="cuda:0", help="where to train")  # kept: cuda in a help text
parser.add_argument("--backend", default="nccl")
parser.add_argument("--name", default="cuda")


class Trainer:
    def __init__(self, model: nn.Module, device: str = "cuda") -> None:
        self.gpu_id = int(os.environ.get("LOCAL_RANK", 0))
        self.model = model.to(self.gpu_id)
        self.other = nn.Linear(2, 2).cuda()
        self.mapped = f"cuda:{self.gpu_id}"

    def load(self, path: str) -> None:
        where = "cuda:%d" % self.gpu_id
        self.model.load_state_dict(torch.load(path, map_location=where))
        self.model.load_state_dict(torch.load(path, "cuda"))
        self.model.load_state_dict(torch.load(path, map_location="cuda:" + str(self.gpu_id)))

    def step(self, x, y):
        x = x.cuda(self.gpu_id, non_blocking=True)
        y = y.cuda( non_blocking = True )
        z = torch.zeros(4, device="cuda") + torch.ones(4, device=self.gpu_id)
        w = torch.randn(4).to("cuda:1", torch.float16).to(torch.device("cuda", self.gpu_id))
        rng = torch.Generator(device="cuda")
        print(f"using cuda:{self.gpu_id}", "cuda", x.to("cpu"), x.to(torch.float16), {"device": "cuda"})
        return x, y, z, w, rng, torch.device(f"cuda:{self.gpu_id}"), torch.device("cuda"), x.cuda("cuda:1"), x.cuda(f"cuda:{self.gpu_id}")


def whole(load):
    args = ("cuda:1",) + (1,)
    return load("a/model", device_map="cuda"), load("a/model", device_map="auto"), args
