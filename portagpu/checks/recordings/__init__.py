"""Recordings of a machine: written without what names it, read as the machine itself."""
