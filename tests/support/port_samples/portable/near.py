"""Words of the rules that mean something else."""


class Cuda:
    def cuda(self):
        return self

    def to(self, rank):
        return rank


nccl = {"cuda": "nccl"}
text = "torch.cuda.synchronize()"  # model.cuda()
device_name_of_a_band = "cudatron"
print("cuda", text.replace("cuda", "x"), f"cuda:{text} was used", nccl)
