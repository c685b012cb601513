"""Random programs of casts, arithmetic, sums, indexing, gradients and attention."""
