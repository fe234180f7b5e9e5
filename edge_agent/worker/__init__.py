"""The serving child: opens the sessions of one epoch and answers requests."""
