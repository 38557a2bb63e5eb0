"""Artifacts of the steps: one class each for its files and keys.

A class wraps the output directory of its step and reads files on demand. Invalid content raises
``qat_lib.errors.StepError`` with the expected and received values and the step to repeat. Keys
missing in older runs have defaults.
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
