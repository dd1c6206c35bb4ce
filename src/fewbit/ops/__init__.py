"""What a model needs done: `graph` the operations, `numpy` the slow reference, `cpu` the native kernels."""
