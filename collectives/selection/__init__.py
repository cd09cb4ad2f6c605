"""Which algorithm serves a call: default rules, selection tables, and expected times."""
