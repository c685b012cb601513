"""Runs a command under a profiler, and says what captures show."""
