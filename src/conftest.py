"""Modules whose packages are missing have no examples to run."""

from importlib.util import find_spec

collect_ignore = [] if find_spec("torch") else ["fewbit/tuning"]
