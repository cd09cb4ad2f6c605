"""torch's networks and optimizers as flat arrays. torch is imported in this folder only."""
