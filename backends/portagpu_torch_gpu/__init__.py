"""The common part of backends whose devices torch reaches through ``torch.cuda``.

torch uses one module for two vendors, and both backends are built on this package. It names no
vendor: differences are parameters. Nothing here imports torch before a device is counted or opened.
"""
