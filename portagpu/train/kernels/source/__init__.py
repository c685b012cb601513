"""The Triton sources: one for every vendor, right on warps of 32 and waves of 64.

Importing a module of this package imports triton. Nothing here counts lanes, names a vendor or
asks for a number of warps: what differs between devices is in :mod:`portagpu.train.kernels.plan`.
"""
