"""Devices: literals, numbers, methods, defaults."""
import argparse
import os

import torch
import portagpu as pg
from torch import nn

DEVICE = pg.device().type
parser = argparse.ArgumentParser()
parser.add_argument("--device", default=str(pg.device(0)), help="where to train")  # kept: cuda in a help text
parser.add_argument("--backend", default=pg.backend().comm.init_string)
parser.add_argument("--name", default="cuda")


class Trainer:
    def __init__(self, model: nn.Module, device: str = pg.device().type) -> None:
        self.gpu_id = int(os.environ.get("LOCAL_RANK", 0))
        self.model = model.to(pg.device(self.gpu_id))
        self.other = nn.Linear(2, 2).to(pg.device())
        self.mapped = str(pg.device(self.gpu_id))

    def load(self, path: str) -> None:
        where = str(pg.device(self.gpu_id))
        self.model.load_state_dict(torch.load(path, map_location=where))
        self.model.load_state_dict(torch.load(path, pg.device().type))
        self.model.load_state_dict(torch.load(path, map_location=pg.device(self.gpu_id)))

    def step(self, x, y):
        x = x.to(pg.device(self.gpu_id), non_blocking=True)
        y = y.to( pg.device(), non_blocking=True)
        z = torch.zeros(4, device=pg.device()) + torch.ones(4, device=pg.device(self.gpu_id))
        w = torch.randn(4).to(pg.device(1), torch.float16).to(pg.device(self.gpu_id))
        rng = torch.Generator(device=pg.device())
        print(f"using cuda:{self.gpu_id}", "cuda", x.to("cpu"), x.to(torch.float16), {"device": pg.device().type})
        return x, y, z, w, rng, pg.device(self.gpu_id), pg.device(), x.to(pg.device(1)), x.to(pg.device(self.gpu_id))


def whole(load):
    args = (str(pg.device(1)),) + (1,)
    return load("a/model", device_map=pg.device().type), load("a/model", device_map="auto"), args
