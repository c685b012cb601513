"""What training code uses beyond a device: parallel layouts, plans, kernels, ported programs."""
