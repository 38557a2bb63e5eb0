"""From a float model to a checked INT8 engine: metrics, trials of engines, and ``optimize``."""

from qat_lib.optimization.optimize import Attempt, Optimized, optimize

__all__ = ["Attempt", "Optimized", "optimize"]
