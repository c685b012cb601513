"""Building for NVIDIA GPUs without one: NVRTC for C++ kernels, and reading what Triton built."""
