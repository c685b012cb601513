"""What a vendor's package imports: the contract, readings, tables, captures and compilers.

A plugin that imports from here alone does not see how this package is arranged. The names of
training code are those of :mod:`portagpu` itself.
"""

from portagpu.base.lazy import lazy_names

__all__, __getattr__, __dir__ = lazy_names(__spec__)
