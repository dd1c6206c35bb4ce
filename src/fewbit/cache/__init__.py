"""The KV cache: pages of tokens, shared between sequences that begin alike."""
