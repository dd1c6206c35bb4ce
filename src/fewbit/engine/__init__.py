"""The engine: tokens in, tokens out, for many requests at once. It knows no text."""
