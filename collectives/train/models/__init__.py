"""Networks in NumPy: parameters and their gradients, layers, the loss, and two ready-made classifiers."""
