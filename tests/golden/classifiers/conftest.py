"""Keeps the script that makes the classifiers out of the tests: it needs torch and transformers."""

collect_ignore = ["make.py"]
