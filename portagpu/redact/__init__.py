"""Finds what names a machine, its user or a device, and takes it out of texts."""
