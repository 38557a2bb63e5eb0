"""Artifacts of the steps: one class each for its files and keys.

A class is made from the output directory of its step. It reads a file when it is asked for it and
checks it then: ``qat_lib.errors.StepError`` says what was expected and received, and which
step to run again. A key that older runs don't have has a default.
"""

from qatline.components.artifacts.dataset import Dataset
from qatline.components.artifacts.engines import Engines
from qatline.components.artifacts.evaluation import Evaluation, ResultRow
from qatline.components.artifacts.exported import Exported
from qatline.components.artifacts.models import Baseline, FineTuned, Quantized
from qatline.components.artifacts.promotion import Promotion, Verdict

__all__ = [
    "Baseline",
    "Dataset",
    "Engines",
    "Evaluation",
    "Exported",
    "FineTuned",
    "Promotion",
    "Quantized",
    "ResultRow",
    "Verdict",
]
