"""Public path of ``qat_lib.keras.calibration``."""

from qat_lib.keras.calibration import *  # noqa: F403
from qat_lib.keras.calibration import __all__  # noqa: F401
