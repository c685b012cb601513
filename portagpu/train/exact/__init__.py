"""Work whose result has the same bits in any order of its sums, on any device and library.

Operands are integers times powers of two, made by a generator of counters that gives the same on
host and device (``probe``). So every result is judged, and without a threshold (``judge``).
``probes`` lists what is run.
"""
