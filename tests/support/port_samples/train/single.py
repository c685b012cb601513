"""One process: methods, literals, autocast, scaler. Prints a loss for each step."""
import torch
from torch import nn
from torch.cuda.amp import GradScaler

torch.manual_seed(0)
device = "cuda"
model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = GradScaler()
for step in range(4):
    x = torch.randn(32, 8).cuda(non_blocking=True)
    y = x.sum(dim=1, keepdim=True).to(device)
    loss = nn.functional.mse_loss(model(x), y)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    torch.cuda.synchronize()
    print(f"loss {loss.item():.6f}")
