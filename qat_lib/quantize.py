"""Public path of ``qat_lib.keras.quantize``."""

from qat_lib.keras.quantize import *  # noqa: F403
from qat_lib.keras.quantize import __all__  # noqa: F401
