"""The commands. Data go to standard output, everything else to standard error."""
