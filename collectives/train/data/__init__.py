"""Data sets, and the part of every batch that a rank works on."""
