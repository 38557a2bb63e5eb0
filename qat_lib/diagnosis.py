"""Public path of ``qat_lib.keras.diagnosis``."""

from qat_lib.keras.diagnosis import *  # noqa: F403
from qat_lib.keras.diagnosis import __all__  # noqa: F401
