"""The public names, each with its module, for type checkers and to load on first use."""



from portagpu.train.kernels.ops import copy as copy
from portagpu.train.kernels.ops import matmul as matmul
from portagpu.train.kernels.ops import quantize_fp8 as quantize_fp8
from portagpu.train.kernels.ops import rms_norm as rms_norm
from portagpu.train.kernels.ops import softmax as softmax
from portagpu.train.kernels.ops import sum as sum  # noqa: A004
from portagpu.train.kernels.ops import triad as triad
from portagpu.train.kernels.ops import adamw_step as adamw_step
from portagpu.train.kernels.plan import Config as Config
from portagpu.train.kernels.plan import Limits as Limits
from portagpu.train.kernels.tuning import NoConfig as NoConfig
from portagpu.train.kernels.tuning import tune as tune
