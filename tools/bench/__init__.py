"""What the benchmarks and the quick start share: measured sides, a real agent, reports."""
