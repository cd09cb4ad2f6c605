"""Optimizers of networks in NumPy, and learning rates."""
