"""Torch's own operators, over the samples of its own database, against float64 on the CPU.

The database is ``torch.testing._internal.common_methods_invocations.op_db``, which is in every
wheel. A program is one operator and one dtype: a pair. The areas list all pairs of a class
(:mod:`portagpu.suites.search.operators.calls`), so that nothing is drawn.
"""
