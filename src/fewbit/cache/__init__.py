"""The KV cache: pages of tokens, shared between sequences with the same prefix."""
