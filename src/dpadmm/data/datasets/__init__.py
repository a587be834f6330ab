"""Data sets with a name: UCI Adult, and made-up rows."""
