from portagpu.train.kernels import *
