"""The one exception a user's mistake may raise."""

from __future__ import annotations


class UserError(Exception):
    """A mistake of the caller's that the caller can mend.

    The message is one line naming the value, the place and the next command.
    ``suite.cli`` prints it to standard error and exits with 2; nothing else
    may catch it.
    """
