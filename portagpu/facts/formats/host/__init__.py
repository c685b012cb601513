"""Readers of the host's own outputs: the kernel's log, lspci, hwloc and NCCL's topology file."""
