"""`python -m rl.doctor`: the self-check alone, without the rest of the `rl` command."""

import sys

from rl.doctor import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
