"""Reads what profilers captured, and says what it shows. Importing it imports nothing heavy.

- ``model``: a summary in columns, and its tables in words.
- ``reading``: the reader of a file, among those of all vendors; ``kineto`` reads torch's traces,
  ``key_averages`` its printed tables, ``iprof`` what THAPI prints.
- ``kernel_names``: the category and library of a kernel by its name.
- ``arrays``, ``ranges``, ``summary``: busy and exposed time, by device, kernel and range.
- ``compare``, ``diagnose``: two summaries compared; what bounds a run, with evidence.
- ``timeline``: a capture for Perfetto.

``portagpu.facts.captures`` has the form in which captures are read.
"""
