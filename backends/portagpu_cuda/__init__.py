"""NVIDIA: the backend over torch and NCCL, what is known of the vendor, and its tools' formats."""
