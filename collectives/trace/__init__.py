"""Timelines: recording what all ranks did, and reading the records."""
