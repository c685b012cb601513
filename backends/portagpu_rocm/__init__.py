"""AMD: the backend over torch and RCCL, what is known of the vendor, and its tools' formats."""
