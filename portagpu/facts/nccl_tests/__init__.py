"""What nccl-tests and rccl-tests print, and bandwidth as they define it."""
