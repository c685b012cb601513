"""Runs as lines of OCP Test & Validation Output 2.0."""
