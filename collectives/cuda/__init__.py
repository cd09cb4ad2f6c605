"""Arrays in the memory of NVIDIA's GPUs, for blocking calls; the driver is loaded at the first such array."""
