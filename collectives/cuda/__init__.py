"""Arrays in the memory of NVIDIA's GPUs; the driver is loaded at the first such array."""
