"""Measured selection: ``python -m collectives tune`` measures here and writes a table that the library chooses by."""
