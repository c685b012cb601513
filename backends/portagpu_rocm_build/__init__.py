"""Building for AMD GPUs without one: clang for C++ kernels, and reading what Triton built."""
