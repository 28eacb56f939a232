"""Measurements of the running parts; run each module on its own: `python -m benchmarks.bench_NAME`."""
