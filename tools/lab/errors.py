"""What goes wrong with a lab, as messages for people.

LabError
└── UsageError
"""

from __future__ import annotations


class LabError(Exception):
    """Could not be done here and now; the message says what to do."""


class UsageError(LabError):
    """Was asked for in a way that is never possible: a mistake in an option."""
