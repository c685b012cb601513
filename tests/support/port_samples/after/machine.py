import os
import subprocess

import flash_attn
import pynvml
import torch
import portagpu as pg

os.environ["CUDA_VISIBLE_DEVICES"] = "0"
subprocess.run(["nvidia-smi", "-L"])
major, minor = torch.cuda.get_device_capability()
dtype = torch.bfloat16 if pg.is_bf16_supported(including_emulation=False) else torch.float16
fp8 = torch.cuda.get_device_capability() >= (8, 9)
torch.backends.cuda.matmul.allow_tf32 = True
old = torch.version.cuda < "12"
norm = torch.nn.LayerNorm(8)
optimizer = torch.optim.AdamW(norm.parameters())
pynvml.nvmlInit()


@pg.annotate("step")
def step(x):
    g = pg.CUDAGraph()
    assert (x.device.type == pg.device().type) and torch.cuda.FloatTensor
    return flash_attn, g, x.cuda()  # portagpu: ignore[PG001]


def trained_by_others():
    from pytorch_lightning import Trainer
    from transformers import AutoModel, TrainingArguments

    model = AutoModel.from_pretrained("x", attn_implementation="flash_attention_2")
    return Trainer(accelerator="gpu", devices=2), TrainingArguments("out", tf32=True), model


def limited():
    torch.cuda.set_per_process_memory_fraction(0.5) if pg.device_string() != "cpu" else None
