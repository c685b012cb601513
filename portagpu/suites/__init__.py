"""The engines of conformance, searches, performance, collectives and compiled kernels."""
