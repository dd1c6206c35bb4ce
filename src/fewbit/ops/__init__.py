"""What a model needs done: `numpy` is the slow reference, `cpu` the native kernels."""
