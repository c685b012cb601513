"""One device and its ranks: the contract, choosing a backend, training calls, collectives."""
