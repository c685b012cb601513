import os
import subprocess

import apex
import flash_attn
import nvtx
import pynvml
import torch
from apex.normalization import FusedLayerNorm

os.environ["CUDA_VISIBLE_DEVICES"] = "0"
subprocess.run(["nvidia-smi", "-L"])
major, minor = torch.cuda.get_device_capability()
dtype = torch.bfloat16 if torch.cuda.get_device_capability()[0] >= 8 else torch.float16
fp8 = torch.cuda.get_device_capability() >= (8, 9)
torch.backends.cuda.matmul.allow_tf32 = True
old = torch.version.cuda < "12"
norm = FusedLayerNorm(8)
optimizer = apex.optimizers.FusedAdam(norm.parameters())
pynvml.nvmlInit()


@nvtx.annotate("step")
def step(x):
    g = torch.cuda.CUDAGraph()
    assert x.is_cuda and torch.cuda.FloatTensor
    return flash_attn, g, x.cuda()  # portagpu: ignore[PG001]


def trained_by_others():
    from pytorch_lightning import Trainer
    from transformers import AutoModel, TrainingArguments

    model = AutoModel.from_pretrained("x", attn_implementation="flash_attention_2")
    return Trainer(accelerator="gpu", devices=2), TrainingArguments("out", tf32=True), model


def limited():
    torch.cuda.set_per_process_memory_fraction(0.5)
