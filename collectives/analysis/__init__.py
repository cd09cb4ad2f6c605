"""Readers of schedules: proofs, costs, drawings; and formulas for the bytes that the node-local engine moves."""
