"""Devices: literals, numbers, methods, defaults."""
import argparse
import os

import torch
import portagpu as pg
from torch import nn

DEVICE = pg.device_string()
parser = argparse.ArgumentParser()
parser.add_argument("--device", default=pg.device_string(0), help="where to train")  # kept: cuda in a help text
parser.add_argument("--backend", default=pg.c10d_name())
parser.add_argument("--name", default="cuda")


class Trainer:
    def __init__(self, model: nn.Module, device: str = pg.device_string()) -> None:
        self.gpu_id = int(os.environ.get("LOCAL_RANK", 0))
        self.model = model.to(pg.device_string(self.gpu_id))
        self.other = nn.Linear(2, 2).to(pg.device_string())
        self.mapped = pg.device_string(self.gpu_id)

    def load(self, path: str) -> None:
        where = pg.device_string(self.gpu_id)
        self.model.load_state_dict(torch.load(path, map_location=where))
        self.model.load_state_dict(torch.load(path, pg.device_string()))
        self.model.load_state_dict(torch.load(path, map_location=pg.device_string(self.gpu_id)))

    def step(self, x, y):
        x = x.to(pg.device_string(self.gpu_id), non_blocking=True)
        y = y.to( pg.device_string(), non_blocking=True)
        z = torch.zeros(4, device=pg.device_string()) + torch.ones(4, device=pg.device_string(self.gpu_id))
        w = torch.randn(4).to(pg.device_string(1), torch.float16).to(torch.device(pg.device_string(self.gpu_id)))
        rng = torch.Generator(device=pg.device_string())
        print(f"using cuda:{self.gpu_id}", "cuda", x.to("cpu"), x.to(torch.float16), {"device": pg.device_string()})
        return x, y, z, w, rng, torch.device(pg.device_string(self.gpu_id)), torch.device(pg.device_string()), x.to(pg.device_string(1)), x.to(pg.device_string(self.gpu_id))


def whole(load):
    args = (pg.device_string(1),) + (1,)
    return load("a/model", device_map=pg.device_string()), load("a/model", device_map="auto"), args
