"""Measurements of the running parts; each module is run by itself: `python -m benchmarks.bench_NAME`."""
