"""What `tools/fuzz_admission` and the tests of hostile models damage, run and look at."""
