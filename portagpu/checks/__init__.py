"""Checks of a machine: bring-up, health, monitor, recordings, and why collectives hang."""
