"""The pairs of texts that the golden logits are of."""

PAIRS = [
    ("what do pandas eat", "bamboo, mostly."),
    ("what do pandas eat", "paris is the capital of france"),
    ("a", "a much longer text than the others are, so that steps are ragged"),
]
