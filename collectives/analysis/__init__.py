"""Readers of schedules: proofs, costs and drawings; what the node-local engine moves, as formulas."""
