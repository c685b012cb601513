"""Silent corruption, looked for in a training loop; ``portagpu screen`` looks longer."""

from portagpu.base.errors import SilentCorruption
from portagpu.train.exact.training import TrainingScreen, parameter_digest

__all__ = ["SilentCorruption", "TrainingScreen", "parameter_digest"]
