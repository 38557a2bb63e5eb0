"""Public path of ``qat_lib.core.plan``."""

from qat_lib.core.plan import *  # noqa: F403
from qat_lib.core.plan import __all__  # noqa: F401
