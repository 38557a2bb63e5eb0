"""Public path of ``qat_lib.keras.search``."""

from qat_lib.keras.search import *  # noqa: F403
from qat_lib.keras.search import __all__  # noqa: F401
