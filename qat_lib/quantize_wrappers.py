"""Public path of ``qat_lib.keras.wrappers``."""

from qat_lib.keras.wrappers import *  # noqa: F403
from qat_lib.keras.wrappers import __all__  # noqa: F401
