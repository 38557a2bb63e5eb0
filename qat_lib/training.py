"""Public path of ``qat_lib.keras.training``."""

from qat_lib.keras.training import *  # noqa: F403
from qat_lib.keras.training import __all__  # noqa: F401
