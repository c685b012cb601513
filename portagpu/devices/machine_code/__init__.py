"""The interface of vendors' compilers, and readers of machine code."""
