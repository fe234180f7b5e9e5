"""The planning child: one request at a time, answered from frozen data."""
