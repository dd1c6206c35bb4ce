"""Grammars: what an output must look like, and which tokens may come next. Needs the extra `grammar`."""

from .compiler import ConstraintFactory, GrammarCompiler
from .grammar import Grammar
from .output_type import OutputType
from .staged import Trigger

__all__ = ["ConstraintFactory", "Grammar", "GrammarCompiler", "OutputType", "Trigger"]
