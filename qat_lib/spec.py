"""Public path of ``qat_lib.core.spec``."""

from qat_lib.core.spec import *  # noqa: F403
from qat_lib.core.spec import __all__  # noqa: F401
