"""`rl train dqn` from process start to its first training step, where the process ends at once: timed from outside, in
the current folder.
"""

import os
import sys

from rl.__main__ import main
from rl.optimizers import Adam

Adam.step = lambda self: os._exit(0)  # type: ignore[method-assign]
sys.argv[1:] = ["train", "dqn", "--total-steps", "8", "--learning-starts", "4", "--batch-size", "8", "--device", "cpu"]
try:
    main()
except SystemExit:
    sys.exit("start_rl.py: the run ended before its first training step")
