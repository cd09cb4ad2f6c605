"""Waiting for operations under way, and handling those that do not end."""
