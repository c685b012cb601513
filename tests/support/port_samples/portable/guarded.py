"""Portable as it is: every use is behind a question."""
import torch

use_cuda = torch.cuda.is_available()
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
backend = "nccl" if use_cuda else "gloo"
dtype = "bf16" if torch.cuda.is_available() and torch.cuda.is_bf16_supported() else "fp16"
try:
    import flash_attn
except ImportError:
    flash_attn = None


def memory() -> int:
    if not torch.cuda.is_available():
        return 0
    return torch.cuda.max_memory_allocated()


def train(model, x, rank):
    if use_cuda:
        torch.cuda.synchronize()
        model = model.cuda()
    if device.type == "cuda":
        torch.cuda.set_device(rank)
    if torch.cuda.device_count() > 1:
        model = torch.nn.DataParallel(model)
    else:
        x = x.to(device)
    if x.is_cuda:
        torch.cuda.empty_cache()
    return model.to(device), x, {"cuda": 1}, rank
