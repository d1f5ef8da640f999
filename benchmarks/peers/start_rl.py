"""`rl train dqn` from process start to its first training step, where the process ends at once: timed from outside, in
the current folder.
"""

import os
import sys

from torch.optim.optimizer import register_optimizer_step_post_hook

from rl.__main__ import main

register_optimizer_step_post_hook(lambda *_: os._exit(0))
sys.argv[1:] = ["train", "dqn", "--total-steps", "8", "--learning-starts", "4", "--batch-size", "8", "--device", "cpu"]
try:
    main()
except SystemExit:
    sys.exit("start_rl.py: the run ended before its first training step")
