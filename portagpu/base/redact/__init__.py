"""Find and replace texts that identify a machine, its user or a device."""
