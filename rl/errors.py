"""The two errors that a user can mend; the command line prints their message alone and exits with their code."""


class UsageError(ValueError):
    """What was asked for cannot be done on any machine: an unknown name, a value out of range. Exit code 2."""

    exit_code = 2


class RunError(RuntimeError):
    """What was asked for failed here: no such device, a folder that cannot be written, a broken file. Exit code 1."""

    exit_code = 1


class NotFiniteError(RunError):
    """A nan or an infinity where training cannot go on with one."""
