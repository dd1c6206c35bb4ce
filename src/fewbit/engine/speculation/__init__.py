"""Speculation: drafts of the next tokens, which the model verifies in one step.

A drafter (drafter.py) guesses what comes next: from text that was there before (lookup.py), or by a smaller model
(draft_model.py). The request runs its guesses as further tokens of its row, with a sample after each of them. A guess
is kept if it is what was sampled in its place, by the request's own parameters and random numbers: so the output is
that of plain decoding from the same logits, whatever was guessed. How many tokens are guessed follows from what steps
cost and how often guesses were right (lengths.py).

To add a drafter: a class with the methods of `Drafter`, and a name for it in llm/drafting.py.
"""
