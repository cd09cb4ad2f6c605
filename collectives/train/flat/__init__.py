"""Parameters and gradients of a network as flat arrays, the same for NumPy's and torch's networks."""
