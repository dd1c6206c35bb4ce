"""GPU kernels run on the CPU, so that they can be tested where there is no GPU: slow, and the same source."""
