"""The version of the distribution: read by the build and by ``portagpu.__version__``."""

from typing import Final

__version__: Final = "0.1.0"
