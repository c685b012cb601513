"""Reads what profilers captured, and says what it shows. Importing it imports nothing heavy.

- ``model``: a summary in columns, and what it is made of.
- ``reading``: the reader of a file, among those of all vendors; ``kineto`` reads torch's traces.
- ``kernel_names``: the category and library of a kernel by its name.
- ``intervals``, ``ranges``, ``summary``: busy and exposed time, by device, kernel and range.
- ``tables``: a summary in words, for a terminal and for a page.
- ``compare``, ``diagnose``: two summaries side by side; what bounds a run, with evidence.
- ``timeline``: a capture for Perfetto.

``portagpu.facts.captures`` has the form in which captures are read.
"""
