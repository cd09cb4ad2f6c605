"""The algorithm of a call: defaults, tables, and what a call should take."""
