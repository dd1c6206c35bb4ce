"""More than one machine, over Ray. Nothing outside this package imports Ray."""
