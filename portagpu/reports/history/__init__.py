"""Keeps runs in a store, and says what changed between them. Importing it imports nothing heavy.

- ``documents``: a result or a bundle from a file, checked for what no store may hold.
- ``database``, ``migrations``, ``store``, ``files``: the tables in SQLite or PostgreSQL, what is
  asked of them, and files and folders into a store and back; they need the extra ``history``, and
  PostgreSQL also ``postgres``.
- ``model``: runs and measures as plain data, and a set of runs from words.
- ``compare``, ``regressions``: pure functions over that data.

``docs/matrix.md`` describes all of it.
"""
