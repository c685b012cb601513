"""What a profiler captured, in one form for every vendor. Importing it imports nothing heavy.

- ``model``: the columns of events and what else a capture holds, the one place that names them;
  pyarrow, or the sentence that says how to install it; how much a gzip may hold.
- ``labels``: name, domain and labels of an annotation as one text.
- ``columns``: values of an untrusted file as columns of the schema; ranges that carry our labels.
- ``sqlite``, ``json_stream``, ``text_tables``: untrusted files, in batches.
- ``marked_blocks``: blocks of a program, for whichever profiler listens; it imports torch.
- ``profilers``: what a vendor's package says of its profiler, to launch it and to read its output.

Readers are modules of the packages that are the part ``captures`` of a vendor's package: each has
``KIND`` (the format's name), ``matches(head, path)`` (whether a file is of it, from its first 64
KiB, unpacked) and ``read(path)``, which returns a :class:`portagpu.facts.captures.model.Capture` or
raises :class:`portagpu.facts.readings.FormatError`. One that can leave columns out has
``read_columns(path, columns)`` too. ``portagpu.traces.analysis`` finds the reader of a file, and
computes summaries, comparisons and findings."""
