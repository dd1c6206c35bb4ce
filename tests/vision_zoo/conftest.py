"""Keeps the scripts of this zoo out of the tests: they need torch and transformers."""

collect_ignore_glob = ["*.py"]
