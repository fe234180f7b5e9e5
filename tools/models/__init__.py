"""Third-party models for tests, benchmarks and the quick start: where they are, what they eat."""
