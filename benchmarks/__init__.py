"""Benchmarks: speed, accuracy, other libraries. Not part of the wheel."""
