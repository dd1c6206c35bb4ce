"""Text: tokenizers, chat templates, and text that streams out token by token."""
