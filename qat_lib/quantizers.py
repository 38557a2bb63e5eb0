"""Public path of ``qat_lib.keras.quantizers``."""

from qat_lib.keras.quantizers import *  # noqa: F403
from qat_lib.keras.quantizers import __all__  # noqa: F401
