"""Judges of a machine's devices: health, links, peers and host, each against facts or its like."""
