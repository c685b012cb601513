"""What backends share whose devices torch reaches through ``torch.cuda``.

torch gives one module to two vendors, so both their backends are written over this package, and
neither over the other. It names no vendor: what differs is passed in. Nothing here imports torch
before a device is counted or opened.
"""
