"""From `speculate`, `draft` and `draft_tokens` to what guesses tokens for a model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ..devices.mtp import MtpExecutor
from ..engine.speculation.draft_model import ModelDrafter
from ..engine.speculation.lookup import LookupDrafter
from ..engine.speculation.mtp import MtpDrafter
from ..engine.speculation.speculation import Speculation
from ..errors import RequestError
from ..files.hub import find
from ..load_options import LoadOptions
from ..loading import Loaded, load
from ..models import open_model
from ..text.tokenizer import Tokenizer

LOOKUP_TOKENS, MODEL_TOKENS, MTP_TOKENS = 16, 4, 3  # of a draft, unless an option says otherwise


def make_speculation(options: LoadOptions, loaded: Loaded, tokenizer: Tokenizer) -> Speculation | None:
    """What guesses tokens for a model; None if nothing does.

    Args:
        options: What the user chose.
        loaded: The model.
        tokenizer: Its tokenizer.
    """
    if options.draft is not None:
        if options.speculate != "auto":
            raise RequestError(f'draft is used with speculate="auto", not with speculate="{options.speculate}"')
        if not isinstance(loaded.executor, MtpExecutor):  # else it is an EAGLE head
            return Speculation(_draft_model(options, loaded, tokenizer))
    if options.speculate not in ("auto", "ngram", "mtp", "off"):
        raise RequestError(f'speculate must be "auto", "ngram", "mtp" or "off", got {options.speculate!r}')
    if isinstance(loaded.executor, MtpExecutor):
        return Speculation(MtpDrafter(loaded.executor, options.draft_tokens or MTP_TOKENS))
    if loaded.is_encoder or options.speculate == "off" or (options.speculate == "auto" and loaded.executor.runs_ahead):
        return None
    return Speculation(LookupDrafter(options.draft_tokens or LOOKUP_TOKENS))


def _draft_model(options: LoadOptions, loaded: Loaded, tokenizer: Tokenizer) -> ModelDrafter:
    assert options.draft is not None
    path = find(options.draft, progress=options.progress)
    file = open_model(path)
    _check_tokens(path, Tokenizer.from_metadata(file.tokenizer()), tokenizer)
    ctx = min(loaded.ctx, file.config.get("context_length", loaded.ctx))
    small = replace(options, model=path, ctx=ctx, draft=None, cache_bytes=None, cache_dir=None, gpu_layers=None,
                    cpu_experts=None)  # fmt: skip
    if small.tensor_parallel is not None:  # too small to be worth it
        small = replace(small, tensor_parallel=None, device=small.device.partition(",")[0])
    draft = load(file, small)
    if draft.is_encoder:
        raise RequestError(f"{path.name}: the draft model is an encoder and writes no text")
    return ModelDrafter(draft.executor, draft.cache, loaded.executor.vocab, options.draft_tokens or MODEL_TOKENS)


def _check_tokens(path: Path, draft: Tokenizer, tokenizer: Tokenizer) -> None:
    """Refuse a draft model whose token ids mean something else."""
    for token in range(min(draft.vocab_size, tokenizer.vocab_size)):
        if draft.token_text(token) != tokenizer.token_text(token):
            raise RequestError(
                f"{path.name}: a draft model must have the tokens of the model, but token {token} is "
                f"{draft.token_text(token)!r} there and {tokenizer.token_text(token)!r} in the model"
            )
