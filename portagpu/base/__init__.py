"""Errors, text, files and child processes: what every other room stands on."""
