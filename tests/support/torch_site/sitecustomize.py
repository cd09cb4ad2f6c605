"""torch for an environment that has none: that of TORCH_SITE, behind what the environment has itself.

A folder on PYTHONPATH with this file does it for all processes of a job, those that a rank starts included.
"""

import os
import sys

sys.path.append(os.environ["TORCH_SITE"])
