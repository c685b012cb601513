"""Communication between ranks: identity of the library, process groups, worlds of ranks."""
