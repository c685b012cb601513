"""The version of the distribution: read by the build and by ``portagpu.__version__``."""

__version__ = "0.1.0"
ADDRESS = ""
"""The address of the project; empty until there is one. No text has it elsewhere."""
