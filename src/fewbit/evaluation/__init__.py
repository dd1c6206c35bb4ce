"""How good a model is, and what its weights must keep: perplexity, KL divergence, multiple choice, importance."""

from .calibration import Calibration, calibrate
from .choices import ChoiceScores, evaluate_choices
from .evaluating import evaluate
from .results import Divergence, Evaluation

__all__ = ["Calibration", "ChoiceScores", "Divergence", "Evaluation", "calibrate", "evaluate", "evaluate_choices"]
