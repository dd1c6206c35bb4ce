"""What a model says of texts by labels: rerankers, classifiers, and labels that continue a prompt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

import numpy as np

from ..arrays import Floats
from ..engine.adapters import Adapter
from ..errors import RequestError
from ..validation import to_flag, to_size
from .callers import BlockingCaller, Caller, LoopCaller, drive, run
from .chat import ChatMessage
from .progress import Progress
from .prompts import Prompt
from .ranking import VERDICTS, LabelHead, LabelScorer, PairEncoder, RankedText, check_texts, ranked
from .reader import TextReader
from .score import label_scorings, probabilities


class LabelReader(TextReader):
    """A model that sorts texts and gives them labels."""

    head: LabelHead | None  # labels of its own

    def rank(
        self, query: str, texts: Sequence[str], *, top_n: int | None = None, instruction: str | None = None,
        truncate: bool = False, progress: Progress = False,
    ) -> list[RankedText]:  # fmt: skip
        """Sort texts by how well they answer a query, with a reranker.

            for found in llm.rank("What do pandas eat?", ["Bamboo, mostly.", "Paris is in France."]):
                print(f"{found.score:.3f} {found.text}")

        Rerankers are encoders with a head of one label (BERT, RoBERTa, ModernBERT), and Qwen3-Reranker.

        Args:
            query: The query.
            texts: The texts.
            top_n: How many of the best to return. Defaults to all.
            instruction: What makes a text a good one, for models that judge by an instruction, such as Qwen3-Reranker.
            truncate: Cut texts that do not fit into the context with the query. Otherwise they are refused.
            progress: Show the progress on standard error, or call a function with (done, total).
        """
        return drive(self._rank(BlockingCaller(), query, texts, top_n, instruction, truncate, progress))

    async def arank(
        self, query: str, texts: Sequence[str], *, top_n: int | None = None, instruction: str | None = None,
        truncate: bool = False, progress: Progress = False,
    ) -> list[RankedText]:  # fmt: skip
        """`rank` that does not block the event loop."""
        return await self._rank(LoopCaller(), query, texts, top_n, instruction, truncate, progress)

    def encode_pair(
        self, query: str, text: str, instruction: str | None = None, name: str = "the text", truncate: bool = False
    ) -> list[int]:
        """The token ids that `rank` makes of a query and a text.

        Args:
            query: The query.
            text: The text.
            instruction: As in `rank`.
            name: What errors call the text.
            truncate: Cut a text that does not fit.
        """
        head = self._labels()
        return PairEncoder(self.tokenizer, self.engine, head, self.loaded.second_text).encode(
            query, text, instruction, name, truncate
        )

    async def aclass_logits(self, texts: Sequence[list[int]], progress: Progress = False) -> Floats:
        """The logits of the labels of `head` for texts of token ids, (texts, labels)."""
        return await self._class_logits(LoopCaller(), texts, progress)

    @overload
    def classify(
        self, prompt: Prompt | Sequence[ChatMessage], labels: Sequence[str],
        *, separator: str | None = None, per_token: bool = False, namespace: str = "",
        adapter: Adapter = None,
    ) -> dict[str, float]: ...  # fmt: skip
    @overload
    def classify(self, prompt: Prompt, labels: None = None) -> dict[str, float]: ...
    def classify(
        self, prompt: Prompt | Sequence[ChatMessage], labels: Sequence[str] | None = None,
        *, separator: str | None = None, per_token: bool = False, namespace: str = "",
        adapter: Adapter = None,
    ) -> dict[str, float]:  # fmt: skip
        """How likely each label is to continue a prompt: probabilities that add up to 1, the likeliest label first.

            llm.classify("The capital of France is", ["Paris", "London"])

        A classifier, a model with a head for labels of its own, gives their probabilities if no labels are given; where
        several of its labels may hold at once, they do not add up to 1.

        Only the labels are compared: how likely the model is to write something else does not count. The prompt runs
        once for all of them.

        Args:
            prompt: Text, token ids, or messages, which the chat template turns into a prompt for an answer.
            labels: Different texts. After token ids and messages they are tokenized on their own. Defaults to those of
                a classifier.
            separator: What stands between the prompt and a label. Default: a space after text that does not end with
                white space, if the label does not begin with it; else nothing.
            per_token: Compare the mean log-probability of a label's tokens, not the sum, which favours short labels.
            namespace: Requests share cached prefixes within one namespace only.
            adapter: A loaded LoRA adapter, or several with weights, for labels that continue a prompt.
        """
        return drive(self._classify(BlockingCaller(), prompt, labels, separator, per_token, namespace, adapter))

    async def aclassify(
        self, prompt: Prompt | Sequence[ChatMessage], labels: Sequence[str] | None = None,
        *, separator: str | None = None, per_token: bool = False, namespace: str = "",
        adapter: Adapter = None,
    ) -> dict[str, float]:  # fmt: skip
        """`classify` that does not block the event loop."""
        return await self._classify(LoopCaller(), prompt, labels, separator, per_token, namespace, adapter)

    def _labels(self) -> LabelHead:
        if self.head is None:
            raise RequestError("the model has no head for labels: it is neither a reranker nor a classifier")
        return self.head

    async def _class_logits(self, caller: Caller, texts: Sequence[list[int]], progress: Progress) -> Floats:
        self._labels()
        verdicts = [] if self.loaded.classifier else [self.tokenizer.encode(text)[0] for text in VERDICTS]
        scorer = await caller.compute(lambda: LabelScorer(self.engine, self.loaded, verdicts, texts))
        await run(self._worker, scorer.requests, caller, scorer.take, progress)
        return scorer.result()

    async def _rank(
        self, caller: Caller, query: str, texts: Sequence[str], top_n: int | None, instruction: str | None,
        truncate: bool, progress: Progress,
    ) -> list[RankedText]:  # fmt: skip
        head, is_cut = self._labels(), to_flag(truncate, "truncate")
        most = None if top_n is None else to_size(top_n, "top_n", 1, error=RequestError)
        documents = check_texts(texts)
        if not head.ranks:
            head.relevance(np.empty((0, len(head.labels)), np.float32))

        def encoded() -> list[list[int]]:
            return [
                self.encode_pair(query, text, instruction, f"text {number}", is_cut)
                for number, text in enumerate(documents)
            ]

        logits = await self._class_logits(caller, await caller.compute(encoded), progress)
        return ranked(documents, head, logits, most)

    async def _own_labels(self, caller: Caller, text: Prompt) -> dict[str, float]:
        head = self._labels()
        tokens = await caller.compute(lambda: self.encode_text(text))
        values = head.probabilities(await self._class_logits(caller, [tokens], False))[0].tolist()
        return dict(sorted(zip(head.labels, values, strict=True), key=lambda item: -item[1]))

    async def _classify(
        self, caller: Caller, prompt: Prompt | Sequence[ChatMessage], labels: Sequence[str] | None,
        separator: str | None, per_token: bool, namespace: str, adapter: Adapter,
    ) -> dict[str, float]:  # fmt: skip
        if labels is None:
            return await self._own_labels(caller, prompt)  # type: ignore[arg-type]
        is_mean = to_flag(per_token, "per_token")
        requests = await caller.compute(
            lambda: label_scorings(self._prompts, self.chat_prompt, prompt, labels, separator, namespace, adapter)
        )
        await run(self._worker, requests, caller)
        return probabilities(labels, requests, is_mean)
