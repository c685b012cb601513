"""Keeps runs in a store, and says what changed between them. Importing it imports nothing heavy.

- ``documents``: a result or a bundle from a file, checked for what no store may hold.
- ``tables``, ``migrations``, ``database``, ``store``: the tables in SQLite or PostgreSQL, and what
  is asked of them; they need the extra ``history``, and PostgreSQL also ``postgres``.
- ``importing``: files and folders into a store, and back.
- ``model``: runs and measures as plain data. ``selection``: a set of runs, from words.
- ``compare``, ``trend``, ``regressions``, ``outliers``: pure functions over that data.
  ``changepoints`` has the statistics of regressions.

``docs/history.md`` describes all of it.
"""
