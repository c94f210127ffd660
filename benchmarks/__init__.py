"""Measurements, one module a question. `python -m benchmarks [NAME …]` runs them and writes `results/NAME.json`."""
