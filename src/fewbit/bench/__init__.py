"""What this machine can do, and how fast fewbit is on it: the figures of `fewbit doctor`, `table` and `bench`."""
