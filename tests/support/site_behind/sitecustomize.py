"""Packages of another environment, behind what an environment has itself: those in the folder SITE_BEHIND.

A folder on PYTHONPATH with this file does it for all processes of a job, those that a rank starts included.
"""

import os
import sys

sys.path.append(os.environ["SITE_BEHIND"])
