"""Benchmarks in the format of the OSU Micro-Benchmarks: ``python -m collectives bench NAME``."""
