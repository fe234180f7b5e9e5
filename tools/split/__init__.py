"""What `tools/check_split` divides, and how it compares."""
