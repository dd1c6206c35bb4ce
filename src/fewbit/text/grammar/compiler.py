"""Grammars for one model, compiled once and used by many outputs."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from functools import cached_property
from threading import Lock
from typing import TYPE_CHECKING, TypeAlias

from ...errors import RequestError
from ..tokenizer import Tokenizer
from .constraint import GrammarConstraint, StepwiseConstraint
from .grammar import Grammar
from .holding import one_sentence, unforced
from .limits import bounded, parser_limits
from .openings import OpeningConstraint, OpeningMark
from .packages import grammar_extra
from .staged import Stage, StagedConstraint, Trigger
from .triggers import TriggerWatch
from .vocabulary import GrammarVocabulary

if TYPE_CHECKING:
    from llguidance import LLMatcher

MAX_CACHED = 64  # compiled grammars

ConstraintFactory: TypeAlias = Callable[[], StepwiseConstraint]


class GrammarCompiler:
    """Makes constraints for the outputs of one model. It may be used by several threads.

    Args:
        tokenizer: The tokenizer of the model.
        eos_ids: The tokens that end an output. Default: those of the tokenizer.
        vocab: Number of tokens that have a logit. Default: those of the tokenizer.

    >>> metadata = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.tokens": ["a", "b", "ab", "<|im_end|>"],
    ...             "tokenizer.ggml.merges": ["a b"]}
    >>> compiler = GrammarCompiler(Tokenizer.from_metadata(metadata))
    >>> constraint = compiler.compile(Grammar.regex("ab+"))()
    >>> bin(constraint.mask()[0])
    '0b101'
    >>> constraint.accept(2)
    >>> bin(constraint.mask()[0])
    '0b1010'
    """

    def __init__(self, tokenizer: Tokenizer, eos_ids: Collection[int] | None = None, vocab: int | None = None) -> None:
        self._tokenizer = tokenizer
        self._eos_ids = frozenset(tokenizer.end_of_generation if eos_ids is None else eos_ids)
        self._vocab = tokenizer.vocab_size if vocab is None else vocab
        self._compiled: OrderedDict[Grammar, CompiledGrammar] = OrderedDict()
        self._lock = Lock()

    def compile(self, grammar: Grammar) -> ConstraintFactory:
        """A function that makes a constraint for one output.

        Raises:
            RequestError: The grammar is invalid, or over a limit.
        """
        with self._lock:
            found = self._compiled.get(grammar)
            if found is not None:
                self._compiled.move_to_end(grammar)
        if found is None or found.is_broken:
            found = CompiledGrammar(grammar, self.vocabulary)
            with self._lock:
                self._compiled[grammar] = found
                while len(self._compiled) > MAX_CACHED:
                    self._compiled.popitem(last=False)
        return found.constraint

    def lazily(self, triggers: Sequence[Trigger], *, repeats: bool = True) -> ConstraintFactory:
        """Free text until a trigger's text was written. Then the trigger's grammar holds.

        Args:
            triggers: Texts, and the grammars of what follows them.
            repeats: The text is free again after the grammar; otherwise the output ends.
        """
        if not triggers or not all(trigger.text for trigger in triggers):
            raise RequestError("a lazy grammar needs at least one trigger, and a trigger a text")
        followers = [self.compile(trigger.grammar) for trigger in triggers]
        watch = TriggerWatch([trigger.text.encode() for trigger in triggers], followers, self.vocabulary)
        stage = Stage(watch, self.vocabulary, repeats=repeats)
        return lambda: StagedConstraint(stage)

    def after(
        self, end: str, constraint: ConstraintFactory | None = None, max_tokens: int | None = None
    ) -> ConstraintFactory:
        """A free text, such as a thought, up to the text `end`; then a constraint holds the rest.

        Whitespace may stand between the two. With a constraint the output cannot end before `end`.

        Args:
            end: The text that ends the free part, such as "</think>".
            constraint: Of what follows. Default: free text.
            max_tokens: After so many tokens of free text `end` is forced. Default: never.
        """
        if not end:
            raise RequestError("the text that ends a thought must not be empty")
        watch = TriggerWatch([end.encode()], [constraint], self.vocabulary, allows_space=True)
        stage = Stage(watch, self.vocabulary, end=end, max_tokens=max_tokens, needs_end=constraint is not None)
        return lambda: StagedConstraint(stage)

    def opening(
        self, marks: Sequence[tuple[str, ConstraintFactory]], otherwise: ConstraintFactory | None
    ) -> ConstraintFactory:
        """An output whose beginning decides what holds the rest.

        Args:
            marks: Texts that it may begin with, such as "<think>", each with the constraint of what follows.
            otherwise: Of an output that begins with none of them. None: it is free.
        """
        vocabulary = self.vocabulary
        found = [OpeningMark(tuple(vocabulary.marker(text)), follower) for text, follower in marks]
        return lambda: OpeningConstraint(found, otherwise, vocabulary)

    @cached_property
    def vocabulary(self) -> GrammarVocabulary:
        """The tokens of the model. Made when it is first needed, which takes a second for a large vocabulary."""
        return GrammarVocabulary(self._tokenizer, self._eos_ids, self._vocab)


class CompiledGrammar:
    """A grammar for one vocabulary. Its constraints share what was found out about its regexes."""

    def __init__(self, grammar: Grammar, vocabulary: GrammarVocabulary) -> None:
        self._vocabulary = vocabulary
        self._matcher = _compiled(grammar, vocabulary)

    def constraint(self) -> GrammarConstraint:
        return GrammarConstraint(self._matcher.deep_copy(), self._vocabulary)

    @property
    def is_broken(self) -> bool:
        """Whether an error in one constraint has spoiled what all of them share."""
        copy = self._matcher.deep_copy()
        copy.compute_bitmask()
        return copy.is_error()


def _compiled(grammar: Grammar, vocabulary: GrammarVocabulary) -> LLMatcher:
    with grammar_extra():
        from llguidance import LLMatcher
    tokenizer, limits = vocabulary.llguidance, parser_limits()

    def compile_source(source: str) -> LLMatcher:
        source = source if vocabulary.is_complete else unforced(source)
        return bounded(lambda: LLMatcher(tokenizer, source, log_level=0, limits=limits))

    matcher = compile_source(grammar.source)
    is_relaxed = matcher.is_error() and grammar.kind == "schema"
    if is_relaxed:
        matcher = compile_source(grammar.relaxed_source)
    if matcher.is_error():
        raise RequestError(f"the {_NAMES[grammar.kind]} cannot be compiled: {one_sentence(matcher.get_error())}")
    if is_relaxed or (grammar.kind == "schema" and matcher.get_grammar_warnings()):
        grammar.check_schema()
    return matcher


_NAMES = {"schema": "JSON schema", "regex": "regex", "choice": "choice", "lark": "grammar"}
