"""Timelines: recording the calls of all ranks, and reading and drawing the records."""
